"""Reads the folders that `script_runs` and `log` have written, and compares what is in them.

A folder holds a run, with a recording for each backend, or the recording of one backend.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from xdevice.base import floats
from xdevice.errors import RecordingError, listed
from xdevice.twins.tracing.operations import Two

from . import operations_script, traced_calls
from .comparison import difference
from .noise import VARIANTS, measure, moved_nothing
from .parity_report import (
    BackendRow,
    ComparedValue,
    GradientRow,
    ParityReport,
    compare_recordings,
)
from .parting import text_of
from .record_files import INDEX, Recording, reading
from .script_runs import RUN, Ended, place_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from xdevice.twins.tracing.operations import Errors, Log

    from .noise import Noise
    from .record_files import RecordedCall
    from .tolerances import Strictness
    from .traced_calls import Traces

_SHORT: Final = ("float32", "complex64")
_GRADIENTS: Final = 10
"""A gradient may be off by this many times the limit for outputs."""
_NAMED: Final = 4
"""How many recorded values a note in the report names at most."""
_UNMOVED: Final = (
    "calibrating has moved nothing that is recorded: the script takes its numbers from elsewhere than xdevice.tensor, "
    "random, load and convert_state, so only the run in float64 says what rounding does"
)


class RunFolder(NamedTuple):
    """The recordings that `load` read from a folder: all recordings of a run, or the recording of a single backend."""

    folder: Path
    reference: str
    ended: list[Ended]
    recordings: Mapping[str, Recording]
    traces: Mapping[str, Traces]
    operations: Mapping[str, Log]
    has_gradients: bool
    """Whether the gradients were asked for."""
    calibration: Mapping[str, Recording]
    """The recordings of the reference's further runs, by the value of XDEVICE_FLOATS that each run had."""

    def calls(self, backend: str) -> list[RecordedCall]:
        """The calls of `log` that a backend has made; empty if there is no recording of it."""
        return self.recordings[backend].entries if backend in self.recordings else []

    def count(self, backend: str) -> int:
        """How many values a backend has recorded, plus how many calls of models were traced on it."""
        return len(self.calls(backend)) + (
            len(self.traces[backend].calls) if backend in self.traces else 0
        )

    def is_complete(self, backend: str) -> bool:
        """Whether a backend has recorded something, and its process ended well."""
        return (self.count(backend) > 0 or backend in self.operations) and not any(
            one.error for one in self.ended if one.backend == backend
        )

    def is_float64(self, backend: str) -> bool:
        """Whether the backend's run used float64 as the default dtype (XDEVICE_FLOATS=float64)."""
        return (
            backend in self.recordings
            and self.recordings[backend].header.get("floats") == floats.FLOAT64
        )

    def version(self, backend: str) -> str | None:
        """The version of the backend's framework."""
        header = (
            self.recordings[backend].header if backend in self.recordings else {"versions": {}}
        )
        own: str | None = header["versions"].get(backend)
        return own or (self.traces[backend].version if backend in self.traces else None)

    def noise(self, backend: str) -> Noise | None:
        """The noise of the reference's values: what rounding alone does to them. None for any other backend, and if no
        calibration run measured it."""
        calls = self.calls(backend)
        return (
            measure(calls, self._variants)
            if self.calibration and backend == self.reference and calls
            else None
        )

    @property
    def _variants(self) -> dict[str, list[RecordedCall]]:
        return {variant: recording.entries for variant, recording in self.calibration.items()}

    def notes(self) -> Iterator[str]:
        """Notes for the report about float64 and calibration in this run."""
        for name in self.recordings:
            yield from self._float32(name) if self.is_float64(name) else ()
        calls = self.calls(self.reference)
        if self.calibration and calls:
            yield f"calibrated: float32 is allowed 8 times what rounding alone does in {self.reference} to each value"
            if moved_nothing(calls, self._variants):
                yield _UNMOVED

    def _float32(self, name: str) -> Iterator[str]:
        """A note about what is float32 in a run in float64."""
        calls = self.calls(name)
        short = [
            f"{call.name}{path}"
            for call in calls
            for path, dtype in call.dtypes().items()
            if dtype in _SHORT
        ]
        if short:
            yield (
                f"{name} ran in float64, but {listed(dict.fromkeys(short), _NAMED)} is {' or '.join(_SHORT)}: the "
                f"script says so, or made it before `import xdevice`, or its framework has no default to change; what "
                f"float32 rounds hides faults"
            )


