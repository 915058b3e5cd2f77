"""The findings of lint: those of the selected rules, without those that comments ignore or a baseline has."""

from __future__ import annotations

import ast
import fnmatch
import io
import json
import re
import subprocess
import tokenize
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from . import lint_rules, porting
from .lint_rules import RULES
from .report import column

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .engine import Examined
    from .sites import Site
    from .sources import PythonModule, Source

_COMMENT: Final = re.compile(r"#\s*xdevice:\s*(ignore|off|on)\b\s*(?:\[([^\]]*)\])?")
_SECTION: Final = re.compile(r"^\s*\[tool\.xdevice\b", re.MULTILINE)


class OptionError(Exception):
    """An option that cannot be followed: a code that does not exist, a file that cannot be read, an unknown
    revision."""


class Change(NamedTuple):
    """The characters from `start` to `end` become `text`; lines and columns are from 1."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


@dataclass(frozen=True, order=True)
class Finding:
    """One place that a rule has found. `line` and `end` are in the file, `col` counts characters from 1. `text` is the
    first line with single spaces, by which a baseline recognizes the finding."""

    path: str
    line: int
    col: int
    code: str
    message: str = field(compare=False)
    text: str = field(compare=False, default="")
    end: tuple[int, int] = field(compare=False, default=(0, 0))
    cell: int | None = field(compare=False, default=None)
    lines: range = field(compare=False, default=range(0))  # the lines of the whole statement
    fix: tuple[Change, ...] = field(compare=False, default=())


class Choice(NamedTuple):
    """The codes that are looked for, and those that are ignored, in some files only or in all."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_file: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def takes(self, code: str, path: str) -> bool:
        ignored = (*self.ignore, *(code for glob, codes in self.per_file if _matches(path, glob) for code in codes))
        if code.startswith(ignored or "-"):
            return False
        return code.startswith(self.select) if self.select else RULES[code].on

    def needs_engine(self) -> bool:
        """Whether a rule is selected that asks what expressions mean across the project, which takes far longer."""
        return "XD212".startswith(self.select or "-")

    def with_options(self, select: str | None, ignore: str | None) -> Choice:
        """The choice of a command. `--select` replaces the settings' codes, `--ignore` removes more."""
        selected = codes(select, "--select") if select else self.select
        return self._replace(select=selected, ignore=(*self.ignore, *codes(ignore or "", "--ignore")))


def _matches(path: str, glob: str) -> bool:
    return fnmatch.fnmatch(path, glob) or fnmatch.fnmatch(f"/{path}", f"*/{glob}")


def codes(text: str, of: str) -> tuple[str, ...]:
    """The codes that an option or a comment lists: each is a whole code, or the beginning of some.

    Raises:
        OptionError: one of them begins no code.
    """
    found = tuple(code for code in re.split(r"[,\s]+", text.strip()) if code)
    for code in found:
        if not any(known.startswith(code) for known in RULES):
            raise OptionError(f"{of}: there is no code {code!r}; the codes are {', '.join(RULES)}")
    return found


# what a project has set


def configure(root: Path) -> Choice:
    """Reads select, ignore and per-file-ignores from `[tool.xdevice]` of the nearest pyproject.toml.

    Raises:
        OptionError: that cannot be read, or has another key or an unknown code.
    """
    files = (folder / "pyproject.toml" for folder in (root, *root.parents))
    file = next((file for file in files if file.is_file()), None)
    text = file.read_text(encoding="utf-8") if file is not None else ""
    if not _SECTION.search(text):
        return Choice()
    try:
        import tomllib
    except ModuleNotFoundError as error:
        raise OptionError(
            f"{file} has [tool.xdevice], which takes Python 3.11 to read, for its tomllib; "
            f"give --select and --ignore instead, or run lint with a newer Python"
        ) from error
    try:
        given = tomllib.loads(text)["tool"]["xdevice"]
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"{file}: {error}") from error
    unknown = set(given) - {"select", "ignore", "per-file-ignores"}
    if unknown:
        raise OptionError(f"{file}: [tool.xdevice] has select, ignore and per-file-ignores, not {', '.join(unknown)}")
    per_file = given.get("per-file-ignores", {})
    return Choice(
        _list_codes(given.get("select", []), f"{file}: select"),
        _list_codes(given.get("ignore", []), f"{file}: ignore"),
        tuple((glob, _list_codes(some, f"{file}: per-file-ignores")) for glob, some in per_file.items()),
    )


