"""`xdevice parity` and `xdevice compare`: runs a script on several backends, each in its own process, and reports.

A run is a folder with one folder per backend, which holds the recording, the output and the errors of its process. So
if a framework crashes, hangs or does not import, only its own row of the report fails, and what it recorded until then
is compared.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice import random
from xdevice.base import floats
from xdevice.base.statuses import status_text
from xdevice.core import selection
from xdevice.errors import RecordingError, listed

from . import recording, traces
from .noise import VARIANTS, measure, moved_nothing
from .recording import Recording
from .report import Finding, Report, Row, hold
from .traces import Traces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from .noise import Noise
    from .recording import RecordedCall
    from .tolerances import Rule

RUN: Final = "run.json"
"""The file that says which backend is the reference, and how each backend's process ended."""
CALIBRATION: Final = "calibration"
"""The name of the folder, in a run's folder, for the further runs of the reference, which measure what rounding alone
does."""
_INTERRUPTED: Final = "was interrupted"
_TRACING: Final = ("-m", "xdevice.parity.traced")
_IN_FLOAT64: Final = ("-m", "xdevice.parity.narrow")
_SHORT: Final = ("float32", "complex64")
_NAMED: Final = 4
"""How many recorded values a note in the report names at most."""
_CALIBRATED: Final = "calibrated: float32 is allowed 8 times what rounding alone does in {} to each value"
_UNMOVED: Final = (
    "calibrating has moved nothing that is recorded: the script takes its numbers from elsewhere than xdevice.tensor, "
    "random, load and convert_state, so only the run in float64 says what rounding does"
)
_SHOWN: Final = 6
"""How many of the last lines that a failed process wrote to standard error are shown."""


class Plan(NamedTuple):
    """What to run: a script with its arguments, the backends, and the Python interpreter for each. Made by the command
    line."""

    script: Path
    arguments: tuple[str, ...]
    backends: tuple[str, ...]
    reference: str
    pythons: Mapping[str, str]
    timeout: float
    jobs: int = 1
    is_traced: bool = False
    """Whether the values that the layers of the script's models compute are kept too."""
    floats: str = ""
    """The value of XDEVICE_FLOATS in the usual run of each backend; calibration runs have values of their own."""
    calibrates: bool = False
    """Whether the script is run several more times on the reference, to measure what rounding alone does."""

    def processes(self) -> list[Process]:
        """The processes to run, in order: one for each backend, and the calibration runs of the reference, if asked
        for."""
        usual = [Process(name, name, name, self.floats) for name in self.backends]
        variants = VARIANTS if self.calibrates else ()
        name = self.reference
        return usual + [Process(f"{name} ({variant})", name, _place_of(variant), variant) for variant in variants]


class Process(NamedTuple):
    """One run of the script in a process: on which backend, and with which XDEVICE_FLOATS."""

    name: str
    backend: str
    place: str
    """The path of the process's folder, relative to the folder of the run."""
    floats: str


def _place_of(variant: str) -> str:
    return f"{CALIBRATION}/{variant.replace(':', '')}"


class Ended(NamedTuple):
    """How a backend's process ended. `error` is empty if the process ended by itself, with status 0."""

    backend: str
    seconds: float | None
    """How many seconds the process took, imports included; None if only its recording is known."""
    error: str
    python: str


class Watcher:
    """Is told about the progress of a run, from several threads. This class ignores what it is told; subclasses show
    it."""

    def starts(self, backend: str) -> None:
        """Called when a backend's process is about to start."""

    def counts(self, backend: str, records: int) -> None:
        """Called several times a second while a backend's process runs. It has recorded `records` values so far."""

    def ends(self, ended: Ended, records: int) -> None:
        """Called when a backend's process has ended, with `records` values recorded."""


