"""Reads the folders that `run` and `record` have written, and compares what is in them.

A folder holds a run, with a recording for each backend, or the recording of one backend.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from xdevice.base import floats
from xdevice.errors import RecordingError, listed

from . import recording, traces
from .noise import VARIANTS, measure, moved_nothing
from .recording import Recording
from .report import Finding, Report, Row, hold
from .run import RUN, Ended, place_of
from .traces import Traces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from .noise import Noise
    from .recording import RecordedCall
    from .tolerances import Rule

_SHORT: Final = ("float32", "complex64")
_NAMED: Final = 4
"""How many recorded values a note in the report names at most."""
_CALIBRATED: Final = "calibrated: float32 is allowed 8 times what rounding alone does in {} to each value"
_UNMOVED: Final = (
    "calibrating has moved nothing that is recorded: the script takes its numbers from elsewhere than xdevice.tensor, "
    "random, load and convert_state, so only the run in float64 says what rounding does"
)


class Run(NamedTuple):
    """What `load` read from a folder: all recordings of a run, or the recording of a single backend."""

    folder: Path
    reference: str
    ended: list[Ended]
    recordings: Mapping[str, Recording]
    traces: Mapping[str, Traces]
    calibration: Mapping[str, Recording]
    """The recordings of the reference's further runs, by the value of XDEVICE_FLOATS that each run had."""

    def has(self, backend: str) -> int:
        """How many values a backend has recorded, plus how many calls of models were traced on it."""
        return len(self.entries(backend)) + (len(self.traces[backend].runs) if backend in self.traces else 0)

    def entries(self, backend: str) -> list[RecordedCall]:
        """The calls of `record` that a backend has made; empty if there is no recording of it."""
        return self.recordings[backend].entries if backend in self.recordings else []

    def is_float64(self, backend: str) -> bool:
        """Whether the backend's run used float64 as the default dtype (XDEVICE_FLOATS=float64)."""
        return backend in self.recordings and self.recordings[backend].header.get("floats") == floats.FLOAT64

    def noise(self, backend: str) -> Noise | None:
        """The noise of the reference's values: what rounding alone does to them. None for any other backend, and if no
        calibration run measured it."""
        if not self.calibration or backend != self.reference or not self.entries(backend):
            return None
        return measure(self.entries(backend), self._variants())

    def _variants(self) -> dict[str, list[RecordedCall]]:
        return {variant: found.entries for variant, found in self.calibration.items()}

    def notes(self) -> list[str]:
        """Notes for the report about float64 and calibration in this run."""
        found = [_float32_note(name, self.entries(name)) for name in self.recordings if self.is_float64(name)]
        if self.calibration and self.entries(self.reference):
            found.append(_CALIBRATED.format(self.reference))
            if moved_nothing(self.entries(self.reference), self._variants()):
                found.append(_UNMOVED)
        return [note for note in found if note]


def load(folder: Path) -> Run:
    """Reads a folder that holds a run, or the recording of a single backend.

    Raises:
        RecordingError: the folder has no recording, or a damaged one, or a calibration run failed.
    """
    if (folder / recording.INDEX).exists():
        only = Recording(folder)
        versions = list(only.header["versions"])
        name = only.header["backend"] or (versions[0] if len(versions) == 1 else folder.name)
        return Run(folder, name, [Ended(name, None, "", "")], {name: only}, _traces({name: folder}), {})
    path = folder / RUN
    if not path.exists():
        raise RecordingError(_no_recording(folder))
    try:
        about = json.loads(path.read_text())
        ended = [Ended(**one) for one in about["backends"]]
        there = {one.backend: folder / one.backend for one in ended}
        reference = str(about["reference"])
        # if the reference failed, there is nothing to calibrate, and its row of the report says why
        is_there = not any(one.error for one in ended if one.backend == reference)
        rest = [Ended(**one) for one in about.get("calibration", []) if is_there]
    except recording.DAMAGES as error:
        raise recording.file_error(path, error) from error
    found = {name: Recording(path) for name, path in there.items() if (path / recording.INDEX).exists()}
    return Run(folder, reference, ended, found, _traces(there), _calibration(folder, rest))


def _traces(folders: Mapping[str, Path]) -> dict[str, Traces]:
    found = {name: traces.read(folder, name) for name, folder in folders.items()}
    return {name: of for name, of in found.items() if of is not None}


