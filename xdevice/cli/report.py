"""The option `--report FILENAME` of `scan` and `port`, which writes what was found as JSON or as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from xdevice.port.engine import Examined

SUFFIXES = (".json", ".html")


def _checked(ctx: click.Context, param: click.Parameter, paths: tuple[Path, ...]) -> tuple[Path, ...]:
    for path in paths:
        if path.suffix not in SUFFIXES:
            raise click.BadParameter(f"{path} ends neither in .json nor in .html", ctx, param)
    return paths


option = click.option(
    "--report", "reports", type=click.Path(path_type=Path), multiple=True, callback=_checked, metavar="FILENAME",
    help="Write a report: JSON if it ends in .json, one page if it ends in .html; repeatable.",
)  # fmt: skip


def write(made: Examined, paths: tuple[Path, ...]) -> None:
    """Writes the reports that the option asks for. `port` calls this before it changes any file."""
    from xdevice.port import html, report

    for path in paths:
        text = html.page(made) if path.suffix == ".html" else report.text(made)
        path.write_text(text, encoding="utf-8", newline="\n")
