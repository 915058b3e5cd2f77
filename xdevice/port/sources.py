"""Files with Python in them: scripts, notebooks, and the texts of d2l with their tabs.

Each is read into one text (`Source.text`, UTF-8), and the rest of the room knows positions in that text only: lines
from 1, columns and offsets in bytes. The text of a script is the script, that of a notebook its cells of code one after
the other, that of a d2l text the Markdown itself. `Source.modules` are what Python would run of the text: one module,
or one for each tab, in which every line keeps its number and everything but the code of that tab is blank.
"""

from __future__ import annotations

import ast
import codecs
import io
import json
import os
import re
import shutil
import sys
import tempfile
import tokenize
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from pathlib import Path, PurePosixPath
from typing import Any, Final

from .progress import Progress, unseen
from .sites import Edit, splice

SUFFIXES: Final = (".py", ".ipynb", ".md")
SKIPPED: Final = {"__pycache__", "node_modules", "build", "dist", "site-packages"}
"""Folders that are not searched, nor are those that begin with a dot, unless the user names one."""

_NEWLINE: Final = re.compile(rb"\r\n|\r|\n")
_TAB: Final = re.compile(r"\s*(?:%%tab|#\s*@tab)\s+([\w ,]+)")
_FENCE: Final = re.compile(rb"[ \t]*```\s*\{\.python\s+\.input")
_MAGIC: Final = re.compile(r"^([ \t]*)(?:[%!?].*|.*\?)$", re.MULTILINE)
_OTHER_LANGUAGES: Final = re.compile(r"\s*%%(?!time\b|timeit\b|capture\b|tab\b)")
TABS: Final = ("mxnet", "pytorch", "tensorflow", "paddle", "jax")


_MARKS: Final = (ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop)
_LEAVES: Final = {
    type(None),
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(...),
    *(leaf for mark in _MARKS for leaf in mark.__subclasses__()),
}
"""The classes of what trees are made of beside nodes with children."""


class UnreadableError(Exception):
    """Raised for a file that cannot be read, with the reason."""


@dataclass(eq=False)
class PythonModule:
    """The code of a file that Python would run: a script, a notebook, or one tab of a d2l text. `name` is its full
    name, with the packages around it ("d2l.torch"), once it is part of a project."""

    source: Source
    tab: str | None
    tree: ast.Module
    name: str = ""

    @cached_property
    def path(self) -> PurePosixPath:
        return PurePosixPath(self.source.path)

    @cached_property
    def walked(self) -> tuple[list[Any], dict[ast.AST, ast.AST]]:
        """All nodes of the tree, the outer ones first, and the parent of each. Operators and contexts of names, which
        all trees share, are left out."""
        nodes: list[Any] = [self.tree]
        parents: dict[ast.AST, ast.AST] = {}
        # a loop, because the trees of long expressions are too deep for recursion
        for node in nodes:  # which grows meanwhile
            for name in node._fields:
                part: Any = getattr(node, name, None)
                for child in part if part.__class__ is list else (part,):
                    if child.__class__ not in _LEAVES:
                        parents[child] = node
                        nodes.append(child)
        return nodes, parents

    def release(self) -> None:
        """Drops what `walked` keeps, because a large project would not fit into memory with it."""
        self.__dict__.pop("walked", None)

    def segment(self, node: ast.AST) -> str:
        """The source text of a node."""
        return self.source.text[slice(*self.span(node))].decode()

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where a node begins and ends in `Source.text`, without brackets around it."""
        at = self.source.offset
        return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]


@dataclass(eq=False)
class Cell:
    """Lines of a file from `line` on, with their text, and the tabs that they belong to (none means all)."""

    line: int
    text: str
    tabs: tuple[str, ...] = ()


@dataclass(eq=False)
class Source:
    """A file as it was read. `path` is its path as shown to the user: relative to the root of the call, with
    slashes."""

    path: str
    raw: bytes
    text: bytes
    encoding: str = "utf-8"
    cells: list[Cell] | None = None  # None: a script
    modules: list[PythonModule] = field(default_factory=list)
    # (line, why) of cells that are not Python
    broken: list[tuple[int, str]] = field(default_factory=list)
    default_tabs: tuple[str, ...] = ()  # the tabs that a cell without a mark belongs to
    # of a notebook: the strings of JSON that `text` is made of
    tokens: list[_Token] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.starts = [0, *(match.end() for match in _NEWLINE.finditer(self.text))]

    def offset(self, line: int, col: int) -> int:
        return self.starts[line - 1] + col

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset."""
        line = bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1]

    def line_text(self, line: int) -> str:
        """A line without its end."""
        end = self.starts[line] if line < len(self.starts) else len(self.text)
        return self.text[self.starts[line - 1] : end].decode().rstrip("\r\n")

    @property
    def newline(self) -> str:
        """The end of the first line, which is used for added lines too."""
        match = _NEWLINE.search(self.text)
        return match[0].decode() if match else "\n"

    def place(self, line: int) -> tuple[int, int | None]:
        """The line of the file and, for a notebook, the number of the cell, from 1."""
        if not self.tokens:
            return line, None
        # a notebook's lines are strings in JSON, so the file's own line is found by the string's place
        start = self.starts[line - 1]
        *_, token = (token for token in self.tokens if token.at <= start)
        cell = sum(cell.line <= line for cell in self.cells or ())
        return self.raw.decode("utf-8-sig").count("\n", 0, token.start) + 1, cell

    def rewrite(self, edits: Iterable[Edit]) -> bytes:
        """The bytes of the file with the edits made; `raw` if there are none."""
        # several sites may ask for the same edit, such as an import
        edits = sorted(set(edits))
        if not edits:
            return self.raw
        if self.tokens:
            return _written_into_notebook(self, edits)
        text = splice(self.text, edits).decode()
        # kept, because some editors on Windows tell UTF-8 by it
        mark = codecs.BOM_UTF8 if self.raw.startswith(codecs.BOM_UTF8) else b""
        return mark + text.encode(self.encoding.replace("-sig", ""))


