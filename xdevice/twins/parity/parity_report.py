"""Builds the report on a comparison of recordings. It contains the result for each recorded name on each backend, the
first divergence, and the backends that did not run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from .comparing import compare_leaves
from .comparison import Comparison, difference
from .explaining import element_of, explain, note_on_unchanged, notes_on_vanishing

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
"""The fields of a `Comparison` that are left out of the JSON of each step, because they are long. The text is included
once, for the first divergence."""


class ComparedValue(NamedTuple):
    """The result of comparing a recorded value of a backend with the reference's value of the same name and step."""

    name: str
    step: int
    order: tuple[float, ...]
    """A sort key: the value's position among the values that the program recorded. A value that the reference lacks is
    sorted after the value that was recorded just before it."""
    comparison: Comparison
    actual_line: str = ""
    """The line of the program that recorded the backend's value, such as `/home/ann/train.py:41`; empty if it is
    unknown."""
    expected_line: str = ""
    """The line of the program that recorded the reference's value; empty if it is unknown."""


class GradientRow(NamedTuple):
    """The comparison of one gradient with respect to a parameter or an input."""

    name: str
    errors: Errors | None
    """The errors of the gradient compared with the reference's gradient; None if the backend computed no gradient of
    this size."""
    is_off: bool
    """Whether the gradient is missing, or its error exceeds the limit for gradients."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the row as strings: the name, the largest absolute and relative errors, the cosine, and the
        percentage of elements within the tolerance."""
        if self.errors is None:
            return (self.name, "no gradient of this size", "-", "-", "-")
        numbers = (
            f"{self.errors.abs:.3g}",
            f"{self.errors.rel:.3g}",
            f"{self.errors.cosine:.6f}",
        )
        return (self.name, *numbers, f"{self.errors.within:.1%}")


class Divergence(NamedTuple):
    """The first recorded value of a backend that differs from the value of the reference."""

    backend: str
    reference: str
    value: ComparedValue

    def __str__(self) -> str:
        recorded = f"\n  recorded  {self.lines}" if self.lines else ""
        return f"{self.place}: {self.value.comparison.text}{recorded}"

    @property
    def place(self) -> str:
        """The place of the divergence in words, such as `loss, step 3, on jax`."""
        return f"{self.value.name}, step {self.value.step}, on {self.backend}"

    @property
    def lines(self) -> str:
        """The line of the program that recorded the value, or the lines of both backends if they differ; "" if both are
        unknown."""
        # the same program usually runs on both backends, so both have the same line
        mine, its = self.value.actual_line, self.value.expected_line
        if not mine or not its or mine == its:
            return line_text(mine or its)
        return f"{line_text(mine)} (actual), {line_text(its)} (expected)"


@dataclass
class BackendRow:
    """The row of one backend in a report. It states how the backend's run ended, and contains the comparisons of its
    values with those of the reference."""

    backend: str
    state: State
    reference: str = ""
    """The name of the reference with which this backend was compared. If the reference belongs to another run, " of "
    and the folder of the other run follow the name. Empty for the reference itself."""
    version: str | None = None
    """The version of the framework; None if the recording does not state it."""
    seconds: float | None = None
    """The duration of the backend's process in seconds, including imports; None if it is unknown."""
    records: int = 0
    """The number of recorded values plus the number of traced calls of models."""
    error: str = ""
    """The reason why the backend did not run or, for the reference, why nothing can be compared with it; otherwise
    empty."""
    python: str = ""
    """The path of the interpreter; empty if it is unknown."""
    values: list[ComparedValue] = field(default_factory=list)
    partings: dict[str, str] = field(default_factory=dict)
    """Messages that name the first operation that differs in the forward pass and in the backward pass, under the keys
    `operations` and `operations, backward`."""
    gradients: list[GradientRow] = field(default_factory=list)
    """The comparison of each gradient, in the order of the reference's backward pass; empty without `--backward`."""

    @property
    def first(self) -> Divergence | None:
        """The first divergence of this backend, in program order; None if all values agree."""
        off = [value for value in self.values if not value.comparison.ok]
        first = min(off, key=lambda value: value.order, default=None)
        return Divergence(self.backend, self.reference, first) if first is not None else None

    @property
    def seconds_text(self) -> str:
        """The duration in seconds with one decimal; "-" if it is unknown."""
        return "-" if self.seconds is None else f"{self.seconds:.1f}"