# reading


def load(folder: Path) -> RunFolder:
    """Reads a folder that holds a run, or the recording of a single backend.

    Raises:
        RecordingError: the folder has no recording, or a damaged one, or a calibration run failed.
    """
    # what one process has recorded by XDEVICE_RECORD
    if (folder / INDEX).exists():
        only = Recording(folder)
        versions = list(only.header["versions"])
        name = only.header["backend"] or (versions[0] if len(versions) == 1 else folder.name)
        return RunFolder(
            folder,
            name,
            [Ended(name, None, "", "")],
            {name: only},
            _traces({name: folder}),
            {},
            False,
            {},
        )
    path = folder / RUN
    if not path.exists():
        raise RecordingError(_no_recording(folder))
    with reading(path):
        about = json.loads(path.read_text())
        ended = [Ended(**one) for one in about["backends"]]
        reference = str(about["reference"])
        further = [Ended(**one) for one in about.get("calibration", [])]
    there = {one.backend: folder / one.backend for one in ended}
    recordings = {name: Recording(own) for name, own in there.items() if (own / INDEX).exists()}
    if any(one.error for one in ended if one.backend == reference):
        further = []  # there is nothing to calibrate, and the reference's row of the report says why
    operations = {
        name: log
        for name, own in there.items()
        if (log := operations_script.read(own)) is not None
    }
    calibration = _calibration(folder, further)
    has_gradients = bool(about.get("gradients"))
    return RunFolder(
        folder,
        reference,
        ended,
        recordings,
        _traces(there),
        operations,
        has_gradients,
        calibration,
    )


def _traces(folders: Mapping[str, Path]) -> dict[str, Traces]:
    traces = {name: traced_calls.read(folder, name) for name, folder in folders.items()}
    return {name: of for name, of in traces.items() if of is not None}


def _calibration(folder: Path, ended: list[Ended]) -> dict[str, Recording]:
    for one in ended:
        if one.error:
            raise RecordingError(f"cannot calibrate: {one.backend} {one.error}")
    return (
        {variant: Recording(folder / place_of(variant)) for variant in VARIANTS}
        if ended
        else {}
    )


def _no_recording(folder: Path) -> str:
    text = f"{folder} has no recording: neither {INDEX} of one backend nor {RUN} of a run"
    inside = sorted(
        path.parent for depth in ("*", "*/*") for path in folder.glob(f"{depth}/{INDEX}")
    )
    if not inside:
        return f"{text}; xdevice parity --save {folder} writes one"
    return (
        f"{text}; it holds {len(inside)} of single backends, so name one of these, such as {inside[0]}. "
        f"What pytest --xd-record has kept is compared by running the tests again: pytest --xd-compare={folder}"
    )


# comparing


def report_of_run(folder: Path, rule: Strictness) -> ParityReport:
    """Compares each backend with the reference, in the folder that `script_runs.run` wrote, and returns the report."""
    run = load(folder)
    if (
        not run.recordings
        and not run.traces
        and not run.operations
        and all(not one.error for one in run.ended)
    ):
        note = (
            "nothing was recorded; the script says what to compare: xdevice.parity.log('loss', loss); or --trace keeps "
            "what the layers of its models compute"
        )
        return ParityReport([_failed(one, "recorded nothing") for one in run.ended], [note])
    rows = [_row(run, one, run, run.reference, rule) for one in run.ended]
    refusals = [note for traces in run.traces.values() for note in traces.refusals]
    return ParityReport(rows, [*run.notes(), *refusals, *_full(run)])


def _full(run: RunFolder) -> Iterator[str]:
    for name, log in run.operations.items():
        if log.is_full:
            yield f"only the first {len(log.operations)} operations of {name} were kept; give the script fewer steps"


