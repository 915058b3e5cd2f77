"""Writes a parity report as a self-contained HTML page, which loads no scripts, fonts or pictures."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Final

from .parity_report import (
    ReportTable,
    backends_table,
    error_text,
    excess_text,
    gradients_tables,
    line_text,
    worst,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .parity_report import ComparedValue, ParityReport

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
th, td { border: 1px solid #ccc; padding: .25rem .6rem; text-align: left; vertical-align: top }
td { overflow-wrap: anywhere; font-variant-numeric: tabular-nums }
h2::first-letter { text-transform: uppercase }
pre { overflow-x: auto; margin: .5rem 0; font-size: 13px }
.bad { background: #fde8e6 } .good { background: #e8f5e9 } .cut { background: #fff4d6 }
.verdict { border-left: 4px solid #2e7d32; padding: .6rem 1rem } .verdict.bad { border-color: #c62828 }
svg { max-width: 100%; height: auto } svg text { font: 12px system-ui, sans-serif; fill: #333 }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; padding: 0; margin: .25rem 0; list-style: none }
.legend svg { vertical-align: -2px; margin-right: .35rem }
@media (max-width: 640px) {
  h1 { font-size: 1.4rem; overflow-wrap: anywhere } tr { display: block; border: 1px solid #ccc; margin: .5rem 0 }
  table, tbody { display: block } tr.head, td:empty { display: none } td { display: inline-block; border: 0 }
  td[data-of]::before { content: attr(data-of) ": "; color: #666 } .plot text { font-size: 22px }
}
"""
# the columns of the table about each recorded name
_NAME_HEADINGS: Final = (
    "backend",
    "steps",
    "worst error",
    "relative",
    "ULP",
    "of what is allowed",
    "where",
    "off",
)


def page(report: ParityReport, title: str) -> str:
    """Returns the HTML of the page. It shows the first divergence, the backends and, for each recorded name, a table
    and a plot of the error over the steps."""
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>",
        f"<body><h1>{escape(title)}</h1>",
        _verdict(report),
        *(f"<p>{escape(note)}</p>" for note in report.notes),
        *(f"<p>{escape(text)}</p>" for text in report.further_partings()),
        _table(backends_table(report), "h2"),
        # errors with several lines, because the table has only the first line
        *(
            f"<p>{escape(row.backend)}</p><pre>{escape(row.error)}</pre>"
            for row in report.rows
            if "\n" in row.error
        ),
        "<h2>Recorded names</h2>",
        "<p>The error is the worst absolute error of a step; the dashed line is the limit of the tolerance. "
        "Steps are counted from 0.</p>",
        *(_section(name, report) for name in report.names()),
        *(_table(table, "h2") for table in gradients_tables(report)),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _verdict(report: ParityReport) -> str:
    """Returns the box at the top of the page. It shows the first divergence. If there is no divergence, it says that
    all backends agree, or that not every backend was compared."""
    first = report.first
    if first is not None:
        # the same text as in the terminal, without its beginning, which is already in the heading
        lines = str(first).removeprefix(f"{first.place}: ")
        heading = f"First divergence: {first.place} (compared with {first.reference})"
        return f'<div class="verdict bad"><strong>{escape(heading)}</strong><pre>{escape(lines)}</pre></div>'
    if report.status:
        return '<div class="verdict bad"><strong>Not every backend was compared.</strong></div>'
    return '<div class="verdict good"><strong>All backends agree.</strong></div>'


def _section(name: str, report: ParityReport) -> str:
    """Returns the section of the page about one recorded name: a table of the backends, and the plot."""
    # the compared values of each backend, one for each step
    series = report.series(name)
    # the backends whose process ended early, which may have recorded only the first steps
    cut = {row.backend for row in report.rows if row.state == "did not run"}
    rows: list[tuple[str, Sequence[str]]] = []
    for backend, values in series.items():
        value = worst(values)
        if value is None:
            # `_table` accepts rows with fewer cells than headings
            rows.append(("cut" if backend in cut else "", (backend, "0", "nothing recorded")))
            continue
        result = value.comparison
        # such as "step 3, ['w'] [1, 2]": the step, the leaf, and the index of the leaf's worst element
        leaf, index = result.leaf, result.worst
        where = f"step {value.step}{f', {leaf}' if leaf else ''}{f' {list(index)}' if index else ''}"
        cells = (
            backend, f"{len(values)}{', then it ended' if backend in cut else ''}", error_text(result),
            "-" if result.rel is None else f"{result.rel:.1e}",
            "-" if result.ulp is None else str(result.ulp), excess_text(result), where,
            f"{result.off} of {result.total}",
        )  # fmt: skip
        # a difference is more serious than an early end
        verdict = "bad" if not result.ok else "cut" if backend in cut else "good"
        rows.append((verdict, cells))
    # only the line that recorded the reference's first value; the lines of all values would take too much space
    place = next(
        (line_text(value.expected_line) for values in series.values() for value in values), ""
    )
    recorded_at = f"<p>recorded at {escape(place)}</p>" if place else ""
    return f"{_table(ReportTable(name, _NAME_HEADINGS, rows), 'h3', about=recorded_at)}{plot(name, series)}"


