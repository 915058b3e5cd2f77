"""The commands `xdevice scan`, which counts device idioms such as `x.cuda()` in other people's scripts, and `xdevice
port`, which rewrites them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import report

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.port.engine import Examined
    from xdevice.port.sites import Site

_LEVELS = click.Choice(("proven", "safe", "likely"))


def _project(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the arguments and options that `scan` and `port` share to a command."""
    for decorate in (
        click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True)),
        click.option("--only", type=_LEVELS, default="proven", show_default=True, help="What a rewriting may rest on."),
        click.option("--root", type=click.Path(path_type=Path), help="Where imports resolve; else what PATHS share."),
    ):
        function = decorate(function)
    return function


@click.command()
@_project
@report.option
@click.option("--by", type=click.Choice(("code", "file", "idiom")), default="code", show_default=True)
def scan(paths: tuple[Path, ...], only: str, root: Path | None, by: str, reports: tuple[Path, ...]) -> None:
    """Counts device idioms, such as x.cuda(), in scripts, notebooks and d2l texts, by what port would do with them.

    All PATHS are one project; - is a script on the standard input. The exit status is 0, or 2 if a file cannot be read.
    """
    from xdevice.port import engine

    made = engine.examine(_existing(paths), only, root)  # type: ignore[arg-type]
    report.write(made, reports)
    _show_table(made, by)
    _end(made, 0)


@click.command()
@_project
@report.option
@click.option("--diff", "way", flag_value="diff", default=True, help="Print what would change: the default.")
@click.option("--write", "way", flag_value="write", help="Change the files.")
@click.option("--check", "way", flag_value="check", help="Print nothing but the files; exit 1 if one would change.")
@click.option("--backend", help="What set_backend gets; else the one framework that a file uses.")
@click.option("-q", "--quiet", is_flag=True, help="Do not list what is open.")
def port(
    paths: tuple[Path, ...],
    only: str,
    root: Path | None,
    way: str,
    backend: str | None,
    quiet: bool,
    reports: tuple[Path, ...],
) -> None:
    """Rewrites the device idioms of a framework, such as x.cuda(), as calls of xdevice.

    All PATHS are one project; - is a script on the standard input, which is rewritten to the standard output. Idioms
    that it could not rewrite are listed on standard error, with the reason. The exit status is 0; 1 with --check if a
    file would change; 2 if a file cannot be read.
    """
    from xdevice.port import engine

    made = engine.examine(_existing(paths), only, root, backend)  # type: ignore[arg-type]
    report.write(made, reports)
    changed = False
    for source in made.sources:
        new = made.port(source)
        if source.path == "<stdin>":
            sys.stdout.buffer.write(new)
        if new == source.raw:
            continue
        changed = True
        if way == "write" and source.path != "<stdin>":
            (made.root / source.path).write_bytes(new)
        elif way == "check":
            click.echo(source.path)
        elif source.path != "<stdin>":
            click.echo(made.diff(source), nl=False)
    if not quiet:
        _list_open(made)
    _end(made, 1 if way == "check" and changed else 0)


def _existing(paths: tuple[Path, ...]) -> list[Path]:
    for path in paths:
        if str(path) != "-" and not path.exists():
            raise click.UsageError(f"there is no file or folder {path}")
    return list(paths)


def _show_table(made: Examined, by: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from xdevice.port.report import VERDICTS, share_ported, totals
    from xdevice.port.sites import CODES

    rows: dict[str, list[Site]] = {}
    for site in made.sites:
        name = {"code": site.code, "file": site.file, "idiom": site.idiom}[by]
        rows.setdefault(name, []).append(site)
    table = Table(title=f"{len(made.sites)} sites in {len(made.sources)} files")
    table.add_column(by, overflow="fold")
    for verdict in VERDICTS:
        table.add_column(verdict, justify="right")
    for name, sites in sorted(rows.items()):
        label = f"{name} {CODES.get(name, '')}" if by == "code" else name
        counted = totals(sites)
        table.add_row(label, *(str(counted[verdict] or "") for verdict in VERDICTS))
    total = totals(made.sites)
    table.add_row("all", *(str(total[verdict]) for verdict in VERDICTS), end_section=True)
    Console().print(table)
    share = share_ported(total)
    if share is not None:
        click.echo(f"{100 * share:.1f} % of what is not neutral can be rewritten (--only {made.only})")


def _list_open(made: Examined) -> None:
    by_path = {source.path: source for source in made.sources}
    for site in made.sites:
        if site.verdict == "open":
            click.echo(_line(site, by_path[site.file].place(site.line)), err=True)


def _line(site: Site, place: tuple[int, int | None]) -> str:
    line, cell = place
    where = f"{site.file}:{line}" + (f" (cell {cell})" if cell else "")
    return f"{where}: {site.code} {site.idiom}: {site.why}" + (f"; see {site.link}" if site.link else "")


def _end(made: Examined, status: int) -> None:
    for path, why in made.unreadable:
        click.echo(f"{path}: not read: {why}", err=True)
    sys.exit(2 if made.unreadable else status)
