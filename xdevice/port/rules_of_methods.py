"""The verdicts on methods of tensors and models, which are known by their names and by what the receiver may be."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from . import idioms
from .judging import HOST, Finding, Judge, left_open
from .knowledge import DECORDS_ARRAY, GLUONS_OUTPUT, IN_PLACE, is_model
from .rules_of_calls import is_bare
from .values import DEVICES, NUMBERS, is_known, kind, may_be, means_of, only

if TYPE_CHECKING:
    from .idioms import Idiom
    from .sites import Edit, Grade
    from .values import Value


class MethodRules(Judge):
    """The rules for methods; `idioms.METHODS` says which of them judges which name."""

    def _to(self, node: ast.Call, idiom: Idiom) -> Finding:
        arguments = [*node.args, *(k.value for k in node.keywords)]
        names = [None] * len(node.args) + [k.arg for k in node.keywords]
        if any(isinstance(a, ast.Starred) for a in arguments) or any(k.arg is None for k in node.keywords):
            return left_open("stars hide the arguments", "XD166")
        first, means = arguments[0], means_of(arguments[0])
        if self._is_dtype(first) and "device" not in names:
            return Finding("not a device", "a dtype")
        if names[0] not in (None, "device", "ctx") or any(name != "non_blocking" for name in names[1:]):
            return left_open("to_device takes the device first, and of the rest only non_blocking=", "XD166")
        if only(means, ("tensor",)):
            return left_open("moves to where another tensor is, and to its dtype", "XD161")
        if self.sets_current and is_bare(first):
            return left_open("after set_device this is another GPU than the first", "XD151")
        begin, _ = self._span(first)
        wrap = only(means, NUMBERS)
        edits = self._move(node, begin, "xdevice.gpu(" if wrap else "")
        if wrap:
            edits = (*edits, self._close(node, first))
        if only(means, DEVICES) or wrap:
            return self._use("proven", node, edits)
        if node.func.attr in idioms.ONLY_MXNET and not is_known(means) and self._is_mxnets(node.func.attr):  # type: ignore[attr-defined]
            return self._use("proven", node, edits, "only arrays of MXNet have this method, and it takes a device")
        if (
            means
            and all(kind(atom) in ("str", "dtype", "float", "tensor", "model", "array") for atom in means)
            and "str" not in means
        ):
            return Finding("not a device", "the argument is something else")
        return self._use("safe", node, edits, "the argument is not proven to be a device; another one raises", "XD161")

    def _is_dtype(self, node: ast.expr) -> bool:
        full = self.full(node)
        named = isinstance(node, ast.Attribute) and node.attr in ("dtype", "float", "long", "half", "int", "double")
        return (
            only(means_of(node), ("dtype",))
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
            return left_open("arguments that the neutral word does not have", "XD166")
        begin, end = self._dot(node.func), self._span(node)[1]
        start, _ = self._span(node)
        head = self._edit(node, start, start, "xdevice.to_device(")
        device = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "device"), None)
        if device is None:
            if idiom.text == "xdevice.gpu" and self.sets_current:
                return left_open("after set_device this is another GPU than the first", "XD151")
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
            return left_open("arguments that the neutral word does not have", "XD166")
        means = means_of(device)
        if only(means, DEVICES):
            return self._use("proven", node, (head, *self._gap(node, begin, start, "")))
        wraps = means and all(kind(atom) in ("int", "bool", "none") for atom in means)
        edits = (head, *self._gap(node, begin, start, f"{idiom.text}(" if wraps else ""))
        if wraps:
            edits = (*edits, self._close(node, device))
        if only(means, NUMBERS):
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
        means = means_of(receiver)
        if not is_thrown_away(node, self.parents):
            about = (
                "receiver and argument are proven"
                if is_proven(means)
                else "the argument is a device, and the result is used"
            )
            return self._rewrite(grade, why or about, edits, code=code)
        if means and all(moves_in_place(atom) for atom in means):
            return self._rewrite(grade, why or "a model, which moves in place", edits, code=code)
        name = ast.unparse(receiver).rpartition(".")[2].lower()
        if re.fullmatch(r"(\w*_)?(net|model|module|encoder|decoder|generator|discriminator)\w*", name) and not is_known(
            means
        ):
            return self._rewrite(
                "likely", "the name says that it is a model; its result is thrown away", edits, code="XD163"
            )
        return left_open("the result is thrown away, and the receiver is not proven to be a model", "XD163")

    def _reset(self, node: ast.Call, idiom: Idiom) -> Finding:
        if len(node.args) + len(node.keywords) != 1:
            return left_open("not the form reset_ctx(device)", "XD166")
        device = node.args[0] if node.args else node.keywords[0].value
        if not only(means_of(device), DEVICES):
            return left_open("a list of devices, or not proven to be one: replicate makes copies on several", "XD151")
        return self._rewrite("proven", "a model, which moves in place", self._move(node, self._span(device)[0], ""))

    def _copy(self, node: ast.Call, idiom: Idiom) -> Finding:
        if len(node.args) != 1 or node.keywords or isinstance(node.args[0], ast.Starred):
            return left_open("not the form copyto(device)", "XD166")
        means = means_of(node.args[0])
        if only(means, ("tensor", "array")):
            return Finding("not a device", "copies into another array")
        if not only(means, DEVICES):
            return left_open("the argument may be an array to write into", "XD161")
        edits = self._move(node, self._span(node.args[0])[0], "", "xdevice.copy_to(")
        return self._rewrite("proven", "the argument is a device", edits)

    def _await(self, node: ast.Call, idiom: Idiom) -> Finding:
        if node.args or node.keywords:
            return left_open("arguments that the neutral word does not have", "XD166")
        if not isinstance(self.parents.get(node), ast.Expr):
            return left_open("its result is used, and sync gives none", "XD163")
        return self._read(node, idiom, "xdevice.sync")

    def _read(self, node: ast.Call, idiom: Idiom, word: str = "") -> Finding:
        assert isinstance(node.func, ast.Attribute)
        forced = [k.arg for k in node.keywords] == ["force"]
        if node.args or (node.keywords and not forced):
            return left_open("arguments that the neutral word does not have", "XD166")
        means = means_of(node.func.value)
        if only(means, HOST):
            return Finding("neutral", "it is on the host already")
        if isinstance(self.parents.get(node), ast.Subscript) and isinstance(self.parents[node].ctx, ast.Store):  # type: ignore[attr-defined]
            return left_open("writes into the memory of the tensor", "XD163")
        if self._is_scalar_in_tensorflow(node):
            return left_open("TensorFlow gives a number or a text here, and to_numpy an array of no axes", "XD165")
        begin, end = self._span(node)
        edits = (
            self._edit(node, begin, begin, f"{word or idiom.text}("),
            *self._gap(node, self._dot(node.func), end - 1, "", comma=False),
        )
        if only(means, ("tensor",)):
            return self._rewrite("proven", "the receiver is a tensor", edits)
        if means == {DECORDS_ARRAY}:
            return Finding("not a device", "an array of decord, which is on the host")
        if node.func.attr in idioms.ONLY_MXNET and self.others and "mxnet" not in self.uses:
            return Finding("not a device", f"a method of {min(self.others)}'s arrays, and of none of the framework's")
        if node.func.attr in idioms.ONLY_MXNET and (means == {GLUONS_OUTPUT} or self._is_mxnets(node.func.attr)):
            return self._rewrite("proven", "only arrays of MXNet have this method", edits)
        if is_known(means) and not may_be(means, ("tensor", "result", "array")):
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
            indexed = ("tensor", "array", "list", "tuple", "str")
            return parent.slice is node and not only(means_of(parent.value), indexed)
        return isinstance(parent, ast.Attribute) and parent.attr in ("decode", "startswith", "endswith", "split")

    def _is_mxnets(self, method: str) -> bool:
        """Whether no other framework that this module imports has a method of this name."""
        return self.uses == {"mxnet"} and not self.inference.methods.get(method) and not self.others

    def _listed_values(self, node: ast.Call, idiom: Idiom) -> Finding:
        assert isinstance(node.func, ast.Attribute)
        means = means_of(node.func.value)
        if only(means, HOST):
            return Finding("neutral", "it is on the host already")
        if not only(means, ("tensor",)) or node.args or node.keywords:
            return left_open("the receiver is not proven to be a tensor", "XD162")
        begin, _ = self._span(node)
        dot = self._dot(node.func)
        edits = (self._edit(node, begin, begin, "xdevice.to_numpy("), self._edit(node, dot, dot + 1, ")."))
        return self._rewrite("proven", "the receiver is a tensor", edits)


def is_proven(means: Value) -> bool:
    return bool(means) and all(kind(atom) == "tensor" or is_model(atom) for atom in means)


def moves_in_place(atom: Any) -> bool:
    if kind(atom) == "tensor":
        return True  # if the result is thrown away, neither the old nor the new text does anything
    if kind(atom) == "model":
        return str(atom[1]).startswith(IN_PLACE)
    return is_model(atom)


def is_thrown_away(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    parent = parents.get(node)
    while isinstance(
        parent, ast.ListComp | ast.List | ast.Tuple | ast.Await | ast.IfExp | ast.BoolOp | ast.GeneratorExp
    ):
        parent = parents.get(parent)
    return isinstance(parent, ast.Expr)