def _list_codes(given: Any, of: str) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(code, str) for code in given):
        raise OptionError(f"{of} is a list of codes, such as ['XD202'], not {given!r}")
    return codes(" ".join(given), of)


# one file


def findings(source: Source, choice: Choice) -> list[Finding]:
    """The findings in a file, in order. A finding that two tabs share comes once.

    Raises:
        OptionError: a comment names a code that does not exist.
    """
    chosen = sorted({finding for module in source.modules for finding in _chosen(module, choice)})
    ignores = list(_ignores(source))
    told = [finding for finding in chosen if not _is_ignored(finding, ignores)]
    if choice.takes("XD401", source.path):
        told += _unused_ignores(source, ignores, choice)
    return sorted(told)


def _chosen(module: PythonModule, choice: Choice) -> Iterator[Finding]:
    source = module.source
    for hit in lint_rules.hits(module):
        if not choice.takes(hit.code, source.path):
            continue
        node: Any = hit.node
        line, cell = source.place(node.lineno)
        end = source.place(node.end_lineno)[0], column(source, node.end_lineno, node.end_col_offset)
        first, last = _statement_lines(node, module.walked[1])
        yield Finding(
            source.path, line, column(source, node.lineno, node.col_offset), hit.code, hit.text,
            " ".join(source.line_text(node.lineno).split()), end, cell,
            range(source.place(first)[0], source.place(last)[0] + 1),
        )  # fmt: skip


def _statement_lines(node: Any, parents: dict[ast.AST, ast.AST]) -> tuple[int, int]:
    """The lines of the statement around a node; of a compound statement only those before its body."""
    statement = node
    while not isinstance(statement, ast.stmt):
        statement = parents[statement]
    body = getattr(statement, "body", None)
    last = max(statement.lineno, body[0].lineno - 1) if isinstance(body, list) else statement.end_lineno
    if statement.lineno <= node.lineno and node.end_lineno <= last:
        return statement.lineno, last
    return node.lineno, node.end_lineno  # a decorator, or the type behind `except`


def with_fixes(found: Iterable[Finding], examined: Examined) -> Iterator[Finding]:
    """The findings, each with the edits by which `port` would fix it; those in notebooks get none."""
    changes: dict[object, tuple[Source, Site]] = {}
    for source, site in _rewritten(examined):  # a site begins at the name of the method, a finding at the whole call
        changes["start", site.file, site.line, column(source, site.line, site.col)] = source, site
        changes["end", site.file, site.end[0], column(source, *site.end)] = source, site
    for one in found:
        there = changes.get(("end", one.path, *one.end)) or changes.get(("start", one.path, one.line, one.col))
        if there is None or one.code not in lint_rules.BY_PORT:
            yield one
            continue
        source, site = there
        modules = [module for module in examined.modules if module.source is source]
        edits = sorted({*site.edits, *porting.import_edits(source, modules, [site], examined.backend)})
        made = (Change(_at(source, edit.start), _at(source, edit.end), edit.text) for edit in edits)
        yield replace(one, fix=tuple(made))


def _rewritten(examined: Examined) -> Iterator[tuple[Source, Site]]:
    by_path = {source.path: source for source in examined.sources if not source.tokens}
    for site in examined.sites:
        if site.verdict == "rewritten" and site.file in by_path:
            yield by_path[site.file], site


def _at(source: Source, offset: int) -> tuple[int, int]:
    line, col = source.position(offset)
    return line, column(source, line, col)


# comments that ignore


@dataclass
class _Ignore:
    line: int  # lines are counted in the file, also in `lines`
    lines: range
    cell: int | None
    codes: tuple[str, ...]
    used: bool = False


def _ignores(source: Source) -> Iterator[_Ignore]:
    opened: tuple[int, int | None, tuple[str, ...]] | None = None
    last = len(source.starts)
    for line, comment in _comments(source):
        match = _COMMENT.match(comment)
        if match is None:
            continue
        place, cell = source.place(line)
        named = codes(match[2] or "", f"{source.path}:{place}")
        if match[1] == "ignore":
            yield _Ignore(place, range(place, place + 1), cell, named)
        elif match[1] == "off" and opened is None:
            opened = place, cell, named
        elif match[1] == "on" and opened is not None:
            yield _Ignore(opened[0], range(opened[0], place + 1), opened[1], opened[2])
            opened = None
    if opened is not None:
        yield _Ignore(opened[0], range(opened[0], source.place(last)[0] + 1), opened[1], opened[2])


