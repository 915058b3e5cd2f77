"""The report of comparing recordings: each recorded name on each backend, the first divergence, and the backends that
did not run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from .comparing import compare_leaves
from .comparison import Comparison, difference
from .explaining import element_of, explain, unchanged_on_one_side, vanishing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from xdevice.twins.tracing.operations import Errors

    from .noise import Noise
    from .record_files import RecordedCall
    from .tolerances import Strictness

State = Literal["reference", "agrees", "diverges", "did not run", "not compared"]
AGREE, DIVERGED, NOT_RUN = 0, 1, 2
"""The exit statuses of `xdevice parity` and `xdevice compare-runs`."""
_TEXTS: Final = ("text", "settings")
"""The fields of a `Comparison` that a step of a name does not repeat in JSON."""


class ComparedValue(NamedTuple):
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


class GradientRow(NamedTuple):
    """The comparison of one gradient: that of a parameter, or of an input."""

    name: str
    errors: Errors | None
    """None if the backend has computed no gradient of this size."""
    is_off: bool

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as the report shows it."""
        if self.errors is None:
            return (self.name, "no gradient of this size", "-", "-", "-")
        numbers = (
            f"{self.errors.abs:.3g}",
            f"{self.errors.rel:.3g}",
            f"{self.errors.cosine:.6f}",
        )
        return (self.name, *numbers, f"{self.errors.within:.1%}")


class Divergence(NamedTuple):
    """The first recorded value of a backend that differs from the reference's."""

    backend: str
    reference: str
    value: ComparedValue

    def __str__(self) -> str:
        recorded = f"\n  recorded  {self.lines}" if self.lines else ""
        return f"{self.place}: {self.value.comparison.text}{recorded}"

    @property
    def place(self) -> str:
        return f"{self.value.name}, step {self.value.step}, on {self.backend}"

    @property
    def lines(self) -> str:
        """The line of the program that recorded the value, or the lines of both sides if they differ."""
        mine, its = self.value.actual_line, self.value.expected_line
        if not mine or not its or mine == its:
            return line_text(mine or its)
        return f"{line_text(mine)} (actual), {line_text(its)} (expected)"


@dataclass
class BackendRow:
    """The row of one backend in a report: how its run ended, and how its values compare with the reference's."""

    backend: str
    state: State
    reference: str = ""
    """The name of the backend that this one was compared with. If that is of another run, " of " and the run's folder
    follow."""
    version: str | None = None
    seconds: float | None = None
    """How many seconds the backend's process took, imports included; None if that is not known."""
    records: int = 0
    error: str = ""
    """Why the backend did not run."""
    python: str = ""
    values: list[ComparedValue] = field(default_factory=list)
    partings: dict[str, str] = field(default_factory=dict)
    """The first operation and the first gradient that differ, in words, by `operations` and `operations, backward`."""
    gradients: list[GradientRow] = field(default_factory=list)
    """How far the gradients are apart, in the order of the reference's backward pass, if they were asked for."""

    @property
    def first(self) -> Divergence | None:
        off = [value for value in self.values if not value.comparison.ok]
        first = min(off, key=lambda value: value.order, default=None)
        return Divergence(self.backend, self.reference, first) if first is not None else None

    @property
    def seconds_text(self) -> str:
        return "-" if self.seconds is None else f"{self.seconds:.1f}"


@dataclass
class ParityReport:
    """The result of comparing all backends: a row for each, and notes for the reader."""

    rows: list[BackendRow]
    notes: list[str] = field(default_factory=list)

    @property
    def first(self) -> Divergence | None:
        """The first divergence of any backend, in program order; None if all agree."""
        every = [row.first for row in self.rows if row.first is not None]
        return min(every, key=lambda divergence: divergence.value.order, default=None)

    @property
    def status(self) -> int:
        """The exit status of the command: 2 if a backend did not run or was not compared, else 1 if one diverges, else
        0."""
        states = {row.state for row in self.rows}
        # what was not compared may diverge too, so it counts before a divergence
        return (
            NOT_RUN
            if states & {"did not run", "not compared"}
            else DIVERGED
            if "diverges" in states
            else AGREE
        )

    def compared_rows(self) -> list[BackendRow]:
        """The rows of all backends but the reference."""
        return [row for row in self.rows if row.state != "reference"]

    def names(self) -> list[str]:
        """The names of all recorded values, in program order."""
        values = sorted(
            (value for row in self.rows for value in row.values), key=lambda value: value.order
        )
        return list(dict.fromkeys(value.name for value in values))

    def series(self, name: str) -> dict[str, list[ComparedValue]]:
        """The values of a recorded name by backend, each backend's sorted by step."""
        return {
            row.backend: sorted(
                (value for value in row.values if value.name == name),
                key=lambda value: value.step,
            )
            for row in self.compared_rows()
        }

    def further_partings(self) -> list[str]:
        """Lines about the first operations and gradients that differ, except the one that is the first divergence
        itself."""
        said = "" if self.first is None else self.first.value.comparison.text
        return [
            f"{name}, on {row.backend}: {text}"
            for row in self.rows
            for name, text in row.partings.items()
            if text != said
        ]

    def as_json(self) -> dict[str, Any]:
        """The report as a dict for JSON. Numbers that JSON cannot express are strings: "inf", "nan"."""
        return {
            "status": self.status,
            "first_divergence": _divergence_json(self.first),
            "backends": [_row_json(row) for row in self.rows],
            "names": [
                {
                    "name": name,
                    "backends": {
                        backend: _series_json(of) for backend, of in self.series(name).items()
                    },
                }
                for name in self.names()
            ],
            "notes": self.notes,
        }


