"""Which devices a project turns into text. A device that becomes text must keep its name:
`print(torch.device("cuda"))` prints "cuda", and a device of xdevice would print "cuda:0"."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from . import idioms
from .inference import Inference
from .knowledge import SPELLING
from .sources import PythonModule
from .values import DEVICES, Value, inferred, is_only

# Python's functions that turn their arguments into text
_TEXT_FUNCTIONS: Final = {"print", "str", "repr", "format"}
# methods of loggers, files and strings that do the same
_WRITING_METHODS: Final = {"info", "warning", "debug", "error", "write", "log", "format"}
# keyword arguments that are devices
_TAKING_DEVICES: Final = {"device", "device_type", "map_location"}
# methods of strings: whoever calls one of them on a device has its name
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
    """Returns the expressions that choose the devices that reach certain places in a module.

    `parts_of` returns those places for one node: `parts_in_text` or `devices_in`. The choosing
    expression may be far from the place, or in another module.
    """
    return {
        origin
        for node in module.nodes
        for part in parts_of(node, inference)
        for origin in _origins(inferred(part))
    }


def devices_in(node: ast.AST, inference: Inference) -> list[ast.expr]:
    """The arguments of a call that are devices; an empty list if the node is not a call."""
    if not isinstance(node, ast.Call):
        return []
    parts = [keyword.value for keyword in node.keywords if keyword.arg in _TAKING_DEVICES]
    name = inference.full_name(node.func)
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    # the first argument, if the function takes a device there
    takes_first = method in ("to", "cuda") or name in (
        "torch.device",
        "torch.Generator",
        "torch.set_default_device",
    )
    # XD154: the functions of mixed precision, such as `autocast("cuda")`
    if takes_first or (name in idioms.CALLS and idioms.CALLS[name].code == "XD154"):
        parts += node.args[:1]
    return parts


def _origins(value: Value) -> Iterator[ast.AST]:
    """The nodes that chose the devices in a value, also those inside tuples."""
    for atom in value:
        if atom.kind == "tuple":
            for item in atom.subject:
                yield from _origins(item)
        elif atom.kind in DEVICES and atom.origin is not None:
            yield atom.origin


def parts_in_text(node: ast.AST, inference: Inference) -> Sequence[ast.expr]:
    """The parts of a node that it turns into text, as an f-string does, or reads as text, as a
    comparison with a string does; none for most nodes."""
    match node:
        # f"{'cuda'}" is a text already, whatever device there is
        case ast.FormattedValue(value=ast.Constant(value=str(text))) if SPELLING.fullmatch(
            text
        ):
            return ()
        case ast.FormattedValue(value=value):
            return (value,)
        # "on %s" % device, and "on " + str(device)
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
    """Whether an expression is known to be a string."""
    return is_only(inferred(node), ("str", "spelling"))


def _arguments_in_text(call: ast.Call, name: str) -> list[ast.expr]:
    """The arguments that a call turns into text, and the object of a method that reads the
    object as text.

    `name` is the full name of the called function, "" for a method.
    """
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name in _TEXT_FUNCTIONS or method in _WRITING_METHODS:
        return [*call.args, *(keyword.value for keyword in call.keywords)]
    # `device_type=` is a string, and PyTorch raises if it gets a device
    parts = [keyword.value for keyword in call.keywords if keyword.arg == "device_type"]
    if method in _READING_METHODS:
        parts.append(call.func.value)  # type: ignore[attr-defined]
    # XD154: autocast takes the type of a device as text
    if name in idioms.CALLS and idioms.CALLS[name].code == "XD154":
        parts += call.args
    return parts
