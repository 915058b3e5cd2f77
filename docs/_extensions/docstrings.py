"""Docstrings as xdevice writes them, for autodoc: Google's sections, with Markdown's tables."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx


def tables(lines: list[str]) -> list[str]:
    """Markdown's tables as list-tables of reStructuredText."""
    made: list[str] = []
    for number, line in enumerate(lines):
        row = line.strip()
        if not row.startswith("|"):
            made.append(line)
            continue
        if set(row) <= set("|-: "):
            continue
        indent = line[: len(line) - len(line.lstrip())]
        if not number or not lines[number - 1].strip().startswith("|"):
            made += [f"{indent}.. list-table::", f"{indent}   :header-rows: 1", ""]
        first, *others = (cell.strip() for cell in row.strip("|").split("|"))
        made += [f"{indent}   * - {first}", *(f"{indent}     - {cell}" for cell in others)]
    return made


def rewrite(_app: Sphinx, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    lines[:] = tables(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", rewrite, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
