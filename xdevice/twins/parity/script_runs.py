"""Runs a script on several backends for `xdevice parity`, each in its own process.

A run is a folder that contains a folder for each backend, with the recording, the output and the errors of the
backend's process. If a framework crashes, hangs or cannot be imported, only its row of the report fails. Values that it
recorded before are still compared.
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
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from xdevice.base import requested
from xdevice.base.statuses import status_text
from xdevice.core import generators, selection
from xdevice.errors import RecordingError

from . import recording
from .noise import VARIANTS
from .record_files import INDEX, refusing_damage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RUN: Final = "run.json"
"""The name of the file that says which backend is the reference, and how each backend's process ended."""
CALIBRATION: Final = "calibration"
"""The folder, inside a run's folder, for the reference's calibration runs, which measure the effect of rounding
alone."""
# interpreter arguments that make one of our modules run the script, and save more than the values that the script logs
_TRACING: Final = ("-m", "xdevice.twins.parity.tracing_script")
_OPERATIONS: Final = ("-m", "xdevice.twins.parity.operations_script")
_SHOWN: Final = 6
"""The number of lines shown from the end of a failed process's standard error."""


class RunPlan(NamedTuple):
    """The planned runs: a script with its arguments, the backends, and the Python interpreter for each backend. The
    command line creates the plan."""

    script: Path
    arguments: tuple[str, ...]
    backends: tuple[str, ...]
    reference: str
    """The backend with which the other backends are compared; one of `backends`."""
    pythons: Mapping[str, str]
    """The path of each backend's interpreter, by the name of the backend."""
    timeout: float
    """The time limit for each process in seconds. A process that exceeds the limit is killed."""
    jobs: int = 1
    """The maximum number of processes that run at the same time."""
    is_traced: bool = False
    """Whether the values that the layers of the script's models compute are also saved."""
    floats: str = ""
    """The value of XDEVICE_FLOATS in the usual run of each backend; calibration runs have their own values."""
    calibrates: bool = False
    """Whether the script runs several more times on the reference to measure the effect of rounding alone."""
    keeps_operations: bool = False
    """Whether the operations of each backend's usual run are saved, with the gradients that the run computes.
    Calibration runs save no operations."""
    keeps_gradients: bool = False
    """Whether the report lists each gradient."""

    def scripts(self) -> list[ScriptRun]:
        """Returns the runs in the order in which they are started: one on each backend, then the calibration runs of
        the reference, if there are any."""
        # a usual run, and its folder, have the name of the backend
        usual_runs = [
            ScriptRun(name=backend, backend=backend, place=backend, floats=self.floats)
            for backend in self.backends
        ]
        # each variant is a value of XDEVICE_FLOATS, with which the reference runs once more
        calibration_runs = [
            ScriptRun(
                name=f"{self.reference} ({variant})",
                backend=self.reference,
                place=calibration_folder(variant),
                floats=variant,
            )
            for variant in (VARIANTS if self.calibrates else ())
        ]
        return usual_runs + calibration_runs


class ScriptRun(NamedTuple):
    """One run of the script in a process, on one backend and with one value of XDEVICE_FLOATS."""

    name: str
    """The name of the backend; for a calibration run, followed by the variant, as in `torch (float64)`."""
    backend: str
    place: str
    """The path of the process's folder, relative to the folder of the run."""
    floats: str


def calibration_folder(variant: str) -> str:
    """Returns the folder of a calibration run, relative to the folder of the run: `calibration/jitter1` for the variant
    `jitter:1`."""
    # on Windows, the name of a folder cannot contain a colon
    return f"{CALIBRATION}/{variant.replace(':', '')}"


class Ended(NamedTuple):
    """How a process ended. `error` says why the process failed; it is empty if the exit status was 0."""

    backend: str
    """The name of the run (`ScriptRun.name`)."""
    seconds: float | None
    """The duration of the process in seconds, including imports; None if the process was interrupted, or if only its
    recording is known."""
    error: str
    python: str
    """The path of the interpreter; empty if only the recording is known."""


