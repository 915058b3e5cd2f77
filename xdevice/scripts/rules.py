"""Finds the sites of a module, and gives the verdict on each by the method of `Rules` that `idioms` names."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from . import idioms
from .inference import SPELLING, is_model
from .knowledge import DECORDS_ARRAY, GLUONS_OUTPUT, IN_PLACE, framework_of
from .project import Scope
from .sites import Edit, Grade, Site, Verdict
from .values import NOTHING, Value, is_known, kind, may_be, only

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .idioms import Idiom
    from .inference import Inference
    from .project import Unit

_DEVICES: Final = ("device", "spelling")
_NUMBERS: Final = ("int", "bool")
_HOST: Final = ("array", "int", "float", "bool", "str")
_LOOSE: Final = (
    ast.If,
    ast.While,
    ast.BoolOp,
    ast.Assign,
    ast.Return,
    ast.keyword,
    ast.Expr,
    ast.NamedExpr,
    ast.Assert,
)
"""The nodes around an expression in which a comparison needs no brackets; nor does it as an argument of a call."""
_USES: Final = (ast.Call, ast.keyword, ast.IfExp, ast.Compare, ast.Attribute)
"""The kinds of nodes that may be sites."""
_TELLS: Final = {"print", "str", "repr", "format"}
_LOGS: Final = {"info", "warning", "debug", "error", "write", "log", "format"}


@dataclass
class Finding:
    """The verdict on one use. With `edits` and a grade it can be rewritten."""

    verdict: Verdict
    why: str
    code: str = ""
    grade: Grade | None = None
    edits: tuple[Edit, ...] = ()
    consumed: tuple[ast.AST, ...] = field(
        default=(), repr=False
    )  # nodes inside this use that are not sites of their own


def _open(why: str, code: str = "") -> Finding:
    return Finding("open", why, code)


class Rules:
    """The sites of one module."""

    def __init__(self, unit: Unit, inference: Inference, text_origins: set[ast.AST], sets_current: bool) -> None:
        self.unit = unit
        self.module = unit.module
        self.source = unit.module.source
        self.full = inference.full
        self.inference = inference
        self.text_origins = text_origins
        self.sets_current = sets_current
        self.parents = unit.parents
        names = _imports_of(unit, inference)
        self.uses = {framework for name in names if (framework := framework_of(name)) is not None}
        names |= {node.id for node in unit.nodes if isinstance(node, ast.Name)}
        self.others = {name.split(".")[0] for name in names} & idioms.OTHER_ARRAYS
        self.consumed: set[ast.AST] = set()

    def sites(self) -> Iterator[Site]:
        if not self.uses:
            return
        for node in self.unit.nodes:
            if not isinstance(node, _USES) or node in self.consumed:
                continue
            found = self._idiom(node)
            if found is None:
                continue
            idiom, finding = found
            for inner in finding.consumed:
                self.consumed.update(ast.walk(inner))
            yield self._site(node, idiom, finding)

    def _site(self, node: Any, idiom: Idiom, finding: Finding) -> Site:
        where = node.value if isinstance(node, ast.keyword) else node
        if finding.edits and not self._is_located(where):
            finding = _open("inside an f-string whose parts this version of Python cannot locate", "XD165")
        if finding.edits and idiom.code == "XD101" and self._is_identified(where):
            finding = _open("compared by identity, which another object of the same device may pass", "XD169")
        if finding.edits and self._is_printed(where):
            finding = _open("an f-string with = prints the expression itself", "XD169")
        if finding.edits and self._is_scripted(where):
            finding = _open("TorchScript compiles this function, and knows no other module", "XD167")
        position = node.lineno, node.col_offset
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and idiom.name.startswith("."):
            position = self.source.position(self._dot(node.func))  # several calls on one line have a position each
        return Site(
            self.source.path, *position, idiom.name, finding.code or idiom.code, self._framework(node), finding.verdict,
            finding.grade, finding.why or idiom.why, (where.end_lineno or 0, where.end_col_offset or 0),
            self.module.segment(where), None, idiom.link or None, finding.edits,
        )  # fmt: skip

    def _framework(self, node: Any) -> str:
        full = self.full(node.func) if isinstance(node, ast.Call) else ""
        return framework_of(full) or (min(self.uses) if len(self.uses) == 1 else "several")

    # which idiom

    def _idiom(self, node: ast.AST) -> tuple[Idiom, Finding] | None:
        if not hasattr(node.value if isinstance(node, ast.keyword) else node, "means"):
            return None  # never reached: the expression is behind a `return`, or in other tabs
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.keyword):
            return self._keyword(node)
        if isinstance(node, ast.IfExp):
            return self._chosen_text(node)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.Attribute) and node.attr in idioms.WHERE and isinstance(node.ctx, ast.Load):
            return self._where(node)
        return None

    def _call(self, node: ast.Call) -> tuple[Idiom, Finding] | None:
        full = self.full(node.func)
        if isinstance(node.func, ast.Name) and self._is_parameter(node.func):
            return None  # a parameter of a function: its callers choose the device
        idiom = idioms.CALLS.get(full)
        if idiom is not None:
            return idiom, getattr(self, f"_{idiom.way}")(node, idiom)
        name = full.rpartition(".")[2]
        if name in idioms.HELPERS and not framework_of(full) and not full.startswith("xdevice."):
            helper = idioms.Idiom(name, "XD101", "helper")
            return helper, Finding("neutral", "a function of the project: what is in it is rewritten")
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in idioms.METHODS:
            return None
        idiom = idioms.METHODS[node.func.attr]
        receiver = _means(node.func.value)
        if full and (framework_of(full) is None or not may_be(receiver, ("ext",))):
            return None
        if may_be(receiver, ("ext", "project", "class", "dict", "list", "tuple", "namespace")):
            foreign = idiom.way not in ("none", "listed_values")
            return (idiom, Finding("not a device", "a name of a module or a container")) if foreign else None
        if idiom.way == "to" and not node.args and not any(k.arg == "device" for k in node.keywords):
            if not node.keywords and node.func.attr == "to":
                return None
            return idiom, Finding("not a device", "no device among the arguments")
        return idiom, getattr(self, f"_{idiom.way}")(node, idiom)

    # calls with a full name

    def _none(self, node: ast.Call, idiom: Idiom) -> Finding:
        return Finding("neutral", idiom.why) if idiom.code == "XD152" else _open(idiom.why)

    def _rename(self, node: ast.Call, idiom: Idiom) -> Finding:
        if any(isinstance(arg, ast.Starred) for arg in node.args) or any(k.arg is None for k in node.keywords):
            return _open("stars hide the arguments", "XD166")
        if idiom.text == "xdevice.to_numpy" and (len(node.args) != 1 or node.keywords):
            return _open("to_numpy takes one argument", "XD166")
        return self._rewrite("proven", "the name says it", self._name(node, idiom.text))

    def _whole(self, node: ast.Call, idiom: Idiom) -> Finding:
        if node.args or node.keywords:
            return _open("the neutral word takes no argument", "XD166")
        text = idiom.text
        parent = self.parents.get(node)
        is_argument = isinstance(parent, ast.Call) and node is not parent.func
        loose = (
            isinstance(parent, _LOOSE)
            or is_argument
            or (isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not))
        )
        if " " in text and not loose and not (isinstance(parent, ast.IfExp) and parent.test is node):
            text = f"({text})"
        return self._rewrite("proven", "the name says it", self._replace(node, text))

    def _torch_device(self, node: ast.Call, idiom: Idiom) -> Finding:
        if len(node.args) == 2 and not node.keywords and _literal(node.args[0]) in ("cuda", "cpu"):
            maker = "gpu" if _literal(node.args[0]) == "cuda" else "cpu"
            begin, end = self._span(node.args[1])
            start, stop = self._span(node)
            edits = (self._edit(node, start, begin, f"xdevice.native.{maker}("), self._edit(node, end, stop, ")"))
            return self._index_grade(node.args[1], edits)
        if len(node.args) != 1 or node.keywords or isinstance(node.args[0], ast.Starred):
            return _open("not the form torch.device(text)", "XD166")
        argument = node.args[0]
        if (
            isinstance(argument, ast.Attribute)
            and argument.attr == "type"
            and only(_means(argument.value), ("device",))
        ):
            return Finding("neutral", "the kind of a device")
        finding = self._device_of_text(node, argument)
        if not finding.edits or _has_index(argument) or _is_cpu(argument):
            return finding
        return self._without_index(node, finding, _is_bare(argument))

    def _without_index(self, node: ast.Call, finding: Finding, is_gpu: bool) -> Finding:
        """The verdict on a device without an index. The native device of xdevice has an index, which shows in texts and
        ignores `set_device`. If either matters, the new text is made of the kind alone, or the site stays open."""
        in_text = node in self.text_origins
        if not in_text and not self.sets_current:
            return finding
        if not is_gpu:
            told = "flows into text" if in_text else "after set_device this is another GPU than the first"
            return _open(told, "XD169" if in_text else "XD151")
        root = node.func
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name) or self.full(root) != "torch":
            return _open("flows into text, or follows set_device, and torch has another name here", "XD169")
        why = "flows into text" if in_text else "follows set_device"
        edits = self._replace(node, f"{root.id}.device(xdevice.native.gpu().type)")
        return self._rewrite("proven", f"{finding.why}; without an index, because it {why}", edits)

    def _device_of_text(self, node: ast.Call, argument: ast.expr) -> Finding:
        text = _literal(argument)
        if text is not None and SPELLING.fullmatch(text):
            name, _, index = text.partition(":")
            maker = "cpu" if name.lower() == "cpu" else "gpu"
            return self._rewrite(
                "proven", "a text that names it", self._replace(node, f"xdevice.native.{maker}({index})")
            )
        if text is not None:
            return (
                Finding("neutral", "no device of the machine")
                if text == "meta"
                else _open("an unknown device", "XD165")
            )
        if (
            isinstance(argument, ast.JoinedStr)
            and len(argument.values) == 2
            and _literal(argument.values[0]) == "cuda:"
        ):
            filled = self._filled_in(argument.values[1])
            if filled is not None:
                edits = self._replace(node, f"xdevice.native.gpu({self.module.segment(filled)})")
                return self._index_grade(filled, edits)
        if isinstance(argument, ast.IfExp) and self._is_choice(argument):
            return self._rewrite(
                "proven", "the usual choice", self._replace(node, "xdevice.native.try_gpu()"), argument
            )
        means = _means(argument)
        edits = self._name(node, "xdevice.native.device")
        if only(means, _DEVICES) or (only(means, (*_DEVICES, "str")) and "str" not in means):
            return self._rewrite("proven", "the argument is a device or names one", edits)
        if only(means, _NUMBERS):
            edits = self._name(node, "xdevice.native.gpu")
            return self._rewrite("proven", "the argument is a number", edits)
        if only(means, ("str", *_DEVICES)):
            return self._rewrite("proven", "the argument is a text, and one that names no device raises", edits)
        return self._rewrite("safe", "the argument is not proven to name a device", edits, code="XD161")

    def _is_choice(self, node: ast.IfExp) -> bool:
        """Whether an expression is just `"cuda" if torch.cuda.is_available() else "cpu"`."""
        asks = isinstance(node.test, ast.Call) and self.full(node.test.func) in (
            "torch.cuda.is_available", "torch.accelerator.is_available",
        )  # fmt: skip
        return asks and _literal(node.body) in ("cuda", "cuda:0") and _literal(node.orelse) == "cpu"

    def _accelerator(self, node: ast.Call, idiom: Idiom) -> Finding:
        if node.args or node.keywords:
            return _open("arguments that the neutral word does not have", "XD166")
        if not getattr(node, "has_gpu", False):
            return _open("no test shows that there is one, and without one it is None", "XD170")
        finding = self._rewrite("proven", "a test has shown that there is one", self._replace(node, idiom.text))
        return self._without_index(node, finding, True)

    def _index(self, node: ast.Call, idiom: Idiom) -> Finding:
        if (node.keywords and [k.arg for k in node.keywords] != ["device_id"]) or len(node.args) + len(
            node.keywords
        ) > 1:
            return _open("arguments that the neutral word does not have", "XD166")
        edits = self._name(node, idiom.text)
        if node.keywords:
            value, _ = self._span(node.keywords[0].value)
            start, _ = self._span(node.keywords[0])
            edits = (*edits, self._edit(node, start, value, ""))
        if not node.args and not node.keywords:
            return self._rewrite("proven", "the name says it", edits)
        return self._index_grade(node.args[0] if node.args else node.keywords[0].value, edits)

    def _index_grade(self, argument: ast.expr, edits: tuple[Edit, ...]) -> Finding:
        if isinstance(argument, ast.Starred):
            return _open("stars hide the arguments", "XD166")
        if only(_means(argument), _NUMBERS):
            return self._rewrite("proven", "the index is a number", edits)
        return self._rewrite("safe", "the index is not proven to be a number", edits, code="XD161")

    def _scope(self, node: ast.Call, idiom: Idiom) -> Finding:
        is_entered = isinstance(self.parents.get(node), ast.withitem)
        if not idiom.text:
            return self._scope_of_text(node, is_entered)
        if not is_entered:
            return _open("TensorFlow's helper gives a scope, where a neutral device is needed", "XD164")
        return self._rewrite("proven", "a scope, as a neutral device is", self._name(node, idiom.text))

    def _scope_of_text(self, node: ast.Call, is_entered: bool) -> Finding:
        """The verdict on `tf.device("/GPU:1")`. Where there is no such GPU, TensorFlow takes another device: so a GPU
        stays a description in `tf.device`, which no block of xdevice is."""
        argument = node.args[0] if len(node.args) == 1 and not node.keywords else None
        index: ast.expr | None = None
        text = _literal(argument) if argument is not None else None
        if isinstance(argument, ast.JoinedStr) and len(argument.values) == 2:
            before = _literal(argument.values[0]) or ""
            index = self._filled_in(argument.values[1]) if before.endswith(":") else None
            text = f"{before}0" if index is not None else None
        match = re.fullmatch(r"/?(?:device:)?([CG])PU(?::(\d+))?", text or "", re.IGNORECASE)
        if match is None or argument is None:
            return _open("not a text that names one device", "XD165")
        maker = "cpu" if match[1] in "cC" else "gpu"
        if index is not None:
            return self._index_grade(
                index, self._replace(argument, f"xdevice.native.{maker}({self.module.segment(index)})")
            )
        if is_entered and maker == "cpu":
            edits = self._replace(node, f"xdevice.cpu({match[2] or ''})")
        else:
            edits = self._replace(argument, f"xdevice.native.{maker}({match[2] or ''})")
        return self._rewrite("proven", "a text that names it", edits)

    def _filled_in(self, part: ast.expr) -> ast.expr | None:
        """What an f-string fills in, if it can be written elsewhere as it stands."""
        if not isinstance(part, ast.FormattedValue) or part.conversion != -1 or part.format_spec is not None:
            return None
        return part.value if self._is_exact(part.value) and not self._has_sites(part.value) else None

    def _list(self, node: ast.Call, idiom: Idiom) -> Finding:
        wanted = _literal(node.args[0]) if len(node.args) == 1 and not node.keywords else None
        parent = self.parents.get(node)
        if wanted is None or wanted.lower() != "gpu":
            return _open("lists devices in the framework's own way", "XD155")
        counted = isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id == "len"
        if counted and parent is not None:
            return self._rewrite("proven", "only its length is used", self._replace(parent, "xdevice.num_gpus()"))
        if isinstance(parent, ast.If | ast.UnaryOp) or (isinstance(parent, ast.IfExp) and parent.test is node):
            return self._rewrite(
                "proven", "only asked whether there is one", self._replace(node, "xdevice.num_gpus() > 0")
            )
        is_indexed = isinstance(parent, ast.Subscript) and only(_means(parent.slice), _NUMBERS)
        if is_indexed and parent is not None and self.full(node.func) == "jax.devices":
            begin, end = self._span(parent.slice)  # type: ignore[attr-defined]
            start, stop = self._span(parent)
            edits = (self._edit(parent, start, begin, "xdevice.native.gpu("), self._edit(parent, end, stop, ")"))
            return self._rewrite("proven", "one of the list", edits)
        return _open("a list of the framework's own objects", "XD155")

    def _count(self, node: ast.Call, idiom: Idiom) -> Finding:
        if len(node.args) != 1 or node.keywords or _literal(node.args[0]) not in ("gpu", "cuda"):
            return _open("counts the devices of the default kind, CPUs too", "XD155")
        if isinstance(self.parents.get(node), ast.Expr):
            return _open("only asks whether JAX raises an error", "XD163")
        return self._rewrite("proven", "only their number is asked", self._replace(node, idiom.text))

    def _put(self, node: ast.Call, idiom: Idiom) -> Finding:
        if len(node.args) != 2 or node.keywords or any(isinstance(arg, ast.Starred) for arg in node.args):
            return _open("not the form device_put(x, device)", "XD166")
        if only(_means(node.args[1]), _DEVICES):
            return self._rewrite("proven", "the argument is a device", self._name(node, idiom.text))
        return self._rewrite(
            "safe", "the argument is not proven to be a device", self._name(node, idiom.text), code="XD161"
        )

    def _place(self, node: ast.Call, idiom: Idiom) -> Finding:
        is_alone = isinstance(self.parents.get(node), ast.Expr)
        if is_alone and len(node.args) == 1 and not node.keywords and only(_means(node.args[0]), _DEVICES):
            return self._rewrite("proven", "the argument is a device", self._name(node, idiom.text))
        return _open("its result is used, or the argument is not proven to be a device")

    def _wait(self, node: ast.Call, idiom: Idiom) -> Finding:
        if not isinstance(self.parents.get(node), ast.Expr):
            return _open("its result is used", "XD163")
        if node.keywords or len(node.args) > 1:
            return _open("arguments that the neutral word does not have", "XD166")
        edits = self._name(node, idiom.text)
        if not node.args or only(_means(node.args[0]), _DEVICES):
            return self._rewrite("proven", "the name says it", edits)
        if only(_means(node.args[0]), _NUMBERS):
            begin, _ = self._span(node.args[0])
            edits = (*edits, self._edit(node, begin, begin, "xdevice.gpu("), self._close(node, node.args[0]))
            return self._rewrite("proven", "the index is a number", edits)
        return self._rewrite("safe", "the argument is not proven to be a device", edits, code="XD161")

    def _load(self, node: ast.Call, idiom: Idiom) -> Finding:
        named = {k.arg: k for k in node.keywords}
        devices = node.args[1] if len(node.args) > 1 else named["ctx_list"].value if "ctx_list" in named else None
        if (
            devices is None
            or len(node.args) not in (1, 2)
            or not set(named) <= {"ctx_list", "batch_axis", "even_split"}
        ):
            return _open("not the form split_and_load(data, ctx_list)", "XD166")
        if "batch_axis" in named and _number(named["batch_axis"].value) != 0:
            return _open("split_batch splits the first axis", "XD166")
        edits = list(self._name(node, idiom.text))
        for old, new in (("ctx_list", "devices"), ("even_split", "even")):
            if old in named:
                start, _ = self._span(named[old])
                edits.append(self._edit(node, start, start + len(old), new))
        if "batch_axis" in named:
            edits.append(self._drop(node, named["batch_axis"]))
        data = _means(node.args[0])
        if only(data, ("tensor",)) or not may_be(data, ("array", "list", "tuple")):
            return self._rewrite("proven", "what MXNet splits, and a list of its devices", tuple(edits))
        return self._rewrite("safe", "the batch is not proven to be a tensor", tuple(edits), code="XD162")

    def _scatter(self, node: ast.Call, idiom: Idiom) -> Finding:
        if len(node.args) != 2 or node.keywords or not self._is_list_of_devices(_means(node.args[1])):
            return _open("not the form scatter(tensor, devices)", "XD166")
        if not only(_means(node.args[0]), ("tensor",)):
            return _open("what is scattered is not proven to be a tensor", "XD162")
        end = self._span(node)[1] - 1
        if self._span(node.args[1])[1] != end:
            return _open("brackets or a comma behind the arguments", "XD166")
        edits = (*self._name(node, idiom.text), self._edit(node, end, end, ", even=False"))
        return self._rewrite("proven", "a tensor, and a list of devices", edits)

    def _is_list_of_devices(self, means: Value) -> bool:
        items = [self.inference.get(("items", atom[1])) for atom in means if kind(atom) == "list"]
        return only(means, ("list",)) and all(only(item, _DEVICES) for item in items)

    def _split(self, node: ast.Call, idiom: Idiom) -> Finding:
        parent = self.parents.get(node)
        unpacked = isinstance(parent, ast.Assign) and all(
            isinstance(t, ast.Tuple) and len(t.elts) == 2 for t in parent.targets
        )
        if len(node.args) != 3 or node.keywords or not unpacked:
            return _open("split_batch gives one pair for each device, where d2l's gives two lists", "XD166")
        _, middle = self._span(node.args[1])
        _, end = self._span(node)
        edits = (
            *self._name(node, f"zip(*{idiom.text}((", upto=1), self._edit(node, middle, middle + 0, ")"),
            self._edit(node, end - 1, end, "))"),
        )  # fmt: skip
        return self._rewrite("proven", "the name says it", edits)

    def _memory(self, node: ast.Call, idiom: Idiom) -> Finding:
        _, end = self._span(node)
        edits = (*self._name(node, "xdevice.memory"), self._edit(node, end - 1, end, f").{idiom.text}"))
        if not node.args and not node.keywords:
            if self.sets_current:
                return _open("after set_device this is another GPU than the first", "XD151")
            edits = self._replace(node, f"xdevice.memory(xdevice.gpu()).{idiom.text}")
            return self._rewrite("proven", "the name says it", edits)
        if len(node.args) == 1 and not node.keywords and only(_means(node.args[0]), _DEVICES):
            return self._rewrite("proven", "the argument is a device", edits)
        return _open("the argument is not proven to be a device", "XD161")

    # methods

    def _to(self, node: ast.Call, idiom: Idiom) -> Finding:
        arguments = [*node.args, *(k.value for k in node.keywords)]
        names = [None] * len(node.args) + [k.arg for k in node.keywords]
        if any(isinstance(a, ast.Starred) for a in arguments) or any(k.arg is None for k in node.keywords):
            return _open("stars hide the arguments", "XD166")
        first, means = arguments[0], _means(arguments[0])
        if self._is_dtype(first) and "device" not in names:
            return Finding("not a device", "a dtype")
        if names[0] not in (None, "device", "ctx") or any(name != "non_blocking" for name in names[1:]):
            return _open("to_device takes the device first, and of the rest only non_blocking=", "XD166")
        if only(means, ("tensor",)):
            return _open("moves to where another tensor is, and to its dtype", "XD161")
        if self.sets_current and _is_bare(first):
            return _open("after set_device this is another GPU than the first", "XD151")
        begin, _ = self._span(first)
        wrap = only(means, _NUMBERS)
        edits = self._move(node, begin, "xdevice.gpu(" if wrap else "")
        if wrap:
            edits = (*edits, self._close(node, first))
        if only(means, _DEVICES) or wrap:
            return self._use("proven", node, edits)
        if node.func.attr in idioms.ONLY_MXNET and not is_known(means) and self._is_mxnets(node.func.attr):  # type: ignore[attr-defined]
            return self._use("proven", node, edits, "only arrays of MXNet have this method, and it takes a device")
        if (
            means
            and all(kind(atom) in ("str", "dtype", "float", "tensor", "module", "array") for atom in means)
            and "str" not in means
        ):
            return Finding("not a device", "the argument is something else")
        return self._use("safe", node, edits, "the argument is not proven to be a device; another one raises", "XD161")

    def _is_dtype(self, node: ast.expr) -> bool:
        full = self.full(node)
        named = isinstance(node, ast.Attribute) and node.attr in ("dtype", "float", "long", "half", "int", "double")
        return (
            only(_means(node), ("dtype",))
            or named
            or bool(full and re.search(r"\.(b?float|u?int|complex|half|double|long|bool|short)\d*$", full))
        )

    def _vendor(self, node: ast.Call, idiom: Idiom) -> Finding:
        """The verdict on `.cuda()` and `.cpu()`."""
        names = [k.arg for k in node.keywords]
        if (
            any(name not in ("non_blocking", "device") for name in names)
            or len(node.args) > 1
            or any(isinstance(a, ast.Starred) for a in node.args)
        ):
            return _open("arguments that the neutral word does not have", "XD166")
        begin, end = self._dot(node.func), self._span(node)[1]
        start, _ = self._span(node)
        head = self._edit(node, start, start, "xdevice.to_device(")
        device = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "device"), None)
        if device is None:
            if idiom.text == "xdevice.gpu" and self.sets_current:
                return _open("after set_device this is another GPU than the first", "XD151")
            if idiom.text == "xdevice.cpu":
                merged = self._read_around(node)
                if merged is not None:
                    return merged
            if node.keywords:
                start, _ = self._span(node.keywords[0])
                edits = (head, *self._gap(node, begin, start, f"{idiom.text}(), "))
            else:
                edits = (head, *self._gap(node, begin, end - 1, f"{idiom.text}()"))
            return self._use("proven", node, edits)
        start, _ = self._span(device)
        if names and names[0] == "device" and len(names) > 1 and names[1] != "non_blocking":
            return _open("arguments that the neutral word does not have", "XD166")
        means = _means(device)
        if only(means, _DEVICES):
            return self._use("proven", node, (head, *self._gap(node, begin, start, "")))
        wraps = means and all(kind(atom) in ("int", "bool", "none") for atom in means)
        edits = (head, *self._gap(node, begin, start, f"{idiom.text}(" if wraps else ""))
        if wraps:
            edits = (*edits, self._close(node, device))
        if only(means, _NUMBERS):
            return self._use("proven", node, edits)
        return self._use("safe", node, edits, "the argument is not proven to be a device; another one raises", "XD161")

    def _read_around(self, node: ast.Call) -> Finding | None:
        """The verdict on `.cpu()` in `x.cpu().numpy()`, which is taken out, since the new text reads from any
        device."""
        outer: ast.AST = node
        while True:
            attribute = self.parents.get(outer)
            call = self.parents.get(attribute) if isinstance(attribute, ast.Attribute) else None
            if not isinstance(attribute, ast.Attribute) or attribute.value is not outer:
                return None
            if attribute.attr == "data":
                outer = attribute
                continue
            if not isinstance(call, ast.Call) or call.func is not attribute:
                return None
            if attribute.attr in ("numpy", "item", "asnumpy") and not call.args:
                read = self._read(call, idioms.METHODS[attribute.attr])
                if read.grade is None:
                    return None
                edits = (self._edit(node, self._dot(node.func), self._span(node)[1], ""),)
                return self._rewrite(read.grade, "the read around it takes it from any device", edits, code=read.code)
            if attribute.attr not in ("detach", "clone", "contiguous", "float", "squeeze", "double", "long", "flatten"):
                return None
            outer = call

    def _use(self, grade: Grade, node: ast.Call, edits: tuple[Edit, ...], why: str = "", code: str = "") -> Finding:
        """The verdict on a move: it can be rewritten if its result is used, or if what it moves is a model."""
        receiver = node.func.value  # type: ignore[attr-defined]
        means = _means(receiver)
        if not _is_thrown_away(node, self.parents):
            about = (
                "receiver and argument are proven"
                if _is_proven(means)
                else "the argument is a device, and the result is used"
            )
            return self._rewrite(grade, why or about, edits, code=code)
        if means and all(_moves_in_place(atom) for atom in means):
            return self._rewrite(grade, why or "a model, which moves in place", edits, code=code)
        name = ast.unparse(receiver).rpartition(".")[2].lower()
        if re.fullmatch(r"(\w*_)?(net|model|module|encoder|decoder|generator|discriminator)\w*", name) and not is_known(
            means
        ):
            return self._rewrite(
                "likely", "the name says that it is a model; its result is thrown away", edits, code="XD163"
            )
        return _open("the result is thrown away, and the receiver is not proven to be a model", "XD163")

    def _reset(self, node: ast.Call, idiom: Idiom) -> Finding:
        if len(node.args) + len(node.keywords) != 1:
            return _open("not the form reset_ctx(device)", "XD166")
        device = node.args[0] if node.args else node.keywords[0].value
        if not only(_means(device), _DEVICES):
            return _open("a list of devices, or not proven to be one: replicate makes copies on several", "XD151")
        return self._rewrite("proven", "a model, which moves in place", self._move(node, self._span(device)[0], ""))

    def _copy(self, node: ast.Call, idiom: Idiom) -> Finding:
        if len(node.args) != 1 or node.keywords or isinstance(node.args[0], ast.Starred):
            return _open("not the form copyto(device)", "XD166")
        means = _means(node.args[0])
        if only(means, ("tensor", "array")):
            return Finding("not a device", "copies into another array")
        if not only(means, _DEVICES):
            return _open("the argument may be an array to write into", "XD161")
        edits = self._move(node, self._span(node.args[0])[0], "", "xdevice.copy_to(")
        return self._rewrite("proven", "the argument is a device", edits)

    def _await(self, node: ast.Call, idiom: Idiom) -> Finding:
        if node.args or node.keywords:
            return _open("arguments that the neutral word does not have", "XD166")
        if not isinstance(self.parents.get(node), ast.Expr):
            return _open("its result is used, and sync gives none", "XD163")
        return self._read(node, idiom, "xdevice.sync")

    def _read(self, node: ast.Call, idiom: Idiom, word: str = "") -> Finding:
        assert isinstance(node.func, ast.Attribute)
        forced = [k.arg for k in node.keywords] == ["force"]
        if node.args or (node.keywords and not forced):
            return _open("arguments that the neutral word does not have", "XD166")
        means = _means(node.func.value)
        if only(means, _HOST):
            return Finding("neutral", "it is on the host already")
        if isinstance(self.parents.get(node), ast.Subscript) and isinstance(self.parents[node].ctx, ast.Store):  # type: ignore[attr-defined]
            return _open("writes into the memory of the tensor", "XD163")
        if self._is_scalar_in_tensorflow(node):
            return _open("TensorFlow gives a number or a text here, and to_numpy an array of no axes", "XD165")
        begin, end = self._span(node)
        edits = (
            self._edit(node, begin, begin, f"{word or idiom.text}("),
            *self._gap(node, self._dot(node.func), end - 1, "", comma=False),
        )
        if only(means, ("tensor",)):
            return self._rewrite("proven", "the receiver is a tensor", edits)
        if means == {DECORDS_ARRAY}:
            return Finding("not a device", "an array of decord, which is on the host")
        if node.func.attr in idioms.ONLY_MXNET and (means == {GLUONS_OUTPUT} or self._is_mxnets(node.func.attr)):
            return self._rewrite("proven", "only arrays of MXNet have this method", edits)
        if is_known(means) and not may_be(means, ("tensor", "made", "array")):
            return Finding("not a device", "the receiver is something else")
        return self._rewrite(
            "safe", "the receiver is not proven to be a tensor; anything else raises", edits, code="XD162"
        )

    def _is_scalar_in_tensorflow(self, node: ast.Call) -> bool:
        """Whether `x.numpy()` is used as what only a scalar can be: a text, or a key."""
        parent = self.parents.get(node)
        if "tensorflow" not in self.uses or not isinstance(node.func, ast.Attribute) or node.func.attr != "numpy":
            return False
        if isinstance(parent, ast.Subscript):
            return parent.slice is node and not only(_means(parent.value), ("tensor", "array", "list", "tuple", "str"))
        return isinstance(parent, ast.Attribute) and parent.attr in ("decode", "startswith", "endswith", "split")

    def _is_mxnets(self, method: str) -> bool:
        """Whether no other framework that this module imports has a method of this name."""
        return self.uses == {"mxnet"} and not self.inference.by_name.get(method) and not self.others

    def _listed_values(self, node: ast.Call, idiom: Idiom) -> Finding:
        assert isinstance(node.func, ast.Attribute)
        means = _means(node.func.value)
        if only(means, _HOST):
            return Finding("neutral", "it is on the host already")
        if not only(means, ("tensor",)) or node.args or node.keywords:
            return _open("the receiver is not proven to be a tensor", "XD162")
        begin, _ = self._span(node)
        dot = self._dot(node.func)
        edits = (self._edit(node, begin, begin, "xdevice.to_numpy("), self._edit(node, dot, dot + 1, ")."))
        return self._rewrite("proven", "the receiver is a tensor", edits)

    # what is no call

    def _keyword(self, node: ast.keyword) -> tuple[Idiom, Finding] | None:
        call = self.parents.get(node)
        if node.arg not in idioms.KEYWORDS or not isinstance(call, ast.Call):
            return None
        callee = self.full(call.func)
        if callee.startswith("xdevice.") or (isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "cuda")):
            return None
        if callee in idioms.CALLS or callee.startswith(("argparse", "builtins")):
            return None
        idiom = idioms.Idiom(f"{node.arg}=", "XD111", "keyword")
        text = _literal(node.value)
        if text is None or text.lower() in ("cpu", "auto", "meta"):
            return idiom, Finding("neutral", "takes what it is given")
        if framework_of(callee) is None or not SPELLING.fullmatch(text):
            return idiom, _open("a text, for a function that may read it", "XD165")
        if self.sets_current and ":" not in text:
            return idiom, _open("after set_device this is another GPU than the first", "XD151")
        index = text.partition(":")[2]
        edits = self._replace(node.value, f"xdevice.native.gpu({index})")
        return idiom, self._rewrite("proven", "a text that names it, for a function of the framework", edits)

    def _chosen_text(self, node: ast.IfExp) -> tuple[Idiom, Finding] | None:
        """The verdict on `"cuda" if torch.cuda.is_available() else "cpu"` where it is used as text."""
        if not self._is_choice(node) or "torch" not in self.uses:
            return None
        idiom = idioms.Idiom('"cuda" if ... else "cpu"', "XD101", "chosen_text")
        indexed = _literal(node.body) == "cuda:0"
        if node.body in self.text_origins or node.orelse in self.text_origins or indexed:
            return idiom, Finding("open", "a text that is read as text, too", "XD169", consumed=(node.test,))
        edits = self._replace(node, "xdevice.native.try_gpu().type")
        return idiom, self._rewrite(
            "proven", "the same text, and right where the GPU is called something else", edits, node.test
        )

    def _compare(self, node: ast.Compare) -> tuple[Idiom, Finding] | None:
        """The verdict on `device.type == "cuda"`."""
        left = node.left
        if not isinstance(left, ast.Attribute) or left.attr not in ("type", "device_type") or len(node.ops) != 1:
            return None
        text = _literal(node.comparators[0])
        if not only(_means(left.value), ("device",)) or text not in ("cuda", "cpu", "gpu"):
            return None
        idiom = idioms.Idiom(f".{left.attr} == {text}", "XD112", "compare")
        if text == "cpu":
            return idiom, Finding("neutral", "a CPU is called cpu everywhere", consumed=(left,))
        return idiom, Finding(
            "open", "asks for one vendor's device: xdevice.device(d).kind is gpu on all", "XD112", consumed=(left,)
        )

    def _where(self, node: ast.Attribute) -> tuple[Idiom, Finding] | None:
        means = _means(node.value)
        if may_be(means, ("ext", "project", "class", "namespace", "instance", "made")) or not means:
            return None
        if isinstance(node.value, ast.Name) and node.value.id in ("self", "args", "opt", "cfg", "config"):
            return None
        idiom = idioms.Idiom(f".{node.attr}", "XD112", "where")
        if node.attr == "is_cuda":
            return idiom, _open("asks for one vendor's device: xdevice.device_of(x).kind is gpu on all", "XD162")
        return idiom, Finding("neutral", "reads where it is")

    # edits

    def _rewrite(self, grade: Grade, why: str, edits: tuple[Edit, ...], *consumed: ast.AST, code: str = "") -> Finding:
        return Finding("rewritten", why, code, grade, edits, consumed)

    def _span(self, node: ast.AST) -> tuple[int, int]:
        return self.module.span(node)

    def _edit(self, node: ast.AST, start: int, end: int, text: str) -> Edit:
        return Edit(start, -self._span(node)[1], end, text)

    def _replace(self, node: ast.AST, text: str) -> tuple[Edit, ...]:
        return (self._edit(node, *self._span(node), text),)

    def _name(self, node: ast.Call, text: str, upto: int = 0) -> tuple[Edit, ...]:
        """The edit that replaces the name of what is called; with its bracket if `upto` is 1."""
        start, end = self._span(node.func)
        if upto:
            end = self._after(end, b"(") + 1
        return (self._edit(node, start, end, text),)

    def _dot(self, func: Any) -> int:
        """The position of the dot in `value.attr`, behind the brackets and comments of the value."""
        return self._after(self._span(func.value)[1], b".")

    def _after(self, at: int, mark: bytes) -> int:
        """The next position of a mark that is not in a comment."""
        text = self.source.text
        while text[at : at + 1] != mark:
            if text[at : at + 1] == b"#":
                at = min(i for i in (text.find(b"\n", at), text.find(b"\r", at), len(text)) if i >= 0)
            at += 1
        return at

    def _move(self, node: ast.Call, argument: int, text: str, word: str = "xdevice.to_device(") -> tuple[Edit, ...]:
        start, _ = self._span(node)
        return (self._edit(node, start, start, word), *self._gap(node, self._dot(node.func), argument, text))

    def _gap(self, node: ast.Call, dot: int, end: int, text: str, comma: bool = True) -> tuple[Edit, ...]:
        """The edit that puts a comma, if `comma`, and `text` in place of what stands between the dot of `.to(` and its
        argument. Comments and line breaks in between are kept."""
        between = self.source.text[dot:end].decode()
        kept = "".join(re.findall(r"#[^\r\n]*|\\?\r?\n[ \t]*|[ \t]+(?=#)", between))
        mark = "," if comma else ""
        if kept.strip(" \t"):
            return (self._edit(node, dot, end, f"{mark}{'  ' if kept.startswith('#') else ''}{kept}{text}"),)
        return (self._edit(node, dot, end, f"{mark}{' ' if comma else ''}{text}"),)

    def _close(self, node: ast.Call, argument: ast.expr) -> Edit:
        """The edit that closes one more bracket behind an argument, before a comma that follows it."""
        _, end = self._span(argument)
        at = end
        while self.source.text[at : at + 1] in b") \t" and at < self._span(node)[1] - 1:
            at += 1
        if at == self._span(node)[1] - 1:
            return self._edit(node, at, at + 1, "))")
        comma = self._after(end, b",")
        return self._edit(node, comma, comma + 1, "),")

    def _drop(self, node: ast.Call, keyword: ast.keyword) -> Edit:
        """The edit that takes out a keyword argument and the comma before it."""
        start, end = self._span(keyword)
        while self.source.text[start : start + 1] != b",":
            start -= 1
        return self._edit(node, start, end, "")

    # what forbids an edit

    def _is_located(self, node: ast.AST) -> bool:
        """Whether the positions of a node can be trusted: before Python 3.12 those inside of f-strings may be wrong."""
        inside = any(isinstance(around, ast.JoinedStr) for around in self._around(node))
        return not inside or self._is_exact(node)

    def _is_exact(self, node: ast.AST) -> bool:
        try:
            again = ast.parse(self.module.segment(node), mode="eval").body
        except (SyntaxError, ValueError, IndexError):
            return False
        return ast.dump(again) == ast.dump(node)

    def _is_printed(self, node: ast.AST) -> bool:
        inner = node
        for around in self._around(node):
            if isinstance(around, ast.FormattedValue) and inner is around.value:
                rest = self.source.text[self._span(inner)[1] :][:40]
                return re.match(rb"\s*=\s*[}!:]", rest) is not None
            inner = around
        return False

    def _is_identified(self, node: ast.AST) -> bool:
        parent = self.parents.get(node)
        return isinstance(parent, ast.Compare) and any(isinstance(op, ast.Is | ast.IsNot) for op in parent.ops)

    def _is_scripted(self, node: ast.AST) -> bool:
        for around in self._around(node):
            for decorator in getattr(around, "decorator_list", ()):
                if self.full(decorator) in ("torch.jit.script", "torch.jit.script_method"):
                    return True
        return False

    def _is_parameter(self, node: ast.Name) -> bool:
        scopes = (around for around in self._around(node) if isinstance(around, Scope))
        return any(node.id == arg.arg for scope in scopes for arg in ast.walk(scope.args) if isinstance(arg, ast.arg))

    def _has_sites(self, node: ast.AST) -> bool:
        return any(self._idiom(inner) is not None for inner in ast.walk(node) if not isinstance(inner, ast.keyword))

    def _around(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parents:
            node = self.parents[node]
            yield node


def origins_in_text(units: list[Unit], inference: Inference) -> set[ast.AST]:
    """The expressions that choose a device which the project puts into a text somewhere."""
    found: set[ast.AST] = set()

    def collect(node: ast.AST) -> None:
        for atom in getattr(node, "means", NOTHING):
            if kind(atom) in ("device", "spelling") and atom[2] is not None:
                found.add(atom[2])
            elif kind(atom) == "tuple":
                for value in atom[1]:
                    found.update(a[2] for a in value if kind(a) in _DEVICES and a[2] is not None)

    for unit in units:
        for node in unit.nodes:
            if isinstance(node, ast.FormattedValue):
                if not SPELLING.fullmatch(str(getattr(node.value, "value", ""))):
                    collect(node.value)
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.Add):
                if only(_means(node.left), ("str", "spelling")) or only(_means(node.right), ("str", "spelling")):
                    collect(node.left)
                    collect(node.right)
            elif isinstance(node, ast.Compare):
                for part in (node.left, *node.comparators):
                    collect(part)
            elif isinstance(node, ast.Call):
                name = inference.full(node.func).removeprefix("builtins.")
                method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
                if name in _TELLS or method in _LOGS:
                    for part in (*node.args, *(k.value for k in node.keywords)):
                        collect(part)
                if method in ("startswith", "endswith", "split", "replace", "lower", "find", "partition"):
                    collect(node.func.value)  # type: ignore[attr-defined]
                for k in node.keywords:
                    if k.arg == "device_type":
                        collect(k.value)
                if idioms.CALLS.get(name, _NO_IDIOM).code == "XD154":
                    for part in node.args:
                        collect(part)
    return found


_NO_IDIOM: Final = idioms.Idiom("", "", "")


def _means(node: ast.AST) -> Value:
    return getattr(node, "means", NOTHING)


def _imports_of(unit: Unit, inference: Inference) -> set[str]:
    """The full names of what a module imports, anywhere in it."""
    found = set()
    for node in unit.nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            root = inference.project.relative(node, unit)
            found |= {root, *(f"{root}.{alias.name}" for alias in node.names)}
    return found


def _literal(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _number(node: ast.AST) -> int | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None


def _is_cpu(node: ast.AST) -> bool:
    return (_literal(node) or "").lower().startswith("cpu")


def _is_bare(node: ast.AST) -> bool:
    return _literal(node) in ("cuda", "gpu", "mps", "xpu")


def _has_index(node: ast.AST) -> bool:
    """Whether a text names a device with its index, as the framework prints it."""
    if isinstance(node, ast.JoinedStr):
        return True
    text = _literal(node)
    if isinstance(node, ast.IfExp):
        return _has_index(node.body) and _has_index(node.orelse)
    return text is not None and (":" in text or text.lower() == "cpu")


def _is_proven(means: Value) -> bool:
    return bool(means) and all(kind(atom) == "tensor" or is_model(atom) for atom in means)


def _moves_in_place(atom: Any) -> bool:
    if kind(atom) == "tensor":
        return True  # if the result is thrown away, neither the old nor the new text does anything
    if kind(atom) == "module":
        return str(atom[1]).startswith(IN_PLACE)
    return is_model(atom)


def _is_thrown_away(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    parent = parents.get(node)
    while isinstance(
        parent, ast.ListComp | ast.List | ast.Tuple | ast.Await | ast.IfExp | ast.BoolOp | ast.GeneratorExp
    ):
        parent = parents.get(parent)
    return isinstance(parent, ast.Expr)