@dataclass
class ParityReport:
    """The result of comparing all backends: a row for each backend, and notes for the reader."""

    rows: list[BackendRow]
    notes: list[str] = field(default_factory=list)

    @property
    def first(self) -> Divergence | None:
        """The first divergence of any backend, in program order; None if all values of all backends agree."""
        every = [row.first for row in self.rows if row.first is not None]
        return min(every, key=lambda divergence: divergence.value.order, default=None)

    @property
    def status(self) -> int:
        """The exit status of the command: 2 if a backend did not run or was not compared, 1 if a backend diverges, and
        0 otherwise. If both 2 and 1 apply, it is 2."""
        states = {row.state for row in self.rows}
        # checked before divergences, because a backend that was not compared may diverge too
        return (
            NOT_RUN
            if states & {"did not run", "not compared"}
            else DIVERGED
            if "diverges" in states
            else AGREE
        )

    def compared_rows(self) -> list[BackendRow]:
        """Returns the rows of all backends except the reference."""
        return [row for row in self.rows if row.state != "reference"]

    def names(self) -> list[str]:
        """Returns the names of all recorded values in program order, without duplicates."""
        # names from all rows, because a backend may have recorded names that another backend lacks
        values = sorted(
            (value for row in self.rows for value in row.values), key=lambda value: value.order
        )
        return list(dict.fromkeys(value.name for value in values))

    def series(self, name: str) -> dict[str, list[ComparedValue]]:
        """Returns a dict that maps each backend except the reference to a list of comparisons, sorted by step. The list
        contains the backend's values with this name, and is empty if the backend has no such values."""
        return {
            row.backend: sorted(
                (value for value in row.values if value.name == name),
                key=lambda value: value.step,
            )
            for row in self.compared_rows()
        }

    def further_partings(self) -> list[str]:
        """Returns a line for each message in the rows' `partings`, which name the first operations that differ. A
        message that the first divergence already contains is left out."""
        shown = "" if self.first is None else self.first.value.comparison.text
        return [
            f"{name}, on {row.backend}: {text}"
            for row in self.rows
            for name, text in row.partings.items()
            if text != shown
        ]

    def as_json(self) -> dict[str, Any]:
        """Returns the report as a dict for JSON. Numbers that JSON cannot express become strings, such as "inf" and
        "nan"."""
        return {
            "status": self.status,
            "first_divergence": _divergence_json(self.first),
            "backends": [_row_json(row) for row in self.rows],
            "names": [
                {
                    "name": name,
                    "backends": {
                        backend: _series_json(series)
                        for backend, series in self.series(name).items()
                    },
                }
                for name in self.names()
            ],
            "notes": self.notes,
        }


def worst(series: list[ComparedValue]) -> ComparedValue | None:
    """Returns the value of a series whose error is the largest multiple of the allowed error; None if the series is
    empty."""
    return max(
        series,
        # the absolute error decides between infinite multiples, such as those of ints that differ
        key=lambda value: (value.comparison.excess, value.comparison.abs or 0.0),
        default=None,
    )


# comparing the recordings of a backend and the reference


def compare_recordings(
    actual: Sequence[RecordedCall],
    expected: Sequence[RecordedCall],
    rule: Strictness,
    is_complete: bool = True,
    noise: Noise | None = None,
    is_float64: bool = False,
) -> list[ComparedValue]:
    """Compares each value of a run (in `actual`) with the reference's value of the same name and step (in `expected`).
    Returns the comparisons in the order of `expected`, followed by a difference for each value that only `actual` has.

    If the run ended early (`is_complete` is False), values that `actual` lacks are not reported. With `noise`, the
    tolerance of values in float32 follows from the measured effect of rounding. In a run in float64 (`is_float64`), the
    first step of each name has the tolerance of float64. Later steps have the tolerance of float32, because Paddle's
    Momentum, Keras and Gluon store their hyperparameters in float32.
    """
    # the records of both sides, by name and step
    ours, theirs = ({call.key: call for call in calls} for calls in (actual, expected))
    index_of = {call.key: index for index, call in enumerate(expected)}
    values = []
    for index, call in enumerate(expected):
        mine = ours.get(call.key)
        # the row of the report already says that the process ended early
        if mine is None and not is_complete:
            continue
        if mine is None:
            comparison = difference(
                "structure",
                f"{call.name} has no step {call.step} here, but has one in the reference",
            )
        else:
            own_rule = rule
            if is_float64:
                own_rule = rule._replace(float64_step=call.step)
            elif noise is not None:
                own_rule = rule._replace(noise=noise[call.key])
            comparison = compare_leaves(mine.read(), call.read(), own_rule)
            # a comparison with the values at step 0 shows whether only one side trains the weight; `theirs` has step 0
            # of every name. Each side has a pair: the value at step 0, and the value that is compared
            if comparison.problem == "values" and (call.name, 0) in ours:
                pairs = [
                    (recorded[call.name, 0], recorded[call.key]) for recorded in (ours, theirs)
                ]
                note = note_on_unchanged(comparison.leaf, pairs)
                comparison = comparison._replace(text=comparison.text + note)
        line = mine.where if mine is not None else ""
        # the index is the sort key
        values.append(
            ComparedValue(call.name, call.step, (index,), comparison, line, call.where)
        )
    # an explanation requires reading the reference's values again, so this is done only if values differ
    if elements_off := {
        element_of(value.comparison) for value in values if value.comparison.problem == "values"
    }:
        notes = notes_on_vanishing(expected, elements_off)
        values = [
            value._replace(comparison=explain(value.comparison, notes)) for value in values
        ]
    return values + list(_values_without_reference(actual, index_of))


