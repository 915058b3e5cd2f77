"""Finds the sites of a module, and judges each site with the rule that `idioms` names."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, ClassVar, Final

from . import idioms, rules_of_calls, rules_of_methods, rules_of_words
from .guards import guarded_by, is_chosen_by_release, tells_vendors_apart
from .idioms import Idiom
from .judging import (
    HIDDEN_ARGUMENTS,
    MAY_BE_OTHER_GPU,
    MAY_BE_STORAGE,
    NAMES_NO_VENDOR,
    JudgedModule,
    Judgement,
    Use,
    left_open,
    proven,
    string_value,
)
from .knowledge import SPELLING, framework_of
from .project import SCOPES
from .rules_of_calls import is_cuda_or_cpu_choice
from .sites import Site
from .values import inferred, is_only, may_be

Judged = tuple[Use, Judgement]
"""A use of a device, and the judgement on it."""

_RULES: Final[dict[str, Callable[[Use], Judgement]]] = {
    **vars(rules_of_calls),
    **vars(rules_of_methods),
}
"""Maps the names of rules in the tables of `idioms` to the functions."""
_ASKING_THE_SELECTED_BACKEND: Final = {"XD101", "XD102", "XD108", "XD110", "XD111", "XD151"}
"""The codes of idioms whose replacement depends on the selected backend. Other replacements recognize the backend by a
tensor in their arguments, except those of the rule "wait"."""
_WRITING_PYTORCHS_WORDS: Final = ("word", "text")
"""Rules that write PyTorch's own names, for which no backend needs to be selected."""
# names that only TensorFlow 1 has
_OF_TENSORFLOW_1: Final = {
    f"tensorflow.{name}"
    for name in ("placeholder", "Session", "get_variable", "variable_scope", "contrib")
}
# kinds of atoms for objects that are not on a device: their `.device` or `.cpu` has another
# meaning
_ON_NO_DEVICE: Final = ("foreign", "module", "class", "namespace")


_CUDA: Final = re.compile("cuda(:|$)")
"""The beginning of a string that names a device of CUDA."""


