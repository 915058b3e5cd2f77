"""Finds the sites of a module, and gives the verdict on each by the rule that `idioms` names."""

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
    GIVEN,
    OTHER_GPU,
    STARS,
    JudgedModule,
    Judgement,
    Use,
    left_open,
    proven,
    text_of,
)
from .knowledge import SPELLING, framework_of
from .project import SCOPES
from .rules_of_calls import is_usual_choice
from .sites import Site
from .values import may_be, means_of, only

Judged = tuple[Use, Judgement]

_RULES: Final[dict[str, Callable[[Use], Judgement]]] = {
    **vars(rules_of_calls),
    **vars(rules_of_methods),
}
"""The rules by the names that the tables of `idioms` use."""
_ASKS_THE_SELECTED: Final = {"XD101", "XD102", "XD108", "XD110", "XD111", "XD151"}
"""The codes of idioms whose neutral word asks the selected backend; the words of the others have a tensor to ask."""
_OF_PYTORCH: Final = ("word", "text")
"""Rules that write PyTorch's own words, where the file has several frameworks."""
_OF_TENSORFLOW_1: Final = {
    f"tensorflow.{name}"
    for name in ("placeholder", "Session", "get_variable", "variable_scope", "contrib")
}
_NO_OBJECTS: Final = ("foreign", "module", "class", "namespace")