def _values_without_reference(
    actual: Sequence[RecordedCall], index_of: dict[tuple[str, int], int]
) -> Iterator[ComparedValue]:
    """Yields a structural difference for each value of `actual` that the reference lacks. `index_of` maps the name and
    step of each value in the reference's recording to the value's index in this recording."""
    # each difference is sorted after the latest earlier value that both sides have; -1 is sorted before the first value
    last = -1.0
    for number, call in enumerate(actual):
        if call.key in index_of:
            last = index_of[call.key]
            continue
        comparison = difference(
            "structure", f"{call.name} has a step {call.step} here, but not in the reference"
        )
        yield ComparedValue(call.name, call.step, (last, number), comparison, call.where)


# short texts that the terminal and the HTML page share


def line_text(where: str) -> str:
    """Returns a line of a program, such as `/home/ann/train.py:41`, for display. The result is `train.py:41` if the
    file is inside the current folder."""
    # a path that ends with a colon and a number is still a path, so the number need not be split off
    path = Path(where)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else where


def error_text(comparison: Comparison) -> str:
    """Returns the result of a comparison in a few characters: the worst absolute error if there is one, otherwise the
    kind of the problem, or "equal" if there is no problem."""
    if comparison.abs is None:
        return comparison.problem or "equal"
    return "0" if comparison.abs == 0 else f"{float(comparison.abs):.1e}"


def excess_text(comparison: Comparison) -> str:
    """Returns the worst error as a multiple of the allowed error, as a string. A value above 1 exceeds the
    tolerance."""
    return "0" if comparison.excess == 0 else f"{comparison.excess:.2g}"


# the report as JSON, for programs


def _row_json(row: BackendRow) -> dict[str, Any]:
    """Returns one row of the report as a dict for JSON. Empty strings become null."""
    return {
        "backend": row.backend, "state": row.state, "reference": row.reference or None, "version": row.version,
        "seconds": row.seconds, "records": row.records, "error": row.error or None, "python": row.python or None,
        "first_divergence": _divergence_json(row.first),
        "partings": row.partings, "gradients": [_gradient_json(gradient) for gradient in row.gradients],
    }  # fmt: skip


def _gradient_json(row: GradientRow) -> dict[str, Any]:
    """Returns one gradient as a dict for JSON, without numbers if the backend has no gradient of this size."""
    errors = (
        {}
        if row.errors is None
        else {name: _value_json(x) for name, x in row.errors._asdict().items()}
    )
    return {"name": row.name, "ok": not row.is_off, **errors}


