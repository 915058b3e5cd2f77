"""Writes a parity report as one HTML page that loads nothing else: no scripts, fonts or pictures."""

from __future__ import annotations

import math
from html import escape
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from .report import error_text, excess_text, line_text, worst

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .report import Finding, Report, Row

_COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""The colours of Okabe and Ito, which people with any colour vision can tell apart."""
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
th, td { border: 1px solid #ccc; padding: .25rem .6rem; text-align: left; vertical-align: top }
td.number { text-align: right; font-variant-numeric: tabular-nums }
td { overflow-wrap: anywhere }
pre { white-space: pre; overflow-x: auto; margin: .5rem 0; font-size: 13px }
.bad { background: #fde8e6 } .good { background: #e8f5e9 } .cut { background: #fff4d6 }
.first { border-left: 4px solid #c62828; background: #fde8e6; padding: .6rem 1rem }
.all { border-left: 4px solid #2e7d32; background: #e8f5e9; padding: .6rem 1rem }
svg { max-width: 100%; height: auto } svg text { font: 12px system-ui, sans-serif; fill: #333 }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; padding: 0; margin: .25rem 0; list-style: none }
.legend svg { vertical-align: -2px; margin-right: .35rem }
@media (max-width: 640px) {
  body { padding: 0 .6rem; margin: 1rem auto } h1 { font-size: 1.4rem; overflow-wrap: anywhere }
  table, tbody, tr { display: block } tr.head, td:empty { display: none }
  tr { border: 1px solid #ccc; border-radius: 4px; margin: .5rem 0; padding: .3rem .6rem }
  td { display: inline-block; border: 0; padding: 0 .9rem .1rem 0 } .first pre { white-space: pre-wrap }
  td[data-of]::before { content: attr(data-of) ": "; color: #666 }
  .plot text { font-size: 22px }
}
"""


def page(report: Report, title: str) -> str:
    """Returns the whole page: the first divergence, the backends, and for each recorded name a plot of its error over
    the steps."""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>",
        f"<body><h1>{escape(title)}</h1>",
        _verdict(report),
        *(f"<p>{escape(note)}</p>" for note in report.notes),
        "<h2>Backends</h2>",
        _backends(report.rows),
        "<h2>Recorded names</h2>",
        "<p>Error is the worst absolute one of a step; the dashed line is where the tolerance of that value ends. "
        "Steps count from 0.</p>",
        *(_name(name, report) for name in report.names()),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _verdict(report: Report) -> str:
    if report.first is not None:
        found = report.first.finding
        where = f"{found.name}, step {found.step}, on {report.first.backend} (compared with {report.first.reference})"
        # the text that the terminal shows, without the part that is in the heading
        lines = str(report.first).partition(f"on {report.first.backend}: ")[2]
        text = f"<strong>First divergence: {escape(where)}</strong><pre>{escape(lines)}</pre>"
        return f'<div class="first">{text}</div>'
    if report.status:
        return '<div class="first"><strong>Not every backend was compared.</strong></div>'
    return '<div class="all"><strong>All backends agree.</strong></div>'


_OF_BACKENDS: Final = ("backend", "version", "result", "compared with", "recorded", "seconds", "interpreter", "notes")
_OF_NAMES: Final = ("backend", "steps", "worst error", "relative", "ULP", "of what is allowed", "where", "off")
_NUMBERS: Final = ("recorded", "seconds", "steps", "worst error", "relative", "ULP", "of what is allowed", "off")
_KINDS: Final = {"agrees": "good", "diverges": "bad", "did not run": "bad"}


def _backends(rows: Sequence[Row]) -> str:
    lines = [_head(_OF_BACKENDS)]
    for row in rows:
        seconds = f"{row.seconds:.1f}" if row.seconds is not None else "-"
        why = row.error.partition("\n")[0]
        cells = (
            row.backend, row.version or "-", row.state, row.reference or "-", str(row.records), seconds,
            row.python or "-", why,
        )  # fmt: skip
        lines.append(_row(_KINDS.get(row.state, ""), _OF_BACKENDS, cells))
    errors = (
        f"<p>{escape(row.backend)} {escape(why)}</p><pre>{escape(last)}</pre>"
        for row in rows
        for why, _, last in [row.error.partition("\n")]
        if last
    )
    return f"<table>{''.join(lines)}</table>{''.join(errors)}"