def read_each(
    paths: Iterable[Path],
    root: Path,
    unreadable: list[tuple[str, str]],
    progress: Progress = unseen,
) -> Iterator[Source]:
    """Reads the files that `files_in` lists, one after the other; "-" is the standard input. For each file that cannot
    be read, (path, why) is added to `unreadable`."""
    files = list(files_in(paths))
    for number, path in enumerate(files):
        progress("reading", number, len(files))
        shown = _show(path, root)
        try:
            yield (
                parse(sys.stdin.buffer.read(), "<stdin>")
                if str(path) == "-"
                else read(path, shown)
            )
        except UnreadableError as error:
            unreadable.append((shown, str(error)))


def _show(path: Path, root: Path) -> str:
    try:
        return path.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        # absolute, so that joining it with the root gives this file, too
        return path.resolve().as_posix()


def files_in(paths: Iterable[Path]) -> Iterator[Path]:
    """The files to read: those named, and those in the folders named, in order."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        # a folder may be called x.py
        inside = (p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file())
        yield from sorted(p for p in inside if not _is_skipped(p.relative_to(path).parts[:-1]))


def _is_skipped(folders: tuple[str, ...]) -> bool:
    return any(folder.startswith(".") or folder in SKIPPED for folder in folders)


def read(path: Path, shown: str) -> Source:
    """A file with its modules.

    Raises:
        UnreadableError: it cannot be opened, is not text, or is not Python.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from error
    return parse(raw, shown)


def write(path: Path, raw: bytes) -> None:
    """Puts new bytes into a file, all or none: if the program is stopped in between, the file has the old ones."""
    path = path.resolve()  # a link stays one
    path.open("r+b").close()  # what is write-protected stays
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        # into a new file next to the old one, because a rename is atomic only within a file system
        with open(handle, "wb") as file:
            file.write(raw)
        shutil.copymode(path, name)
        # atomic: readers see the old file or the new one
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def parse(raw: bytes, shown: str) -> Source:
    """A file with its modules, from its bytes. The suffix of `shown` says whether it is a notebook, a d2l text or a
    script."""
    try:
        if shown.endswith(".ipynb"):
            return _notebook(raw, shown)
        if shown.endswith(".md"):
            return _text_with_tabs(raw, shown)
        return _script(raw, shown)
    except SyntaxError as error:
        raise UnreadableError(
            f"line {error.lineno}: {error.msg}" if error.lineno else str(error.msg)
        ) from error
    except (ValueError, LookupError, RecursionError) as error:
        raise UnreadableError(str(error)) from error


def _script(raw: bytes, shown: str) -> Source:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
    text = raw.decode(encoding)
    source = Source(shown, raw, text.encode(), encoding)
    source.modules = [PythonModule(source, None, _tree(text))]
    return source


