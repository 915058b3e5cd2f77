"""Docstrings as xdevice writes them, for autodoc: Google's sections, with Markdown's code and tables."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

import xdevice

SECTIONS = re.compile(r"(Args|Raises|Returns|Yields|Attributes|Example|Examples)\b.*:$")


def code(line: str) -> str:
    """`this` as a literal, or as a link if it is a public name; docs/a/page.md as a link with its title."""

    def one(found: re.Match[str]) -> str:
        text, after = found[1], "\\ " if found[2] else ""
        name = text.removesuffix("()")
        if name.startswith("xdevice.") and name.removeprefix("xdevice.") in xdevice.__all__:
            return f":py:obj:`{text} <{name}>`{after}"
        return f"``{text}``{after}"

    line = re.sub(r"(?<![`:])`([^`]+)`(?!`)(?=(\w?))", one, line)
    return re.sub(r"(?<!`)docs/([\w/]+)\.md", r":doc:`/\1`", line)


def table(rows: list[str]) -> list[str]:
    """Rows of a Markdown table as a list-table."""
    indent = rows[0][: len(rows[0]) - len(rows[0].lstrip())]
    made = [f"{indent}.. list-table::", f"{indent}   :header-rows: 1", ""]
    for row in (rows[0], *rows[2:]):
        first, *others = (
            code(cell.strip())
            for cell in re.findall(r"((?:`[^`]*`|[^`|])+)", row.strip().strip("|"))
        )
        made += [f"{indent}   * - {first}", *(f"{indent}     - {cell}" for cell in others)]
    return made


def one_error_a_line(lines: list[str]) -> list[str]:
    """`DeviceError: this. ShapeError: that.` in two lines, where Google's style has one for each."""
    made: list[str] = []
    raises = False
    for line in lines:
        if line[:1].strip():
            raises = line.startswith("Raises")
        parts = (
            re.split(r"(?<=[.;]) (?=[A-Z]\w+Error(?:, [^.:]{0,40})?: )", line)
            if raises
            else [line]
        )
        made += [parts[0], *(f"    {part}" for part in parts[1:])]
    return made


def rewrite(
    _app: Sphinx, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]
) -> None:
    lines[:] = one_error_a_line(lines)
    made: list[str] = []
    rows: list[str] = []
    drawn = False
    for number, line in enumerate(lines):
        if line.strip().startswith("|"):
            rows.append(line)
            continue
        if rows:
            made += table(rows)
            rows = []
        if (
            line.startswith("    ")
            and number > 1
            and not lines[number - 1]
            and lines[number - 2][:1].strip()
        ):
            drawn = not SECTIONS.match(lines[number - 2])
            made += ["::", ""] if drawn else []
        elif line[:1].strip():
            drawn = False
        # the sentence before the colon, because Napoleon knows the section only as "Raises:"
        if re.fullmatch("Raises .+:", line):
            made += [f"{line[:-1].replace('following errors', 'errors below')}.", ""]
            line = "Raises:"
        made.append(line if drawn or line.lstrip().startswith((">>>", "...")) else code(line))
    lines[:] = made + (table(rows) if rows else [])


def setup(app: Sphinx) -> dict[str, bool]:
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", rewrite, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
