"""Reads the folders that `script_runs` and `log` write, and compares their contents.

A folder contains either a run, with a recording for each backend, or the recording of one backend.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from xdevice.base import floats
from xdevice.errors import ArgumentError, RecordingError, listed
from xdevice.twins.tracing.operations import TwoPrograms

from . import operations_script, traced_calls
from .comparison import difference
from .noise import VARIANTS, jitter_changes_nothing, measure_noise
from .parity_report import (
    BackendRow,
    ComparedValue,
    GradientRow,
    ParityReport,
    compare_recordings,
)
from .parting import parting_text
from .record_files import INDEX, Recording, refusing_damage
from .script_runs import RUN, Ended, calibration_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from xdevice.twins.tracing.operations import Errors, Log

    from .noise import Noise
    from .record_files import RecordedCall
    from .tolerances import Strictness
    from .traced_calls import Traces

_NARROW: Final = ("float32", "complex64")
"""The dtypes that should not occur in the recording of a float64 run."""
_GRADIENTS: Final = 10
"""The limit for the error of a gradient, as a multiple of the limit for outputs."""
_NAMED: Final = 4
"""The maximum number of recorded values that a note in the report names."""
# the error if the reference has recorded nothing
_NOTHING: Final = "recorded nothing, so nothing can be compared with it; call xdevice.parity.log, or pass --trace"
# the note if the runs with moved numbers recorded the same values as the usual run
_UNMOVED: Final = (
    "calibration changed no recorded value, because the script does not get its numbers from xdevice.tensor, "
    "random, load or convert_state; only the run in float64 shows the effect of rounding"
)


class BackendFolder(NamedTuple):
    """One backend in a folder: how its process ended, and its saved data. Each of `recording`, `traces` and
    `operations` is None if the backend saved no such data."""

    ended: Ended
    recording: Recording | None
    traces: Traces | None
    operations: Log | None

    @property
    def name(self) -> str:
        """The name of the backend."""
        return self.ended.backend

    @property
    def calls(self) -> list[RecordedCall]:
        """The values that the backend recorded with `log`, in program order."""
        return self.recording.entries if self.recording is not None else []

    @property
    def records(self) -> int:
        """The number of values that the backend recorded, plus the number of traced calls of models."""
        return len(self.calls) + (len(self.traces.calls) if self.traces is not None else 0)

    @property
    def is_complete(self) -> bool:
        """Whether the backend saved values, traces or operations, and its process ended without an error."""
        return not self.ended.error and (self.records > 0 or self.operations is not None)

    @property
    def is_float64(self) -> bool:
        """Whether float64 was the default dtype in the backend's run (XDEVICE_FLOATS=float64)."""
        return (
            self.recording is not None and self.recording.header.get("floats") == floats.FLOAT64
        )

    @property
    def version(self) -> str | None:
        """The version of the backend's framework; None if the saved data do not include it."""
        versions = self.recording.header["versions"] if self.recording is not None else {}
        version: str | None = versions.get(self.name)
        return version or (self.traces.version if self.traces is not None else None)

    def float32_note(self) -> Iterator[str]:
        """Yields a note if some values of a float64 run have the dtype float32."""
        narrow = [
            f"{call.name}{path}"
            for call in (self.calls if self.is_float64 else ())
            # dtypes are in the index, so no array is read for a note
            for path, dtype in call.dtypes().items()
            if dtype in _NARROW
        ]
        if narrow:
            yield (
                f"{self.name} ran in float64, but {listed(dict.fromkeys(narrow), _NAMED)} is {' or '.join(_NARROW)}: "
                f"the script requests this dtype, or created the values before `import xdevice`, or the "
                f"framework has no default to change; the rounding of float32 hides faults"
            )


class RunFolder(NamedTuple):
    """The contents of a folder that `load` has read: all backends of a run, or a single backend."""

    folder: Path
    reference: BackendFolder
    """The backend in `backends` with which the other backends are compared."""
    backends: dict[str, BackendFolder]
    has_gradients: bool
    """Whether the report lists each gradient."""
    calibration: dict[str, list[RecordedCall]]
    """The recordings of the reference's calibration runs, by the value of XDEVICE_FLOATS in each run."""

    def noise(self, backend: BackendFolder) -> Noise | None:
        """Returns the effect of rounding alone on the values of `backend`. Returns None if `backend` is not the
        reference, or if no calibration runs measured this effect."""
        # only the reference ran again, so nothing is known about the other backends
        if not self.calibration or backend is not self.reference or not backend.calls:
            return None
        return measure_noise(backend.calls, self.calibration)

    def notes(self) -> Iterator[str]:
        """Yields notes for the report: about float32 values in a float64 run, and about the calibration."""
        for backend in self.backends.values():
            yield from backend.float32_note()
        if self.calibration and self.reference.calls:
            yield (
                f"calibrated: each recorded value in float32 may differ by up to 8 times the effect of rounding alone "
                f"in {self.reference.name}"
            )
            if jitter_changes_nothing(self.reference.calls, self.calibration):
                yield _UNMOVED


# reading the folder of a run