def worst(series: list[ComparedValue]) -> ComparedValue | None:
    """The value of a series whose error is the largest multiple of what is allowed; None if the series is empty."""
    return max(
        series,
        key=lambda value: (value.comparison.excess, value.comparison.abs or 0.0),
        default=None,
    )


# comparing


def compare_recordings(
    actual: Sequence[RecordedCall],
    expected: Sequence[RecordedCall],
    rule: Strictness,
    is_complete: bool = True,
    noise: Noise | None = None,
    is_float64: bool = False,
) -> list[ComparedValue]:
    """Compares every recorded value, `actual`, with the reference's value of the same name and step, in `expected`.

    If the run was cut short (`is_complete` is False), values that `actual` lacks are not reported. With `noise`, values
    in float32 may differ by as much as rounding alone makes them differ. In a run in float64, the first step of each
    name has the tolerance of float64, and later steps have that of float32, because Paddle's Momentum, Keras and Gluon
    hold their hyperparameters in float32.
    """
    ours, theirs = ({call.key: call for call in calls} for calls in (actual, expected))
    places = {call.key: place for place, call in enumerate(expected)}
    values = []
    for place, call in enumerate(expected):
        mine = ours.get(call.key)
        if mine is None and not is_complete:
            continue
        if mine is None:
            comparison = difference(
                "structure", f"{call.name} has no step {call.step} here, but the reference does"
            )
        else:
            own = rule
            if is_float64:
                own = rule._replace(float64_step=call.step)
            elif noise is not None:
                own = rule._replace(noise=noise[call.key])
            comparison = compare_leaves(mine.read(), call.read(), own)
            if comparison.problem == "values" and (call.name, 0) in ours:
                pairs = [(of[call.name, 0], of[call.key]) for of in (ours, theirs)]
                note = unchanged_on_one_side(comparison.leaf, pairs)
                comparison = comparison._replace(text=comparison.text + note)
        line = mine.where if mine is not None else ""
        values.append(
            ComparedValue(call.name, call.step, (place,), comparison, line, call.where)
        )
    # reading the reference again is worth it only where something is to be explained
    if off := {
        element_of(value.comparison) for value in values if value.comparison.problem == "values"
    }:
        notes = vanishing(expected, off)
        values = [
            value._replace(comparison=explain(value.comparison, notes)) for value in values
        ]
    return values + list(_extra(actual, places))


def _extra(
    actual: Sequence[RecordedCall], places: dict[tuple[str, int], int]
) -> Iterator[ComparedValue]:
    """The values that the reference lacks."""
    last = -1.0
    for number, call in enumerate(actual):
        if call.key in places:
            last = places[call.key]
            continue
        comparison = difference(
            "structure", f"{call.name} has a step {call.step} here, but the reference does not"
        )
        yield ComparedValue(call.name, call.step, (last, number), comparison, call.where)


# words


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


def excess_text(comparison: Comparison) -> str:
    """The worst error as text, as a multiple of the allowed error: 1 is the limit."""
    return "0" if comparison.excess == 0 else f"{comparison.excess:.2g}"


# for programs


def _row_json(row: BackendRow) -> dict[str, Any]:
    return {
        "backend": row.backend, "state": row.state, "reference": row.reference or None, "version": row.version,
        "seconds": row.seconds, "records": row.records, "error": row.error or None, "python": row.python or None,
        "first_divergence": _divergence_json(row.first),
        "partings": row.partings, "gradients": [_gradient_json(one) for one in row.gradients],
    }  # fmt: skip


def _gradient_json(row: GradientRow) -> dict[str, Any]:
    errors = (
        {}
        if row.errors is None
        else {name: _value_json(x) for name, x in row.errors._asdict().items()}
    )
    return {"name": row.name, "ok": not row.is_off, **errors}


def _divergence_json(divergence: Divergence | None) -> dict[str, Any] | None:
    if divergence is None:
        return None
    value = divergence.value
    return {
        "backend": divergence.backend,
        "reference": divergence.reference,
        "name": value.name,
        "step": value.step,
        "recorded_at": divergence.lines or None,
        **_comparison_json(value.comparison),
        "text": value.comparison.text,
    }