def _name(name: str, report: Report) -> str:
    series = report.series(name)
    cut = {row.backend for row in report.rows if row.state == "did not run"}
    lines = [_head(_OF_NAMES)]
    for backend, findings in series.items():
        found = worst(findings)
        if found is None:
            lines.append(_row("cut" if backend in cut else "", _OF_NAMES, (backend, "0", "nothing recorded")))
            continue
        one = found.comparison
        relative = f"{one.rel:.1e}" if one.rel is not None else "-"
        where = f"step {found.step}{f', {one.leaf}' if one.leaf else ''}{f' {list(one.worst)}' if one.worst else ''}"
        steps = f"{len(findings)}{', then it ended' if backend in cut else ''}"
        cells = (
            backend, steps, error_text(one), relative, "-" if one.ulp is None else str(one.ulp), excess_text(one),
            where, f"{one.off} of {one.total}",
        )  # fmt: skip
        lines.append(_row("bad" if not one.ok else "cut" if backend in cut else "good", _OF_NAMES, cells))
    at = next((line_text(finding.expected_line) for of in series.values() for finding in of), "")
    heading = f"<h3>{escape(name)}</h3>" + (f"<p>recorded at {escape(at)}</p>" if at else "")
    return f"{heading}<table>{''.join(lines)}</table>{plot(name, series)}"


def _head(headings: Sequence[str]) -> str:
    return f'<tr class="head">{"".join(f"<th>{escape(heading)}</th>" for heading in headings)}</tr>'


def _row(kind: str, headings: Sequence[str], cells: Sequence[str]) -> str:
    """A row of an HTML table. On a phone, the page's style shows the row as a card, with the headings before the
    cells."""
    made = [
        f'<td class="{"number" if heading in _NUMBERS else "text"}" data-of="{heading}">{escape(cell)}</td>'
        for heading, cell in zip_longest(headings, cells, fillvalue="")
    ]
    return f'<tr class="{kind}">{"".join(made)}</tr>'


# the plot

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BOTTOM, _TOP = 640, 260, 66, 626, 52, 14
_INSET: Final = 14
"""The space, in pixels, between the left edge of the plot and the first step, and between the last step and the right
edge."""
_APART: Final = 4
"""How many pixels the markers of two backends are shifted apart, so that the markers of equal values do not cover each
other."""


def plot(name: str, series: Mapping[str, list[Finding]]) -> str:
    """Draws the error of each backend over the steps as an SVG, on a logarithmic axis, with a legend. Errors of 0 lie
    on the bottom line; errors that cannot be measured, for another shape or an infinity, lie on the top line."""
    findings = [finding for found in series.values() for finding in found]
    if not findings:
        return ""
    axes = _Axes(findings)
    parts = [axes.frame()]
    for number, (backend, found) in enumerate(series.items()):
        parts.append(_line(axes, backend, found, number, len(series)))
    limit = _limit(axes, findings)
    label = f'role="img" aria-label="error of {escape(name, quote=True)} over the steps"'
    drawing = (
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" {label}>{"".join(parts)}{limit}</svg>'
    )
    is_exact = all(finding.comparison.allowed == 0 for finding in findings if finding.comparison.ok)
    return drawing + _legend(list(series), has_limit=bool(limit), is_exact=is_exact and not limit)