class JudgedSites(JudgedModule):
    """The sites of one module for the target "xdevice": each use of a device, with its
    verdict."""

    def sites(self) -> Iterator[Site]:
        """Yields the sites of the module; none if the module imports no framework. A node that
        is rewritten together with a use around it is not a site."""
        # if the module uses no framework, `x.cpu()` and the like have nothing to do with
        # devices
        if not self.frameworks:
            return
        consumed: set[ast.AST] = set()
        uses: list[Judged] = []
        # outer nodes come first, so that a use can consume the nodes inside it
        for node in self.nodes:
            judged = self._judge(node) if node not in consumed else None
            if judged is not None:
                uses.append(judged)
                for part in judged[1].consumed:
                    # these nodes are rewritten together with this use: separate edits would
                    # overlap
                    consumed.update(ast.walk(part))
        # only known after all uses are judged; a test stays as it is if it guards one of these
        # uses
        vendor_uses = {
            use.node: use for use, judgement in uses if _needs_one_vendor(use, judgement)
        }
        for use, judgement in uses:
            # a use without edits stays as it is in any case
            kept = self._judge_kept_test(use, vendor_uses) if judgement.edits else None
            yield self._site(use, kept or judgement)

    def _judge_kept_test(self, use: Use, vendor_uses: dict[Any, Use]) -> Judgement | None:
        """Returns the judgement that a test such as `torch.cuda.is_available()` or
        `d.type == "cuda"` stays as it is. Returns None if there is no reason to keep the test, or
        if the use is not a test.

        A test is kept if it guards a use that needs one vendor's devices. It is also kept if the tests around it name
        other vendors, and the guarded code does more than choose a device. Code that only chooses a device works for
        the devices of any vendor. `vendor_uses` maps nodes to uses, and contains all uses that need one vendor's
        devices.
        """
        # in `name.startswith("cuda")`, the use is the string, but the test is the call
        is_argument = isinstance(use.node, ast.Constant) and isinstance(use.parent, ast.Call)
        parts = guarded_by(use.parent if is_argument else use.node, self.parents)  # type: ignore[arg-type]
        # `if vendor_uses` only saves time
        inside = [inner for part in parts for inner in ast.walk(part)] if vendor_uses else ()
        # a device of another vendor would pass a neutral test, and then fail in the guarded
        # code
        for inner in inside:
            if inner in vendor_uses:
                return left_open(
                    f"it guards {vendor_uses[inner].idiom.name}, which works only on one vendor's devices"
                )
        if (
            parts
            and tells_vendors_apart(use.node, self.parents)
            and not all(map(_only_chooses_device, parts))
        ):
            return Judgement("neutral", "the code distinguishes between vendors on purpose")
        return None

    def has_uses(self, node: ast.AST) -> bool:
        """Whether an expression, or a node inside it, is a use of a device. Keyword arguments
        are ignored."""
        # keyword arguments are ignored, because `device=x` is a use for every x
        return any(
            self._judge(inner) is not None
            for inner in ast.walk(node)
            if not isinstance(inner, ast.keyword)
        )

    def _site(self, use: Use, judgement: Judgement) -> Site:
        """Returns the site of a use with this judgement. If the use could be rewritten, but the code around the use is
        a reason against the edit, the site gets the judgement of `_reason_against_edit` instead.
        """
        node, idiom = use.node, use.idiom
        # reports show only the value of a keyword argument
        shown: Any = node.value if isinstance(node, ast.keyword) else node
        # if there are no edits, the judgement already has a reason
        if judgement.edits:
            judgement = self._reason_against_edit(shown, idiom) or judgement
        position = node.lineno, node.col_offset
        # the position of the dot, because all calls of a chain such as `x.cpu().numpy()` begin
        # at `x`
        if isinstance(node, ast.Call) and idiom.name.startswith("."):
            position = self.source.position(use.dot)
        full_name = self.full_name(node.func) if isinstance(node, ast.Call) else ""
        # the full name of a method does not show the framework, but the imports may
        framework = framework_of(full_name)
        if framework is None:
            framework = min(self.frameworks) if len(self.frameworks) == 1 else "several"
        return Site(
            self.source.path,
            *position,
            idiom.name,
            judgement.code or idiom.code,
            framework,
            judgement.verdict,
            judgement.grade,
            judgement.why,
            end=(shown.end_lineno, shown.end_col_offset),
            before=self.source_text(shown),
            link=idiom.link or None,
            since=judgement.since,
            vendor=_vendor_of(use),
            edits=judgement.edits,
        )

    # which idiom

    def _judge(self, node: Any) -> Judged | None:
        """Returns the use for a node, and the judgement on it. Returns None if the node is not
        a use, or if it is never reached because it comes after a `return` or belongs to another
        tab."""
        # the interpreter stores `means` on each expression that it reaches; a keyword argument
        # itself is not an expression
        is_reached = hasattr(node.value if isinstance(node, ast.keyword) else node, "means")
        if isinstance(node, ast.Attribute | ast.Name):
            judged = self._judge_name(node)
            # a name is judged even if it is not reached: annotations are never interpreted, but
            # may name devices
            if judged is not None or not is_reached:
                return judged
        judge = self._JUDGES.get(type(node))
        return judge(self, node) if judge is not None and is_reached else None

    def _judge_call(self, node: ast.Call) -> Judged | None:
        """Judges a call. The called object may be a name in the tables, a function with the
        same name as one of d2l's helpers, or a method. Returns None for any other call."""
        # a parameter is called: even if all known callers pass the same function, new callers
        # may pass another
        if isinstance(node.func, ast.Name) and self._is_parameter(node.func):
            return None
        full_name = self.full_name(node.func)
        row = rules_of_words.row_of(full_name)
        # if xdevice has a word for it, the rule in the table of calls writes this word
        has_xdevice_word = (
            self.goal.target == "xdevice" and row is not None and bool(row.xdevice)
        )
        judged = None if has_xdevice_word else self._judge_word(node, full_name)
        if judged is not None:
            return judged
        if full_name in idioms.CALLS:
            use = Use(self, node, idioms.CALLS[full_name])
            return use, self._judge_listed_call(use, full_name)
        name = full_name.rpartition(".")[2]
        # a function such as `try_gpu` that the project defines itself
        if (
            self.goal.target == "xdevice"
            and name in idioms.D2L_HELPERS
            and not framework_of(full_name)
            and not full_name.startswith("xdevice.")
        ):
            helper = Use(self, node, Idiom(name, "XD101", "helper"))
            return helper, Judgement(
                "neutral", "it is a function of the project, whose body is rewritten"
            )
        if isinstance(node.func, ast.Attribute) and node.func.attr in idioms.METHODS:
            return self._judge_method(
                Use(self, node, idioms.METHODS[node.func.attr]), full_name
            )
        return None

    def _judge_listed_call(self, use: Use, full_name: str) -> Judgement:
        """Judges a call of a name in the table of calls. A call with `*` or `**` is never
        rewritten, because any argument may be hidden there."""
        judgement = _RULES[use.idiom.rule](use)
        return HIDDEN_ARGUMENTS if judgement.edits and use.has_stars else judgement

    def _judge_word(self, node: ast.expr, full_name: str) -> Judged | None:
        """Judges a use of a PyTorch name that has a row in the table of words or begins with
        "torch.cuda.". Returns None for other names."""
        row = rules_of_words.row_of(full_name)
        if not full_name.startswith("torch.") or (
            row is None and not full_name.startswith("torch.cuda.")
        ):
            return None
        use = Use(self, node, _idiom_of_word(full_name))
        return use, rules_of_words.judge_word(use, row)

    def _judge_name(self, node: ast.Attribute | ast.Name) -> Judged | None:
        """Judges a CUDA-only name that is not called at this place, but is passed on or appears in
        an annotation. Returns None for any other name."""
        parent = self.parents.get(node)
        # the node is a part of a longer name, which is judged as a whole, or a called name,
        # which `_judge_call` judges
        if isinstance(parent, ast.Attribute) or (
            isinstance(parent, ast.Call) and parent.func is node
        ):
            return None
        # `hasattr(torch.cuda, "x")` tests which names this release of PyTorch has
        if isinstance(parent, ast.Call) and ast.unparse(parent.func) == "hasattr":
            return None
        full_name = (
            self.full_name(node) if hasattr(node, "means") else self._annotated_name(node)
        )
        return self._judge_word(node, full_name) if isinstance(node.ctx, ast.Load) else None

    def _annotated_name(self, node: ast.AST) -> str:
        """Returns the full name of a type of `torch.cuda` in an annotation, which is never
        interpreted; "" for any other node."""
        prefix = f"{self.torch_name}.cuda."
        if not isinstance(node, ast.Attribute) or not ast.unparse(node).startswith(prefix):
            return ""
        # pairs of a node and the node directly around it, from this node outwards. Not strict,
        # because the outermost node has no node around it
        for inner, outer in zip(
            [node, *self.outer_nodes(node)], self.outer_nodes(node), strict=False
        ):
            # the node is in an annotation; the module may import PyTorch under another name, such as `th`
            if inner in (getattr(outer, "annotation", None), getattr(outer, "returns", None)):
                return ast.unparse(node).replace(prefix, "torch.cuda.", 1)
        return ""

    def _judge_method(self, use: Use, full_name: str) -> Judged | None:
        """Judges a method call such as `x.to(d)` or `x.cpu()`. Returns None if the called
        object is clearly a function, or a method of an object that is not on a device.
        `full_name` is the full name of the called object, which is "" unless the receiver is a
        module or a name outside the project."""
        receiver = inferred(use.receiver)
        # not a method, but a function in a module, such as `np.copyto`
        if full_name and (
            framework_of(full_name) is None or not may_be(receiver, ("foreign",))
        ):
            return None
        # such as `tvm.cpu()` if a helper loads tvm, so that no import shows that tvm is a
        # module
        if isinstance(use.receiver, ast.Name) and use.receiver.id in idioms.DEVICE_MODULES:
            return None
        # `.to` and `.cpu` are common names, and concern devices only if the receiver is an
        # object of a framework
        if may_be(receiver, (*_ON_NO_DEVICE, "dict", "list", "tuple")):
            no_tensor = Judgement(
                "not a device", "the receiver is a module, class or container"
            )
            # calls of such an object's `tolist` or `pin_memory` are not even reported
            return (
                (use, no_tensor) if use.idiom.rule not in ("neutral", "read_as_list") else None
            )
        if use.idiom.rule == "to" and not use.args and "device" not in use.keywords:
            # `x.to()` names neither a device nor a dtype, so it is not even reported
            has_no_arguments = use.method == "to" and not use.keywords
            return (
                None
                if has_no_arguments
                else (use, Judgement("not a device", "none of the arguments is a device"))
            )
        # a storage has `.cuda()`, but cannot be passed to `to_device`, and its `.to` takes no positional argument
        if may_be(receiver, ("storage",)):
            return use, MAY_BE_STORAGE if use.method == "cuda" else NAMES_NO_VENDOR
        return use, _RULES[use.idiom.rule](use)

    # uses that are not calls

    def _judge_keyword(self, node: ast.keyword) -> Judged | None:
        """Judges a keyword argument such as `device="cuda"`. Returns None for other keyword arguments, and for keyword
        arguments of a call that has its own rule.
        """
        call = self.parents.get(node)
        if node.arg not in idioms.DEVICE_KEYWORDS or not isinstance(call, ast.Call):
            return None
        callee = self.full_name(call.func)
        # calls of the first two kinds have their own rules, which also judge the keyword
        # arguments. The other functions do not accept a framework's own device
        is_move = isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "cuda")
        if (
            is_move
            or callee in idioms.CALLS
            or callee.startswith(("xdevice.", "argparse", "builtins"))
        ):
            return None
        use = Use(self, node, Idiom(f"{node.arg}=", "XD111", "keyword"))
        text = string_value(node.value)
        # the value is not a literal, so the device is chosen elsewhere; or it is a string that
        # is right on every machine
        if text is None or text.lower() in ("cpu", "auto", "meta"):
            return use, NAMES_NO_VENDOR
        # such as device="gpu" for DALI, which `port` does not know as a framework
        if framework_of(callee) is None or not SPELLING.fullmatch(text):
            return use, left_open(
                "the string is passed to a function that may read it as text", "XD165"
            )
        # after set_device, "cuda" means the GPU that was set, but xdevice.native.gpu() means the first GPU
        if self.sets_current_device and ":" not in text:
            if not self.current_gpu_text:
                return use, MAY_BE_OTHER_GPU
            return use, proven(
                "the GPU that set_device has chosen",
                use.replace(self.current_gpu_text, node.value),
            )
        # the index is "" in a string without a colon
        edits = use.replace(f"xdevice.native.gpu({text.partition(':')[2]})", node.value)
        return use, proven("a string that names a device, for the framework's function", edits)

    def _judge_choice(self, node: ast.IfExp) -> Judged | None:
        """Judges `"cuda" if torch.cuda.is_available() else "cpu"`. Returns None for any other conditional expression.
        If the expression is an argument of `torch.device`, it is rewritten together with that call, and is not judged
        here.
        """
        if not is_cuda_or_cpu_choice(node, self.full_name) or "torch" not in self.frameworks:
            return None
        use = Use(self, node, Idiom('"cuda" if ... else "cpu"', "XD101", "choice"))
        # used as text, the new string may differ: it has no index, and it is not "cuda" for
        # GPUs of other vendors
        if string_value(node.body) == "cuda:0" or not self.text_origins.isdisjoint(
            (node.body, node.orelse)
        ):
            return use, Judgement(
                "open",
                "the string is also used as text, which may change",
                "XD169",
                consumed=(node.test,),
            )
        why = "the new string is the same on CUDA, and correct for GPUs with another name"
        return use, proven(why, use.replace("xdevice.native.try_gpu().type"), node.test)

    def _judge_comparison(self, node: ast.Compare) -> Judged | None:
        """Judges a comparison such as `device.type == "cuda"`. Other operators, such as `!=`, and
        the strings "cpu" and "gpu" are handled, too. Returns None for other comparisons."""
        match node:
            case ast.Compare(
                left=ast.Attribute(value=owner, attr="type" | "device_type" as name),
                ops=[_],
                comparators=[ast.Constant(value="cuda" | "cpu" | "gpu" as text)],
            ) if is_only(inferred(owner), ("device",)):
                use = Use(self, node, Idiom(f".{name} == {text}", "XD112", "comparison"))
                if text == "cpu":
                    return use, Judgement(
                        "neutral", "the CPU has this name everywhere", consumed=(node.left,)
                    )
                (literal,) = node.comparators
                if text == "gpu":
                    return use, left_open('no PyTorch device has the type "gpu"')
                return use, proven(
                    "compares with the type of the current accelerator",
                    use.replace(self.accelerator_type_text, literal),
                    node.left,
                    since="2.6",
                )
        return None

    def _judge_attribute(self, node: ast.Attribute) -> Judged | None:
        """Judges an attribute such as `x.device`, whose value is a device or depends on a device. Returns None if
        nothing is known about `x`, or if `x` may be something else than an object of a framework, such as a module.
        """
        if node.attr not in idioms.DEVICE_DEPENDENT_ATTRIBUTES or not isinstance(
            node.ctx, ast.Load
        ):
            return None
        means = inferred(node.value)
        if may_be(means, (*_ON_NO_DEVICE, "instance", "result")) or not means:
            return None
        # common names for objects with settings, whose `device` is not the device of a tensor
        if isinstance(node.value, ast.Name) and node.value.id in (
            "self",
            "args",
            "opt",
            "cfg",
            "config",
        ):
            return None
        use = Use(self, node, Idiom(f".{node.attr}", "XD112", "attribute"))
        if node.attr == "is_cuda":
            return use, rules_of_words.judge_is_cuda(use)
        return use, Judgement("neutral", "only reads where a tensor is")

    def _judge_text(self, node: ast.expr) -> Judged | None:
        """Judges the string "nccl", and a string that names CUDA if it is passed to a function of PyTorch as its
        device, directly or through variables. Returns None for any other string.
        """
        judged = self._judge_nccl(node)
        if judged is not None or node not in self.device_origins:
            return judged
        parent = self.parents.get(node)
        # strings that are judged with the keyword argument or the choice around them
        is_judged = (
            isinstance(parent, ast.keyword) and parent.arg in idioms.DEVICE_KEYWORDS
        ) or (isinstance(parent, ast.IfExp) and is_cuda_or_cpu_choice(parent, self.full_name))
        if is_judged or not any(_CUDA.match(str(atom.subject)) for atom in inferred(node)):
            return None
        use = Use(self, node, Idiom('"cuda"', "XD111", "text"))
        return use, self._judge_cuda_name(use)

    def _judge_nccl(self, node: ast.expr) -> Judged | None:
        """Judges the string "nccl". Returns None for any other string."""
        if string_value(node) != "nccl":
            return None
        use = Use(self, node, Idiom('"nccl"', "XD153", "text"))
        return use, left_open(
            "NCCL needs CUDA; leave out the backend, so that init_process_group chooses the right one"
        )

    def _judge_cuda_name(self, use: Use) -> Judgement:
        """Judges a string such as "cuda" that is passed to a function of PyTorch as its device, directly or through
        variables.
        """
        if use.node in self.text_origins:
            return left_open("the string is also used as text, which may change", "XD169")
        new_texts = {
            "cuda": rules_of_words.device_type_text(use),
            "cuda:0": "str(xdevice.native.try_gpu())",
        }
        text = string_value(use.node)
        if text not in new_texts or not self.may_call_xdevice:
            return left_open(
                f"only CUDA has a device of this name; write {self.accelerator_text}", "XD165"
            )
        return proven(
            "the new string is the same on CUDA, and correct for GPUs with another name",
            use.replace(new_texts[text]),
        )

    _JUDGES: ClassVar[dict[type, Any]] = {
        ast.Attribute: _judge_attribute,
        ast.Call: _judge_call,
        ast.Compare: _judge_comparison,
        ast.Constant: _judge_text,
        ast.IfExp: _judge_choice,
        ast.JoinedStr: _judge_text,
        ast.keyword: _judge_keyword,
    }

    def _is_parameter(self, node: ast.Name) -> bool:
        """Whether a name is a parameter of one of the functions around it."""
        for scope in self.outer_nodes(node):
            if isinstance(scope, SCOPES):
                parameters = (arg for arg in ast.walk(scope.args) if isinstance(arg, ast.arg))
                if any(node.id == arg.arg for arg in parameters):
                    return True
        return False

    # reasons against an edit

    def _reason_against_edit(self, node: ast.expr, idiom: Idiom) -> Judgement | None:
        """Returns the judgement that a use stays as it is because of the code around it; None if
        this code is no obstacle. `node` is the node of a use that could be rewritten, and `idiom`
        is its idiom."""
        around = list(self.outer_nodes(node))
        if idiom.rule == "word" and is_chosen_by_release(node, self.parents):
            return Judgement("neutral", "it is behind a check of the framework's version")
        if self.source.path.endswith("setup.py"):
            return Judgement("neutral", "it is in setup.py, which decides what to build")
        # before Python 3.12, all parts of an f-string have the position of the whole f-string:
        # https://github.com/python/cpython/issues/104608
        if any(
            isinstance(outer, ast.JoinedStr) for outer in around
        ) and not self.has_exact_position(node):
            return left_open(
                "it is in an f-string, and this version of Python cannot locate the parts of f-strings",
                "XD165",
            )
        if "tensorflow" in self.frameworks and self.is_of_tensorflow_1:
            return left_open(
                "it is in a program for TensorFlow 1, which xdevice does not support", "XD167"
            )
        # whether the new text calls a function of xdevice whose result depends on the selected
        # backend. "wait" is the rule for `torch.cuda.synchronize` and the like. Its code is
        # XD105, but other uses with this code have a tensor as an argument, which determines
        # the backend
        depends_on_backend = (
            idiom.code in _ASKING_THE_SELECTED_BACKEND or idiom.rule == "wait"
        ) and idiom.rule not in _WRITING_PYTORCHS_WORDS
        if depends_on_backend and self.goal.target == "xdevice" and len(self.frameworks) > 1:
            return left_open(
                "the file uses several frameworks, but the replacement depends on the selected one",
                "XD168",
            )
        if idiom.code == "XD101" and _is_by_identity(around[0]):
            return left_open(
                "it is compared by identity, but the replacement may return a different object",
                "XD169",
            )
        if self._is_printed(node, around):
            return left_open(
                "an f-string with = prints the text of the expression, which would change",
                "XD169",
            )
        if any(self._is_scripted(outer) for outer in around):
            return left_open(
                "TorchScript compiles this function, and cannot compile calls of other modules",
                "XD167",
            )
        return None

    @cached_property
    def is_of_tensorflow_1(self) -> bool:
        """Whether the module uses names of TensorFlow 1 that TensorFlow 2 does not have."""
        return any(
            isinstance(node, ast.Attribute) and self.full_name(node) in _OF_TENSORFLOW_1
            for node in self.nodes
        )

    def _is_printed(self, node: ast.AST, around: list[ast.AST]) -> bool:
        """Whether a node is in an f-string such as f"{x.device=}", which prints the source text
        of the node. `around` are the nodes around it."""
        # pairs of a node and the node directly around it; the outermost node has none
        for inner, outer in zip([node, *around], around, strict=False):
            if isinstance(outer, ast.FormattedValue) and inner is outer.value:
                # the tree does not contain the `=`, so look at the text after the expression; its
                # first 40 bytes are enough for the `=` and the white space around it
                rest = self.source.text[self.span(inner)[1] :][:40]
                return re.match(rb"\s*=\s*[}!:]", rest) is not None
        return False

    def _is_scripted(self, node: ast.AST) -> bool:
        """Whether a node is the definition of a function that TorchScript compiles."""
        decorators = getattr(node, "decorator_list", ())
        return any(
            self.full_name(d) in ("torch.jit.script", "torch.jit.script_method")
            for d in decorators
        )


