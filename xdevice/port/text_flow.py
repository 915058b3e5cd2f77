"""Which devices a project puts into a text, where the text of another device would show."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from . import idioms
from .knowledge import SPELLING
from .values import DEVICES, NOTHING, kind, means_of, only

if TYPE_CHECKING:
    from .inference import Inference
    from .sources import PythonModule

_TELLS: Final = {"print", "str", "repr", "format"}
_LOGS: Final = {"info", "warning", "debug", "error", "write", "log", "format"}
_NO_IDIOM: Final = idioms.Idiom("", "", "")


def origins_in_text(modules: list[PythonModule], inference: Inference) -> set[ast.AST]:
    """The expressions that choose a device which the project puts into a text somewhere."""
    found: set[ast.AST] = set()

    def collect(node: ast.AST) -> None:
        for atom in getattr(node, "means", NOTHING):
            if kind(atom) in ("device", "spelling") and atom[-1] is not None:
                found.add(atom[-1])
            elif kind(atom) == "tuple":
                for value in atom[1]:
                    found.update(a[-1] for a in value if kind(a) in DEVICES and a[-1] is not None)

    for module in modules:
        for node in module.walked[0]:
            if isinstance(node, ast.FormattedValue):
                if not SPELLING.fullmatch(str(getattr(node.value, "value", ""))):
                    collect(node.value)
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.Add):
                if only(means_of(node.left), ("str", "spelling")) or only(means_of(node.right), ("str", "spelling")):
                    collect(node.left)
                    collect(node.right)
            elif isinstance(node, ast.Compare):
                for part in (node.left, *node.comparators):
                    collect(part)
            elif isinstance(node, ast.Call):
                name = inference.full_name(node.func).removeprefix("builtins.")
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