def _calibration(folder: Path, ended: list[Ended]) -> dict[str, Recording]:
    failed = next((one for one in ended if one.error), None)
    if failed is not None:
        raise RecordingError(f"cannot calibrate: {failed.backend} {failed.error}")
    places = {variant: folder / place_of(variant) for variant in VARIANTS} if ended else {}
    return {variant: Recording(path) for variant, path in places.items()}


def _float32_note(name: str, entries: list[RecordedCall]) -> str:
    short = [f"{entry.name}{path}" for entry in entries for path, dtype in entry.dtypes().items() if dtype in _SHORT]
    if not short:
        return ""
    return (
        f"{name} ran in float64, but {listed(dict.fromkeys(short), _NAMED)} is {' or '.join(_SHORT)}: the script says "
        f"so, or made it before `import xdevice`, or its framework has no default to change; what float32 rounds hides "
        f"faults"
    )


def _no_recording(folder: Path) -> str:
    text = f"{folder} has no recording: neither {recording.INDEX} of one backend nor {RUN} of a run"
    inside = sorted(path.parent for depth in ("*", "*/*") for path in folder.glob(f"{depth}/{recording.INDEX}"))
    if not inside:
        return f"{text}; xdevice parity --save {folder} writes one"
    return (
        f"{text}; it holds {len(inside)} of single backends, so name one of these, such as {inside[0]}. "
        f"What pytest --xd-record has kept is compared by running the tests again: pytest --xd-compare={folder}"
    )


def report_of_run(folder: Path, rule: Rule) -> Report:
    """Compares each backend with the reference, in the folder that `run` wrote, and returns the report."""
    run = load(folder)
    if not run.recordings and not run.traces and all(not one.error for one in run.ended):
        return Report(
            [_failed_row(one, "recorded nothing") for one in run.ended],
            [
                "nothing was recorded; the script says what to compare: xdevice.record('loss', loss); or --trace keeps "
                "what the layers of its models compute"
            ],
        )
    rows = [_row(run, one, run, run.reference, rule) for one in run.ended]
    return Report(rows, [*run.notes(), *(note for of in run.traces.values() for note in of.refusals)])


def report_of_two(first: Path, second: Path, rule: Rule) -> Report:
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
    unused = [name for name in expected.recordings if name not in used]
    notes = [f"{name} of {first} was compared with nothing" for name in unused]
    return Report(rows, [*notes, *dict.fromkeys([*expected.notes(), *actual.notes()])])


def _row(run: Run, ended: Ended, other: Run, reference: str, rule: Rule) -> Row:
    """The report's row for one backend: `ended` in `run`, compared with `reference` in `other`, which may be the same
    run."""
    name = ended.backend
    row = _failed_row(ended, ended.error) if ended.error else Row(name, "agrees", seconds=ended.seconds)
    row.python = ended.python
    row.records = run.has(name)
    row.version = run.recordings[name].header["versions"].get(name) if name in run.recordings else None
    row.version = row.version or (run.traces[name].version if name in run.traces else None)
    if run is other and name == reference:
        row.state = "reference" if not ended.error else row.state
        if not row.records and not ended.error:
            return _failed_row(
                ended,
                "recorded nothing, so there is nothing to hold the others against; "
                "call xdevice.record, or give --trace",
            )
        return row
    row.reference = reference if run is other else f"{reference} of {other.folder}"
    if _did_not_run(other, reference):
        row.state = row.state if ended.error else "not compared"
        return row
    row.findings = hold(
        run.entries(name), other.entries(reference), rule, is_complete=not ended.error,
        noise=other.noise(reference), is_float64=run.is_float64(name) and other.is_float64(reference),
    )  # fmt: skip
    if name in run.traces and reference in other.traces:
        row.findings += _of_traces(run.traces[name], other.traces[reference], other.entries(reference))
    if row.first is not None and not ended.error:
        row.state = "diverges"
    return row


def _did_not_run(run: Run, backend: str) -> bool:
    return not run.has(backend) or any(one.error for one in run.ended if one.backend == backend)


def _of_traces(actual: Traces, expected: Traces, entries: list[RecordedCall]) -> Iterator[Finding]:
    for name, one, comparison in traces.hold(actual, expected):
        before = sum(entry.time <= one.time for entry in entries)
        yield Finding(name, one.run, (before - 0.5, one.time), comparison)


def _failed_row(ended: Ended, why: str) -> Row:
    return Row(ended.backend, "did not run", seconds=ended.seconds, error=why, python=ended.python)