def _only_chooses_device(node: ast.AST) -> bool:
    """Whether a statement or expression only chooses a device, or a string that names a device. Such code works for the
    devices of any vendor.
    """
    match node:
        case ast.Assign(value=value) | ast.Return(value=value):
            return value is not None and _only_chooses_device(value)
        case ast.Call(args=[argument], keywords=[]):
            return ast.unparse(node.func) == "torch.device" and _only_chooses_device(argument)
    return isinstance(node, ast.Constant | ast.JoinedStr)


# maps words in names and strings to the vendors that reports show
_VENDORS: Final = {"cuda": "CUDA", "nccl": "CUDA", "xpu": "XPU", "npu": "NPU", "mps": "MPS"}


def _vendor_of(use: Use) -> str:
    """Returns the vendor that a use names, in its own name or in one of its strings; "" if it names
    no vendor."""
    node = use.node
    # the arguments of a call, the right side of a comparison, or the value of a keyword argument
    parts = use.arguments or getattr(node, "comparators", [getattr(node, "value", None)])
    names = [use.idiom.name, *(string_value(part) or "" for part in parts)]
    for word in re.split(r"\W+", " ".join(names).lower()):
        if word in _VENDORS:
            return _VENDORS[word]
    return ""


def _needs_one_vendor(use: Use, judgement: Judgement) -> bool:
    """Whether a use will still need one vendor's devices after porting. It does if it names a vendor and stays
    open, or if it is `DataParallel`, which needs functions that only CUDA builds of PyTorch have."""
    return (
        judgement.verdict == "open" and bool(_vendor_of(use))
    ) or use.idiom.name == "torch.nn.DataParallel"


def _idiom_of_word(full_name: str) -> Idiom:
    """Returns the idiom for a use of the PyTorch name `full_name`, which the rules for words judge.
    If the name is also in the table of calls, its code and link come from this table. Otherwise,
    the code is XD156 ("asks what a device can do")."""
    listed = idioms.CALLS.get(full_name)
    return Idiom(
        full_name,
        listed.code if listed is not None else "XD156",
        "word",
        link=listed.link if listed else "",
    )


def _is_by_identity(node: ast.AST) -> bool:
    """Whether a node is a comparison that uses `is` or `is not`."""
    return any(isinstance(op, ast.Is | ast.IsNot) for op in getattr(node, "ops", ()))