def _divergence_json(divergence: Divergence | None) -> dict[str, Any] | None:
    """Returns a divergence as a dict for JSON; None if there is no divergence."""
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
    """Returns a dict for JSON with all steps of one name on one backend, and the number of the step with the worst
    error."""
    value = worst(series)
    return {
        "steps": [
            {"step": compared.step, **_comparison_json(compared.comparison)}
            for compared in series
        ],
        "worst_step": value.step if value is not None else None,
    }


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Returns the fields of a comparison, except its text and its settings, as a dict for JSON."""
    values = {
        name: _value_json(value)
        for name, value in comparison._asdict().items()
        if name not in _TEXTS
    }
    # the index of an element is a tuple, which `_value_json` would turn into a string
    return values | {"worst": None if comparison.worst is None else list(comparison.worst)}


def _value_json(value: Any) -> Any:
    """Returns the value unchanged if JSON can express it. Otherwise (NaN, an infinity, a shape or a complex number)
    returns the value as a string."""
    if (
        value is None
        or isinstance(value, bool | int | str)
        or (isinstance(value, float) and math.isfinite(value))
    ):
        return value
    return str(value)


# the report as tables, for people


class ReportTable(NamedTuple):
    """One table of a report. The terminal and the HTML page show the same tables."""

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, Sequence[str]]]
    """Pairs of the verdict and the cells of a row. The verdict is "good" or "bad", or "" if the row is neither. On the
    HTML page, it is "cut" for a backend whose process ended early."""


_VERDICTS: Final = {"agrees": "good", "diverges": "bad", "did not run": "bad"}
_TO_THE_LEFT: Final = ("backend", "version", "result", "notes", "name", "gradient of")
"""The headings of the columns of text, which are aligned to the left. Columns of numbers are aligned to the right."""


def backends_table(report: ParityReport) -> ReportTable:
    """Returns the table that shows how the run of each backend ended, and whether the backend agrees with the
    reference."""
    # "reference" and "not compared" have no verdict
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
    """Yields a table for each backend with compared gradients. Gradients are compared only with `--backward`."""
    for row in report.rows:
        if row.gradients:
            title = f"gradients of {row.backend}, in the order of the backward pass of {row.reference}"
            rows = [
                ("bad" if gradient.is_off else "good", gradient.cells)
                for gradient in row.gradients
            ]
            headings = (
                "gradient of", "largest absolute", "largest relative", "cosine", "within tolerance",
            )  # fmt: skip
            yield ReportTable(title, headings, rows)


def _names_table(report: ParityReport) -> ReportTable:
    """Returns the table with the worst error of each recorded name on each backend."""
    rows = []
    for name in report.names():
        series = report.series(name).values()
        # the number of steps is the largest number that any backend has recorded
        rows.append(("", (name, str(max(map(len, series))), *map(_cell, series))))
    title = "worst absolute error of each name, and the multiple of the allowed error"
    backends = [row.backend for row in report.compared_rows()]
    return ReportTable(title, ("name", "steps", *backends), rows)


def show(report: ParityReport) -> None:
    """Prints the report to the terminal: tables, and the first divergence in full."""
    # imported here, because a program that only compares values does not need rich
    from rich.console import Console

    console = Console()

    def say(text: str, style: str | None = None) -> None:
        """Prints a string unchanged, in a style of rich such as "red"."""
        # with `soft_wrap`, the terminal wraps long lines, so a path can be copied as a whole. Without `markup=False`,
        # rich would interpret the brackets of an index as markup
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    console.print(_as_rich(backends_table(report)))
    if report.compared_rows() and report.names():
        console.print(_as_rich(_names_table(report)))
    for table in gradients_tables(report):
        console.print(_as_rich(table))
    for note in report.notes:
        say(note)
    # a one-line error is already in the table, which has only the first line of a longer error
    for row in report.rows:
        if "\n" in row.error:
            say(f"{row.backend} {row.error}", "red")
    if report.first is not None:
        say("First divergence", "bold red")
        say(str(report.first))
    for text in report.further_partings():
        say(text)


def _as_rich(table: ReportTable) -> Table:
    """Returns the table in the form for the terminal, with bad rows in red."""
    from rich.markup import escape
    from rich.table import Table

    shown = Table(title=table.title)
    for heading in table.headings:
        justify: Any = "left" if heading in _TO_THE_LEFT else "right"
        # long words are folded into several lines instead of being cut off
        shown.add_column(heading, overflow="fold", justify=justify)
    for verdict, cells in table.rows:
        # escaped, because rich would interpret the brackets of a path as markup
        shown.add_row(*map(escape, cells), style="red" if verdict == "bad" else None)
    return shown


def _notes(row: BackendRow) -> str:
    """Returns the last cell of a backend's row: the first line of its error, the place where the backend first
    diverges, and the name of the reference if it belongs to another run. Returns "" if there is nothing to say."""
    why = row.error.partition("\n")[0]
    first = (
        f"first at {row.first.value.name}, step {row.first.value.step}"
        if row.first is not None
        else ""
    )
    # only the name of a reference in another run contains a space, as in "torch of old", where "old" is the folder of
    # that run
    other_run = f"compared with {row.reference}" if " " in row.reference else ""
    return "; ".join(filter(None, (why, first, other_run)))


def _cell(series: list[ComparedValue]) -> str:
    """Returns the worst error of a name on one backend and, in parentheses, this error as a multiple of the allowed
    error. If a step is off, adds the first such step. Returns "-" if nothing was recorded."""
    value = worst(series)
    if value is None:
        return "-"
    text = f"{error_text(value.comparison)} ({excess_text(value.comparison)})"
    return (
        text
        if value.comparison.ok
        else f"{text} from step {min(compared.step for compared in series if not compared.comparison.ok)}"
    )
