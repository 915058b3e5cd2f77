"""Finds the devices that a project converts to text. The text of such a device must not change:
`print(torch.device("cuda"))` prints "cuda", but it would print "cuda:0" with a device of
xdevice."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from . import idioms
from .inference import Inference
from .knowledge import SPELLING, framework_of
from .sources import PythonModule
from .values import DEVICES, Value, inferred, is_only

# built-in functions that turn their arguments into text
_TEXT_FUNCTIONS: Final = {"print", "str", "repr", "format"}
# methods of loggers, files and strings that turn their arguments into text
_WRITING_METHODS: Final = {"info", "warning", "debug", "error", "write", "log", "format"}
# the names of keyword arguments whose values are devices
_DEVICE_KEYWORDS: Final = {"device", "device_type", "map_location"}
# methods of strings: if such a method is called on a device, the program uses the device's name as a string
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
    """Finds the devices that reach certain places in a module, such as the arguments of `print`. Returns the
    expressions that choose these devices.

    `parts_of(node, inference)` returns the places in one node. It is `expressions_in_text`, `device_arguments` or
    `device_keyword_arguments`. Such an expression may be far from the place, or in another module. For `print(d)`, it
    may be the call in `d = torch.device("cuda")`.
    """
    return {
        origin
        for node in module.nodes
        for part in parts_of(node, inference)
        for origin in _choosing_nodes(inferred(part))
    }


def device_arguments(node: ast.AST, inference: Inference) -> list[ast.expr]:
    """Returns the arguments of a call that the called function uses as devices; an empty list
    if the node is not a call."""
    if not isinstance(node, ast.Call):
        return []
    parts = [keyword.value for keyword in node.keywords if keyword.arg in _DEVICE_KEYWORDS]
    name = inference.full_name(node.func)
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    # whether the first argument of the function is a device
    takes_first = method in ("to", "cuda") or name in (
        "torch.device",
        "torch.Generator",
        "torch.set_default_device",
    )
    # XD154: the functions of mixed precision, such as `autocast("cuda")`
    if takes_first or (name in idioms.CALLS and idioms.CALLS[name].code == "XD154"):
        parts += node.args[:1]
    return parts


def device_keyword_arguments(node: ast.AST, inference: Inference) -> list[ast.expr]:
    """Returns the keyword arguments that a function of PyTorch takes as devices: the `d` in
    `torch.zeros(2, device=d)`. Returns an empty list for other nodes."""
    if (
        not isinstance(node, ast.Call)
        or framework_of(inference.full_name(node.func)) != "torch"
    ):
        return []
    return [
        keyword.value for keyword in node.keywords if keyword.arg in ("device", "map_location")
    ]


def _choosing_nodes(value: Value) -> Iterator[ast.AST]:
    """Yields the expressions that chose the devices in a value. For the value of `d` after `d =
    "cuda:0"`, this is the string. Devices inside tuples are included."""
    for atom in value:
        if atom.kind == "tuple":
            for item in atom.subject:
                yield from _choosing_nodes(item)
        elif atom.kind in DEVICES and atom.origin is not None:
            yield atom.origin


def expressions_in_text(node: ast.AST, inference: Inference) -> Sequence[ast.expr]:
    """Returns the expressions in a node that are converted to text, as in an f-string, or are read
    as text, as in a comparison with a string. Most nodes have no such expressions."""
    match node:
        # the "cuda" in f"{'cuda'}" is only text, and not the name of a device
        case ast.FormattedValue(value=ast.Constant(value=str(text))) if SPELLING.fullmatch(
            text
        ):
            return ()
        case ast.FormattedValue(value=value):
            return (value,)
        # `"on %s" % device` or, if the device is a string, `"on " + device`
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
    """Returns the arguments that a call converts to text. If the called method reads its receiver
    as text, as in `d.startswith("cuda")`, the receiver is included.

    `name` is the full name of the called function, "" for a method.
    """
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name in _TEXT_FUNCTIONS or method in _WRITING_METHODS:
        return [*call.args, *(keyword.value for keyword in call.keywords)]
    # the value of `device_type=` must be a string: PyTorch raises an error if it is a device
    parts = [keyword.value for keyword in call.keywords if keyword.arg == "device_type"]
    if method in _READING_METHODS:
        parts.append(call.func.value)  # type: ignore[attr-defined]
    # XD154: the functions of mixed precision, such as `autocast("cuda")`, accept a string
    if name in idioms.CALLS and idioms.CALLS[name].code == "XD154":
        parts += call.args
    return parts
