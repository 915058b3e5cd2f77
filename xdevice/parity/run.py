"""`xdevice parity` and `xdevice compare`: one script on several backends, each in a process of its own.

A run is a folder with one folder a backend, which holds what it recorded, printed and complained of. So a framework
that crashes, hangs or is missing costs its own row, and what it recorded until then is compared.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice import random
from xdevice.core import selection
from xdevice.errors import RecordingError

from . import recording, traces
from .recording import Recording
from .report import Finding, Report, Row, hold
from .traces import Traces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from .comparing import Rule
    from .recording import Entry

RUN: Final = "run.json"
"""What is known of a run beside its recordings: the reference, and how each backend's process ended."""
_INTERRUPTED: Final = "was interrupted"
_TRACING: Final = ["-m", "xdevice.parity.traced"]
_SHOWN: Final = 6
"""The last lines of an error that are worth a row of a table."""


class Plan(NamedTuple):
    """What to run: a script with its arguments, on which backends, by which interpreters."""

    script: Path
    arguments: tuple[str, ...]
    backends: tuple[str, ...]
    reference: str
    pythons: Mapping[str, str]
    timeout: float
    jobs: int = 1
    is_traced: bool = False
    """Whether the layers of the script's models are kept too."""


class Ended(NamedTuple):
    """How a backend's process ended; no error if by itself, with status 0."""

    backend: str
    seconds: float | None
    """Of the whole process, importing included; None where only the recording is known."""
    error: str
    python: str


class Watcher:
    """Is told how a run goes on, from several threads. This one lets it pass."""

    def starts(self, backend: str) -> None:
        """A backend's process is about to start."""

    def counts(self, backend: str, records: int) -> None:
        """So many values it has recorded so far."""

    def ends(self, ended: Ended, records: int) -> None:
        """It has ended."""


class _Running:
    """The processes of a run. After `stop` none is there, and none is started."""

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

    def ended(self, process: subprocess.Popen[Any]) -> None:
        self._processes.discard(process)

    def stop(self) -> None:
        with self._lock:
            self.is_stopped = True
        for process in tuple(self._processes):
            _kill(process)


def run(plan: Plan, folder: Path, watcher: Watcher) -> list[Ended]:
    """Runs the script once per backend; `folder` keeps the recordings, also of a run that is interrupted."""
    running = _Running()
    done: dict[str, Ended] = {}

    def one(backend: str) -> None:
        done[backend] = _run_one(plan, backend, folder, watcher, running)

    try:
        with ThreadPoolExecutor(max_workers=plan.jobs) as pool:
            try:
                list(pool.map(one, plan.backends))
            except BaseException:  # Ctrl-C: nothing that was started stays behind
                pool.shutdown(wait=False, cancel_futures=True)
                running.stop()
                raise
    finally:
        cut_off = [Ended(name, None, _INTERRUPTED, plan.pythons[name]) for name in plan.backends if name not in done]
        ended = [*done.values(), *cut_off]
        ended.sort(key=lambda one: plan.backends.index(one.backend))
        about = {"reference": plan.reference, "backends": [one._asdict() for one in ended]}
        (folder / RUN).write_text(json.dumps(about, indent=2) + "\n")
    return ended