def _tree(text: str) -> ast.Module:
    """The syntax tree of a text."""
    with warnings.catch_warnings():
        # warnings about escapes in strings are for the file's author
        warnings.simplefilter("ignore")
        # notebooks await in cells, and `dont_inherit` keeps this file's __future__ out
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(text, "<script>", "exec", flags, dont_inherit=True)
    assert isinstance(tree, ast.Module)
    return tree


# texts with tabs


def _text_with_tabs(raw: bytes, shown: str) -> Source:
    """A page of d2l.ai: Markdown, in which the blocks of code alternate between the tabs of several frameworks."""
    text = raw.decode("utf-8-sig")
    source = Source(shown, raw, text.encode(), "utf-8-sig")
    source.cells = list(_fences(source))
    if not source.cells:
        return source
    default = source.default_tabs = _default_tabs(source.cells)
    tabs = {tab for cell in source.cells for tab in cell.tabs if tab != "all"} | set(default)
    for tab in (tab for tab in TABS if tab in tabs):
        cells = [
            cell for cell in source.cells if tab in (cell.tabs or default) or "all" in cell.tabs
        ]
        _add_module(source, tab, cells)
    return source


def _fences(source: Source) -> Iterator[Cell]:
    """The blocks of code of a page."""
    lines = [source.line_text(i + 1) for i in range(len(source.starts))]
    begin = None
    for number, line in enumerate(lines, 1):
        if begin is None:
            begin = number + 1 if _FENCE.match(line.encode()) else None
        elif line.strip().startswith("```"):
            yield _cell(begin, lines[begin - 1 : number - 1])
            begin = None


def _cell(begin: int, lines: list[str]) -> Cell:
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    marked = _TAB.match(lines[first]) if lines else None
    if marked is None:
        return Cell(begin, "\n".join(lines))
    lines[first] = ""
    return Cell(begin, "\n".join(lines), tuple(re.split(r"[ ,]+", marked[1].strip())))


def _default_tabs(cells: list[Cell]) -> tuple[str, ...]:
    """The tabs of cells without a mark: those that the text selects, else the tab of the framework that is imported."""
    plain = "\n".join(cell.text for cell in cells if not cell.tabs)
    selected = re.search(r"tab\.interact_select\(([^)]*)\)", plain)
    if selected:
        return tuple(re.findall(r"\w+", selected[1]))
    names = {
        "mxnet": "mxnet",
        "torch": "pytorch",
        "tensorflow": "tensorflow",
        "paddle": "paddle",
        "jax": "jax",
    }
    imported = re.findall(r"^\s*(?:from d2l import|import|from)\s+(\w+)", plain, re.MULTILINE)
    for name in imported:
        if name in names:
            return (names[name],)
    return ("pytorch",)  # d2l's default


# notebooks


@dataclass(eq=False)
class _Token:
    """A JSON string in a notebook's file: its position there, and where its content begins in `Source.text`.

    `previous_end` is the end of the string before it in the same list, or None.
    """

    start: int
    end: int
    value: str
    previous_end: int | None = None
    is_listed: bool = True
    at: int = 0


def _notebook(raw: bytes, shown: str) -> Source:
    """A notebook, in whose JSON the strings of code are kept with their positions."""
    file = raw.decode("utf-8-sig")
    whole = _Decoder().decode(file)
    if not isinstance(whole, dict) or not isinstance(whole.get("cells"), list):
        raise ValueError("not a notebook of format 4")
    tokens: list[_Token] = []
    cells: list[tuple[int, str]] = []  # where each begins in the text
    parts = []
    at = 0
    for cell in whole["cells"]:
        if _value(cell.get("cell_type")) != "code":
            continue
        content: Any = cell.get("source") or []
        is_list = isinstance(content, list)
        strings: list[_Token] = content if is_list else [content]
        text = "".join(token.value for token in strings)
        cells.append((at, text))
        previous_end = None
        for token in strings:
            token.at, token.is_listed, token.previous_end = at, is_list, previous_end
            previous_end = token.end
            at += len(token.value.encode())
        tokens += strings
        parts.append(text)
        if text and not text.endswith("\n"):  # the next cell begins on a line of its own
            parts.append("\n")
            at += 1
    notebook = Source(shown, raw, "".join(parts).encode(), tokens=tokens)
    notebook.cells = [Cell(notebook.position(start)[0], text) for start, text in cells]
    _add_module(notebook, None, notebook.cells)
    return notebook


def _value(token: object) -> object:
    return token.value if isinstance(token, _Token) else token