class JudgedSites(JudgedModule):
    """The sites of one module, for the target "xdevice"."""

    def sites(self) -> Iterator[Site]:
        """The sites of the module. A node that is rewritten together with a site around it is no site of its own."""
        if not self.frameworks:
            return
        consumed: set[ast.AST] = set()
        uses: list[Judged] = []
        # outer nodes come first, so that they can take inner ones over
        for node in self.nodes:
            judged = self._judge(node) if node not in consumed else None
            if judged is not None:
                uses.append(judged)
                for part in judged[1].consumed:
                    # rewritten together with this use, so it must not be rewritten again
                    consumed.update(ast.walk(part))
        # a test that guards what only one vendor has is kept, so every use is judged before any test
        stays = {use.node: use for use, judgement in uses if _has_one_vendor(use, judgement)}
        for use, judgement in uses:
            kept = self._as_a_test(use, stays) if judgement.edits else None
            yield self._site(use, kept or judgement)

    def _as_a_test(self, use: Use, stays: dict[Any, Use]) -> Judgement | None:
        """The judgement on `torch.cuda.is_available()`, `d.type == "cuda"` and the like where they guard what only CUDA
        has, or where the next test asks for another vendor: they are kept. None for any other use."""
        is_argument = isinstance(use.node, ast.Constant) and isinstance(use.parent, ast.Call)
        parts = guarded_by(use.parent if is_argument else use.node, self.parents)  # type: ignore[arg-type]
        inside = [inner for part in parts for inner in ast.walk(part)] if stays else ()
        # another vendor's device would pass the test, and then fail
        for inner in inside:
            if inner in stays:
                return left_open(f"guards {stays[inner].idiom.name}, which only one vendor has")
        if (
            parts
            and tells_vendors_apart(use.node, self.parents)
            and not all(map(_only_chooses, parts))
        ):
            return Judgement("neutral", "code that tells vendors apart")
        return None

    def has_uses(self, node: ast.AST) -> bool:
        return any(
            self._judge(inner) is not None
            for inner in ast.walk(node)
            if not isinstance(inner, ast.keyword)
        )

    def _site(self, use: Use, judgement: Judgement) -> Site:
        """The site of a use, in which nothing is rewritten if something forbids it."""
        node, idiom = use.node, use.idiom
        where: Any = node.value if isinstance(node, ast.keyword) else node
        # only now, because a reason to leave a use open needs no further reason
        if judgement.edits:
            judgement = self._hindrance(where, idiom) or judgement
        position = node.lineno, node.col_offset
        # several calls on one line have a position each
        if isinstance(node, ast.Call) and idiom.name.startswith("."):
            position = self.source.position(use.dot)
        full_name = self.full_name(node.func) if isinstance(node, ast.Call) else ""
        # the name says whose it is; a method does not
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
            end=(where.end_lineno, where.end_col_offset),
            before=self.segment(where),
            link=idiom.link or None,
            since=judgement.since,
            vendor=_vendor_of(use),
            edits=judgement.edits,
        )

    # which idiom

    def _judge(self, node: Any) -> Judged | None:
        """The use that a node is, and the judgement on it; None if the node is not a use, or is never reached, because
        it is behind a `return` or in another tab."""
        is_reached = hasattr(node.value if isinstance(node, ast.keyword) else node, "means")
        if isinstance(node, ast.Attribute | ast.Name):
            judged = self._judge_name(node)
            # annotations are never interpreted, and still name devices
            if judged is not None or not is_reached:
                return judged
        judge = self._JUDGES.get(type(node))
        return judge(self, node) if judge is not None and is_reached else None

    def _judge_call(self, node: ast.Call) -> Judged | None:
        # a parameter with one known value may get another one tomorrow
        if isinstance(node.func, ast.Name) and self._is_parameter(node.func):
            return None  # its callers choose the device
        full_name = self.full_name(node.func)
        row = rules_of_words.row_of(full_name)
        # for xdevice's own word there is a rule in the table of calls, which may write more than a name
        is_xdevices = self.goal.target == "xdevice" and row is not None and bool(row.xdevice)
        judged = None if is_xdevices else self._judge_word(node, full_name)
        if judged is not None:
            return judged
        if full_name in idioms.CALLS:
            use = Use(self, node, idioms.CALLS[full_name])
            return use, self._of_call(use, full_name)
        name = full_name.rpartition(".")[2]
        # the project has its own try_gpu(): the body is rewritten, and the calls stay as they are
        if (
            self.goal.target == "xdevice"
            and name in idioms.HELPERS
            and not framework_of(full_name)
            and not full_name.startswith("xdevice.")
        ):
            helper = Use(self, node, Idiom(name, "XD101", "helper"))
            return helper, Judgement(
                "neutral", "a function of the project: its body is rewritten"
            )
        if isinstance(node.func, ast.Attribute) and node.func.attr in idioms.METHODS:
            return self._judge_method(
                Use(self, node, idioms.METHODS[node.func.attr]), full_name
            )
        return None

    def _of_call(self, use: Use, full_name: str) -> Judgement:
        """The judgement on a call of a name that the table of calls has."""
        judgement = _RULES[use.idiom.rule](use)
        return STARS if judgement.edits and use.has_stars else judgement

    def _judge_word(self, node: ast.expr, full_name: str) -> Judged | None:
        """The judgement on a use of a name that has a row in the table of words, or that only CUDA has."""
        row = rules_of_words.row_of(full_name)
        if not full_name.startswith("torch.") or (
            row is None and not full_name.startswith("torch.cuda.")
        ):
            return None
        use = Use(self, node, _idiom_of_word(full_name))
        return use, rules_of_words.word(use, row)

    def _judge_name(self, node: ast.Attribute | ast.Name) -> Judged | None:
        """The judgement on a name of CUDA's that is not called here: it is passed on, or is an annotation."""
        parent = self.parents.get(node)
        if isinstance(parent, ast.Attribute) or (
            isinstance(parent, ast.Call) and parent.func is node
        ):
            return None
        if isinstance(parent, ast.Call) and ast.unparse(parent.func) == "hasattr":
            return None  # it asks what this release has
        full_name = (
            self.full_name(node) if hasattr(node, "means") else self._annotated_name(node)
        )
        return self._judge_word(node, full_name) if isinstance(node.ctx, ast.Load) else None

    def _annotated_name(self, node: ast.AST) -> str:
        """The full name of what an annotation names, which is not interpreted; "" for anything else."""
        prefix = f"{self.torch_name}.cuda."
        if not isinstance(node, ast.Attribute) or not ast.unparse(node).startswith(prefix):
            return ""
        for inner, outer in zip([node, *self.around(node)], self.around(node), strict=False):
            if inner in (getattr(outer, "annotation", None), getattr(outer, "returns", None)):
                return ast.unparse(node).replace(prefix, "torch.cuda.", 1)
        return ""

    def _judge_method(self, use: Use, full_name: str) -> Judged | None:
        receiver = means_of(use.receiver)
        # `torch.cpu` is a module, and `np.item` a function: a name, and no object of a framework
        if full_name and (
            framework_of(full_name) is None or not may_be(receiver, ("foreign",))
        ):
            return None
        # `tvm.cpu()` where tvm is loaded by a helper, so that no import says that it is a module
        if isinstance(use.receiver, ast.Name) and use.receiver.id in idioms.MODULES:
            return None
        # `.to`, `.cpu` and `.device` are common names: only objects of frameworks count
        if may_be(receiver, (*_NO_OBJECTS, "dict", "list", "tuple")):
            is_other = Judgement("not a device", "a name of a module or a container")
            return (
                (use, is_other) if use.idiom.rule not in ("neutral", "read_as_list") else None
            )
        if use.idiom.rule == "to" and not use.args and "device" not in use.keywords:
            is_nothing = use.method == "to" and not use.keywords
            return (
                None
                if is_nothing
                else (use, Judgement("not a device", "no device among the arguments"))
            )
        return use, _RULES[use.idiom.rule](use)

    # what is no call

    def _judge_keyword(self, node: ast.keyword) -> Judged | None:
        """The judgement on `device="cuda"` and the like, in calls that have no rule of their own."""
        call = self.parents.get(node)
        if node.arg not in idioms.KEYWORDS or not isinstance(call, ast.Call):
            return None
        callee = self.full_name(call.func)
        # these calls have rules of their own, which look at their keywords
        is_move = isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "cuda")
        if (
            is_move
            or callee in idioms.CALLS
            or callee.startswith(("xdevice.", "argparse", "builtins"))
        ):
            return None
        use = Use(self, node, Idiom(f"{node.arg}=", "XD111", "keyword"))
        text = text_of(node.value)
        # not a text, or one that is right on every machine
        if text is None or text.lower() in ("cpu", "auto", "meta"):
            return use, GIVEN
        # DALI's device="gpu" and the like mean something else
        if framework_of(callee) is None or not SPELLING.fullmatch(text):
            return use, left_open("a text, for a function that may read it", "XD165")
        # after set_device "cuda" means the GPU that was set, and xdevice.native.gpu() the first
        if self.sets_current and ":" not in text:
            if not self.current_gpu:
                return use, OTHER_GPU
            return use, proven(
                "the GPU that set_device has chosen", use.replace(self.current_gpu, node.value)
            )
        edits = use.replace(f"xdevice.native.gpu({text.partition(':')[2]})", node.value)
        return use, proven("a text that names it, for a function of the framework", edits)

    def _judge_choice(self, node: ast.IfExp) -> Judged | None:
        """The judgement on `"cuda" if torch.cuda.is_available() else "cpu"` where it is used as text."""
        if not is_usual_choice(node, self.full_name) or "torch" not in self.frameworks:
            return None
        use = Use(self, node, Idiom('"cuda" if ... else "cpu"', "XD101", "choice"))
        if text_of(node.body) == "cuda:0" or not self.text_origins.isdisjoint(
            (node.body, node.orelse)
        ):
            return use, Judgement(
                "open", "a text that is read as text, too", "XD169", consumed=(node.test,)
            )
        why = "the same text, and right where the GPU is called something else"
        return use, proven(why, use.replace("xdevice.native.try_gpu().type"), node.test)

    def _judge_comparison(self, node: ast.Compare) -> Judged | None:
        """The judgement on `device.type == "cuda"`."""
        match node:
            case ast.Compare(
                left=ast.Attribute(value=owner, attr="type" | "device_type" as name),
                ops=[_],
                comparators=[ast.Constant(value="cuda" | "cpu" | "gpu" as text)],
            ) if only(means_of(owner), ("device",)):
                use = Use(self, node, Idiom(f".{name} == {text}", "XD112", "comparison"))
                if text == "cpu":
                    return use, Judgement(
                        "neutral", "a CPU is called cpu everywhere", consumed=(node.left,)
                    )
                (literal,) = node.comparators
                edits = use.replace(self.accelerator_name, literal)
                why = "the kind of the present accelerator"
                if text == "gpu":
                    return use, left_open("PyTorch has no such kind")
                return use, proven(why, edits, node.left, since="2.6")
        return None

    def _judge_attribute(self, node: ast.Attribute) -> Judged | None:
        """The judgement on `x.device` and the like, which read where something is."""
        if node.attr not in idioms.WHERE or not isinstance(node.ctx, ast.Load):
            return None
        means = means_of(node.value)
        if may_be(means, (*_NO_OBJECTS, "instance", "result")) or not means:
            return None
        # settings of the program, not where a tensor is
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
            return use, rules_of_words.is_cuda(use)
        return use, Judgement("neutral", "reads where it is")

    def _judge_text(self, node: ast.expr) -> Judged | None:
        if text_of(node) != "nccl":
            return None
        use = Use(self, node, Idiom('"nccl"', "XD153", "text"))
        return use, left_open(
            "the collectives of CUDA; without a backend init_process_group takes the right one"
        )

    _JUDGES: ClassVar[dict[type, Any]] = {
        ast.Attribute: _judge_attribute,
        ast.Call: _judge_call,
        ast.Compare: _judge_comparison,
        ast.Constant: _judge_text,
        ast.IfExp: _judge_choice,
        ast.keyword: _judge_keyword,
    }

    def _is_parameter(self, node: ast.Name) -> bool:
        for scope in self.around(node):
            if isinstance(scope, SCOPES):
                parameters = (arg for arg in ast.walk(scope.args) if isinstance(arg, ast.arg))
                if any(node.id == arg.arg for arg in parameters):
                    return True
        return False

    # what forbids an edit

    def _hindrance(self, node: ast.expr, idiom: Idiom) -> Judgement | None:
        """Why a use of this idiom that could be rewritten is not."""
        around = list(self.around(node))
        if idiom.rule == "word" and is_chosen_by_release(node, self.parents):
            return Judgement("neutral", "chosen by the release of the framework")
        if self.source.path.endswith("setup.py"):
            return Judgement("neutral", "decides what to build")
        # https://github.com/python/cpython/issues/104608: before 3.12 all parts have the position of the whole
        if any(isinstance(outer, ast.JoinedStr) for outer in around) and not self.is_exact(
            node
        ):
            return left_open(
                "inside an f-string whose parts this version of Python cannot locate", "XD165"
            )
        asks = idiom.code in _ASKS_THE_SELECTED or idiom.rule == "wait"
        asks = asks and idiom.rule not in _OF_PYTORCH and self.goal.target == "xdevice"
        if "tensorflow" in self.frameworks and self.is_of_tensorflow_1:
            return left_open(
                "a program for TensorFlow 1, which xdevice does not run on", "XD167"
            )
        if asks and len(self.frameworks) > 1:
            return left_open(
                "several frameworks in this file: the selected one would be asked", "XD168"
            )
        if idiom.code == "XD101" and _is_by_identity(around[0]):
            return left_open(
                "compared by identity, which another object of the same device may pass",
                "XD169",
            )
        if self._is_printed(node, around):
            return left_open("an f-string with = prints the expression itself", "XD169")
        if any(self._is_scripted(outer) for outer in around):
            return left_open(
                "TorchScript compiles this function, and knows no other module", "XD167"
            )
        return None

    @cached_property
    def is_of_tensorflow_1(self) -> bool:
        """Whether the module uses names that TensorFlow 2 does not have."""
        return any(
            isinstance(node, ast.Attribute) and self.full_name(node) in _OF_TENSORFLOW_1
            for node in self.nodes
        )

    def _is_printed(self, node: ast.AST, around: list[ast.AST]) -> bool:
        for inner, outer in zip([node, *around], around, strict=False):
            if isinstance(outer, ast.FormattedValue) and inner is outer.value:
                rest = self.source.text[self.span(inner)[1] :][:40]
                return re.match(rb"\s*=\s*[}!:]", rest) is not None
        return False

    def _is_scripted(self, node: ast.AST) -> bool:
        decorators = getattr(node, "decorator_list", ())
        return any(
            self.full_name(d) in ("torch.jit.script", "torch.jit.script_method")
            for d in decorators
        )


