"""Selects the findings that lint reports. These are the findings of the selected rules, without those that a comment
ignores, a baseline lists, or a Git revision already contained. Also computes the new content of files for `lint --fix`.
"""

from __future__ import annotations

import ast
import fnmatch
import io
import json
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from . import lint_rules
from .engine import Examined
from .lint_rules import RULES
from .report import editor_column
from .sites import Edit, Site
from .sources import Cell, PythonModule, Source

# `# xdevice: ignore[XD202, XD217]`, `# xdevice: off` and `# xdevice: on`; the second group is None if there are no
# codes
_COMMENT: Final = re.compile(r"#\s*xdevice:\s*(ignore|off|on)\b\s*(?:\[([^\]]*)\])?")
_REPORTED_IDIOMS: Final = re.compile(r"cuda\.|^\.cuda|CUDA|is_cuda|with_cuda")
"""Matches the names of idioms that lint reports as separate findings. `--fix` rewrites a use of such an idiom only if
its own finding is to be fixed."""
# matches the names of idioms for streams and events
_STREAM_IDIOMS: Final = re.compile("stream|event", re.IGNORECASE)
# matches our section of pyproject.toml. A regular expression, because Python 3.10 has no parser
# for TOML
_SECTION: Final = re.compile(r"""^\s*\[\s*["']?tool["']?\s*\.\s*["']?xdevice\b""", re.MULTILINE)


class OptionError(Exception):
    """Raised for an invalid option, setting or comment, for example if it names an unknown code, a
    file that cannot be read, or an unknown revision. The message is shown to the user."""


Place = tuple[int, int]
"""A line and a column."""


class Change(NamedTuple):
    """An edit as text editors describe it: the characters from `start` to `end` are replaced with `text`. Lines and
    columns count from 1."""

    start: Place
    end: Place
    text: str


@dataclass(frozen=True, eq=False)
class Finding:
    """One place that a rule has reported. `line`, `col` and `end` are positions in the file: lines and columns count
    from 1, and columns are in characters. `cell` is the number of the cell in a notebook; it is None in other files.
    `text` is the first line of the place, with each sequence of white space replaced with one space. A baseline
    recognizes the finding by this text.
    """

    path: str
    line: int
    col: int
    code: str
    message: str
    text: str
    end: Place
    cell: int | None
    lines: range  # of the whole statement; a comment on any of them may ignore the finding
    part: tuple[Place, Place]  # of the expression that `port` would rewrite, in `Source.text`
    # the path, line and column of the test that guards the finding
    guard: tuple[str, Place] | None = None
    # if the finding is a test: the positions in `Source.text` of code that is reached only if
    # the test is true
    guarded_spans: tuple[tuple[Place, Place], ...] = ()
    fix: tuple[Change, ...] = ()  # the edits with which `port` would fix it
    guarded_findings: tuple[Finding, ...] = ()  # if the finding is a test

    @property
    def key(self) -> tuple[str, int, int, str]:
        """The path, the position and the code. Findings are sorted by this key. If findings in two tabs have the same
        key, they are counted as one finding.
        """
        return self.path, self.line, self.col, self.code


