"""What the rules of porting share: a verdict, the module that is judged, and the edits that rewrite a use in it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from . import idioms
from .knowledge import framework_of
from .sites import Edit, Grade, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .inference import Inference
    from .sources import PythonModule

HOST: Final = ("array", "int", "float", "bool", "str")


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


def left_open(why: str, code: str = "") -> Finding:
    return Finding("open", why, code)


class Judge:
    """A module whose uses of devices are judged, and the edits that rewrite one of them."""

    def __init__(
        self, module: PythonModule, inference: Inference, text_origins: set[ast.AST], sets_current: bool
    ) -> None:
        self.module = module
        self.source = module.source
        self.full = inference.full_name
        self.inference = inference
        self.text_origins = text_origins
        self.sets_current = sets_current
        self.nodes, self.parents = module.walked
        names = _imports_of(module, inference)
        self.uses = {framework for name in names if (framework := framework_of(name)) is not None}
        names |= {node.id for node in module.walked[0] if isinstance(node, ast.Name)}
        self.others = {name.split(".")[0] for name in names} & idioms.OTHER_ARRAYS
        self.consumed: set[ast.AST] = set()

    def _has_sites(self, node: ast.AST) -> bool:
        """Whether there are uses of devices inside of an expression."""
        raise NotImplementedError

    def _is_exact(self, node: ast.AST) -> bool:
        try:
            again = ast.parse(self.module.segment(node), mode="eval").body
        except (SyntaxError, ValueError, IndexError):
            return False
        return ast.dump(again) == ast.dump(node)

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

    def _around(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parents:
            node = self.parents[node]
            yield node


def _imports_of(module: PythonModule, inference: Inference) -> set[str]:
    """The full names of what a module imports, anywhere in it."""
    found = set()
    for node in module.walked[0]:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            root = inference.project.absolute_name(node, module)
            found |= {root, *(f"{root}.{alias.name}" for alias in node.names)}
    return found


def text_of(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def number_of(node: ast.AST) -> int | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None