class _Decoder(json.JSONDecoder):
    """Decodes JSON with a `_Token` in place of each string that is not a key."""

    parse_string: Any

    def __init__(self) -> None:
        super().__init__()
        scan = self.parse_string

        def token(text: str, begin: int, strict: bool) -> tuple[_Token, int]:
            value, end = scan(text, begin, strict)
            return _Token(begin - 1, end, value), end

        self.parse_string = token
        self.scan_once = py_make_scanner(self)  # the one in C calls no function of ours


def _written_into_notebook(source: Source, edits: list[Edit]) -> bytes:
    """The bytes of a notebook with the edits made: only the strings that they touch are rewritten."""
    file = source.raw.decode("utf-8-sig")
    parts, written = [], 0
    for first, last, group in _touched(source.tokens, edits):
        tokens = source.tokens[first : last + 1]
        begin = tokens[0].at
        text = "".join(token.value for token in tokens).encode()
        value = splice(text, [edit.shifted(-begin) for edit in group]).decode()
        parts += [file[written : tokens[0].start], _strings(value, source.tokens, first, file)]
        written = tokens[-1].end
    mark = codecs.BOM_UTF8 if source.raw.startswith(codecs.BOM_UTF8) else b""
    return mark + ("".join(parts) + file[written:]).encode()


def _touched(tokens: list[_Token], edits: list[Edit]) -> Iterator[tuple[int, int, list[Edit]]]:
    """The first and the last of the strings that are rewritten together, because an edit spans several lines, with all
    edits in them."""
    starts = [token.at for token in tokens]
    first = last = -1
    group: list[Edit] = []
    for edit in edits:
        start = bisect_right(starts, edit.start) - 1
        if start > last:
            if group:
                yield first, last, group
            first, group = start, []
        group.append(edit)
        last = max(last, start, bisect_left(starts, edit.end) - 1)
    yield first, last, group


def _strings(value: str, tokens: list[_Token], at: int, file: str) -> str:
    """The lines of a text as JSON strings, in the style of the strings around them in the file."""
    token = tokens[at]
    # Jupyter writes characters as they are, and other tools escape them
    is_ascii = file[token.start : token.end].isascii()
    parts = value.splitlines(keepends=True) if token.is_listed else [value]
    between = ",\n    "
    if token.previous_end is not None:
        between = file[token.previous_end : token.start]
    elif tokens[at + 1 :] and tokens[at + 1].previous_end == token.end:
        between = file[token.end : tokens[at + 1].start]
    return between.join(json.dumps(part, ensure_ascii=is_ascii) for part in parts)


# modules made of cells: of a notebook, or of one framework's tab in a page of d2l


def _add_module(source: Source, tab: str | None, cells: list[Cell]) -> None:
    """Adds the module that some cells form; cells that are not Python are noted in `broken`."""
    readable = [(cell, _python(cell.text)) for cell in cells]
    try:
        tree = _tree(_join(readable))
    except SyntaxError:
        # the usual case is one parse of the whole; only if that fails is each cell tried for itself
        readable = [(cell, text) for cell, text in readable if _parses(source, cell, text)]
        tree = _tree(_join(readable))
    source.modules.append(PythonModule(source, tab, tree))


def _join(cells: Iterable[tuple[Cell, str]]) -> str:
    lines: list[str] = []
    for cell, text in cells:
        # blank lines in place of what belongs to other tabs: every line keeps its number
        lines += [""] * (cell.line - 1 - len(lines))
        lines += _NEWLINE.sub(b"\n", text.encode()).decode().removesuffix("\n").split("\n")
    return "\n".join(lines) + "\n"


def _python(text: str) -> str:
    """The text of a cell, with IPython's commands replaced by `pass`, so that blocks keep a body."""
    if not _MAGIC.search(text):
        return text
    try:
        _tree(text)
    except SyntaxError:
        # a cell of bash or JavaScript keeps its lines, so that those below keep their numbers
        if _OTHER_LANGUAGES.match(text):
            return "\n" * text.count("\n")
        return _MAGIC.sub(lambda match: f"{match[1]}pass", text)
    return text


def _parses(source: Source, cell: Cell, text: str) -> bool:
    """Whether a cell is Python; one that is not is noted in `broken`."""
    try:
        _tree(text)
    except SyntaxError as error:
        reason = cell.line, f"not Python: {error.msg}"
        if reason not in source.broken:
            source.broken.append(reason)
        return False
    return True