def load(folder: Path) -> RunFolder:
    """Reads a folder that contains a run, or the recording of a single backend.

    Raises:
        RecordingError: if the folder has no recording, if a recording is damaged, or if a calibration run failed.
    """
    # the folder of one backend, or a recording that a program made with XDEVICE_RECORD
    if (folder / INDEX).exists():
        header = Recording(folder).header
        versions = list(header["versions"])
        # if no backend was selected and only one framework was loaded, the name is that of the framework
        name = header["backend"] or (versions[0] if len(versions) == 1 else folder.name)
        # nothing is known about its process: no duration, no error, no interpreter
        only = _read_backend(folder, Ended(name, seconds=None, error="", python=""))
        # it is its own reference
        return RunFolder(folder, only, {name: only}, has_gradients=False, calibration={})
    path = folder / RUN
    if not path.exists():
        raise RecordingError(_no_recording(folder))
    with refusing_damage(path):
        about = json.loads(path.read_text())
        ended = {row["backend"]: Ended(**row) for row in about["backends"]}
        # the file names the reference, which may be anywhere in the list
        reference = ended[about["reference"]]
        # runs that earlier versions have saved have no such entry
        further = [Ended(**row) for row in about.get("calibration", [])]
    backends = {name: _read_backend(folder / name, run) for name, run in ended.items()}
    # without the reference's usual run, there is nothing to calibrate; the row of the reference says why that run
    # failed
    calibration = _calibration(folder, further) if not reference.error else {}
    # the files of earlier versions have no such entry either
    has_gradients = bool(about.get("gradients"))
    return RunFolder(folder, backends[reference.backend], backends, has_gradients, calibration)


def _read_backend(folder: Path, ended: Ended) -> BackendFolder:
    """Reads the data that a backend's process saved in its folder. Raises `RecordingError` if a file is damaged."""
    return BackendFolder(
        ended,
        Recording(folder) if (folder / INDEX).exists() else None,
        traced_calls.read(folder, ended.backend),
        operations_script.read(folder),
    )


def _calibration(folder: Path, ended: list[Ended]) -> dict[str, list[RecordedCall]]:
    """Returns the values that each calibration run recorded, by the variant of the run; {} if `ended` is empty. Raises
    `RecordingError` if a run failed, or if its recording is missing or damaged."""
    for ended_run in ended:
        if ended_run.error:
            raise RecordingError(f"cannot calibrate: {ended_run.backend} {ended_run.error}")
    variants = VARIANTS if ended else ()
    return {
        variant: Recording(folder / calibration_folder(variant)).entries for variant in variants
    }


def _no_recording(folder: Path) -> str:
    """Returns the message for a folder that contains neither a run nor a recording. The message mentions recordings in
    folders inside it."""
    text = f"{folder} contains no recording: neither the {INDEX} of one backend nor the {RUN} of a run"
    # the search goes at most two levels down, because searching a whole disk would take long
    inside = sorted(
        path.parent for depth in ("*", "*/*") for path in folder.glob(f"{depth}/{INDEX}")
    )
    if not inside:
        return f"{text}; xdevice parity --save {folder} writes a recording"
    return (
        f"{text}; folders inside it contain recordings of one backend each ({len(inside)} in all); pass one of these "
        f"folders, such as {inside[0]}. To compare "
        f"recordings of pytest --xd-record, run the tests again: pytest --xd-compare={folder}"
    )


# comparing backends: a row of the report for each


def report_of_run(folder: Path, rule: Strictness) -> ParityReport:
    """Compares each backend with the reference in a folder that `script_runs.run` wrote, and returns the report. Raises
    `RecordingError` if the folder has no recording, if a recording is damaged, or if a calibration run failed or cannot
    be used."""
    run = load(folder)
    backends = run.backends.values()
    rows = [
        _row(run, backend, expected_run=run, reference=run.reference, rule=rule)
        for backend in backends
    ]
    refusals = [
        note
        for backend in backends
        if backend.traces is not None
        for note in backend.traces.refusals
    ]
    # there may be a difference after the last operation that was saved
    full = [
        f"only the first {len(log.operations)} operations of {backend.name} were saved; run the script with fewer steps"
        for backend in backends
        if (log := backend.operations) is not None and log.is_full
    ]
    return ParityReport(rows, [*run.notes(), *refusals, *full])


def report_of_two(first: Path, second: Path, rule: Strictness) -> ParityReport:
    """Compares two folders, each of which contains a run or the recording of one backend, and returns the report.

    Each backend in `second` is compared with the same backend in `first`, or, if `first` lacks that backend, with the
    reference of `first`.

    Raises:
        RecordingError: if a folder has no recording, if a recording is damaged, or if a calibration run failed or
            cannot be used.
        ArgumentError: if `rule` has an rtol or atol although `first` was calibrated.
    """
    expected, actual = load(first), load(second)
    # the measured noise replaces the tolerances, so rtol and atol would be ignored
    if expected.calibration and (rule.rtol, rule.atol) != (None, None):
        raise ArgumentError(
            f"{first} was calibrated, which measures the tolerances; leave out rtol and atol"
        )
    recorded = {
        name: backend
        for name, backend in expected.backends.items()
        if backend.recording is not None
    }
    # `unused` contains the backends of `first` with which no backend of `second` is compared
    rows, unused = [], dict(recorded)
    for backend in actual.backends.values():
        # the same framework is preferred, because the two runs are usually from before and after a change
        reference = recorded.get(backend.name, expected.reference)
        unused.pop(reference.name, None)
        rows.append(
            _row(actual, backend, expected_run=expected, reference=reference, rule=rule)
        )
    notes = [
        f"{name} of {first} was not compared, because {second} has no values of {name}"
        for name in unused
    ]
    # a dict removes duplicates of notes that both runs have
    return ParityReport(rows, [*notes, *dict.fromkeys([*expected.notes(), *actual.notes()])])