def _series_json(series: list[ComparedValue]) -> dict[str, Any]:
    value = worst(series)
    return {
        "steps": [{"step": one.step, **_comparison_json(one.comparison)} for one in series],
        "worst_step": value.step if value is not None else None,
    }


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    values = {
        name: _value_json(value)
        for name, value in comparison._asdict().items()
        if name not in _TEXTS
    }
    return values | {"worst": None if comparison.worst is None else list(comparison.worst)}


def _value_json(value: Any) -> Any:
    """The value itself if JSON can express it, and otherwise its text: NaN, an infinity, a shape, a complex number."""
    if (
        value is None
        or isinstance(value, bool | int | str)
        or (isinstance(value, float) and math.isfinite(value))
    ):
        return value
    return str(value)


# for people


class ReportTable(NamedTuple):
    """One table of a report, for the terminal and for the page."""

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, Sequence[str]]]
    """A verdict and the cells of each row. The verdict is "good", "bad" or, if a row is neither, empty."""


_VERDICTS: Final = {"agrees": "good", "diverges": "bad", "did not run": "bad"}
_TO_THE_LEFT: Final = ("backend", "version", "result", "notes", "name", "gradient of")
"""The headings of text columns; columns of numbers are aligned to the right."""


def backends_table(report: ParityReport) -> ReportTable:
    """The table of how each backend's run ended, and whether it agrees with the reference."""
    rows = [
        (
            _VERDICTS.get(row.state, ""),
            (
                row.backend,
                row.version or "-",
                row.state,
                str(row.records),
                row.seconds_text,
                _notes(row),
            ),
        )
        for row in report.rows
    ]
    headings = ("backend", "version", "result", "recorded", "seconds", "notes")
    return ReportTable("backends", headings, rows)


def gradients_tables(report: ParityReport) -> Iterator[ReportTable]:
    """A table for each backend whose gradients were asked for."""
    for row in report.rows:
        if row.gradients:
            title = f"gradients of {row.backend}, in the order of the backward pass of {row.reference}"
            rows = [("bad" if one.is_off else "good", one.cells) for one in row.gradients]
            headings = (
                "gradient of", "largest absolute", "largest relative", "cosine", "within tolerance",
            )  # fmt: skip
            yield ReportTable(title, headings, rows)


def _names_table(report: ParityReport) -> ReportTable:
    """The table of the worst error of each recorded name on each backend."""
    rows = []
    for name in report.names():
        series = report.series(name).values()
        rows.append(("", (name, str(max(map(len, series))), *map(_cell, series))))
    title = "worst absolute error of each name, and the multiple of what is allowed"
    backends = [row.backend for row in report.compared_rows()]
    return ReportTable(title, ("name", "steps", *backends), rows)


def show(report: ParityReport) -> None:
    """Prints the report to the terminal: tables, and the first divergence in full."""
    from rich.console import Console

    console = Console()

    def say(text: str, style: str | None = None) -> None:
        # with soft_wrap the terminal breaks the line, so that a long path can be copied as one
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    console.print(_as_rich(backends_table(report)))
    if report.compared_rows() and report.names():
        console.print(_as_rich(_names_table(report)))
    for table in gradients_tables(report):
        console.print(_as_rich(table))
    for note in report.notes:
        say(note)
    for row in report.rows:
        if "\n" in row.error:
            say(f"{row.backend} {row.error}", "red")
    if report.first is not None:
        say("First divergence", "bold red")
        say(str(report.first))
    for text in report.further_partings():
        say(text)


def _as_rich(table: ReportTable) -> Table:
    from rich.markup import escape
    from rich.table import Table

    shown = Table(title=table.title)
    for heading in table.headings:
        justify: Any = "left" if heading in _TO_THE_LEFT else "right"
        shown.add_column(heading, overflow="fold", justify=justify)
    for verdict, cells in table.rows:
        shown.add_row(*map(escape, cells), style="red" if verdict == "bad" else None)
    return shown


def _notes(row: BackendRow) -> str:
    why = row.error.partition("\n")[0]
    first = (
        f"first at {row.first.value.name}, step {row.first.value.step}"
        if row.first is not None
        else ""
    )
    # only a reference of another run has a space: it is named with the folder of that run, as in "torch of old"
    other = f"compared with {row.reference}" if " " in row.reference else ""
    return "; ".join(filter(None, (why, first, other)))


def _cell(series: list[ComparedValue]) -> str:
    """The worst error of a name on one backend, and from which step on it is off."""
    value = worst(series)
    if value is None:
        return "-"
    text = f"{error_text(value.comparison)} ({excess_text(value.comparison)})"
    return (
        text
        if value.comparison.ok
        else f"{text} from step {min(v.step for v in series if not v.comparison.ok)}"
    )
