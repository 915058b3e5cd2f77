"""Which devices a project turns into text, where the text of another device would be visible."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from . import idioms
from .inference import Inference
from .knowledge import SPELLING
from .sources import PythonModule
from .values import DEVICES, Value, means_of, only

_TEXT_FUNCTIONS: Final = {"print", "str", "repr", "format"}
_WRITING_METHODS: Final = {"info", "warning", "debug", "error", "write", "log", "format"}
_TAKING_DEVICES: Final = {"device", "device_type", "map_location"}
_READING_METHODS: Final = {
    "startswith",
    "endswith",
    "split",
    "replace",
    "lower",
    "find",
    "partition",
}


def origins(
    module: PythonModule,
    inference: Inference,
    parts_of: Callable[[ast.AST, Inference], Sequence[ast.expr]],
) -> set[ast.AST]:
    """The expressions that choose the devices in some parts of the nodes of a module: `parts_in_text` or
    `devices_in`."""
    return {
        origin
        for node in module.walked[0]
        for part in parts_of(node, inference)
        for origin in _origins(means_of(part))
    }


def devices_in(node: ast.AST, inference: Inference) -> list[ast.expr]:
    """The expressions that a call takes as devices."""
    if not isinstance(node, ast.Call):
        return []
    parts = [keyword.value for keyword in node.keywords if keyword.arg in _TAKING_DEVICES]
    name = inference.full_name(node.func)
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    takes_first = method in ("to", "cuda") or name in (
        "torch.device",
        "torch.Generator",
        "torch.set_default_device",
    )
    if takes_first or (name in idioms.CALLS and idioms.CALLS[name].code == "XD154"):
        parts += node.args[:1]
    return parts


def _origins(value: Value) -> Iterator[ast.AST]:
    for atom in value:
        if atom.kind == "tuple":
            for item in atom.subject:
                yield from _origins(item)
        elif atom.kind in DEVICES and atom.origin is not None:
            yield atom.origin


def parts_in_text(node: ast.AST, inference: Inference) -> Sequence[ast.expr]:
    """The expressions that a node turns into text, or reads as text."""
    match node:
        # f"{'cuda'}" is a text already, whatever device there is
        case ast.FormattedValue(value=ast.Constant(value=str(text))) if SPELLING.fullmatch(
            text
        ):
            return ()
        case ast.FormattedValue(value=value):
            return (value,)
        case ast.BinOp(op=ast.Mod() | ast.Add(), left=left, right=right):
            return (left, right) if _is_text(left) or _is_text(right) else ()
        # `device == "cuda:0"` and `"cuda" in device` read the text
        case ast.Compare(left=left, comparators=others):
            return left, *others
        case ast.Call():
            return _arguments_in_text(
                node, inference.full_name(node.func).removeprefix("builtins.")
            )
    return ()


def _is_text(node: ast.expr) -> bool:
    return only(means_of(node), ("str", "spelling"))


def _arguments_in_text(call: ast.Call, name: str) -> list[ast.expr]:
    """The arguments that a call turns into text, or its object if the call reads that as text."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name in _TEXT_FUNCTIONS or method in _WRITING_METHODS:
        return [*call.args, *(keyword.value for keyword in call.keywords)]
    parts = [keyword.value for keyword in call.keywords if keyword.arg == "device_type"]
    if method in _READING_METHODS:
        parts.append(call.func.value)  # type: ignore[attr-defined]
    # autocast takes a kind of device as text
    if name in idioms.CALLS and idioms.CALLS[name].code == "XD154":
        parts += call.args
    return parts
