"""Files that contain Python code: scripts, notebooks, and the pages of d2l with their tabs.

The content of each file is read into one text (`Source.text`, UTF-8). All other modules of this folder use only
positions in that text: lines that count from 1, and columns and offsets in bytes. The text of a script is the script
itself. The text of a notebook consists of its code cells in order. The text of a page of d2l is its Markdown source.
`Source.modules` are the parts that Python would run: one module, or one for each tab. A line has the same number in a
module as in the text. In the module of a tab, all lines that do not contain code of the tab are blank.
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

from .progress import Progress, no_progress
from .sites import Edit, splice

SUFFIXES: Final = (".py", ".ipynb", ".md")
SKIPPED_FOLDERS: Final = {"__pycache__", "node_modules", "build", "dist", "site-packages"}
"""The names of folders that are searched only if the user passes their path. Folders whose names
begin with a dot are not searched, either."""

# the line ends that Python's tokenizer recognizes; `splitlines` would also split at form feeds
_NEWLINE: Final = re.compile(rb"\r\n|\r|\n")
# the first line of a cell of d2l: `%%tab pytorch, jax` or `#@tab pytorch`
_TAB: Final = re.compile(r"\s*(?:%%tab|#\s*@tab)\s+([\w ,]+)")
# the line before a block of code in Markdown: "```{.python .input}"
_FENCE: Final = re.compile(rb"[ \t]*```\s*\{\.python\s+\.input")
# a line that IPython understands, but not Python: `%matplotlib inline`, `!pip install x`, `x?`
_MAGIC: Final = re.compile(r"^([ \t]*)(?:[%!?].*|.*\?)$", re.MULTILINE)
# the first line of a cell in another language, such as `%%bash`; after the four excepted
# commands, the rest of the cell is Python
_OTHER_LANGUAGES: Final = re.compile(r"\s*%%(?!time\b|timeit\b|capture\b|tab\b)")
# the order of a page's modules
TABS: Final = ("mxnet", "pytorch", "tensorflow", "paddle", "jax")


_OPERATORS_AND_CONTEXTS: Final = (
    ast.expr_context,
    ast.boolop,
    ast.operator,
    ast.unaryop,
    ast.cmpop,
)
_CHILDLESS: Final = {
    type(None),
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(...),
    *(leaf for mark in _OPERATORS_AND_CONTEXTS for leaf in mark.__subclasses__()),
}
"""The classes of the values in a syntax tree that have no children and no position."""


_MAX_DEPTH: Final = 300
"""The maximum depth of a syntax tree; files with a deeper tree cannot be read. Each `elif`, and each operand of a sum,
adds one level; a method called on a result adds two. The inference failed at about 480 levels (Python 3.11)."""


class UnreadableError(Exception):
    """Raised for a file that cannot be read or parsed. The message says why."""


@dataclass(eq=False)
class PythonModule:
    """The code of a file that Python would run: a script, a notebook, or one tab of a page of
    d2l.

    `tab` is the name of the tab; it is None for a script or a notebook. `name` is the full name
    of the module, with the packages that contain it ("d2l.torch"); it is "" until the module is
    part of a project.
    """

    source: Source
    tab: str | None
    tree: ast.Module
    name: str = ""

    @cached_property
    def path(self) -> PurePosixPath:
        """`Source.path` as a path object."""
        return PurePosixPath(self.source.path)

    @cached_property
    def _walked(self) -> tuple[list[Any], dict[ast.AST, ast.AST]]:
        """The values of `nodes` and `parents`, which are computed together in one pass over the tree. Operators and the
        contexts of names are left out. All trees share the objects that stand for these, so the objects have no single
        parent."""
        nodes: list[Any] = [self.tree]
        parents: dict[ast.AST, ast.AST] = {}
        # a loop, because the trees of long expressions are too deep for recursion
        for node in nodes:  # the list grows during the loop
            # like `ast.iter_child_nodes`, but faster, because a project has millions of nodes
            for name in node._fields:
                part: Any = getattr(node, name, None)
                for child in part if part.__class__ is list else (part,):
                    if child.__class__ not in _CHILDLESS:
                        parents[child] = node
                        nodes.append(child)
        return nodes, parents

    @property
    def nodes(self) -> list[Any]:
        """All nodes of the tree. A node comes before the nodes inside it."""
        return self._walked[0]

    @property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The parent of each node of the tree."""
        return self._walked[1]

    def free_nodes(self) -> None:
        """Deletes the stored values of `nodes` and `parents`. For all modules of a large project, they would not fit
        into memory. They are computed again at their next use.
        """
        self.__dict__.pop("_walked", None)

    def source_text(self, node: ast.AST) -> str:
        """Returns the source text of a node."""
        return self.source.text[slice(*self.span(node))].decode()

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Returns the start and the end of a node, as offsets in `Source.text`. Brackets around the node are not
        included.
        """
        at = self.source.offset
        return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]


@dataclass(eq=False)
class Cell:
    """A code cell. `text` is its code, which begins at the line `line` of `Source.text`. `tabs`
    are the tabs that its first line names. A cell that names no tab belongs to
    `Source.default_tabs`."""

    line: int
    text: str
    tabs: tuple[str, ...] = ()


@dataclass(eq=False)
class Source:
    """The content of a file. `path` is the path that is shown to the user: relative to the root
    folder, with slashes. `raw` are the bytes of the file, and `text` is the text to which all
    positions refer (see the top of this file)."""

    path: str
    raw: bytes
    text: bytes
    encoding: str = "utf-8"
    cells: list[Cell] | None = None  # None: a script
    modules: list[PythonModule] = field(default_factory=list)
    # (line, reason) for each cell that is not Python
    broken: list[tuple[int, str]] = field(default_factory=list)
    default_tabs: tuple[str, ...] = ()  # the tabs to which a cell that names no tab belongs
    # only for a notebook: the JSON strings that make up `text`
    tokens: list[_Token] = field(default_factory=list)

    def __post_init__(self) -> None:
        # the offset at which each line begins
        self.line_starts = [0, *(match.end() for match in _NEWLINE.finditer(self.text))]

    def offset(self, line: int, col: int) -> int:
        """Returns the offset in `text` of a position, which is given as a line (from 1) and a
        column (in bytes, from 0)."""
        return self.line_starts[line - 1] + col

    def position(self, offset: int) -> tuple[int, int]:
        """Returns the line and the column of an offset. This method is the inverse of
        `offset`."""
        line = bisect_right(self.line_starts, offset)
        return line, offset - self.line_starts[line - 1]

    def line_text(self, line: int) -> str:
        """Returns the line of `text` with this number, without its line end."""
        end = self.line_starts[line] if line < len(self.line_starts) else len(self.text)
        return self.text[self.line_starts[line - 1] : end].decode().rstrip("\r\n")

    @property
    def newline(self) -> str:
        """The line end of the first line, which is also used for added lines. It is a line feed
        if no line has a line end."""
        match = _NEWLINE.search(self.text)
        return match[0].decode() if match else "\n"

    def line_and_cell(self, line: int) -> tuple[int, int | None]:
        """Returns the position of a line of `text` as the user sees it: the line in the file,
        and the number of the code cell, which counts from 1. If the file is not a notebook,
        returns None instead of the number."""
        if not self.tokens:
            return line, None
        # in a notebook, the line in the file is that of the JSON string in which this line
        # begins
        start = self.line_starts[line - 1]
        # the last string that begins at or before this line
        *_, token = (token for token in self.tokens if token.at <= start)
        cell = sum(cell.line <= line for cell in self.cells or ())
        return self.raw.decode("utf-8-sig").count("\n", 0, token.start) + 1, cell

    def rewritten(self, edits: Iterable[Edit]) -> bytes:
        """Returns the bytes of the file after the edits; `raw` if there are no edits."""
        # without duplicates, because several sites may need the same edit, such as an import
        edits = sorted(set(edits))
        if not edits:
            return self.raw
        if self.tokens:
            return _written_into_notebook(self, edits)
        text = splice(self.text, edits).decode()
        # the byte order mark is kept, because some editors on Windows recognize UTF-8 by it
        mark = codecs.BOM_UTF8 if self.raw.startswith(codecs.BOM_UTF8) else b""
        return mark + text.encode(self.encoding.replace("-sig", ""))


def read_files(
    paths: Iterable[Path],
    root: Path,
    unreadable: list[tuple[str, str]],
    progress: Progress = no_progress,
) -> Iterator[Source]:
    """Yields the `Source` of each file that `files_in` lists; "-" means the standard input.
    Paths are shown relative to `root`. A file that cannot be read is left out, and a pair of
    its path and the reason is added to `unreadable`."""
    # a list, because `progress` needs the number of files
    files = list(files_in(paths))
    for number, path in enumerate(files):
        progress("reading", number, len(files))
        shown = _shown_path(path, root)
        try:
            yield (
                parse(sys.stdin.buffer.read(), "<stdin>")
                if str(path) == "-"
                else read(path, shown)
            )
        except UnreadableError as error:
            unreadable.append((shown, str(error)))


def _shown_path(path: Path, root: Path) -> str:
    """Returns the path to show to the user: relative to the root folder, or absolute for a file
    outside this folder."""
    try:
        return path.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        # absolute, so that joining it to the root also results in this file
        return path.resolve().as_posix()


def files_in(paths: Iterable[Path]) -> Iterator[Path]:
    """Yields the files to read. A path that is not a folder is yielded unchanged, even if it does not exist. For a
    folder, yields the files with one of the `SUFFIXES` in it and in its subfolders, in sorted order."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        # `is_file()`, because a folder may have a name such as x.py
        inside = (p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file())
        yield from sorted(p for p in inside if not _is_skipped(p.relative_to(path).parts[:-1]))