def _only_chooses(node: ast.AST) -> bool:
    """Whether a branch does nothing but choose a device or its name, for which any vendor's device will do."""
    match node:
        case ast.Assign(value=value) | ast.Return(value=value):
            return value is not None and _only_chooses(value)
        case ast.Call(args=[argument], keywords=[]):
            return ast.unparse(node.func) == "torch.device" and _only_chooses(argument)
    return isinstance(node, ast.Constant | ast.JoinedStr)


_VENDORS: Final = {"cuda": "CUDA", "nccl": "CUDA", "xpu": "XPU", "npu": "NPU", "mps": "MPS"}


def _vendor_of(use: Use) -> str:
    """The vendor whose devices a use names, by its own name or a text that it is given; "" for none."""
    node = use.node
    # of a call, of a comparison, of a keyword
    parts = use.arguments or getattr(node, "comparators", [getattr(node, "value", None)])
    names = [use.idiom.name, *(text_of(part) or "" for part in parts)]
    # whole words only: "cuda" in "cudnn" would be another thing
    for part in re.split(r"\W+", " ".join(names).lower()):
        if part in _VENDORS:
            return _VENDORS[part]
    return ""


def _has_one_vendor(use: Use, judgement: Judgement) -> bool:
    """Whether only one vendor's devices will be able to run a use: a use that stays, or DataParallel, whose copying is
    only in PyTorch's builds for CUDA."""
    return (
        judgement.verdict == "open" and bool(_vendor_of(use))
    ) or use.idiom.name == "torch.nn.DataParallel"


def _idiom_of_word(full_name: str) -> Idiom:
    """An idiom for a name of the table of words, with the code and link that the table of calls has for it, if any."""
    listed = idioms.CALLS.get(full_name)
    return Idiom(
        full_name,
        listed.code if listed is not None else "XD156",
        "word",
        link=listed.link if listed else "",
    )


def _is_by_identity(node: ast.AST) -> bool:
    return any(isinstance(op, ast.Is | ast.IsNot) for op in getattr(node, "ops", ()))
