"""Puts the tables of benchmarks/results into a page: {measured}`feeding` becomes the table of that file, below a line
with its command, machine and date. benchmarks/measured.py writes the files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
PLACE = re.compile(r"^\{measured\}`(\w+)`$", re.MULTILINE)


def table(name: str) -> str:
    """The Markdown of one result."""
    result = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    command = f"`{result['benchmark']}`" if result["benchmark"] else ""
    about = " · ".join(part for part in (command, result["machine"], result["date"]) if part)
    lines = [result["columns"], ["---"] * len(result["columns"]), *result["rows"]]
    return "\n".join([f"*{about}*", "", *(f"| {' | '.join(cells)} |" for cells in lines)])


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    for name in PLACE.findall(source[0]):
        app.env.note_dependency(str(FOLDER / f"{name}.json"))
    source[0] = PLACE.sub(lambda found: table(found[1]), source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", fill)
    return {"parallel_read_safe": True}
