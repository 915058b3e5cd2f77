"""The report of comparing recordings: each recorded name on each backend, the first divergence, and the backends that
did not run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .comparing import compare_readings
from .comparison import Comparison, of_structure
from .explaining import explain, vanishing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from .noise import Noise
    from .recording import RecordedCall
    from .tolerances import Rule

State = Literal["reference", "agrees", "diverges", "did not run", "not compared"]
AGREE, DIVERGED, NOT_RUN = 0, 1, 2
"""The exit statuses of `xdevice parity` and `xdevice compare`."""


class Finding(NamedTuple):
    """The comparison of one recorded value of a backend with the value that the reference recorded under the same name
    and step."""

    name: str
    step: int
    order: tuple[float, ...]
    """The value's place in the order in which the program recorded its values, as a sort key. A value that the
    reference lacks comes after the value that was recorded before it."""
    comparison: Comparison
    actual_line: str = ""
    """The line that recorded the backend's value, such as `/home/ann/train.py:41`; empty if none is known."""
    expected_line: str = ""


class Divergence(NamedTuple):
    """The first recorded value of a backend that differs from the reference's."""

    backend: str
    reference: str
    finding: Finding

    def __str__(self) -> str:
        found = self.finding
        recorded = f"\n  recorded  {self.lines}" if self.lines else ""
        return f"{found.name}, step {found.step}, on {self.backend}: {found.comparison.text}{recorded}"

    @property
    def lines(self) -> str:
        """The line of the program that recorded the value, or the lines of both sides if they differ."""
        mine, theirs = self.finding.actual_line, self.finding.expected_line
        if not mine or not theirs or mine == theirs:
            return line_text(mine or theirs)
        return f"{line_text(mine)} (actual), {line_text(theirs)} (expected)"


@dataclass
class Row:
    """The row of one backend in a report: how its run ended, and how its values compare with the reference's."""

    backend: str
    state: State
    reference: str = ""
    """The name of the backend that this backend was compared with."""
    version: str | None = None
    seconds: float | None = None
    """How many seconds the backend's process took, imports included; None if that is not known."""
    records: int = 0
    error: str = ""
    """Why the backend did not run."""
    python: str = ""
    findings: list[Finding] = field(default_factory=list)

    @property
    def first(self) -> Divergence | None:
        off = [finding for finding in self.findings if not finding.comparison.ok]
        first = min(off, key=lambda finding: finding.order, default=None)
        return Divergence(self.backend, self.reference, first) if first is not None else None


@dataclass
class Report:
    """The result of comparing all backends: a row for each, and notes for the reader."""

    rows: list[Row]
    notes: list[str] = field(default_factory=list)

    @property
    def first(self) -> Divergence | None:
        """The first divergence of any backend, in program order; None if all agree."""
        found = [row.first for row in self.rows if row.first is not None]
        return min(found, key=lambda divergence: divergence.finding.order, default=None)

    @property
    def status(self) -> int:
        """The exit status of the command: 2 if a backend did not run or was not compared, else 1 if one diverges, else
        0."""
        states = {row.state for row in self.rows}
        return NOT_RUN if states & {"did not run", "not compared"} else DIVERGED if "diverges" in states else AGREE

    def compared_rows(self) -> list[Row]:
        """The rows of all backends but the reference."""
        return [row for row in self.rows if row.state != "reference"]

    def names(self) -> list[str]:
        """The names of all recorded values, in program order."""
        first: dict[str, tuple[float, ...]] = {}
        for row in self.rows:
            for finding in row.findings:
                first[finding.name] = min(finding.order, first.get(finding.name, finding.order))
        return sorted(first, key=lambda name: first[name])

    def series(self, name: str) -> dict[str, list[Finding]]:
        """The findings for a recorded name by backend, each backend's sorted by step."""
        found = {
            row.backend: [finding for finding in row.findings if finding.name == name] for row in self.compared_rows()
        }
        return {backend: sorted(series, key=lambda finding: finding.step) for backend, series in found.items()}

    def as_json(self) -> dict[str, Any]:
        """The report as a dict for JSON. Numbers that JSON cannot express are strings: "inf", "nan"."""
        return {
            "status": self.status,
            "first_divergence": _divergence_json(self.first),
            "backends": [_row_json(row) for row in self.rows],
            "names": [
                {"name": name, "backends": {backend: _series_json(of) for backend, of in self.series(name).items()}}
                for name in self.names()
            ],
            "notes": self.notes,
        }


def worst(series: list[Finding]) -> Finding | None:
    """The finding of a series whose error is the largest multiple of what is allowed; None if the series is empty."""
    return max(series, key=lambda finding: (finding.comparison.excess, finding.comparison.abs or 0.0), default=None)


def hold(
    actual: Sequence[RecordedCall],
    expected: Sequence[RecordedCall],
    rule: Rule,
    is_complete: bool = True,
    noise: Noise | None = None,
    is_float64: bool = False,
) -> list[Finding]:
    """Compares every recorded value, `actual`, with the reference's value of the same name and step, in `expected`.

    If the run was cut short (`is_complete` is False), values that `actual` lacks are not reported. With `noise`, values
    in float32 may differ by what rounding alone does. In a run in float64, the first step of each name has the
    tolerance of float64, and later steps have that of float32, because Paddle's Momentum, Keras and Gluon hold their
    hyperparameters in float32.
    """

    def rule_of(name: str, step: int) -> Rule:
        if is_float64:
            return rule._replace(
                pythons="float64", float64_as="float32" if step else "float64", statistics_as="float32"
            )
        return rule if noise is None else rule._replace(noise=noise[name, step])

    theirs = {(entry.name, entry.step): entry for entry in actual}
    places = {(entry.name, entry.step): place for place, entry in enumerate(expected)}
    found = [
        _both(entry, theirs.get(key), places[key], rule_of(*key))
        for entry in expected
        for key in [(entry.name, entry.step)]
        if is_complete or key in theirs
    ]
    if any(one.comparison.problem == "values" for one in found):
        known = vanishing(expected)
        found = [one._replace(comparison=explain(one.comparison, known)) for one in found]
    return found + list(_extra(actual, places))