def _is_skipped(folders: tuple[str, ...]) -> bool:
    """Whether a file is skipped because it is inside a folder that is not searched. `folders` are the names of the
    folders between the folder that the user passes and the file.
    """
    return any(folder.startswith(".") or folder in SKIPPED_FOLDERS for folder in folders)


def read(path: Path, shown: str) -> Source:
    """Reads a file, and returns it with its modules. `shown` is the path that is shown to the
    user.

    Raises:
        UnreadableError: if the file cannot be opened, or if `parse` cannot read its content.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from error
    return parse(raw, shown)


def write(path: Path, raw: bytes) -> None:
    """Replaces the content of a file with new bytes, atomically: if the program is interrupted, the
    file keeps its old content.

    Raises:
        OSError: if the file or its folder cannot be written to. The file is then unchanged.
    """
    path = path.resolve()  # a symbolic link stays a link: its target is replaced
    # raises an error if the file is write-protected, which `os.replace` would ignore
    path.open("r+b").close()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        # the new file is in the same folder, because a rename is atomic only within a file
        # system
        with open(handle, "wb") as file:
            file.write(raw)
        shutil.copymode(path, name)
        # atomic: readers see either the old file or the new one
        os.replace(name, path)
    # also if the user presses Ctrl-C, so that no half-written file is left behind
    except BaseException:
        os.unlink(name)
        raise


def parse(raw: bytes, shown: str) -> Source:
    """Returns the `Source` of a file, with its modules, from the bytes of the file. The suffix
    of the path `shown` decides whether it is read as a notebook, as a page of d2l or as a
    script.

    Raises:
        UnreadableError: if the bytes are not text, or if the file is not a valid notebook or Python
            script, as its suffix requires.
    """
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
    # the bytes are not UTF-8, `coding:` names no text encoding, or the JSON is nested too deeply
    except (ValueError, LookupError, RecursionError) as error:
        raise UnreadableError(str(error)) from error


def _script(raw: bytes, shown: str) -> Source:
    """Returns the `Source` of a script, with its only module."""
    # from the byte order mark or the `coding:` comment, as Python does
    encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
    text = raw.decode(encoding)
    source = Source(shown, raw, text.encode(), encoding)
    source.modules = [PythonModule(source, tab=None, tree=_parse_python(text))]
    return source


def _parse_python(text: str) -> ast.Module:
    """Returns the syntax tree of a text.

    Raises:
        SyntaxError: if the text is not Python, or is nested too deeply.
        ValueError: on Python 3.10, if the text has a null character in it.
    """
    with warnings.catch_warnings():
        # warnings, such as those about escapes in strings, concern only the author of the file
        warnings.simplefilter("ignore")
        # cells of notebooks may use `await`; with `dont_inherit`, the __future__ imports of
        # this module have no effect
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        try:
            tree = compile(text, "<script>", "exec", flags, dont_inherit=True)
        # the parser raises these two errors for deep nesting. As a SyntaxError, the error
        # concerns only one cell of a notebook, and the other cells are still read
        except (MemoryError, RecursionError) as error:
            raise SyntaxError("the code is nested too deeply for Python's parser") from error
    assert isinstance(tree, ast.Module)
    _check_depth(tree)
    return tree


def _check_depth(tree: ast.Module) -> None:
    """Raises `SyntaxError` if the code is nested so deeply that recursive functions, for example in the inference,
    could exceed Python's recursion limit.
    """
    level: list[ast.AST] = [tree]
    for _ in range(_MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise SyntaxError(f"the code is nested more than {_MAX_DEPTH} levels deep")


# pages with tabs


def _text_with_tabs(raw: bytes, shown: str) -> Source:
    """Returns the `Source` of a page of d2l.ai. The page is written in Markdown, and each of its blocks of code belongs
    to the tabs of one or more frameworks. The `Source` gets a module for each tab, or no modules if the page has no
    such blocks.
    """
    text = raw.decode("utf-8-sig")
    source = Source(shown, raw, text.encode(), "utf-8-sig")
    source.cells = list(_page_cells(source))
    if not source.cells:
        return source
    default = source.default_tabs = _default_tabs(source.cells)
    tabs = {tab for cell in source.cells for tab in cell.tabs if tab != "all"} | set(default)
    # in a fixed order, so that equal pages give equal reports
    for tab in (tab for tab in TABS if tab in tabs):
        cells = [
            cell for cell in source.cells if tab in (cell.tabs or default) or "all" in cell.tabs
        ]
        _add_module(source, tab, cells)
    return source


def _page_cells(source: Source) -> Iterator[Cell]:
    """Yields the cells of a page: its blocks of Python code, without the lines of backticks
    around each block. A block without a closing line is left out."""
    lines = [source.line_text(i + 1) for i in range(len(source.line_starts))]
    begin = None  # the first line of the block that is being read, None outside blocks
    for number, line in enumerate(lines, 1):
        if begin is None:
            begin = number + 1 if _FENCE.match(line.encode()) else None
        elif line.strip().startswith("```"):
            yield _cell(begin, lines[begin - 1 : number - 1])
            begin = None


def _cell(begin: int, lines: list[str]) -> Cell:
    """Returns the cell that consists of these lines; `begin` is the number of the first line.
    The line that names the tabs is blanked, because `%%tab` is not Python."""
    # only the first line that is not blank can name the tabs
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    match = _TAB.match(lines[first]) if lines else None
    if match is None:
        return Cell(begin, "\n".join(lines))
    lines[first] = ""
    return Cell(begin, "\n".join(lines), tuple(re.split(r"[ ,]+", match[1].strip())))


def _default_tabs(cells: list[Cell]) -> tuple[str, ...]:
    """Returns the tabs of the cells that name no tab. These are the tabs that `tab.interact_select` lists, else the tab
    of the framework that these cells import first, else "pytorch".
    """
    # only the code of the cells that name no tab decides
    plain = "\n".join(cell.text for cell in cells if not cell.tabs)
    selected = re.search(r"tab\.interact_select\(([^)]*)\)", plain)
    if selected:
        return tuple(re.findall(r"\w+", selected[1]))
    # maps the name of each package to its tab
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
    """A JSON string in the file of a notebook. `start` and `end` are its positions in the file,
    in characters; the quotes are included. `value` is the decoded string, which begins at the
    offset `at` of `Source.text`.

    `is_listed` is False if the string is a whole cell. It is True if the cell is a list of lines, as Jupyter writes it,
    and the string is one of these lines. `previous_end` is the end of the previous string in the same list; it is None
    for the first string.
    """

    start: int
    end: int
    value: str
    previous_end: int | None = None
    is_listed: bool = True
    at: int = 0


def _notebook(raw: bytes, shown: str) -> Source:
    """Returns the `Source` of a notebook, with its only module. The JSON strings of the code cells
    are kept with their positions, and so can be rewritten.

    Raises:
        ValueError: if the file is not JSON, or is not a notebook of format 4.
    """
    file = raw.decode("utf-8-sig")
    document = _Decoder().decode(file)
    if not isinstance(document, dict) or not isinstance(document.get("cells"), list):
        raise ValueError("not a notebook of format 4: expected an object with a list of cells")
    tokens: list[_Token] = []
    cells: list[tuple[int, str]] = []  # for each cell, its offset in the text and its code
    parts = []
    at = 0  # the offset in the text, in bytes
    for number, cell in enumerate(document["cells"]):
        if not isinstance(cell, dict):
            raise ValueError(f"not a notebook of format 4: cells[{number}] is not an object")
        if _decoded(cell.get("cell_type")) != "code":
            continue
        # a list of lines, or one string; a cell may also lack a source
        content: Any = cell.get("source") or []
        is_list = isinstance(content, list)
        strings: list[_Token] = content if is_list else [content]
        if not all(isinstance(string, _Token) for string in strings):
            raise ValueError(
                f"not a notebook of format 4: the source in cells[{number}] is neither a string nor a list of strings"
            )
        text = "".join(token.value for token in strings)
        cells.append((at, text))
        previous_end = None
        for token in strings:
            token.at, token.is_listed, token.previous_end = at, is_list, previous_end
            previous_end = token.end
            at += len(token.value.encode())
        tokens += strings
        parts.append(text)
        if text and not text.endswith("\n"):  # so that the next cell begins on a new line
            parts.append("\n")
            at += 1
    notebook = Source(shown, raw, "".join(parts).encode(), tokens=tokens)
    # a cell has the line at which it begins in the text of the notebook
    notebook.cells = [Cell(notebook.position(start)[0], text) for start, text in cells]
    _add_module(notebook, tab=None, cells=notebook.cells)
    return notebook


def _decoded(token: object) -> object:
    """Returns the string of a `_Token`. Returns any other value as it is."""
    return token.value if isinstance(token, _Token) else token


class _Decoder(json.JSONDecoder):
    """Decodes JSON, and returns a `_Token` in place of each string that is not a key."""

    parse_string: Any

    def __init__(self) -> None:
        super().__init__()
        # the function with which json reads a string
        scan = self.parse_string

        def token(text: str, begin: int, strict: bool) -> tuple[_Token, int]:
            """Returns the string, and the position after its closing quote. `begin` is the position after the opening
            quote.
            """
            value, end = scan(text, begin, strict)
            # `begin` is the position after the opening quote
            return _Token(begin - 1, end, value), end

        self.parse_string = token
        # the default scanner, which is written in C, would ignore `parse_string`
        self.scan_once = py_make_scanner(self)


def _written_into_notebook(source: Source, edits: list[Edit]) -> bytes:
    """Returns the bytes of a notebook after the edits, which must be sorted. Only the JSON
    strings that the edits touch are replaced. Everything else, such as outputs, metadata and
    layout, stays the same byte for byte."""
    file = source.raw.decode("utf-8-sig")
    parts, written = [], 0
    for first, last, group in _edits_by_strings(source.tokens, edits):
        tokens = source.tokens[first : last + 1]
        begin = tokens[0].at
        text = "".join(token.value for token in tokens).encode()
        value = splice(text, [edit.shifted(-begin) for edit in group]).decode()
        parts += [
            file[written : tokens[0].start],
            _json_strings(value, source.tokens, first, file),
        ]
        written = tokens[-1].end
    mark = codecs.BOM_UTF8 if source.raw.startswith(codecs.BOM_UTF8) else b""
    return mark + ("".join(parts) + file[written:]).encode()


def _edits_by_strings(
    tokens: list[_Token], edits: list[Edit]
) -> Iterator[tuple[int, int, list[Edit]]]:
    """Groups sorted edits by the strings that they touch. For each group, yields the indices of its first and last
    string, and its edits. If an edit spans several strings, these strings are in the same group. There must be at least
    one edit.
    """
    starts = [token.at for token in tokens]
    # the strings of the current group; -1 is before all strings, so that the first edit begins a
    # group
    first = last = -1
    group: list[Edit] = []
    for edit in edits:
        # the index of the string in which the edit begins
        start = bisect_right(starts, edit.start) - 1
        if start > last:
            if group:
                yield first, last, group
            first, group = start, []
        group.append(edit)
        # bisect_left: an edit that ends where a string begins does not touch that string
        last = max(last, start, bisect_left(starts, edit.end) - 1)
    yield first, last, group


def _json_strings(value: str, tokens: list[_Token], first: int, file: str) -> str:
    """Returns the new text of a cell, or of some of its lines, as JSON. As in the file, this is
    either one string, or a string for each line. `value` is the new text, and `file` is the old
    content of the file. `tokens` are all strings of the file's code cells; `tokens[first]` is the
    first of the replaced strings."""
    token = tokens[first]
    # Jupyter does not escape any characters, but other tools escape those that are not ASCII
    is_ascii = file[token.start : token.end].isascii()
    parts = value.splitlines(keepends=True) if token.is_listed else [value]
    # the comma and the white space between two lines: as in this cell if it has several lines, else as Jupyter writes
    # them
    between = ",\n    "
    if token.previous_end is not None:
        between = file[token.previous_end : token.start]
    # the first line of a cell: the next string is the second line, unless it belongs to another cell
    elif tokens[first + 1 :] and tokens[first + 1].previous_end == token.end:
        between = file[token.end : tokens[first + 1].start]
    return between.join(json.dumps(part, ensure_ascii=is_ascii) for part in parts)


# modules made of cells: of a notebook, or of one framework's tab in a page of d2l


def _add_module(source: Source, tab: str | None, cells: list[Cell]) -> None:
    """Adds a module that consists of these cells to `source.modules`. Cells that are not Python
    are left out, and listed in `source.broken`. `tab` is the tab of the module; it is None for
    a notebook."""
    readable = [(cell, _as_python(cell.text)) for cell in cells]
    try:
        tree = _parse_python(_join(readable))
    except SyntaxError:
        # each cell is parsed separately only in this case, because that takes longer
        readable = [
            (cell, text) for cell, text in readable if _check_is_python(source, cell, text)
        ]
        tree = _parse_python(_join(readable))
    source.modules.append(PythonModule(source, tab, tree))


def _join(cells: Iterable[tuple[Cell, str]]) -> str:
    """Returns one string with the code of all cells. Each cell begins at the same line as in
    `Source.text`. `cells` are pairs of a cell and the result of `_as_python` for it."""
    lines: list[str] = []
    for cell, text in cells:
        # blank lines replace prose, and the cells of other tabs
        lines += [""] * (cell.line - 1 - len(lines))
        # other line ends do not matter here, because this text is only parsed
        lines += _NEWLINE.sub(b"\n", text.encode()).decode().removesuffix("\n").split("\n")
    return "\n".join(lines) + "\n"


def _as_python(text: str) -> str:
    """Returns the text of a cell with `pass` in place of IPython's commands, so blocks keep a body.
    A cell in another language becomes blank lines. The number of lines stays the same, so the lines
    below keep their numbers."""
    if not _MAGIC.search(text):
        return text
    # a line that looks like a command may be Python after all: inside brackets, a line may
    # begin with %
    try:
        _parse_python(text)
    except SyntaxError:
        # the cell is in another language, such as bash or JavaScript
        if _OTHER_LANGUAGES.match(text):
            return "\n" * text.count("\n")
        return _MAGIC.sub(lambda match: f"{match[1]}pass", text)
    return text


def _check_is_python(source: Source, cell: Cell, text: str) -> bool:
    """Whether the text of a cell is Python. A cell that is not Python is added to `source.broken`."""
    try:
        _parse_python(text)
    except SyntaxError as error:
        reason = cell.line, f"not Python: {error.msg}"
        if reason not in source.broken:
            source.broken.append(reason)
        return False
    return True