class Watcher:
    """Receives the progress of all runs. Its methods are called from several threads. This class ignores the progress;
    subclasses display it. The argument `backend` is the name of a run (`ScriptRun.name`)."""

    def run_started(self, backend: str) -> None:
        """Called when a backend's process is about to start."""

    def values_counted(self, backend: str, records: int) -> None:
        """Called several times a second while a backend's process runs. `records` is the number of values that the
        process has recorded so far."""

    def run_ended(self, ended: Ended, records: int) -> None:
        """Called when a backend's process has ended. `records` is the number of values that the process recorded."""


def run(plan: RunPlan, folder: Path, watcher: Watcher) -> list[Ended]:
    """Performs the runs of a plan, `plan.jobs` at a time, and returns how each run ended, in the order of
    `plan.scripts()`.

    Everything is written into `folder`: the values that each process recorded, the output that it printed, and
    `run.json`. These files remain if the run is interrupted.
    """
    processes = _RunningScripts(plan, folder, watcher)
    try:
        with ThreadPoolExecutor(max_workers=plan.jobs) as pool:
            try:
                # `list` waits for all runs, and raises the first error that occurred
                list(pool.map(processes.run, plan.scripts()))
            except BaseException:  # including Ctrl-C, because no process must be left running
                pool.shutdown(wait=False, cancel_futures=True)
                processes.stop()
                raise
    finally:
        # also executed after an interrupt, because the runs that have ended can still be compared
        ended = list(processes.ended.values())
        rows = [ended_run._asdict() for ended_run in ended]
        # the rows of the calibration runs come after the rows of the usual runs
        usual_count = len(plan.backends)
        about = {
            "gradients": plan.keeps_gradients,
            "reference": plan.reference,
            "backends": rows[:usual_count],
            "calibration": rows[usual_count:],
        }
        (folder / RUN).write_text(json.dumps(about, indent=2) + "\n")
    return ended


class _RunningScripts:
    """Runs the scripts of a plan, each in its own process. Used from several threads at once."""

    def __init__(self, plan: RunPlan, folder: Path, watcher: Watcher) -> None:
        self._plan, self._folder, self._watcher = plan, folder, watcher
        self.ended = {
            script.name: Ended(
                script.name,
                seconds=None,
                error="was interrupted",
                python=plan.pythons[script.backend],
            )
            for script in plan.scripts()
        }
        """How each run ended, by the name of the run. The error is "was interrupted" until the run has ended."""
        self._lock = threading.Lock()
        self._alive: set[subprocess.Popen[bytes]] = set()
        self._is_stopped = False

    def stop(self) -> None:
        """Kills the running processes, and prevents other processes from starting."""
        # set under the lock, so that `_start` either sees the flag or has already added its process
        with self._lock:
            self._is_stopped = True
        # a copy, because the threads of the runs remove their processes from the set meanwhile
        for process in tuple(self._alive):
            _kill(process)

    def run(self, script: ScriptRun) -> None:
        """Runs one script until its process ends, stores the outcome in `ended`, and reports the outcome to the
        watcher. Stores and reports nothing after `stop` was called."""
        self._watcher.run_started(script.name)
        folder = self._folder / script.place
        folder.mkdir(parents=True)
        started = time.monotonic()
        why = self._why_failed(script, folder)
        # `stop` has killed the process, so the error in `ended` stays "was interrupted"
        if self._is_stopped:
            return
        why += _last_lines(folder / "stderr.txt") if why else ""
        seconds = time.monotonic() - started
        ended = self.ended[script.name]._replace(seconds=seconds, error=why)
        self.ended[script.name] = ended
        self._watcher.run_ended(ended, count_records(folder))

    def _why_failed(self, script: ScriptRun, folder: Path) -> str:
        """Runs the script until it ends. Returns the reason why it failed; "" if it succeeded."""
        with (
            (folder / "stdout.txt").open("wb") as out,
            (folder / "stderr.txt").open("wb") as err,
        ):
            try:
                process = self._start(script, folder, out, err)
            except OSError as error:
                return f"did not start: {error}"
            why = _wait(
                process,
                self._plan.timeout,
                tick=lambda: self._watcher.values_counted(script.name, count_records(folder)),
            )
            self._alive.discard(process)
            return why

    def _start(
        self, script: ScriptRun, folder: Path, out: BinaryIO, err: BinaryIO
    ) -> subprocess.Popen[bytes]:
        """Starts the process of a script and returns it. The process writes its output and its errors into the open
        files `out` and `err`. Raises `InterruptedError` if `stop` was called, and another `OSError` if the interpreter
        cannot be started."""
        plan = self._plan
        command = [
            plan.pythons[script.backend],
            *_module_arguments(plan, script),
            str(plan.script),
            *plan.arguments,
        ]
        environment = {
            **os.environ,
            selection.VARIABLE: script.backend,
            requested.FLOATS: script.floats,
            # absolute, because the script may change its working directory
            recording.VARIABLE: str(folder.absolute()),
            # all backends get the same seed, because otherwise each one would start with different weights
            generators.VARIABLE: os.environ.get(generators.VARIABLE) or "0",
            "PYTHONFAULTHANDLER": "1",  # after a segmentation fault, the line in Python is printed
        }
        with self._lock:
            if self._is_stopped:
                raise InterruptedError("interrupted")
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment,
                start_new_session=True,  # so that it can be killed together with all processes that it has started
            )  # fmt: skip
            self._alive.add(process)
            return process


