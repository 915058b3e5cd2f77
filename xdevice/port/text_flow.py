"""Finds the devices that a project turns into text. Such a device must keep its name:
`print(torch.device("cuda"))` prints "cuda", but a device of xdevice would print "cuda:0"."""

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
# methods of loggers, files and strings that turn their arguments into text
_WRITING_METHODS: Final = {"info", "warning", "debug", "error", "write", "log", "format"}
# names of keyword arguments that are devices
_TAKING_DEVICES: Final = {"device", "device_type", "map_location"}
# methods of strings: if one is called on a device, the program has the device's name as a string
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
    """Returns the expressions that choose the devices which reach certain places in a module.

    `parts_of(node, inference)` returns those places inside one node: it is `parts_in_text` or
    `devices_in`. The choosing expression may be far from the place, or in another module: for
    `print(d)`, it is the call in `d = torch.device("cuda")`.
    """
    return {
        origin
        for node in module.nodes
        for part in parts_of(node, inference)
        for origin in _choosing_nodes(inferred(part))
    }


def devices_in(node: ast.AST, inference: Inference) -> list[ast.expr]:
    """The arguments of a call that are taken as devices; an empty list if the node is not a
    call."""
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


def _choosing_nodes(value: Value) -> Iterator[ast.AST]:
    """The expressions that chose the devices in a value: for "cuda:0" in `d = "cuda:0"`, that
    string. Devices inside tuples count, too."""
    for atom in value:
        if atom.kind == "tuple":
            for item in atom.subject:
                yield from _choosing_nodes(item)
        elif atom.kind in DEVICES and atom.origin is not None:
            yield atom.origin


def parts_in_text(node: ast.AST, inference: Inference) -> Sequence[ast.expr]:
    """The expressions in a node that it turns into text, as an f-string does, or reads as text,
    as a comparison with a string does; none for most nodes."""
    match node:
        # the "cuda" in f"{'cuda'}" is only text: no device is turned into it
        case ast.FormattedValue(value=ast.Constant(value=str(text))) if SPELLING.fullmatch(
            text
        ):
            return ()
        case ast.FormattedValue(value=value):
            return (value,)
        # "on %s" % device; and "on " + device, if the device is a string
        case ast.BinOp(op=ast.Mod() | ast.Add(), left=left, right=right):
            return (left, right) if _is_text(left) or _is_text(right) else ()
        # `device == "cuda:0"` and `"cuda" in device` depend on the device's name
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
    """The arguments that a call turns into text. If the called method reads its own object as
    text, such as `d.startswith("cuda")`, that object is included.

    `name` is the full name of the called function, "" for a method.
    """
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name in _TEXT_FUNCTIONS or method in _WRITING_METHODS:
        return [*call.args, *(keyword.value for keyword in call.keywords)]
    # `device_type=` takes a string: PyTorch raises an error if it gets a device
    parts = [keyword.value for keyword in call.keywords if keyword.arg == "device_type"]
    if method in _READING_METHODS:
        parts.append(call.func.value)  # type: ignore[attr-defined]
    # XD154: the functions of mixed precision, such as `autocast("cuda")`, take a string
    if name in idioms.CALLS and idioms.CALLS[name].code == "XD154":
        parts += call.args
    return parts