class Choice(NamedTuple):
    """The codes to report (`select`) and to ignore (`ignore`). Each entry is a whole code or the prefix of several
    codes. If `select` is empty, the findings of the rules that are enabled by default are reported. `per_file` contains
    pairs of a glob and the codes that are ignored in the files that match the glob.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_file: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def reports(self, code: str, path: str) -> bool:
        """Whether findings of a code are reported in a file."""
        ignored = self.ignore
        for glob, prefixes in self.per_file:
            if _matches(path, glob):
                ignored += prefixes
        # `startswith` accepts a tuple, and is true for any of its prefixes
        if code.startswith(ignored):
            return False
        return code.startswith(self.select) if self.select else RULES[code].is_default

    def needs_engine(self) -> bool:
        """Whether XD212 is selected. It is the only rule that needs the values of expressions
        in the whole project. Finding these values takes far longer than running all other
        rules."""
        # if `select` is empty, XD212 does not run, because it is disabled by default
        return bool(self.select) and "XD212".startswith(self.select)

    def with_options(self, select: str | None, ignore: str | None) -> Choice:
        """Returns a copy of this choice with the options of a command: `--select` replaces the
        selected codes, and `--ignore` adds to the ignored ones. An option that is None or ""
        changes nothing.

        Raises:
            OptionError: if an option names a code that does not exist.
        """
        selected = parse_codes(select, "--select") if select else self.select
        return self._replace(
            select=selected, ignore=(*self.ignore, *parse_codes(ignore or "", "--ignore"))
        )


def _matches(path: str, glob: str) -> bool:
    """Whether a glob matches a path, or the part of the path that begins at one of its folders:
    "tests/*" matches "src/tests/a.py"."""
    return fnmatch.fnmatch(path, glob) or fnmatch.fnmatch(f"/{path}", f"*/{glob}")


def parse_codes(text: str, origin: str) -> tuple[str, ...]:
    """Returns the codes in `text`, which is the value of an option, of a setting or of a comment. The codes are
    separated by commas or spaces. Each is a whole code, or the prefix of several codes. The error message names
    `origin` as the source of the text.

    Raises:
        OptionError: if no code begins with one of these prefixes.
    """
    beginnings = tuple(filter(None, re.split(r"[,\s]+", text)))
    for beginning in beginnings:
        if not any(code.startswith(beginning) for code in RULES):
            raise OptionError(
                f"{origin}: there is no code {beginning!r}; the codes are {', '.join(RULES)}"
            )
    return beginnings


# the settings of a project


def read_settings(root: Path) -> Choice:
    """Returns the choice from the settings select, ignore and per-file-ignores in the section
    `[tool.xdevice]` of the nearest pyproject.toml, which is in `root` or in a folder above it.
    Returns an empty choice if there is no such section.

    Raises:
        OptionError: if the file is not TOML, the section is wrong, or Python is older than 3.11.
        OSError: if the file cannot be read.
    """
    files = (folder / "pyproject.toml" for folder in (root, *root.parents))
    file = next((file for file in files if file.is_file()), None)
    text = file.read_text(encoding="utf-8") if file is not None else ""
    # a quick search in the text: before Python 3.11, which introduced tomllib, only files that
    # contain our section are refused
    if not _SECTION.search(text):
        return Choice()
    try:
        import tomllib
    except ModuleNotFoundError as error:
        raise OptionError(
            f"reading [tool.xdevice] in {file} needs Python 3.11 or newer; use --select and --ignore instead, or "
            f"run lint with a newer Python"
        ) from error
    try:
        match tomllib.loads(text):
            case {"tool": {"xdevice": dict(settings)}}:
                pass
            # `[tool.xdevice` was only in a string, or was the beginning of a longer name
            case _:
                return Choice()
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"{file}: {error}") from error
    unknown = sorted(set(settings) - {"select", "ignore", "per-file-ignores"})
    if unknown:
        raise OptionError(
            f"{file}: the keys of [tool.xdevice] must be select, ignore or per-file-ignores, not {', '.join(unknown)}"
        )
    per_file = settings.get("per-file-ignores", {})
    if not isinstance(per_file, dict):
        raise OptionError(
            f"{file}: per-file-ignores: expected a table such as {{'tests/*' = ['XD202']}}, got {per_file!r}"
        )
    return Choice(
        _codes_of_setting(settings.get("select", []), f"{file}: select"),
        _codes_of_setting(settings.get("ignore", []), f"{file}: ignore"),
        tuple(
            (glob, _codes_of_setting(setting, f"{file}: per-file-ignores"))
            for glob, setting in per_file.items()
        ),
    )


def _codes_of_setting(setting: Any, origin: str) -> tuple[str, ...]:
    """Returns the codes in a setting, which must be a list of strings. `origin` names the
    setting in the error message.

    Raises:
        OptionError: if the setting is not a list of strings, or contains an unknown code.
    """
    if not isinstance(setting, list) or not all(isinstance(code, str) for code in setting):
        raise OptionError(
            f"{origin}: expected a list of codes such as ['XD202'], got {setting!r}"
        )
    return parse_codes(" ".join(setting), origin)


# one file


def findings(source: Source, choice: Choice) -> list[Finding]:
    """Returns the findings in a file, sorted by position. A finding that two tabs share is
    listed once.

    Raises:
        OptionError: if a comment names a code that does not exist.
    """
    # a dict by key, so that a finding in code that two tabs share is kept once
    chosen = {
        finding.key: finding
        for module in source.modules
        for finding in _selected_findings(module, choice)
    }
    ignores = list(_ignore_comments(source))
    # `_is_ignored` marks comments that ignore a finding as used, so it must run before
    # `_unused_ignores`
    reported = [finding for finding in chosen.values() if not _is_ignored(finding, ignores)]
    if choice.reports("XD401", source.path):
        reported += _unused_ignores(source, ignores, choice)
    return sorted(reported, key=lambda finding: finding.key)


def _selected_findings(module: PythonModule, choice: Choice) -> Iterator[Finding]:
    """Yields the findings of the selected rules in one module, with their positions in the
    file."""
    source = module.source
    for hit in lint_rules.hits(module):
        if not choice.reports(hit.code, source.path):
            continue
        node: Any = hit.node
        part: Any = hit.part
        end = (
            source.line_and_cell(node.end_lineno)[0],
            editor_column(source, node.end_lineno, node.end_col_offset),
        )
        # the lines on which a comment ignores the finding, and of which one must be new for --diff
        first, last = _statement_lines(node, module.parents)
        yield Finding(
            source.path,
            *_start_in_file(source, node),
            hit.code,
            hit.text,
            text=" ".join(source.line_text(node.lineno).split()),
            end=end,
            cell=source.line_and_cell(node.lineno)[1],
            lines=range(source.line_and_cell(first)[0], source.line_and_cell(last)[0] + 1),
            part=_span_in_text(part),
            guard=(source.path, _start_in_file(source, hit.guard))
            if hit.guard is not None
            else None,
            guarded_spans=tuple(map(_span_in_text, hit.guarded)),
        )
    module.free_nodes()


def _span_in_text(node: Any) -> tuple[Place, Place]:
    """Returns the start and the end of a node, as positions in `Source.text`. Lines count from 1, and columns count
    from 0, in bytes.
    """
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _start_in_file(source: Source, node: Any) -> Place:
    """Returns the start of a node, as a position in the file. Lines and columns count from 1; columns are in
    characters.
    """
    return source.line_and_cell(node.lineno)[0], editor_column(
        source, node.lineno, node.col_offset
    )


def grouped_by_test(findings: Iterable[Finding]) -> list[Finding]:
    """Groups the findings that a test for vendor-specific devices guards. The returned list contains only the finding
    for the test, with the others as its `guarded_findings`. If the test is not among the findings, the findings that it
    guards stay as they are.
    """
    findings = list(findings)
    tests = {(finding.path, (finding.line, finding.col)): finding for finding in findings}
    guarded_findings: dict[Finding, list[Finding]] = {}  # for each test
    kept = []  # the tests, and findings that no test guards
    for finding in findings:
        test = tests.get(finding.guard) if finding.guard is not None else None
        if test is None:
            kept.append(finding)
        else:
            guarded_findings.setdefault(test, []).append(finding)
    return [_with_guarded_lines(finding, guarded_findings.get(finding, [])) for finding in kept]


def _with_guarded_lines(test: Finding, guarded: list[Finding]) -> Finding:
    """Returns the finding of a test, with a message that names the lines of the findings that
    it guards. If `guarded` is empty, returns `test` itself."""
    if not guarded:
        return test
    lines = sorted({finding.line for finding in guarded})
    count = "one use" if len(guarded) == 1 else f"{len(guarded)} uses"
    # `port` keeps a test that guards code without a neutral replacement (XD219), so lint must
    # not recommend to rewrite the test. The recommendation is the end of the message, after "; use"
    opening = test.message
    if any(finding.code == "XD219" for finding in guarded):
        opening = f"{opening.partition('; use ')[0]}, but port keeps it: it guards code without a neutral replacement"
    message = f"{opening}; {count} behind this test (line {', '.join(map(str, lines))})"
    return replace(test, message=message, guarded_findings=tuple(guarded))


def _statement_lines(node: Any, parents: dict[ast.AST, ast.AST]) -> tuple[int, int]:
    """Returns the first and the last line of the statement that contains a node. For a compound
    statement, only the lines before its body are included. If the node is not on these lines, as in
    a decorator, returns the lines of the node itself. `parents` maps each node to its parent."""
    statement = node
    while not isinstance(statement, ast.stmt):
        statement = parents[statement]
    body = getattr(statement, "body", None)
    last: Any = statement.end_lineno
    if isinstance(body, list):
        # `max`, because the body may be on the same line, as in `if x: y`
        last = max(statement.lineno, body[0].lineno - 1)
    if statement.lineno <= node.lineno and node.end_lineno <= last:
        return statement.lineno, last
    return node.lineno, node.end_lineno  # a decorator, or the type after `except`


def with_fixes(findings: Iterable[Finding], examined: Examined) -> Iterator[Finding]:
    """Yields the findings, with the edits that `port` would make to fix each one in its attribute `fix`. In notebooks,
    `fix` stays empty, because edits of the code have no positions in the JSON file.
    """
    # only notebooks have `tokens`, which are their JSON strings
    sources = {source.path: source for source in examined.sources if not source.tokens}
    for finding in findings:
        source = sources.get(finding.path)
        site = _fixing_site(finding, examined, source) if source is not None else None
        if source is not None and site is not None:
            edits = sorted({*site.edits} | examined.import_edits(source, [site]))
            finding = replace(finding, fix=tuple(_change(source, edit) for edit in edits))
        yield finding


def _change(source: Source, edit: Edit) -> Change:
    """Converts an edit with offsets to an edit with lines and columns."""
    return Change(_position(source, edit.start), _position(source, edit.end), edit.text)


def _position(source: Source, offset: int) -> Place:
    """Returns the line and the column of an offset. Both count from 1; the column is in
    characters."""
    line, col = source.position(offset)
    return line, editor_column(source, line, col)


def _fixing_site(finding: Finding, examined: Examined, source: Source) -> Site | None:
    """Returns the site whose edits fix a finding; None if there is no such site. The site may begin or end at the same
    position as the finding. Otherwise, an edit of the site replaces the finding together with the code around it, as in
    `"cuda" if torch.cuda.is_available() else "cpu"`.
    """
    if finding.code not in lint_rules.FIXED_BY_PORT:
        return None
    first, last = finding.part
    start, end = source.offset(*first), source.offset(*last)
    sites = [site for site in examined.sites_of(source) if site.verdict == "rewritten"]
    # first compare the ends, because the site of a method call begins at the dot, but the finding begins at the object
    ending = [site for site in sites if site.end == last]
    beginning = [site for site in sites if (site.line, site.col) == first]
    around = [
        site
        for site in sites
        if any(edit.start <= start and end <= edit.end for edit in site.edits)
    ]
    # sites are sorted by their beginnings. If several sites end at the same place, or have edits that cover the
    # finding, the last site is the innermost
    fitting = ending or beginning or around
    return fitting[-1] if fitting else None


def fixed_files(findings: Iterable[Finding], examined: Examined) -> dict[Source, bytes]:
    """Returns a dict that maps each changed file to its new bytes. The new bytes contain the changes that `port` makes
    for these findings, and for the findings that they guard. Files without changes are left out. In each file, streams
    and events are rewritten together or not at all, because PyTorch's streams cannot be mixed with CUDA's.
    """
    by_path: dict[str, list[Finding]] = {}
    for finding in findings:
        by_path.setdefault(finding.path, []).extend((finding, *finding.guarded_findings))
    new = {}
    for source in examined.sources:
        chosen = by_path.get(source.path, [])
        # for each finding, the site whose edits fix it, or None
        site_of = {finding: _fixing_site(finding, examined, source) for finding in chosen}
        sites = [site for site in site_of.values() if site is not None]
        # inner tests first, because an outer test must stay if an inner test stays
        for finding in reversed(chosen):
            _complete_sites(
                finding,
                sites,
                all_sites=examined.sites_of(source),
                site_of_test=site_of[finding],
            )
        # the sites that `port` would rewrite, but that stay: if one of them is a CUDA stream or
        # event, no other stream or event of the file may be rewritten
        staying = [
            site
            for site in examined.sites_of(source)
            if site.verdict == "rewritten" and site not in sites
        ]
        if any(_STREAM_IDIOMS.search(site.idiom) for site in staying):
            sites = [site for site in sites if not _STREAM_IDIOMS.search(site.idiom)]
        if sites:
            new[source] = examined.rewritten(source, sites)
    return new


def _complete_sites(
    test: Finding, sites: list[Site], all_sites: list[Site], site_of_test: Site | None
) -> None:
    """Completes `sites`, the list of sites that will be rewritten, for a finding that is a
    test.

    Adds the sites that the test guards but lint does not report, such as the string in `"cuda" if
    torch.cuda.is_available() else "cpu"`. But if the test guards vendor-specific code that stays, removes the test from
    `sites` instead. A test for the devices of any vendor must not guard code for one vendor. `site_of_test` is the site
    of the test itself, and `all_sites` are the sites of the file. Nothing changes if `site_of_test` is None, or is not
    in `sites`.
    """
    if site_of_test is None or site_of_test not in sites:
        return
    inside = [
        site
        for site in all_sites
        if site is not site_of_test and _is_in(site, test.guarded_spans)
    ]
    # sites that lint does not report, so that no finding has added them
    unreported = [
        site
        for site in inside
        if site.verdict == "rewritten" and not _REPORTED_IDIOMS.search(site.idiom)
    ]
    # vendor-specific sites that are not rewritten
    staying = [
        site
        for site in inside
        if site.vendor and site not in (*sites, *unreported) and site.verdict != "neutral"
    ]
    if staying or any(finding.code == "XD219" for finding in test.guarded_findings):
        sites.remove(site_of_test)
    else:
        sites += [site for site in unreported if site not in sites]


def _is_in(site: Site, spans: Iterable[tuple[Place, Place]]) -> bool:
    """Whether a site is inside one of these spans, which are pairs of positions in
    `Source.text`."""
    return any(start <= (site.line, site.col) and site.end <= end for start, end in spans)


# comments that ignore findings


@dataclass
class _Ignore:
    """A comment by which findings on its line are ignored, or a pair of comments by which findings
    on the lines between them are ignored."""

    lines: range  # of the file; findings on these lines are ignored
    cell: int | None
    codes: tuple[str, ...]  # codes or prefixes; empty for all codes
    used: bool = False  # whether it has ignored a finding


def _ignore_comments(source: Source) -> Iterator[_Ignore]:
    """Yields the comments in a file by which findings are ignored, each with the lines to which it
    applies.

    Raises:
        OptionError: if a comment names a code that does not exist.
    """
    opened: _Ignore | None = None
    for line, comment in _comments(source):
        match = _COMMENT.match(comment)
        if match is None:
            continue
        shown_line, cell = source.line_and_cell(line)
        ignore = _Ignore(
            range(shown_line, shown_line + 1),
            cell,
            parse_codes(match[2] or "", f"{source.path}:{shown_line}"),
        )
        # `off` applies up to the next `on`, or to the end of the file
        if match[1] == "ignore":
            yield ignore
        elif match[1] == "off" and opened is None:
            opened = ignore
        elif match[1] == "on" and opened is not None:
            yield replace(opened, lines=range(opened.lines.start, shown_line + 1))
            opened = None
    if opened is not None:
        last, _ = source.line_and_cell(len(source.line_starts))
        yield replace(opened, lines=range(opened.lines.start, last + 1))


def _comments(source: Source) -> Iterator[tuple[int, str]]:
    """Yields the comments of a file, each with its line in `Source.text`. Yields nothing if the file does not contain
    "xdevice:". A cell that is not Python is read up to the first error.
    """
    # a shortcut: most files contain no such comment, and it takes long to read tokens
    if b"xdevice:" not in source.text:
        return
    cells = (
        source.cells if source.cells is not None else [Cell(line=1, text=source.text.decode())]
    )
    for cell in cells:
        # after the error, a cell that is not Python has no findings to ignore
        with suppress(tokenize.TokenError, SyntaxError):
            for token in tokenize.generate_tokens(io.StringIO(cell.text).readline):
                if token.type == tokenize.COMMENT:
                    yield cell.line + token.start[0] - 1, token.string


def _is_ignored(finding: Finding, ignores: Sequence[_Ignore]) -> bool:
    """Whether a comment among `ignores` applies to a finding. All comments that apply are marked as used."""
    is_ignored = False
    for ignore in ignores:
        # one common line is enough, so that the comment may be on any line of the statement
        touches = (
            ignore.lines.start < finding.lines.stop and finding.lines.start < ignore.lines.stop
        )
        # a comment without codes ignores all codes, which begin with "XD"
        if touches and finding.code.startswith(ignore.codes or "XD"):
            is_ignored = ignore.used = True
    return is_ignored


def _unused_ignores(
    source: Source, ignores: Iterable[_Ignore], choice: Choice
) -> Iterator[Finding]:
    """Yields a finding (XD401) for each comment that was not needed to ignore a finding. Comments
    for a rule that was not run are left out, because they may be needed when the rule runs."""
    for ignore in ignores:
        if not ignore.used and _may_be_unused(ignore, choice, source.path):
            line = ignore.lines.start
            suffix = f" of {', '.join(ignore.codes)}" if ignore.codes else ""
            message = f"this comment ignores no finding{suffix}; remove it"
            lines = source.raw.decode(errors="replace").splitlines()
            text = " ".join(lines[line - 1].split())
            # the column of the comment is not known, so the finding is at the beginning of the line
            yield Finding(
                source.path,
                line,
                1,
                "XD401",
                message,
                text=text,
                end=(line, 1),
                cell=ignore.cell,
                lines=range(line, line + 1),
                part=((line, 0), (line, 0)),  # nothing that `port` would rewrite
            )


def _may_be_unused(ignore: _Ignore, choice: Choice, path: str) -> bool:
    """Whether a comment that was not needed may be reported. All rules to which the comment applies
    must have been run, because a rule that was not run may need the comment. A comment without
    codes applies to all rules that are enabled by default."""
    # a comment with a prefix, such as XD2, applies to all codes that begin with it
    return all(
        choice.reports(code, path)
        for code, rule in RULES.items()
        if (code.startswith(ignore.codes) if ignore.codes else rule.is_default)
    )


# findings that a baseline or a revision already contains


def _baseline_key(finding: Finding) -> tuple[str, str, str]:
    """Returns the key by which a baseline recognizes a finding: the path, the code and the text
    of the line. The key stays the same when the line moves."""
    return finding.path, finding.code, finding.text


def baseline_text(findings: Iterable[Finding]) -> str:
    """Returns the text of a file for `--baseline`, which contains the number of findings for
    each key."""
    counts = Counter(map(_baseline_key, findings))
    rows = [
        {"path": path, "code": code, "line": text, "count": count}
        for (path, code, text), count in sorted(counts.items())
    ]
    return json.dumps({"version": 1, "findings": rows}, indent=1, ensure_ascii=False) + "\n"


def not_in_baseline(findings: Iterable[Finding], file: Path) -> list[Finding]:
    """Returns the findings that the baseline in `file` does not list. If a line has more findings
    of a code than the baseline lists, the last ones are returned as new.

    Raises:
        OptionError: if the file cannot be read, or is not a baseline.
    """
    try:
        remaining: Counter[tuple[str, str, str]] = Counter()
        for row in json.loads(file.read_text(encoding="utf-8"))["findings"]:
            remaining[row["path"], row["code"], row["line"]] += int(row["count"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OptionError(
            f"{file} is not a baseline written by --write-baseline: {error}"
        ) from error
    new = []
    for finding in findings:
        key = _baseline_key(finding)
        # the number of findings with this key that are left in the baseline. The first of
        # several equal findings are thus treated as those in the baseline
        remaining[key] -= 1
        if remaining[key] < 0:
            new.append(finding)
    return new


def only_added(findings: Iterable[Finding], revision: str, root: Path) -> list[Finding]:
    """Returns the findings in statements that contain a line added since a Git revision, and
    the findings in files that Git does not track yet. The paths of the findings are relative to
    the folder `root`.

    Raises:
        OptionError: if Git does not know the revision, or is not installed.
    """
    text = _git(
        root,
        "diff",
        "-U0",
        # otherwise, the user's settings (diff.mnemonicPrefix, diff.noprefix,
        # diff.interHunkContext and a textconv for notebooks) could change the paths and the
        # line numbers
        "--dst-prefix=b/",
        "--inter-hunk-context=0",
        "--no-textconv",
        "--no-color",
        "--no-ext-diff",
        "--relative",
        revision,
        "--",
        ".",
    )
    added = set()  # (path, number of an added line, from 1)
    path = ""
    # not splitlines(), which would also split a line at form feeds
    for line in text.split("\n"):
        # with -U0, there are no context lines, so only a heading begins with this word
        if line.startswith("diff "):
            path = ""
        # an added line "++ x" looks like a heading "+++ x", but comes after the heading
        elif line.startswith("+++ ") and not path:
            path = line.removeprefix("+++ ").removeprefix("b/").rstrip("\t")
        elif line.startswith("@@"):
            # `@@ -3 +4,2 @@` means two lines, beginning with line 4; without the second number,
            # it is one line
            start, count = re.findall(r"\+(\d+)(?:,(\d+))?", line)[0]
            for i in range(int(count or 1)):
                added.add((path, int(start) + i))
    # `git diff` does not show files that were never added; with -z, Git does not escape their
    # names
    untracked = _git(root, "ls-files", "-z", "--others", "--exclude-standard").split("\0")
    return [
        finding
        for finding in findings
        if finding.path in untracked
        or any((finding.path, line) in added for line in finding.lines)
    ]


def _git(root: Path, *arguments: str) -> str:
    """Returns the output of a Git command that is run in a folder.

    Raises:
        OptionError: if the command fails, or Git is not installed.
    """
    # without this setting, Git writes names that are not ASCII in quotes, with escapes
    command = ["git", "-C", str(root), "-c", "core.quotePath=false", *arguments]
    try:
        process = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise OptionError("--diff needs git, which is not installed") from error
    # the first line of Git's message says what is wrong; the rest is advice
    if process.returncode:
        first = process.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise OptionError(f"--diff: {first}")
    return process.stdout.decode(errors="replace")
