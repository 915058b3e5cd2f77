"""The commands for other people's scripts: `scan` counts device idioms such as `x.cuda()`,
`port` rewrites them, and `lint` reports device code that is wrong or vendor-specific. They are
commands of `xdevice`, and the only commands of `python -m xdevice.port`."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from .progress import shown_on_terminal

# all other modules are imported only when a command runs, so that `xdevice --help` stays fast
if TYPE_CHECKING:
    from collections.abc import Callable

    from .engine import Examined
    from .lint import Choice, Finding
    from .sites import Grade
    from .words import Goal, Target, Version

    Command = Callable[..., None]

# not `exists=True`, because `lint` lists missing files among the files that cannot be read
_PATHS = click.argument(
    "paths", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True)
)
_FILE = click.Path(path_type=Path)


def _refuse_other_suffixes(
    ctx: click.Context, param: click.Parameter, path: Path | None
) -> Path | None:
    """Returns the path, or None if the option is missing. This is the callback of `--report`.

    Raises:
        click.BadParameter: if the path does not end in .json, .txt or .html.
    """
    if path is not None and path.suffix not in (".json", ".txt", ".html"):
        raise click.BadParameter(
            f"the name of a report must end in .json, .txt or .html, not {path}", ctx, param
        )
    return path


def _read_version(
    ctx: click.Context, param: click.Parameter, text: str | None
) -> Version | None:
    """Returns the release that the text names, or None if the option is missing. This is the
    callback of `--torch-minimum`.

    Raises:
        click.BadParameter: if the text does not name a release.
    """
    from .words import version

    try:
        return None if text is None else version(text)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _with_goal(command: Command) -> Command:
    """Decorates a command with the options `--to` and `--torch-minimum`, which select the names
    that are written. The command receives both options as one `Goal`, in its argument `goal`."""

    @click.option(
        "--torch-minimum",
        metavar="VERSION",
        callback=_read_version,
        help="Write only names that this release of PyTorch has, such as 2.9. By default, port writes the newest "
        "names, and reports which release they need.",
    )
    @click.option(
        "--to",
        "target",
        type=click.Choice(("xdevice", "accelerator")),
        default="xdevice",
        show_default=True,
        help="The API to write: xdevice's, or PyTorch's own (torch.accelerator), which needs no import of xdevice.",
    )
    @functools.wraps(command)
    def with_goal(target: Target, torch_minimum: Version | None, **options: Any) -> None:
        from .words import Goal

        command(goal=Goal(target, torch_minimum), **options)

    return with_goal


def _with_project(command: Command) -> Command:
    """Decorates a command with the arguments and options that `scan` and `port` share.

    The decorated command reads and judges the files, writes the report, and passes the result
    to `command` as its argument `examined`. The report is written before `command` runs,
    because `port` changes files.
    """

    @click.option(
        "--report",
        "report_to",
        type=_FILE,
        callback=_refuse_other_suffixes,
        metavar="FILENAME",
        help="Write a report, which begins with a summary, to a file that ends in .txt, .html (one page) or .json.",
    )
    @click.option(
        "--root",
        type=_FILE,
        help="The folder from which imports are resolved; by default, the folder that contains all PATHS.",
    )
    @click.option(
        "--only",
        type=click.Choice(("proven", "safe", "likely")),
        default="proven",
        show_default=True,
        help="How certain xdevice must be that a rewrite keeps the meaning of the code; proven is the strictest.",
    )
    @_PATHS
    @_with_goal
    @functools.wraps(command)
    def with_examined(
        paths: tuple[Path, ...],
        only: Grade,
        root: Path | None,
        report_to: Path | None,
        goal: Goal,
        backend: str | None = None,  # only `port` has this option
        **options: Any,
    ) -> None:
        from . import engine, report, summary

        # before any file is written: a path that does not exist is a mistake in the command
        # line, and not merely a file that cannot be read
        for path in paths:
            if str(path) != "-" and not path.exists():
                raise click.UsageError(f"there is no file or folder {path}")
        with shown_on_terminal() as progress:
            examined = engine.examine(paths, only, root, backend, goal, progress)
        for name in examined.unsettled:
            click.echo(
                f"{name}: its values are too complex to follow, so device uses that depend on them may stay unchanged",
                err=True,
            )
        if report_to is not None:
            forms = {".json": report.text, ".txt": summary.text, ".html": summary.page}
            # no other suffix gets here (`_refuse_other_suffixes`)
            text = forms[report_to.suffix](examined)
            # the same line ends on every system, so that equal projects have equal reports
            report_to.write_text(text, encoding="utf-8", newline="\n")
        command(examined=examined, **options)

    return with_examined


@click.command(short_help="Count the uses of devices, by what port would do with them.")
@_with_project
@click.option(
    "--by",
    type=click.Choice(("code", "file", "idiom")),
    default="code",
    show_default=True,
    help="How to group the rows of the table.",
)
def scan(examined: Examined, by: str) -> None:
    """Counts device code, such as x.cuda(), in scripts, notebooks and the pages of d2l.ai. The
    counts are grouped by what port would do with the code.

    All PATHS together are one project. If a PATH is -, a script is read from the standard input.
    The exit status is 0, or 2 if a file cannot be read.
    """
    from .summary import summary_lines

    click.echo("\n".join([*summary_lines(examined), ""]))
    _show_table(examined, by)
    _print_unreadable_and_exit(examined, status=0)


@click.command(short_help="Rewrite device code so that it is vendor-neutral.")
@_with_project
@click.option(
    "--diff",
    "mode",
    flag_value="diff",
    default=True,
    help="Print the changes, which is the default.",
)
@click.option("--write", "mode", flag_value="write", help="Change the files.")
@click.option(
    "--check",
    "mode",
    flag_value="check",
    help="Print only the names of files that would change; exit with 1 if there are any.",
)
@click.option(
    "--backend",
    help="The argument of set_backend; by default, the one framework that a file uses.",
)
@click.option(
    "-q", "--quiet", is_flag=True, help="Do not list the code that was not rewritten."
)
def port(examined: Examined, mode: str, quiet: bool) -> None:
    """Replaces device code of a framework, such as x.cuda(), with calls of xdevice or of PyTorch's
    vendor-neutral API.

    All PATHS together are one project. If a PATH is -, a script is read from the standard input,
    and rewritten to the standard output. Code that could not be rewritten is listed on standard
    error, with the reason, followed by the files that still need one vendor's devices. The exit
    status is 0, or 2 if a file cannot be read. With --check, nothing is rewritten; the standard
    input is listed as <stdin>. The exit status is then 1 if a file would change, and 3 if no file
    would change but a file still needs one vendor's devices.
    """
    from .sources import write

    changed = False
    # a script from the standard input has no file that could be changed. It is written to the
    # standard output, unless --check only tests whether it would change
    for source in examined.sources:
        new = examined.ported(source)
        if source.path == "<stdin>" and mode != "check":
            sys.stdout.buffer.write(new)
        # unchanged files are neither written nor listed
        if new == source.raw:
            continue
        changed = True
        if mode == "write" and source.path != "<stdin>":
            write(examined.root / source.path, new)
        elif mode == "check":
            click.echo(source.path)
        elif source.path != "<stdin>":
            click.echo(examined.diff(source), nl=False)
    if not quiet:
        _print_open_sites(examined)
    needs_vendor = _print_needs(examined)
    # the exit status of --check, unless a file could not be read
    status = 1 if changed else 3 if needs_vendor else 0
    _print_unreadable_and_exit(examined, status if mode == "check" else 0)


@click.command(short_help="Report device code that is wrong or vendor-specific.")
@_PATHS
@click.option(
    "--select",
    metavar="CODE,CODE",
    help="Report only these codes or prefixes, such as XD2,XD401.",
)
@click.option("--ignore", metavar="CODE,CODE", help="Do not report these codes or prefixes.")
@click.option(
    "--diff",
    "revision",
    metavar="REV",
    help="Report only lines that were added since this Git revision.",
)
@click.option(
    "--fix",
    is_flag=True,
    help="Apply port's rewrites where they are proven to keep the meaning, and report the other findings.",
)
@_with_goal
@click.option("--baseline", type=_FILE, help="Report only findings that are not in this file.")
@click.option(
    "--write-baseline",
    "baseline_to",
    type=_FILE,
    help="Write the findings to this file, and exit with 0.",
)
@click.option(
    "--format",
    "output_format",
    type=click.Choice(("text", "github", "json", "sarif")),
    default="text",
    show_default=True,
    help="The format of the findings.",
)
def lint(
    paths: tuple[Path, ...],
    select: str | None,
    ignore: str | None,
    revision: str | None,
    baseline: Path | None,
    baseline_to: Path | None,
    output_format: str,
    fix: bool,
    goal: Goal,
) -> None:
    """Reports device code in scripts that is wrong or vendor-specific.

    Reads .py files, .ipynb files and the .md files of d2l.ai, without importing them. A PATH
    may be a folder, or - for the standard input. If code runs only after a test such as `if
    torch.cuda.is_available():`, the finding names the test. The comment `# xdevice:
    ignore[XD202]` makes lint ignore findings with this code on its line. Between the comments
    `# xdevice: off` and `# xdevice: on`, lint ignores all findings. You can set select, ignore and
    per-file-ignores in [tool.xdevice] of pyproject.toml. The exit status is 0 if there are no
    findings, or if none are left after --fix. It is 1 if there are findings, and 2 if a file cannot
    be read or an option is invalid.
    """
    # the module is imported under another name, because this function is called `lint`
    from . import lint as lint_module
    from .lint_formats import FORMATS
    from .sources import write

    if sum(option is not None for option in (revision, baseline, baseline_to)) > 1:
        raise click.UsageError(
            "--diff, --baseline and --write-baseline cannot be combined; use only one of them"
        )
    if fix:
        _refuse_fix(paths, baseline_to)
    # as in other linters, paths in settings and findings are relative to the current folder
    root = Path.cwd()
    try:
        choice = lint_module.read_settings(root).with_options(select, ignore)
        needs_verdicts = fix or output_format == "sarif" or choice.needs_engine()
        # called again after --fix. If the goal is None, `_findings` does not run the engine, which
        # takes far longer than the rules of lint
        examine = functools.partial(
            _findings, paths, root, choice, goal if needs_verdicts else None
        )
        findings, examined = examine()
        if baseline_to is not None:
            baseline_to.write_text(lint_module.baseline_text(findings), encoding="utf-8")
            click.echo(f"findings written to {baseline_to}: {len(findings)}", err=True)
            _print_unreadable_and_exit(
                examined, status=0
            )  # ends the program: no findings are shown

        def findings_to_show(findings: list[Finding]) -> list[Finding]:
            """Returns the findings to show. Findings that the revision or the baseline already contained are left out.
            Findings in code that runs only if a device test such as `if torch.cuda.is_available():` is true are merged
            into the finding for that test, if that one is shown itself.
            """
            if revision is not None:
                findings = lint_module.only_added(findings, revision, root)
            elif baseline is not None:
                findings = lint_module.not_in_baseline(findings, baseline)
            return lint_module.grouped_by_test(findings)

        shown = findings_to_show(findings)
        if fix:
            new = lint_module.fixed_files(shown, examined)
            for source, text in new.items():
                write(root / source.path, text)
            if new:
                click.echo(f"rewritten: {', '.join(source.path for source in new)}", err=True)
                # the files have changed, so the findings and their lines are computed again
                findings, examined = examine()
                shown = findings_to_show(findings)
    except lint_module.OptionError as error:
        raise click.UsageError(str(error)) from error
    # the only format that contains edits
    if output_format == "sarif":
        shown = list(lint_module.with_fixes(shown, examined))
    # if files could not be read, the text "nothing found" would be wrong; all other formats need a document in any case
    if shown or not examined.unreadable or output_format != "text":
        click.echo(FORMATS[output_format](shown), nl=False)
    _print_unreadable_and_exit(examined, status=1 if shown else 0)


def _refuse_fix(paths: tuple[Path, ...], baseline_to: Path | None) -> None:
    """Raises `UsageError` if `--fix` is used together with `--write-baseline` or the standard input."""
    # the baseline would contain findings that --fix is about to remove
    if baseline_to is not None:
        raise click.UsageError(
            "--fix and --write-baseline cannot be combined; run lint --fix first"
        )
    if "-" in map(str, paths):
        raise click.UsageError(
            "--fix changes files, but the standard input is not a file; rewrite it with xdevice port -"
        )


def _findings(
    paths: tuple[Path, ...], root: Path, choice: Choice, goal: Goal | None
) -> tuple[list[Finding], Examined]:
    """Returns the findings of the rules that `choice` selects, and the examined project. If
    `goal` is None, the project is not examined, and the second result only contains the list of
    files that cannot be read."""
    from . import engine, sources
    from . import lint as lint_module

    with engine.collector_paused(), shown_on_terminal() as progress:
        # `read` is a generator, so that the memory for each file is freed when the rules have
        # read it
        if goal is None:
            examined = engine.Examined(root, only="proven")
            # the files that cannot be read are added to the list while `read` is iterated
            read = sources.read_files(
                paths, root, unreadable=examined.unreadable, progress=progress
            )
        else:
            examined = engine.examine(paths, root=root, goal=goal, progress=progress)
            read = iter(examined.sources)
        return [
            finding for source in read for finding in lint_module.findings(source, choice)
        ], examined


def _show_table(examined: Examined, by: str) -> None:
    """Prints the table of `scan`, with a row for each code, file or idiom, depending on `by`.
    Below the table, prints the share of the uses that `port` can rewrite."""
    from rich.console import Console
    from rich.table import Table

    from .report import VERDICTS, share_ported, totals
    from .sites import CODES, grouped

    rows = grouped(examined.sites, lambda site: getattr(site, by))
    table = Table(title=f"{len(examined.sites)} sites in {len(examined.sources)} files")
    # long paths are wrapped instead of truncated, so that they can be read on a narrow terminal
    table.add_column(by, overflow="fold")
    for verdict in VERDICTS:
        table.add_column(verdict, justify="right")
    for name, sites in sorted(rows.items()):
        label = f"{name} {CODES.get(name, '')}" if by == "code" else name
        counts = totals(sites)
        table.add_row(label, *(str(counts[verdict] or "") for verdict in VERDICTS))
    # unlike the other rows, the last row also shows zeros
    total = totals(examined.sites)
    table.add_row("all", *(str(total[verdict]) for verdict in VERDICTS), end_section=True)
    Console().print(table)
    # the share is None if nothing has to change
    share = share_ported(total)
    if share is not None:
        click.echo(
            f"{100 * share:.1f} % of the uses that have to change can be rewritten (--only {examined.only})"
        )


def _print_open_sites(examined: Examined) -> None:
    """Prints each open site to standard error, with the reason and, if there is one, a link to
    the documentation."""
    by_path = {source.path: source for source in examined.sources}
    for site in examined.sites:
        if site.verdict == "open":
            line, cell = by_path[site.file].line_and_cell(site.line)
            where = f"{site.file}:{line}" + (f" (cell {cell})" if cell else "")
            more = f"; see {site.link}" if site.link else ""
            click.echo(f"{where}: {site.code} {site.idiom}: {site.why}{more}", err=True)


def _print_needs(examined: Examined) -> bool:
    """Prints to standard error which files will still need one vendor's devices, and which
    release of PyTorch the new text needs. Returns whether any file will still need one vendor's
    devices."""
    needs_vendor = False
    paths_by_release: dict[Version, list[str]] = {}  # the files that need each release
    for source in examined.sources:
        needed = examined.needed_torch(source)
        if needed is not None:
            paths_by_release.setdefault(needed, []).append(source.path)
        # the lines by vendor and by name of the idiom, so that each name is printed once, with all its lines
        lines_of: dict[str, dict[str, list[str]]] = {}
        for site in examined.vendor_sites(source):
            line, _ = source.line_and_cell(site.line)
            lines_of.setdefault(site.vendor, {}).setdefault(site.idiom, []).append(str(line))
        for vendor, idioms in lines_of.items():
            needs_vendor = True
            uses = "; ".join(
                f"{name} (line {', '.join(lines)})" for name, lines in idioms.items()
            )
            click.echo(f"{source.path} will still need {vendor}: {uses}", err=True)
    # the oldest release comes first
    for needed, paths in sorted(paths_by_release.items()):
        click.echo(f"PyTorch {needed} or newer is needed by {', '.join(paths)}", err=True)
    return needs_vendor


def _print_unreadable_and_exit(examined: Examined, status: int) -> NoReturn:
    """Prints to standard error which files could not be read. Then exits with the status 2 if
    there are such files, else with `status`."""
    for path, why in examined.unreadable:
        click.echo(f"{path} could not be read: {why}", err=True)
    sys.exit(2 if examined.unreadable else status)