def report_of_two(first: Path, second: Path, rule: Strictness) -> ParityReport:
    """Compares two folders, each of which is a run or the recording of one backend, and returns the report.

    Each backend in `second` is compared with the same backend in `first`, or if `first` lacks it, with the reference
    of `first`.

    Raises:
        RecordingError: a folder has no recording.
    """
    expected, actual = load(first), load(second)
    rows, used = [], set()
    for one in actual.ended:
        reference = one.backend if one.backend in expected.recordings else expected.reference
        used.add(reference)
        rows.append(_row(actual, one, expected, reference, rule))
    notes = [
        f"{name} of {first} was compared with nothing"
        for name in expected.recordings
        if name not in used
    ]
    return ParityReport(rows, [*notes, *dict.fromkeys([*expected.notes(), *actual.notes()])])


def _row(
    run: RunFolder, ended: Ended, other: RunFolder, reference: str, rule: Strictness
) -> BackendRow:
    """The report's row for one backend: `ended` in `run`, compared with `reference` in `other`, which may be the same
    run."""
    name, is_one_run = ended.backend, run is other
    row = (
        _failed(ended, ended.error)
        if ended.error
        else BackendRow(name, "agrees", seconds=ended.seconds)
    )
    row.python, row.records, row.version = ended.python, run.count(name), run.version(name)
    if is_one_run and name == reference:
        if not ended.error:
            row.state = "reference"
        if not row.records and not ended.error and name not in run.operations:
            return _failed(
                ended,
                "recorded nothing, so the others cannot be compared with it; call xdevice.parity.log, or give --trace",
            )
        return row
    row.reference = reference if is_one_run else f"{reference} of {other.folder}"
    if not other.is_complete(reference):
        if not ended.error:
            row.state = "not compared"
        return row
    row.values = compare_recordings(
        run.calls(name), other.calls(reference), rule, is_complete=not ended.error,
        noise=other.noise(reference), is_float64=run.is_float64(name) and other.is_float64(reference),
    )  # fmt: skip
    if name in run.traces and reference in other.traces:
        row.values += _of_traces(
            run.traces[name], other.traces[reference], other.calls(reference)
        )
    _compare_operations(row, run, other, reference)
    if not ended.error and (row.first is not None or any(one.is_off for one in row.gradients)):
        row.state = "diverges"
    return row


def _compare_operations(
    row: BackendRow, run: RunFolder, other: RunFolder, reference: str
) -> None:
    """Adds to a row the first operations from which the two programs part, and the gradients, if they were kept."""
    ours, theirs = run.operations.get(row.backend), other.operations.get(reference)
    if ours is None or theirs is None:
        return
    two, before = Two(ours, theirs), row.first
    if run.has_gradients:
        limit = _GRADIENTS * two.limit
        row.gradients = [
            GradientRow(name, errors, _is_off(errors, limit))
            for name, errors in two.gradients()
        ]
    # what gives right values is right: only where something else says that the two part is there a place to look for
    if before is None and row.values and not any(one.is_off for one in row.gradients):
        return
    for what, is_backward in (("operations", False), ("operations, backward", True)):
        place = two.part(is_backward)
        if place is None or (place.share < 1 and not row.values):
            continue
        text = text_of(place, row.backend, reference)
        order = (-1.0,) if before is None else (before.value.order[0] - 0.5,)
        error = place.errors.abs if place.errors else None
        comparison = difference("values", "", None, None, text)._replace(abs=error)
        row.values.append(ComparedValue(what, 0, order, comparison))
        row.partings[what] = text


def _is_off(errors: Errors | None, limit: float) -> bool:
    return errors is None or errors.share > limit


def _of_traces(
    actual: Traces, expected: Traces, calls: list[RecordedCall]
) -> Iterator[ComparedValue]:
    for name, one, comparison in traced_calls.compare(actual, expected):
        # the record that was made before it, and then the time
        before = sum(call.time <= one.time for call in calls) - 0.5
        yield ComparedValue(name, one.run, (before, one.time), comparison)


def _failed(ended: Ended, why: str) -> BackendRow:
    return BackendRow(
        ended.backend,
        "did not run" if ended.error else "not compared",
        seconds=ended.seconds,
        error=why,
        python=ended.python,
    )