def _both(expected: RecordedCall, actual: RecordedCall | None, place: int, rule: Rule) -> Finding:
    if actual is None:
        comparison = of_structure(f"{expected.name} has no step {expected.step} here, but the reference does")
    else:
        comparison = compare_readings(actual.read(), expected.read(), rule)
    line = actual.where if actual is not None else ""
    return Finding(expected.name, expected.step, (place,), comparison, line, expected.where)


def _extra(actual: Sequence[RecordedCall], places: dict[tuple[str, int], int]) -> Iterator[Finding]:
    last = -1.0
    for number, entry in enumerate(actual):
        place = places.get((entry.name, entry.step))
        if place is not None:
            last = place
            continue
        text = f"{entry.name} has a step {entry.step} here, but the reference does not"
        yield Finding(entry.name, entry.step, (last, number), of_structure(text), entry.where)


def line_text(where: str) -> str:
    """A program's line as text, `train.py:41`; the path is relative to the current folder if the file lies inside that
    folder."""
    path = Path(where)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else where


def error_text(comparison: Comparison) -> str:
    """The result of a comparison in a few characters: the worst absolute error, or else the name of the problem."""
    if comparison.abs is None:
        return comparison.problem or "equal"
    return "0" if comparison.abs == 0 else f"{float(comparison.abs):.1e}"


# for programs


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "backend": row.backend, "state": row.state, "reference": row.reference or None, "version": row.version,
        "seconds": row.seconds, "records": row.records, "error": row.error or None, "python": row.python or None,
        "first_divergence": _divergence_json(row.first),
    }  # fmt: skip


def _divergence_json(divergence: Divergence | None) -> dict[str, Any] | None:
    if divergence is None:
        return None
    return {
        "backend": divergence.backend,
        "reference": divergence.reference,
        "name": divergence.finding.name,
        "step": divergence.finding.step,
        "recorded_at": divergence.lines or None,
        **_comparison_json(divergence.finding.comparison),
        "text": divergence.finding.comparison.text,
    }


def _series_json(series: list[Finding]) -> dict[str, Any]:
    return {
        "steps": [{"step": finding.step, **_comparison_json(finding.comparison)} for finding in series],
        "worst_step": found.step if (found := worst(series)) is not None else None,
    }


def _comparison_json(found: Comparison) -> dict[str, Any]:
    values = {name: _value_json(value) for name, value in found._asdict().items() if name != "text"}
    return values | {"worst": list(found.worst) if found.worst is not None else None}


def _value_json(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else str(value)


# for people


def show(report: Report) -> None:
    """Prints the report to the terminal: tables, and the first divergence in full."""
    from rich.console import Console

    console = Console()
    console.print(_backends_table(report))
    if any(report.compared_rows()) and report.names():
        console.print(_names_table(report))
    for note in report.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    for row in report.rows:
        if "\n" in row.error:
            # with soft_wrap the terminal breaks the line, so that a long path can be copied as one
            console.print(f"{row.backend} {row.error}", style="red", markup=False, highlight=False, soft_wrap=True)
    if report.first is not None:
        console.print("First divergence", style="bold red")
        console.print(str(report.first), markup=False, highlight=False, soft_wrap=True)


def _backends_table(report: Report) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="backends")
    for heading in ("backend", "version", "result", "recorded", "seconds", "notes"):
        table.add_column(heading, overflow="fold", justify="right" if heading in ("recorded", "seconds") else "left")
    for row in report.rows:
        color = {"agrees": "green", "reference": "default", "not compared": "default"}.get(row.state, "red")
        seconds = f"{row.seconds:.1f}" if row.seconds is not None else "-"
        cells = [row.version or "-", f"[{color}]{row.state}[/]", str(row.records), seconds, escape(_to_know(row))]
        table.add_row(row.backend, *cells, style="red" if row.state == "did not run" else None)
    return table


def _to_know(row: Row) -> str:
    why = row.error.partition("\n")[0]
    first = f"first at {row.first.finding.name}, step {row.first.finding.step}" if row.first is not None else ""
    other = f"compared with {row.reference}" if " " in row.reference else ""  # the reference comes from another run
    return "; ".join(filter(None, (why, first, other)))


def _names_table(report: Report) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="worst absolute error of each name, and the multiple of what is allowed")
    table.add_column("name", overflow="fold")
    table.add_column("steps", justify="right")
    for row in report.compared_rows():
        table.add_column(row.backend, justify="right", overflow="fold")
    for name in report.names():
        series = report.series(name)
        steps = max(len(found) for found in series.values())
        table.add_row(escape(name), str(steps), *(escape(_cell(found)) for found in series.values()))
    return table


def _cell(series: list[Finding]) -> str:
    found = worst(series)
    if found is None:
        return "-"
    text = f"{error_text(found.comparison)} ({excess_text(found.comparison)})"
    return text if found.comparison.ok else f"{text} from step {min(f.step for f in series if not f.comparison.ok)}"


def excess_text(comparison: Comparison) -> str:
    """The worst error as text, as a multiple of the allowed error: 1 is the limit."""
    return "0" if comparison.excess == 0 else f"{comparison.excess:.2g}"