def _table(table: ReportTable, heading: str, about: str = "") -> str:
    """Returns a table as HTML. The title comes first, in an element `heading` such as "h2", followed by the HTML in
    `about`. On a phone, the page's style shows each row as a card, with a heading before each cell."""
    head = "".join(f"<th>{name}</th>" for name in table.headings)
    lines = [
        f'<{heading}>{escape(table.title)}</{heading}>{about}<table><tr class="head">{head}</tr>'
    ]
    for verdict, cells in table.rows:
        shown = [
            # on a phone, the style puts the heading in `data-of` before the cell
            f'<td data-of="{name}">{escape(cell)}</td>'
            # the row of a backend that has recorded nothing has fewer cells
            for name, cell in zip(table.headings, cells, strict=False)
        ]
        lines.append(f'<tr class="{verdict}">{"".join(shown)}</tr>')
    return "".join([*lines, "</table>"])


# the plot of the errors of one recorded name, as an SVG

# the size of the drawing, and the edges of the plot inside it, in pixels
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BOTTOM, _TOP = 640, 260, 66, 626, 208, 14
_INSET: Final = 14
"""The margin, in pixels, to the left of the first step and to the right of the last step, inside the plot."""
_APART: Final = 4
"""The distance in pixels between the markers of two backends with equal values, so that the markers do not cover each
other."""
_MOST_MARKS: Final = 200
"""A series with at most this many steps is drawn with markers; a longer series is drawn as a line only."""
# the style of the line for the tolerance, in the plot and in its legend
_DASHED: Final = 'fill="none" stroke="#c62828" stroke-width="1.5" stroke-dasharray="5 4"'
_COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""The colours of Okabe and Ito, which people with any kind of colour vision can distinguish."""
_SHAPES: Final = (
    "M-3.5,0 a3.5,3.5 0 1,0 7,0 a3.5,3.5 0 1,0 -7,0 z",
    "M-3,-3 h6 v6 h-6 z",
    "M0,-4 l4,7 h-8 z",
    "M0,-4.5 l4.5,4.5 l-4.5,4.5 l-4.5,-4.5 z",
    "M0,4 l4,-7 h-8 z",
    "M-4,-1.2 h2.8 v-2.8 h2.4 v2.8 h2.8 v2.4 h-2.8 v2.8 h-2.4 v-2.8 h-2.8 z",
)
"""The markers of the backends: a circle, a square, a triangle, a diamond, an upside-down triangle, a cross."""


def plot(name: str, series: Mapping[str, list[ComparedValue]]) -> str:
    """Returns an SVG with a legend that shows the error of each backend over the steps, on a logarithmic axis; "" if
    there are no values. Errors of 0 are on the bottom line. Errors without a finite size (if shapes differ or a value
    is infinite) are on the top line."""
    values = [value for values_of_backend in series.values() for value in values_of_backend]
    if not values:
        return ""
    axes = _Axes(values)
    lines = [
        axes.line(backend, values_of_backend, number, count=len(series))
        for number, (backend, values_of_backend) in enumerate(series.items())
    ]
    limit = axes.limit(values)
    # for each line of the legend, a drawing of 16 x 12 pixels (`swatch` below) and its text; 8, 6 is the middle
    legend = [(_mark(8, 6, number), backend) for number, backend in enumerate(series)]
    if limit:
        legend.append((f'<path d="M0,6 h16" {_DASHED}/>', "tolerance"))
    # there is no tolerance to draw, because all values must be equal
    elif all(value.comparison.allowed == 0 for value in values if value.comparison.ok):
        legend.append(("", "ints and bools are exact"))
    # for screen readers
    label = f'role="img" aria-label="error of {escape(name)} over the steps"'
    drawing = f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" {label}>'
    # the legend is text below the plot, so that it stays readable if the plot is scaled down
    swatch = '<svg viewBox="0 0 16 12" width="16" height="12">'
    items = "".join(f"<li>{swatch}{mark}</svg>{escape(text)}</li>" for mark, text in legend)
    return (
        f'{drawing}{axes.frame()}{"".join(lines)}{limit}</svg><ul class="legend">{items}</ul>'
    )


class _Axes:
    """The axes of a plot, with the steps from left to right, and the errors in powers of ten from bottom to top."""

    def __init__(self, values: Sequence[ComparedValue]) -> None:
        """Chooses axes with room for the errors and the tolerances of all these values; there must be at least one
        value."""
        self._steps = max(value.step for value in values)
        sizes = [
            size
            for value in values
            for size in (_error(value), _allowed(value))
            if 0 < size < math.inf
        ]
        # the axis has one more power of ten than necessary at each end, and spans at least two, so that its height is
        # not 0. Without any size, it goes from 1e-8 to 1
        self._low = math.floor(math.log10(min(sizes))) - 1 if sizes else -8
        self._high = max(math.ceil(math.log10(max(sizes))) + 1 if sizes else 0, self._low + 2)

    def _x(self, step: int) -> float:
        """Returns the horizontal position of a step, in pixels; the middle if there is only step 0."""
        return (
            _LEFT
            + _INSET
            + (_RIGHT - _LEFT - 2 * _INSET) * (step / self._steps if self._steps else 0.5)
        )

    def _y(self, size: float) -> float:
        """Returns the vertical position of an error, in pixels, counted from the top as in all SVGs."""
        # 0 and infinity have no place on a logarithmic axis, so they are put at its ends
        power = self._low if size == 0 else self._high if size == math.inf else math.log10(size)
        return _BOTTOM - (_BOTTOM - _TOP) * (power - self._low) / (self._high - self._low)

    def frame(self) -> str:
        """Returns the lines and labels of the axes: at most seven powers of ten, and at most eleven steps."""
        parts = [
            f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">step</text>'
        ]
        for power in range(
            self._low, self._high + 1, max(1, math.ceil((self._high - self._low) / 6))
        ):
            y = self._y(10.0**power)
            text = "0" if power == self._low else f"1e{power}"
            parts.append(
                f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_RIGHT}" y2="{y:.1f}" stroke="#ddd"/>'
            )
            parts.append(
                f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
            )
        parts += [
            f'<text x="{self._x(step):.1f}" y="{_BOTTOM + 20}" text-anchor="middle">{step}</text>'
            for step in range(0, self._steps + 1, max(1, math.ceil(self._steps / 10)))
        ]
        return "".join(parts)

    def line(self, backend: str, values: list[ComparedValue], number: int, count: int) -> str:
        """Returns the line of one backend. `number` is the index of the backend among `count` backends, counted from 0.
        Lines that are drawn first are wider, so that they stay visible below the others."""
        points = [(self._x(value.step), self._y(_error(value))) for value in values]
        # the shift of the markers; the markers of the middle backend are not shifted
        beside = _APART * (number - (count - 1) / 2)
        marks = [
            # browsers show the title when the pointer is on the marker
            f"<g><title>{escape(backend)}, step {value.step}: {error_text(value.comparison)}</title>"
            f"{_mark(x + beside, y, number)}</g>"
            for (x, y), value in zip(points, values, strict=True)
        ]
        ink = f'stroke="{_color(number)}" stroke-width="{1.5 * (count - number)}" stroke-linecap="round"'
        line = f'<polyline points="{_path(points)}" fill="none" {ink}/>'
        return line + "".join(marks if len(marks) <= _MOST_MARKS else [])

    def limit(self, values: Sequence[ComparedValue]) -> str:
        """Returns the tolerance as a dashed line. At each step, the line shows the smallest allowed error among the
        worst elements of all backends. Returns "" if no value has a tolerance."""
        allowed: dict[int, float] = {}
        for value in values:
            if 0 < _allowed(value) < math.inf:
                allowed[value.step] = min(_allowed(value), allowed.get(value.step, math.inf))
        points = [(self._x(step), self._y(size)) for step, size in sorted(allowed.items())]
        if len(points) == 1:  # a line needs two points, so it goes from edge to edge
            points = [(_LEFT, points[0][1]), (_RIGHT, points[0][1])]
        return f'<polyline points="{_path(points)}" {_DASHED}/>' if points else ""


def _path(points: Iterable[tuple[float, float]]) -> str:
    """Returns the points in the format of an SVG line's attribute `points`."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _color(number: int) -> str:
    """Returns the colour of a backend, given its number in the report. The colours repeat after six backends."""
    return _COLORS[number % len(_COLORS)]


def _mark(x: float, y: float, number: int) -> str:
    """Returns the marker of the backend with this number, at a position in pixels, with a thin white edge."""
    ink = f'fill="{_color(number)}" stroke="#fff" stroke-width=".7"'
    return f'<path transform="translate({x:.1f},{y:.1f})" d="{_SHAPES[number % len(_SHAPES)]}" {ink}/>'


def _error(value: ComparedValue) -> float:
    """Returns the error to draw in a plot. It is 0 for a value that agrees but has no numerical error, and infinity for
    a difference that is not a finite number."""
    error = value.comparison.abs
    if error is None or not math.isfinite(error):
        return 0.0 if value.comparison.ok else math.inf
    return float(error)


def _allowed(value: ComparedValue) -> float:
    """Returns the allowed error of the value's worst element; 0 if this error is unknown."""
    return value.comparison.allowed or 0.0
