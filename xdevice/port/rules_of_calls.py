"""The verdicts on calls of functions and classes, which are known by their full names."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from .judging import Finding, Judge, left_open, number_of, text_of
from .knowledge import SPELLING
from .values import DEVICES, NOTHING, NUMBERS, kind, may_be, means_of, only

if TYPE_CHECKING:
    from .idioms import Idiom
    from .sites import Edit
    from .values import Value

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


class CallRules(Judge):
    """The rules for calls; `idioms.CALLS` says which of them judges which name."""

    def _none(self, node: ast.Call, idiom: Idiom) -> Finding:
        return Finding("neutral", idiom.why) if idiom.code == "XD152" else left_open(idiom.why)

    def _rename(self, node: ast.Call, idiom: Idiom) -> Finding:
        if any(isinstance(arg, ast.Starred) for arg in node.args) or any(k.arg is None for k in node.keywords):
            return left_open("stars hide the arguments", "XD166")
        if idiom.text == "xdevice.to_numpy" and (len(node.args) != 1 or node.keywords):
            return left_open("to_numpy takes one argument", "XD166")
        return self._rewrite("proven", "the name says it", self._name(node, idiom.text))

    def _whole(self, node: ast.Call, idiom: Idiom) -> Finding:
        if node.args or node.keywords:
            return left_open("the neutral word takes no argument", "XD166")
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
        if len(node.args) == 2 and not node.keywords and text_of(node.args[0]) in ("cuda", "cpu"):
            maker = "gpu" if text_of(node.args[0]) == "cuda" else "cpu"
            begin, end = self._span(node.args[1])
            start, stop = self._span(node)
            edits = (self._edit(node, start, begin, f"xdevice.native.{maker}("), self._edit(node, end, stop, ")"))
            return self._index_grade(node.args[1], edits)
        if len(node.args) != 1 or node.keywords or isinstance(node.args[0], ast.Starred):
            return left_open("not the form torch.device(text)", "XD166")
        argument = node.args[0]
        if (
            isinstance(argument, ast.Attribute)
            and argument.attr == "type"
            and only(means_of(argument.value), ("device",))
        ):
            return Finding("neutral", "the kind of a device")
        finding = self._device_of_text(node, argument)
        if not finding.edits or has_index(argument) or is_cpu(argument):
            return finding
        return self._without_index(node, finding, is_bare(argument))

    def _without_index(self, node: ast.Call, finding: Finding, is_gpu: bool) -> Finding:
        """The verdict on a device without an index. The native device of xdevice has an index, which shows in texts and
        ignores `set_device`. If either matters, the new text is made of the kind alone, or the site stays open."""
        in_text = node in self.text_origins
        if not in_text and not self.sets_current:
            return finding
        if not is_gpu:
            told = "flows into text" if in_text else "after set_device this is another GPU than the first"
            return left_open(told, "XD169" if in_text else "XD151")
        root = node.func
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name) or self.full(root) != "torch":
            return left_open("flows into text, or follows set_device, and torch has another name here", "XD169")
        why = "flows into text" if in_text else "follows set_device"
        edits = self._replace(node, f"{root.id}.device(xdevice.native.gpu().type)")
        return self._rewrite("proven", f"{finding.why}; without an index, because it {why}", edits)

    def _device_of_text(self, node: ast.Call, argument: ast.expr) -> Finding:
        text = text_of(argument)
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
                else left_open("an unknown device", "XD165")
            )
        if isinstance(argument, ast.JoinedStr) and len(argument.values) == 2 and text_of(argument.values[0]) == "cuda:":
            filled = self._filled_in(argument.values[1])
            if filled is not None:
                edits = self._replace(node, f"xdevice.native.gpu({self.module.segment(filled)})")
                return self._index_grade(filled, edits)
        if isinstance(argument, ast.IfExp) and self._is_choice(argument):
            return self._rewrite(
                "proven", "the usual choice", self._replace(node, "xdevice.native.try_gpu()"), argument
            )
        means = means_of(argument)
        edits = self._name(node, "xdevice.native.device")
        if only(means, DEVICES) or (only(means, (*DEVICES, "str")) and "str" not in means):
            return self._rewrite("proven", "the argument is a device or names one", edits)
        if only(means, NUMBERS):
            edits = self._name(node, "xdevice.native.gpu")
            return self._rewrite("proven", "the argument is a number", edits)
        if only(means, ("str", *DEVICES)):
            return self._rewrite("proven", "the argument is a text, and one that names no device raises", edits)
        return self._rewrite("safe", "the argument is not proven to name a device", edits, code="XD161")

    def _is_choice(self, node: ast.IfExp) -> bool:
        """Whether an expression is just `"cuda" if torch.cuda.is_available() else "cpu"`."""
        asks = isinstance(node.test, ast.Call) and self.full(node.test.func) in (
            "torch.cuda.is_available", "torch.accelerator.is_available",
        )  # fmt: skip
        return asks and text_of(node.body) in ("cuda", "cuda:0") and text_of(node.orelse) == "cpu"

    def _accelerator(self, node: ast.Call, idiom: Idiom) -> Finding:
        if node.args or node.keywords:
            return left_open("arguments that the neutral word does not have", "XD166")
        if not getattr(node, "has_gpu", False):
            return left_open("no test shows that there is one, and without one it is None", "XD170")
        finding = self._rewrite("proven", "a test has shown that there is one", self._replace(node, idiom.text))
        return self._without_index(node, finding, True)

    def _index(self, node: ast.Call, idiom: Idiom) -> Finding:
        if (node.keywords and [k.arg for k in node.keywords] != ["device_id"]) or len(node.args) + len(
            node.keywords
        ) > 1:
            return left_open("arguments that the neutral word does not have", "XD166")
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
            return left_open("stars hide the arguments", "XD166")
        if only(means_of(argument), NUMBERS):
            return self._rewrite("proven", "the index is a number", edits)
        return self._rewrite("safe", "the index is not proven to be a number", edits, code="XD161")

    def _scope(self, node: ast.Call, idiom: Idiom) -> Finding:
        is_entered = isinstance(self.parents.get(node), ast.withitem)
        if not idiom.text:
            return self._scope_of_text(node, is_entered)
        if not is_entered:
            return left_open("TensorFlow's helper gives a scope, where a neutral device is needed", "XD164")
        return self._rewrite("proven", "a scope, as a neutral device is", self._name(node, idiom.text))

    def _scope_of_text(self, node: ast.Call, is_entered: bool) -> Finding:
        """The verdict on `tf.device("/GPU:1")`. Where there is no such GPU, TensorFlow takes another device: so a GPU
        stays a description in `tf.device`, which no block of xdevice is."""
        argument = node.args[0] if len(node.args) == 1 and not node.keywords else None
        index: ast.expr | None = None
        text = text_of(argument) if argument is not None else None
        if isinstance(argument, ast.JoinedStr) and len(argument.values) == 2:
            before = text_of(argument.values[0]) or ""
            index = self._filled_in(argument.values[1]) if before.endswith(":") else None
            text = f"{before}0" if index is not None else None
        match = re.fullmatch(r"/?(?:device:)?([CG])PU(?::(\d+))?", text or "", re.IGNORECASE)
        if match is None or argument is None:
            return left_open("not a text that names one device", "XD165")
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
        wanted = text_of(node.args[0]) if len(node.args) == 1 and not node.keywords else None
        parent = self.parents.get(node)
        if wanted is None or wanted.lower() != "gpu":
            return left_open("lists devices in the framework's own way", "XD155")
        counted = isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id == "len"
        if counted and parent is not None:
            return self._rewrite("proven", "only its length is used", self._replace(parent, "xdevice.num_gpus()"))
        if isinstance(parent, ast.If | ast.UnaryOp) or (isinstance(parent, ast.IfExp) and parent.test is node):
            return self._rewrite(
                "proven", "only asked whether there is one", self._replace(node, "xdevice.num_gpus() > 0")
            )
        is_indexed = isinstance(parent, ast.Subscript) and only(means_of(parent.slice), NUMBERS)
        if is_indexed and parent is not None and self.full(node.func) == "jax.devices":
            begin, end = self._span(parent.slice)  # type: ignore[attr-defined]
            start, stop = self._span(parent)
            edits = (self._edit(parent, start, begin, "xdevice.native.gpu("), self._edit(parent, end, stop, ")"))
            return self._rewrite("proven", "one of the list", edits)
        return left_open("a list of the framework's own objects", "XD155")

    def _count(self, node: ast.Call, idiom: Idiom) -> Finding:
        if len(node.args) != 1 or node.keywords or text_of(node.args[0]) not in ("gpu", "cuda"):
            return left_open("counts the devices of the default kind, CPUs too", "XD155")
        if isinstance(self.parents.get(node), ast.Expr):
            return left_open("only asks whether JAX raises an error", "XD163")
        return self._rewrite("proven", "only their number is asked", self._replace(node, idiom.text))

    def _put(self, node: ast.Call, idiom: Idiom) -> Finding:
        if len(node.args) != 2 or node.keywords or any(isinstance(arg, ast.Starred) for arg in node.args):
            return left_open("not the form device_put(x, device)", "XD166")
        if only(means_of(node.args[1]), DEVICES):
            return self._rewrite("proven", "the argument is a device", self._name(node, idiom.text))
        return self._rewrite(
            "safe", "the argument is not proven to be a device", self._name(node, idiom.text), code="XD161"
        )

    def _place(self, node: ast.Call, idiom: Idiom) -> Finding:
        is_alone = isinstance(self.parents.get(node), ast.Expr)
        means = means_of(node.args[0]) if len(node.args) == 1 and not node.keywords else NOTHING
        if not is_alone or not only(means, DEVICES):
            return left_open("its result is used, or the argument is not proven to be a device")
        if any(kind(atom) == "spelling" and ":" not in atom[1] and atom[1].lower() != "cpu" for atom in means):
            return left_open("without an index, Paddle takes the GPU that was given to the process")
        return self._rewrite("proven", "the argument is a device", self._name(node, idiom.text))

    def _wait(self, node: ast.Call, idiom: Idiom) -> Finding:
        if not isinstance(self.parents.get(node), ast.Expr):
            return left_open("its result is used", "XD163")
        if node.keywords or len(node.args) > 1:
            return left_open("arguments that the neutral word does not have", "XD166")
        edits = self._name(node, idiom.text)
        if not node.args or only(means_of(node.args[0]), DEVICES):
            return self._rewrite("proven", "the name says it", edits)
        if only(means_of(node.args[0]), NUMBERS):
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
            return left_open("not the form split_and_load(data, ctx_list)", "XD166")
        if "batch_axis" in named and number_of(named["batch_axis"].value) != 0:
            return left_open("split_batch splits the first axis", "XD166")
        edits = list(self._name(node, idiom.text))
        for old, new in (("ctx_list", "devices"), ("even_split", "even")):
            if old in named:
                start, _ = self._span(named[old])
                edits.append(self._edit(node, start, start + len(old), new))
        if "batch_axis" in named:
            edits.append(self._drop(node, named["batch_axis"]))
        data = means_of(node.args[0])
        if only(data, ("tensor",)) or not may_be(data, ("array", "list", "tuple")):
            return self._rewrite("proven", "what MXNet splits, and a list of its devices", tuple(edits))
        return self._rewrite("safe", "the batch is not proven to be a tensor", tuple(edits), code="XD162")

    def _scatter(self, node: ast.Call, idiom: Idiom) -> Finding:
        if len(node.args) != 2 or node.keywords or not self._is_list_of_devices(means_of(node.args[1])):
            return left_open("not the form scatter(tensor, devices)", "XD166")
        if not only(means_of(node.args[0]), ("tensor",)):
            return left_open("what is scattered is not proven to be a tensor", "XD162")
        end = self._span(node)[1] - 1
        if self._span(node.args[1])[1] != end:
            return left_open("brackets or a comma behind the arguments", "XD166")
        edits = (*self._name(node, idiom.text), self._edit(node, end, end, ", even=False"))
        return self._rewrite("proven", "a tensor, and a list of devices", edits)

    def _is_list_of_devices(self, means: Value) -> bool:
        items = [self.inference.cells.items(atom) for atom in means if kind(atom) == "list"]
        return only(means, ("list",)) and all(only(item, DEVICES) for item in items)

    def _split(self, node: ast.Call, idiom: Idiom) -> Finding:
        parent = self.parents.get(node)
        unpacked = isinstance(parent, ast.Assign) and all(
            isinstance(t, ast.Tuple) and len(t.elts) == 2 for t in parent.targets
        )
        if len(node.args) != 3 or node.keywords or not unpacked:
            return left_open("split_batch gives one pair for each device, where d2l's gives two lists", "XD166")
        _, middle = self._span(node.args[1])
        _, end = self._span(node)
        edits = (
            *self._name(node, f"zip(*{idiom.text}((", upto=1), self._edit(node, middle, middle, ")"),
            self._edit(node, end - 1, end, "))"),
        )  # fmt: skip
        return self._rewrite("proven", "the name says it", edits)

    def _memory(self, node: ast.Call, idiom: Idiom) -> Finding:
        _, end = self._span(node)
        edits = (*self._name(node, "xdevice.memory"), self._edit(node, end - 1, end, f").{idiom.text}"))
        if not node.args and not node.keywords:
            if self.sets_current:
                return left_open("after set_device this is another GPU than the first", "XD151")
            edits = self._replace(node, f"xdevice.memory(xdevice.gpu()).{idiom.text}")
            return self._rewrite("proven", "the name says it", edits)
        if len(node.args) == 1 and not node.keywords and only(means_of(node.args[0]), DEVICES):
            return self._rewrite("proven", "the argument is a device", edits)
        return left_open("the argument is not proven to be a device", "XD161")


def is_cpu(node: ast.AST) -> bool:
    return (text_of(node) or "").lower().startswith("cpu")


def is_bare(node: ast.AST) -> bool:
    return text_of(node) in ("cuda", "gpu", "mps", "xpu")


def has_index(node: ast.AST) -> bool:
    """Whether a text names a device with its index, as the framework prints it."""
    if isinstance(node, ast.JoinedStr):
        return True
    text = text_of(node)
    if isinstance(node, ast.IfExp):
        return has_index(node.body) and has_index(node.orelse)
    return text is not None and (":" in text or text.lower() == "cpu")