def _legend(backends: Sequence[str], has_limit: bool, is_exact: bool) -> str:
    """The legend as HTML text below the plot, so that it stays readable if the plot is scaled down."""
    swatches = [(backend, _mark(8, 6, number)) for number, backend in enumerate(backends)]
    if has_limit:
        swatches.append(("tolerance", f'<path d="M0,6 h16" {_DASHED}/>'))
    if is_exact:
        swatches.append(("ints and bools are exact", ""))
    items = (
        f'<li><svg viewBox="0 0 16 12" width="16" height="12">{mark}</svg>{escape(text)}</li>'
        for text, mark in swatches
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


class _Axes:
    """The axes of a plot: steps from left to right, errors by powers of ten from bottom to top."""

    def __init__(self, findings: list[Finding]) -> None:
        self.steps = max(finding.step for finding in findings)
        sizes = [size for finding in findings for size in (_error(finding), _limit_of(finding)) if 0 < size < math.inf]
        self.low = math.floor(math.log10(min(sizes))) - 1 if sizes else -8
        self.high = max(math.ceil(math.log10(max(sizes))) + 1 if sizes else 0, self.low + 2)

    def x(self, step: int) -> float:
        return _LEFT + _INSET + (_RIGHT - _LEFT - 2 * _INSET) * (step / self.steps if self.steps else 0.5)

    def y(self, size: float) -> float:
        power = self.low if size == 0 else self.high if not size < math.inf else math.log10(size)
        share = (power - self.low) / (self.high - self.low)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * share

    def frame(self) -> str:
        bottom = _HEIGHT - _BOTTOM
        lines = []
        every = max(1, math.ceil((self.high - self.low) / 6))
        for power in range(self.low, self.high + 1, every):
            y = self.y(10.0**power)
            text = "0" if power == self.low else f"1e{power}"
            lines.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
            lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
        for step in range(0, self.steps + 1, max(1, math.ceil(self.steps / 10))):
            x = self.x(step)
            lines.append(f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 4}" stroke="#333"/>')
            lines.append(f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{step}</text>')
        lines.append(f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">step</text>')
        lines.append(f'<line x1="{_LEFT}" y1="{bottom}" x2="{_RIGHT}" y2="{bottom}" stroke="#333"/>')
        return "".join(lines)


def _line(axes: _Axes, backend: str, findings: list[Finding], number: int, lines: int) -> str:
    points = [(axes.x(finding.step), axes.y(_error(finding))) for finding in findings]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    beside = _APART * (number - (lines - 1) / 2)
    marks = "".join(
        f"<g><title>{escape(backend)}, step {finding.step}: {error_text(finding.comparison)}</title>"
        f"{_mark(x + beside, y, number)}</g>"
        for (x, y), finding in zip(points, findings, strict=True)
        if len(points) <= _MOST_MARKS
    )
    # the first lines, which are drawn below the others, are the widest, so that they stay visible
    width = 1.5 + 1.5 * (lines - 1 - number)
    line = f'stroke="{_color(number)}" stroke-width="{width}" stroke-linecap="round"'
    return f'<polyline points="{path}" fill="none" {line}/>{marks}'


_MOST_MARKS: Final = 200
"""A series of at most this many steps is drawn with markers, a longer one as a line only."""
_DASHED: Final = 'fill="none" stroke="#c62828" stroke-width="1.5" stroke-dasharray="5 4"'
_SHAPES: Final = (
    "M-3.5,0 a3.5,3.5 0 1,0 7,0 a3.5,3.5 0 1,0 -7,0 z",
    "M-3,-3 h6 v6 h-6 z",
    "M0,-4 l4,7 h-8 z",
    "M0,-4.5 l4.5,4.5 l-4.5,4.5 l-4.5,-4.5 z",
    "M0,4 l4,-7 h-8 z",
    "M-4,-1.2 h2.8 v-2.8 h2.4 v2.8 h2.8 v2.4 h-2.8 v2.8 h-2.4 v-2.8 h-2.8 z",
)
"""A circle, a square, a triangle, a diamond, a triangle upside down, a cross: the markers of the backends."""


def _color(number: int) -> str:
    return _COLORS[number % len(_COLORS)]


def _mark(x: float, y: float, number: int) -> str:
    shape = _SHAPES[number % len(_SHAPES)]
    ink = f'fill="{_color(number)}" stroke="#fff" stroke-width=".7"'
    return f'<path transform="translate({x:.1f},{y:.1f})" d="{shape}" {ink}/>'


def _limit(axes: _Axes, findings: list[Finding]) -> str:
    """Draws the tolerance as a dashed line: at each step, the smallest error allowed for the worst element of any
    backend."""
    allowed: dict[int, float] = {}
    for finding in findings:
        size = _limit_of(finding)
        if 0 < size < math.inf:
            allowed[finding.step] = min(size, allowed.get(finding.step, size))
    if not allowed:
        return ""
    if len(allowed) == 1:  # a line of one point would not be seen
        y = axes.y(*allowed.values())
        return f'<polyline points="{_LEFT},{y:.1f} {_RIGHT},{y:.1f}" {_DASHED}/>'
    path = " ".join(f"{axes.x(step):.1f},{axes.y(size):.1f}" for step, size in sorted(allowed.items()))
    return f'<polyline points="{path}" {_DASHED}/>'


def _error(finding: Finding) -> float:
    """The error to draw in a plot; infinity if the error cannot be measured."""
    error = finding.comparison.abs
    if error is None or not math.isfinite(error):
        return 0.0 if finding.comparison.ok else math.inf
    return float(error)


def _limit_of(finding: Finding) -> float:
    """The error that the finding's worst element may have; 0 if that is unknown."""
    return finding.comparison.allowed or 0.0