def _module_arguments(plan: RunPlan, script: ScriptRun) -> tuple[str, ...]:
    """Returns the arguments `-m` and the module that runs the script; () if Python runs the script directly."""
    # the usual run of a backend has the name of the backend, and a calibration run has another name
    if plan.keeps_operations and script.name == script.backend:
        return _OPERATIONS
    return _TRACING if plan.is_traced else ()


def _wait(process: subprocess.Popen[bytes], timeout: float, tick: Callable[[], None]) -> str:
    """Waits until the process ends, and kills it after `timeout` seconds. Meanwhile, calls `tick()` several times a
    second. Returns the reason why the process failed; "" if it succeeded."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            # in steps of 0.2 s, so that `tick` can update the progress line; `timeout` may be shorter
            status = process.wait(timeout=min(0.2, timeout))
            return "" if status == 0 else f"ended {status_text(status)}"
        tick()
    _kill(process)
    return f"was killed after {timeout:g} s; use a larger --timeout"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills the process and all processes that it started. They form one process group, because `_start` put the
    process into a new session."""
    if hasattr(os, "killpg"):
        # all processes of the group may have ended already
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:  # Windows has no process groups, but this command also ends the child processes
        with suppress(OSError):
            subprocess.run(
                ["taskkill", "/T", "/F", "/PID", str(process.pid)],
                capture_output=True,
                check=False,
            )
        process.kill()
    # collects the exit status, because otherwise the process would remain as a zombie
    process.wait()


def _last_lines(path: Path) -> str:
    """Returns the last non-blank lines of a file, each preceded by a newline and truncated to 300 characters; "" if all
    lines are blank."""
    # the output of a crashed process may end in the middle of a character
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return "".join(f"\n{line[:300]}" for line in lines[-_SHOWN:])


def count_records(folder: Path) -> int:
    """Returns the number of values that the process of this folder has recorded so far."""
    try:
        with (folder / INDEX).open("rb") as file:
            # the first line has the versions that wrote the file, and a crash may have cut the last line short
            return max(0, sum(line.endswith(b"\n") for line in file) - 1)
    except FileNotFoundError:
        return 0


def remove_run(folder: Path) -> None:
    """Removes an earlier run from a folder: first the folders of its backends and its calibration, then `run.json`.
    Everything else in the folder is kept.

    Raises:
        RecordingError: if the folder has no `run.json`, or if that file is damaged.
    """
    path = folder / RUN
    if not path.exists():
        raise RecordingError(
            f"{folder} has no {RUN}: it is not the folder of an earlier run, so nothing was removed"
        )
    with refusing_damage(path):
        places = [str(row["backend"]) for row in json.loads(path.read_text())["backends"]]
    # only the folders that `run.json` lists, because the user may have other files here
    for place in (*places, CALIBRATION):
        # if the file comes from elsewhere, a name with a slash could lead out of the folder
        if (folder / place).is_dir() and (folder / place).parent == folder:
            shutil.rmtree(folder / place)
    # the file is removed last: if deleting a folder fails, the next call still finds the list
    path.unlink()
