"""A parity report as one HTML page that needs nothing else: no scripts, no fonts, no pictures from elsewhere."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Final

from .report import error_text, excess_text, worst

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .report import Finding, Report, Row

_COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's, which people with any colour vision can tell apart."""
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { border: 1px solid #ccc; padding: .25rem .6rem; text-align: left; vertical-align: top }
td.number { text-align: right; font-variant-numeric: tabular-nums }
pre { white-space: pre-wrap; margin: 0; font-size: 13px }
.bad { background: #fde8e6 } .good { background: #e8f5e9 }
.first { border-left: 4px solid #c62828; background: #fde8e6; padding: .6rem 1rem }
.all { border-left: 4px solid #2e7d32; background: #e8f5e9; padding: .6rem 1rem }
svg { max-width: 100%; height: auto } svg text { font: 12px system-ui, sans-serif; fill: #333 }
"""


def page(report: Report, title: str) -> str:
    """The whole page: the first divergence, the backends, and each name with a plot of its error over the steps."""
    parts = [
        "<!DOCTYPE html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style></head>',
        f"<body><h1>{escape(title)}</h1>",
        _verdict(report),
        *(f"<p>{escape(note)}</p>" for note in report.notes),
        "<h2>Backends</h2>",
        _backends(report.rows),
        "<h2>Recorded names</h2>",
        "<p>Error is the worst absolute one of a step; the dashed line is where the tolerance of that value ends. "
        "Steps count from 0.</p>",
        *(_name(name, report.series(name)) for name in report.names()),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _verdict(report: Report) -> str:
    if report.first is not None:
        found = report.first.finding
        where = f"{found.name}, step {found.step}, on {report.first.backend} (held against {report.first.reference})"
        text = f"<strong>First divergence: {escape(where)}</strong><pre>{escape(found.comparison.text)}</pre>"
        return f'<div class="first">{text}</div>'
    if report.status:
        return '<div class="first"><strong>Not every backend was compared.</strong></div>'
    return '<div class="all"><strong>All backends agree.</strong></div>'


def _backends(rows: Iterable[Row]) -> str:
    lines = [_head("backend", "version", "result", "held against", "recorded", "seconds", "interpreter", "to know")]
    for row in rows:
        kind = {"agrees": "good", "diverges": "bad", "did not run": "bad"}.get(row.state, "")
        seconds = f"{row.seconds:.1f}" if row.seconds is not None else "-"
        lines.append(
            f'<tr class="{kind}">{_cell(row.backend)}{_cell(row.version or "-")}{_cell(row.state)}'
            f"{_cell(row.reference or '-')}{_number(str(row.records))}{_number(seconds)}{_cell(row.python or '-')}"
            f"<td><pre>{escape(row.error)}</pre></td></tr>"
        )
    return f"<table>{''.join(lines)}</table>"


def _name(name: str, series: Mapping[str, list[Finding]]) -> str:
    lines = [_head("backend", "steps", "worst error", "relative", "ULP", "of what is allowed", "where", "off")]
    for backend, findings in series.items():
        found = worst(findings)
        if found is None:
            lines.append(f"<tr>{_cell(backend)}{_number('0')}<td colspan='6'>nothing recorded</td></tr>")
            continue
        one = found.comparison
        relative = f"{one.rel:.1e}" if one.rel is not None else "-"
        where = f"step {found.step}{f', {one.leaf}' if one.leaf else ''}{f' {list(one.worst)}' if one.worst else ''}"
        lines.append(
            f'<tr class="{"good" if one.ok else "bad"}">{_cell(backend)}{_number(str(len(findings)))}'
            f"{_number(error_text(one))}{_number(relative)}{_number('-' if one.ulp is None else str(one.ulp))}"
            f"{_number(excess_text(one))}{_cell(where)}{_number(f'{one.off} of {one.total}')}</tr>"
        )
    return f"<h3>{escape(name)}</h3><table>{''.join(lines)}</table>{plot(name, series)}"


def _head(*headings: str) -> str:
    return f"<tr>{''.join(f'<th>{escape(heading)}</th>' for heading in headings)}</tr>"


def _cell(text: str) -> str:
    return f"<td>{escape(text)}</td>"


def _number(text: str) -> str:
    return f'<td class="number">{escape(text)}</td>'


# the plot

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 760, 260, 60, 40, 14
_RIGHT: Final = 620
"""Where the plot ends and the legend begins."""


def plot(name: str, series: Mapping[str, list[Finding]]) -> str:
    """The error of each backend over the steps as an SVG, on a logarithmic axis. 0 lies on the bottom line, and what
    cannot be measured, such as another shape or an infinity, on the top line."""
    findings = [finding for found in series.values() for finding in found]
    if not findings:
        return ""
    axes = _Axes(findings)
    parts = [axes.frame()]
    for number, (backend, found) in enumerate(series.items()):
        parts.append(_line(axes, backend, found, number))
    parts.append(_limit(axes, next(found for found in series.values() if found)))
    label = f'role="img" aria-label="error of {escape(name, quote=True)} over the steps"'
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" {label}>{"".join(parts)}</svg>'


class _Axes:
    """Steps from left to right, errors by powers of ten from bottom to top."""

    def __init__(self, findings: list[Finding]) -> None:
        self.steps = max(finding.step for finding in findings)
        sizes = [size for finding in findings for size in (_error(finding), _allowed(finding)) if 0 < size < math.inf]
        self.low = math.floor(math.log10(min(sizes))) - 1 if sizes else -8
        self.high = max(math.ceil(math.log10(max(sizes))) + 1 if sizes else 0, self.low + 2)

    def x(self, step: int) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (step / self.steps if self.steps else 0.5)

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
            lines.append(f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{step}</text>')
        lines.append(f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">step</text>')
        lines.append(f'<line x1="{_LEFT}" y1="{bottom}" x2="{_RIGHT}" y2="{bottom}" stroke="#333"/>')
        return "".join(lines)


def _line(axes: _Axes, backend: str, findings: list[Finding], number: int) -> str:
    color = _COLORS[number % len(_COLORS)]
    points = [(axes.x(finding.step), axes.y(_error(finding))) for finding in findings]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    y = _TOP + 12 + 20 * number
    dots = [
        f"{_mark(x, p, number, color)}<title>{escape(backend)}, step {finding.step}: "
        f"{error_text(finding.comparison)}</title></{_TAGS[number % len(_TAGS)]}>"
        for (x, p), finding in zip(points, findings, strict=True)
        if len(points) <= _MOST_MARKS
    ]
    legend = f'<text x="{_RIGHT + 30}" y="{y + 4}">{escape(backend)}</text>'
    swatch = f"{_mark(_RIGHT + 18, y, number, color)}</{_TAGS[number % len(_TAGS)]}>"
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>{"".join(dots)}{legend}{swatch}'


_MOST_MARKS: Final = 200
"""Of a longer series only the line is drawn."""
_TAGS: Final = ("circle", "rect", "polygon")
"""Each backend has a shape beside its colour."""


def _mark(x: float, y: float, number: int, color: str) -> str:
    tag = _TAGS[number % len(_TAGS)]
    places = {
        "circle": f'cx="{x:.1f}" cy="{y:.1f}" r="3.5"',
        "rect": f'x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6"',
        "polygon": f'points="{x:.1f},{y - 4:.1f} {x - 4:.1f},{y + 3:.1f} {x + 4:.1f},{y + 3:.1f}"',
    }
    return f'<{tag} {places[tag]} fill="{color}">'


def _limit(axes: _Axes, findings: list[Finding]) -> str:
    points = [(finding.step, size) for finding in findings if 0 < (size := _allowed(finding)) < math.inf]
    if not points:
        return ""
    path = " ".join(f"{axes.x(step):.1f},{axes.y(size):.1f}" for step, size in points)
    return f'<polyline points="{path}" fill="none" stroke="#c62828" stroke-dasharray="5 4"/>'


def _error(finding: Finding) -> float:
    """The error to draw; infinity for what cannot be measured."""
    error = finding.comparison.abs
    if error is None or not math.isfinite(error):
        return 0.0 if finding.comparison.ok else math.inf
    return float(error)


def _allowed(finding: Finding) -> float:
    """What the worst element's error might have been; 0 where nothing is drawn for it."""
    return finding.comparison.allowed or 0.0