def _row(
    run: RunFolder,
    backend: BackendFolder,
    expected_run: RunFolder,
    reference: BackendFolder,
    rule: Strictness,
) -> BackendRow:
    """Returns the report's row for one backend. Compares `backend` in `run` with `reference` in `expected_run`, which
    may be the same run."""
    ended = backend.ended
    row = BackendRow(
        backend.name, "did not run" if ended.error else "agrees", version=backend.version, seconds=ended.seconds,
        records=backend.records, error=ended.error, python=ended.python,
    )  # fmt: skip
    # the reference itself is not compared
    if backend is reference:
        if backend.is_complete:
            row.state = "reference"
        elif not ended.error:
            row.state, row.error = "not compared", _NOTHING
        return row
    row.reference = (
        reference.name if run is expected_run else f"{reference.name} of {expected_run.folder}"
    )
    # if the reference is incomplete, every difference would seem to be a fault of this backend
    if not reference.is_complete:
        if not ended.error:
            row.state = "not compared"
        return row
    row.values = compare_recordings(
        backend.calls, reference.calls, rule, is_complete=not ended.error, noise=expected_run.noise(reference),
        is_float64=backend.is_float64 and reference.is_float64,
    )  # fmt: skip
    # with `--trace`, both backends have traces, unless the script called no model on one of them
    if backend.traces is not None and reference.traces is not None:
        row.values += _compare_traces(backend.traces, reference.traces, reference.calls)
    if backend.operations is not None and reference.operations is not None:
        _compare_operations(
            row, backend.operations, reference.operations, reference.name, run.has_gradients
        )
    if not ended.error and (
        row.first is not None or any(gradient.is_off for gradient in row.gradients)
    ):
        row.state = "diverges"
    return row


def _compare_operations(
    row: BackendRow, ours: Log, theirs: Log, reference: str, has_gradients: bool
) -> None:
    """Adds the first operations at which two programs differ to `row`. With `has_gradients`, also adds the comparison
    of each gradient. `ours` are the operations of the row's backend. `theirs` are the operations of the expected
    program, and `reference` is the name of its backend."""
    # the first recorded value that differs, before this function adds values to the row
    programs, first = TwoPrograms(ours, theirs), row.first
    gradients = [
        GradientRow(name, errors, _is_off(errors, _GRADIENTS * programs.limit))
        for name, errors in programs.gradients()
    ]
    row.gradients = gradients if has_gradients else []
    # if all recorded values agree, and no gradient in the report is off, there is no fault to find. If there are no
    # recorded values, only the operations can show faults
    if first is None and row.values and not any(gradient.is_off for gradient in row.gradients):
        return
    for name, is_backward in (("operations", False), ("operations, backward", True)):
        if is_backward and gradients and not any(gradient.is_off for gradient in gradients):
            # all gradients agree, so operations in the backward pass that differ belong to an optimizer, which may
            # amplify the rounding of gradients
            continue
        parting = programs.first_parting(is_backward)
        # below the usual limit, rounding may look like a fault, so such a difference is reported only if a recorded
        # value or a gradient differs too
        if parting is None or (parting.share < 1 and not row.values):
            continue
        text = parting_text(parting, row.backend, reference)
        # sorted directly after the first recorded value that differs, whose text has the numbers and may explain them;
        # if there is no such value, sorted before everything else
        order = (-1.0,) if first is None else (first.value.order[0] + 0.5,)
        error = parting.errors.abs if parting.errors else None
        comparison = difference("values", text)._replace(abs=error)
        # step 0, because operations are not recorded in steps
        row.values.append(ComparedValue(name, 0, order, comparison))
        row.partings[name] = text


def _is_off(errors: Errors | None, limit: float) -> bool:
    """Whether a gradient is missing (`errors` is None), or its error exceeds `limit` times its largest number."""
    return errors is None or errors.share > limit


def _compare_traces(
    actual: Traces, expected: Traces, calls: list[RecordedCall]
) -> Iterator[ComparedValue]:
    """Yields a `ComparedValue` for each traced call. Its sort key, `order`, is the position of the traced call among
    `calls`, the reference's records."""
    for name, call, comparison in traced_calls.compare(actual, expected):
        # half a place after the last record before the call; calls between the same two records are sorted by time
        before = sum(recorded.time <= call.time for recorded in calls) - 0.5
        yield ComparedValue(name, call.run, (before, call.time), comparison)