def _run_one(plan: Plan, backend: str, folder: Path, watcher: Watcher, running: _Running) -> Ended:
    watcher.starts(backend)
    own = folder / backend
    own.mkdir(parents=True)
    environment = {
        **os.environ,
        selection.VARIABLE: backend,
        recording.VARIABLE: str(own.absolute()),
        random.VARIABLE: os.environ.get(random.VARIABLE) or "0",
        "PYTHONFAULTHANDLER": "1",  # a segmentation fault then tells its line
    }
    started = time.monotonic()
    with (own / "stdout.txt").open("wb") as out, (own / "stderr.txt").open("wb") as err:
        try:
            process = running.start(
                [plan.pythons[backend], *_TRACING * plan.is_traced, str(plan.script), *plan.arguments],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            why = f"did not start: {error}"
        else:
            why = _wait(process, plan.timeout, lambda: watcher.counts(backend, count(own)))
            running.ended(process)
    if running.is_stopped:
        return Ended(backend, None, _INTERRUPTED, plan.pythons[backend])
    why += _last_lines(own / "stderr.txt") if why else ""
    ended = Ended(backend, time.monotonic() - started, why, plan.pythons[backend])
    watcher.ends(ended, count(own))
    return ended


def _wait(process: subprocess.Popen[Any], timeout: float, tick: Callable[[], None]) -> str:
    """Waits until the process has ended, or its time has. Why it did not run to its end, or nothing."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            status = process.wait(timeout=min(0.2, timeout))
            return "" if status == 0 else f"ended with {_status_text(status)}"
        tick()
    _kill(process)
    return f"was killed after {timeout:g} s without an end; --timeout gives it longer"


def _kill(process: subprocess.Popen[Any]) -> None:
    """The process and all that it has started, which are a group of their own."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:  # Windows has no groups to kill, and a command that follows parents to their children
        with suppress(OSError):
            subprocess.run(["taskkill", "/T", "/F", "/PID", str(process.pid)], capture_output=True, check=False)
        process.kill()
    process.wait()


def _status_text(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


def _last_lines(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return "".join(f"\n{line[:300]}" for line in lines[-_SHOWN:])


def count(folder: Path) -> int:
    """How many values have been recorded so far."""
    try:
        with (folder / recording.INDEX).open("rb") as file:
            return max(0, sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b"")) - 1)
    except FileNotFoundError:
        return 0


# from recordings to a report


class Run(NamedTuple):
    """A folder of recordings: of a run, or of one backend."""

    folder: Path
    reference: str
    ended: list[Ended]
    recordings: Mapping[str, Recording]
    traces: Mapping[str, Traces]

    def has(self, backend: str) -> int:
        """How much a backend has left: values recorded, and calls of models traced."""
        return len(self.entries(backend)) + (len(self.traces[backend].runs) if backend in self.traces else 0)

    def entries(self, backend: str) -> list[Entry]:
        """What a backend has recorded, which may be nothing."""
        return self.recordings[backend].entries if backend in self.recordings else []


def load(folder: Path) -> Run:
    """A folder of recordings.

    Raises:
        RecordingError: it has none, or a damaged one.
    """
    if (folder / recording.INDEX).exists():
        only = Recording(folder)
        versions = list(only.header["versions"])
        name = only.header["backend"] or (versions[0] if len(versions) == 1 else folder.name)
        return Run(folder, name, [Ended(name, None, "", "")], {name: only}, _traces({name: folder}))
    path = folder / RUN
    if not path.exists():
        raise RecordingError(_no_recording(folder))
    try:
        about = json.loads(path.read_text())
        ended = [Ended(**one) for one in about["backends"]]
        there = {one.backend: folder / one.backend for one in ended}
        reference = str(about["reference"])
    except recording.DAMAGES as error:
        raise recording.damaged(path, error) from error
    found = {name: Recording(path) for name, path in there.items() if (path / recording.INDEX).exists()}
    return Run(folder, reference, ended, found, _traces(there))


def _traces(folders: Mapping[str, Path]) -> dict[str, Traces]:
    found = {name: traces.found(folder, name) for name, folder in folders.items()}
    return {name: of for name, of in found.items() if of is not None}


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
    """The report of what `run` left in a folder: each backend held against the reference."""
    run = load(folder)
    if not run.recordings and not run.traces and all(not one.error for one in run.ended):
        return Report(
            [_failed(one, "recorded nothing") for one in run.ended],
            [
                "nothing was recorded; the script says what to compare: xdevice.record('loss', loss); or --trace keeps "
                "what the layers of its models compute"
            ],
        )
    rows = [_row(run, one, run, run.reference, rule) for one in run.ended]
    return Report(rows, [note for of in run.traces.values() for note in of.refusals])


def report_of_two(first: Path, second: Path, rule: Rule) -> Report:
    """What the second folder has, held against the first: runs, or recordings of one backend.

    Each backend of the second is held against the first's of the same name, or else against the first's reference.

    Raises:
        RecordingError: a folder without recordings.
    """
    expected, actual = load(first), load(second)
    rows, used = [], set()
    for one in actual.ended:
        reference = one.backend if one.backend in expected.recordings else expected.reference
        used.add(reference)
        rows.append(_row(actual, one, expected, reference, rule))
    unused = [name for name in expected.recordings if name not in used]
    return Report(rows, [f"{name} of {first} was compared with nothing" for name in unused])


def _row(run: Run, ended: Ended, other: Run, reference: str, rule: Rule) -> Row:
    """One backend of a run, held against one of another run or of the same."""
    name = ended.backend
    row = _failed(ended, ended.error) if ended.error else Row(name, "agrees", seconds=ended.seconds)
    row.python = ended.python
    row.records = run.has(name)
    row.version = run.recordings[name].header["versions"].get(name) if name in run.recordings else None
    row.version = row.version or (run.traces[name].version if name in run.traces else None)
    if run is other and name == reference:
        row.state = "reference" if not ended.error else row.state
        if not row.records and not ended.error:
            return _failed(ended, "recorded nothing, so there is nothing to hold the others against")
        return row
    row.reference = reference if run is other else f"{reference} of {other.folder}"
    if _did_not_run(other, reference):
        row.state = row.state if ended.error else "not compared"
        return row
    row.findings = hold(run.entries(name), other.entries(reference), rule, is_complete=not ended.error)
    if name in run.traces and reference in other.traces:
        row.findings += _of_traces(run.traces[name], other.traces[reference], other.entries(reference))
    if row.first is not None and not ended.error:
        row.state = "diverges"
    return row


def _did_not_run(run: Run, backend: str) -> bool:
    return not run.has(backend) or any(one.error for one in run.ended if one.backend == backend)


def _of_traces(actual: Traces, expected: Traces, entries: list[Entry]) -> Iterator[Finding]:
    for name, one, comparison in traces.hold(actual, expected):
        before = sum(entry.time <= one.time for entry in entries)
        yield Finding(name, one.number, (before - 0.5, one.time), comparison)


def _failed(ended: Ended, why: str) -> Row:
    return Row(ended.backend, "did not run", seconds=ended.seconds, error=why, python=ended.python)