class _Running:
    """The processes of a run that are alive. `stop` kills all of them, and keeps further ones from starting."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[Any]] = set()
        self.is_stopped = False

    def start(self, command: list[str], **options: Any) -> subprocess.Popen[Any]:
        with self._lock:
            if self.is_stopped:
                raise InterruptedError("interrupted")
            process = subprocess.Popen(command, **options)
            self._processes.add(process)
            return process

    def forget(self, process: subprocess.Popen[Any]) -> None:
        self._processes.discard(process)

    def stop(self) -> None:
        with self._lock:
            self.is_stopped = True
        for process in tuple(self._processes):
            _kill(process)


def run(plan: Plan, folder: Path, watcher: Watcher) -> list[Ended]:
    """Runs the script once per backend. The recordings are written below `folder`, and stay there if the run is
    interrupted."""
    running = _Running()
    done: dict[str, Ended] = {}

    processes = plan.processes()

    def one(process: Process) -> None:
        done[process.name] = _run_one(plan, process, folder, watcher, running)

    try:
        with ThreadPoolExecutor(max_workers=plan.jobs) as pool:
            try:
                list(pool.map(one, processes))
            except BaseException:  # after Ctrl-C no process that was started stays behind
                pool.shutdown(wait=False, cancel_futures=True)
                running.stop()
                raise
    finally:
        ended = [done.get(one.name) or _end_by_interrupt(plan, one) for one in processes]
        backends, rest = ended[: len(plan.backends)], ended[len(plan.backends) :]
        about = {
            "reference": plan.reference,
            "backends": [one._asdict() for one in backends],
            "calibration": [one._asdict() for one in rest],
        }
        (folder / RUN).write_text(json.dumps(about, indent=2) + "\n")
    return ended


def _end_by_interrupt(plan: Plan, process: Process) -> Ended:
    return Ended(process.name, None, _INTERRUPTED, plan.pythons[process.backend])


def clear(folder: Path) -> None:
    """Removes the files of an earlier run from a folder, and no other files.

    Raises:
        RecordingError: the folder holds no run, or a damaged one.
    """
    path = folder / RUN
    try:
        about = json.loads(path.read_text())
        places = [str(one["backend"]) for one in about["backends"]]
    except FileNotFoundError as error:
        raise RecordingError(f"{folder} has no {RUN}: it is not the folder of an earlier run, and is kept") from error
    except recording.DAMAGES as error:
        raise recording.file_error(path, error) from error
    for place in (*places, CALIBRATION):
        if (folder / place).is_dir() and (folder / place).parent == folder:
            shutil.rmtree(folder / place)
    path.unlink()


def _run_one(plan: Plan, one: Process, folder: Path, watcher: Watcher, running: _Running) -> Ended:
    watcher.starts(one.name)
    own, interpreter = folder / one.place, plan.pythons[one.backend]
    own.mkdir(parents=True)
    environment = {
        **os.environ,
        selection.VARIABLE: one.backend,
        floats.VARIABLE: one.floats,
        recording.VARIABLE: str(own.absolute()),
        random.VARIABLE: os.environ.get(random.VARIABLE) or "0",
        "PYTHONFAULTHANDLER": "1",  # a segmentation fault then prints the line of Python
    }
    started = time.monotonic()
    with (own / "stdout.txt").open("wb") as out, (own / "stderr.txt").open("wb") as err:
        try:
            process = running.start(
                [interpreter, *_runner(plan, one), str(plan.script), *plan.arguments],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            why = f"did not start: {error}"
        else:
            why = _wait(process, plan.timeout, lambda: watcher.counts(one.name, count(own)))
            running.forget(process)
    if running.is_stopped:
        return _end_by_interrupt(plan, one)
    why += _last_lines(own / "stderr.txt") if why else ""
    ended = Ended(one.name, time.monotonic() - started, why, interpreter)
    watcher.ends(ended, count(own))
    return ended


def _runner(plan: Plan, one: Process) -> tuple[str, ...]:
    """The module that runs the script in a process; none if Python itself runs it."""
    if plan.is_traced:
        return _TRACING
    return _IN_FLOAT64 if one.floats == floats.FLOAT64 else ()


def _wait(process: subprocess.Popen[Any], timeout: float, tick: Callable[[], None]) -> str:
    """Waits until the process ends, and kills it after `timeout` seconds. Returns why the process failed; "" if it
    succeeded."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            status = process.wait(timeout=min(0.2, timeout))
            return "" if status == 0 else f"ended {status_text(status)}"
        tick()
    _kill(process)
    return f"had not ended after {timeout:g} s and was killed; --timeout gives it longer"


def _kill(process: subprocess.Popen[Any]) -> None:
    """Kills the process and all processes that it has started: together they are one process group."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:  # Windows has no process groups, but this command ends the children too
        with suppress(OSError):
            subprocess.run(["taskkill", "/T", "/F", "/PID", str(process.pid)], capture_output=True, check=False)
        process.kill()
    process.wait()


def _last_lines(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return "".join(f"\n{line[:300]}" for line in lines[-_SHOWN:])


def count(folder: Path) -> int:
    """How many values a backend has recorded in its folder so far."""
    try:
        with (folder / recording.INDEX).open("rb") as file:
            return max(0, sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b"")) - 1)
    except FileNotFoundError:
        return 0


# from recordings to a report


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
    places = {variant: folder / _place_of(variant) for variant in VARIANTS} if ended else {}
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
        yield Finding(name, one.number, (before - 0.5, one.time), comparison)


def _failed_row(ended: Ended, why: str) -> Row:
    return Row(ended.backend, "did not run", seconds=ended.seconds, error=why, python=ended.python)
