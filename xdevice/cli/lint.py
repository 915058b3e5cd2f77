"""The command `xdevice lint`: chooses the files and the codes, and prints the findings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xdevice.port.engine import Examined
    from xdevice.port.lint import Choice, Finding


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True))
@click.option("--select", metavar="CODE,CODE", help="Only these codes, or those that begin so: XD2,XD401.")
@click.option("--ignore", metavar="CODE,CODE", help="Not these codes, or those that begin so.")
@click.option("--diff", "revision", metavar="REV", help="Only lines that were added since this revision of Git.")
@click.option("--baseline", type=click.Path(path_type=Path), help="Only what this file does not have.")
@click.option("--write-baseline", "baseline_to", type=click.Path(path_type=Path),
              help="Write what is found into this file, and exit with 0.")  # fmt: skip
@click.option("--format", "shape", type=click.Choice(("text", "github", "json", "sarif")), default="text",
              show_default=True, help="How findings are written.")  # fmt: skip
def lint(
    paths: tuple[Path, ...], select: str | None, ignore: str | None, revision: str | None, baseline: Path | None,
    baseline_to: Path | None, shape: str,
) -> None:  # fmt: skip
    """Reports device code in scripts that is wrong, or bound to one vendor.

    Reads .py, .ipynb and the .md files of d2l.ai, without importing them. A PATH may be a folder, or - for the standard
    input. The comment `# xdevice: ignore[XD202]` ignores a line, `# xdevice: off` and `on` ignore several; select,
    ignore and per-file-ignores can be set in [tool.xdevice] of pyproject.toml. The exit status is 0 if nothing is
    found, 1 if something is, and 2 if a file could not be read or an option is wrong.
    """
    from xdevice.core import collector
    from xdevice.port import lint as rules
    from xdevice.port import sources

    if sum(option is not None for option in (revision, baseline, baseline_to)) > 1:
        raise click.UsageError("--diff, --baseline and --write-baseline go one at a time")
    root = Path.cwd()
    try:
        choice = _choice(select, ignore, root)
        examined = _examined(paths, root) if shape == "sarif" or rules.needs_engine(choice) else None
        with collector.paused():
            read, unreadable = (examined.sources, examined.unreadable) if examined else sources.read_all(paths, root)
            found = [one for source in read for one in rules.findings(source, choice)]
        for path, why in unreadable:
            click.echo(f"{path}: not read: {why}", err=True)
        if baseline_to is not None:
            baseline_to.write_text(rules.baseline(found), encoding="utf-8")
            click.echo(f"{len(found)} written to {baseline_to}", err=True)
            sys.exit(2 if unreadable else 0)
        if revision is not None:
            found = rules.only_added(found, revision, root)
        elif baseline is not None:
            found = rules.beyond(found, baseline)
    except rules.OptionError as error:
        raise click.UsageError(str(error)) from error
    if found or not unreadable or shape != "text":
        _show(list(rules.with_fixes(found, examined)) if shape == "sarif" and examined else found, shape)
    sys.exit(2 if unreadable else 1 if found else 0)


def _show(found: list[Finding], shape: str) -> None:
    from xdevice.port.lint_formats import FORMATS

    click.echo(FORMATS[shape](found), nl=False)


def _choice(select: str | None, ignore: str | None, root: Path) -> Choice:
    """The codes to look for: those in the project's settings. `--select` replaces the settings' codes, `--ignore`
    removes more."""
    from xdevice.port import lint as rules

    choice = rules.configure(root)
    selected = rules.codes(select, "--select") if select else choice.select
    return choice._replace(select=selected, ignore=(*choice.ignore, *rules.codes(ignore or "", "--ignore")))


def _examined(paths: Iterable[Path], root: Path) -> Examined:
    from xdevice.port import engine

    return engine.examine(paths, root=root)
