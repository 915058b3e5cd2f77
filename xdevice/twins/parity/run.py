"""Runs a script on several backends for `xdevice parity`, each in its own process.

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

from xdevice.base import floats
from xdevice.base.statuses import status_text
from xdevice.core import generators, selection
from xdevice.errors import RecordingError

from . import recording
from .noise import VARIANTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RUN: Final = "run.json"
"""The file that says which backend is the reference, and how each backend's process ended."""
CALIBRATION: Final = "calibration"
"""The name of the folder, in a run's folder, for the further runs of the reference, which measure what rounding alone
does."""
_INTERRUPTED: Final = "was interrupted"
_TRACING: Final = ("-m", "xdevice.twins.parity.traced")
_IN_FLOAT64: Final = ("-m", "xdevice.twins.parity.narrow")
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
        return usual + [Process(f"{name} ({variant})", name, place_of(variant), variant) for variant in variants]


class Process(NamedTuple):
    """One run of the script in a process: on which backend, and with which XDEVICE_FLOATS."""

    name: str
    backend: str
    place: str
    """The path of the process's folder, relative to the folder of the run."""
    floats: str


def place_of(variant: str) -> str:
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
        generators.VARIABLE: os.environ.get(generators.VARIABLE) or "0",
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