def _comments(source: Source) -> Iterator[tuple[int, str]]:
    if b"xdevice:" not in source.text:
        return
    parts = [(1, source.text.decode())] if source.cells is None else [(c.line, c.text) for c in source.cells]
    for first, text in parts:
        # a cell that is not Python has no findings, even without its lines for IPython
        with suppress(tokenize.TokenError, SyntaxError):
            for token in tokenize.generate_tokens(io.StringIO(text).readline):
                if token.type == tokenize.COMMENT:
                    yield first + token.start[0] - 1, token.string


def _is_ignored(finding: Finding, ignores: Sequence[_Ignore]) -> bool:
    hit = False
    for one in ignores:
        touches = one.lines.start < finding.lines.stop and finding.lines.start < one.lines.stop
        if touches and (not one.codes or finding.code.startswith(one.codes)):
            hit = one.used = True
    return hit


def _unused_ignores(source: Source, ignores: Iterable[_Ignore], choice: Choice) -> Iterator[Finding]:
    """Findings for comments that ignore nothing. A comment for a code that is not selected counts as used, because it
    may be needed."""
    for one in ignores:
        looked_for = [code for code in one.codes if choice.takes(_first(code), source.path)]
        if not one.used and (looked_for or (not one.codes and not choice.select)):
            what = f" of {', '.join(one.codes)}" if one.codes else ""
            text = " ".join(source.raw.decode(errors="replace").splitlines()[one.line - 1].split())
            lines = range(one.line, one.line + 1)
            yield Finding(
                source.path, one.line, 1, "XD401", f"there is nothing to ignore here{what}; take the comment away",
                text, (one.line, 1), one.cell, lines,
            )  # fmt: skip


def _first(beginning: str) -> str:
    return next(code for code in RULES if code.startswith(beginning))


# findings that were there before


def baseline(told: Iterable[Finding]) -> str:
    """The text of a baseline: findings by path, code and text of the line, which stay the same when lines move."""
    counts = Counter((one.path, one.code, one.text) for one in told)
    rows = [{"path": p, "code": c, "line": text, "count": n} for (p, c, text), n in sorted(counts.items())]
    return json.dumps({"version": 1, "findings": rows}, indent=1, ensure_ascii=False) + "\n"


def beyond(told: Iterable[Finding], file: Path) -> list[Finding]:
    """The findings that the baseline does not have. If a line occurs more often than there, the last ones are new.

    Raises:
        OptionError: the file cannot be read, or is not a baseline.
    """
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))["findings"]
        left = Counter({(row["path"], row["code"], row["line"]): int(row["count"]) for row in rows})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OptionError(f"{file} is not a baseline that --write-baseline has written: {error}") from error
    new = []
    for one in told:
        key = one.path, one.code, one.text
        left[key] -= 1
        if left[key] < 0:
            new.append(one)
    return new


def only_added(told: Iterable[Finding], revision: str, root: Path) -> list[Finding]:
    """The findings in lines that were added since a revision, and in files that Git does not have yet.

    Raises:
        OptionError: Git does not know the revision, or is not there.
    """
    text = _git(root, "diff", "-U0", "--no-color", "--no-ext-diff", "--relative", revision, "--", ".")
    lines: dict[str, set[int]] = {}
    path = ""
    for line in text.splitlines():
        if line.startswith("+++ "):
            path = _path(line[4:])
        elif line.startswith("@@"):
            start, count = re.findall(r"\+(\d+)(?:,(\d+))?", line)[0]
            lines.setdefault(path, set()).update(range(int(start), int(start) + int(count or 1)))
    untracked = set(_git(root, "ls-files", "-z", "--others", "--exclude-standard").split("\0"))
    return [one for one in told if one.path in untracked or lines.get(one.path, set()).intersection(one.lines)]


def _path(name: str) -> str:
    name = name.rstrip("\t")
    return name.removeprefix("b/")


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), "-c", "core.quotePath=false", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise OptionError("--diff asks git, which is not installed") from error
    if done.returncode:
        raise OptionError(f"--diff: {done.stderr.decode(errors='replace').strip().partition(chr(10))[0]}")
    return done.stdout.decode(errors="replace")
