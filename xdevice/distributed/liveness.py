"""Liveness: finds out whether this process is working or stuck, and which line its program has reached.

A rank that does not arrive at a collective may be compiling, loading or saving, and should be waited for. Or it may be
stuck for ever: asleep, in a deadlock, waiting for an answer that never comes. A process works if the program's current
line changes, or if it uses the processor or waits for the disk. An endless loop looks like work. In a call of the
engine, the program's thread only waits, so the processor time of all other threads counts.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import Final, NamedTuple

BUSY: Final = 0.01
"""If the other threads and the child processes together use more than this share of a core, they count as working."""
_SPAN: Final = 1.0
"""The seconds in which they have to use that much."""
_DRIVER: Final = "cuda"
"""How the names of the threads of NVIDIA's driver begin. They ask the GPU for events all the time, which is no sign
that the program works: cuda-EvtHandlr takes up to 0.8 % of a core, for each GPU of an idle process (H200, driver
580)."""
_LIBRARY: Final = os.path.dirname(os.__file__)
_STILL: Final = 5e-6
"""If the thread has used more processor time than this since the last reading, in seconds, it has moved: a blocked
thread uses less, one pass of a loop that sleeps uses more."""


class _Reading(NamedTuple):
    when: float
    place: tuple[int, int]
    """The innermost frame of the program's thread, and the instruction that it is at."""
    program: float
    """The processor time of the program's thread, in seconds."""
    engine: float
    """That of the engine's thread."""
    others: float
    """That of all other threads and of the child processes, without xdevice's own threads and the GPU's driver."""


class Liveness:
    """Watches this process for signs of life: the thread that calls the collectives, the other threads, and the child
    processes."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        """The thread of the program that calls the collectives."""
        self.own_threads: list[threading.Thread] = []
        """xdevice's own threads: their work is no sign that the program works."""
        self.engine_threads: list[threading.Thread] = []
        """The thread in which the engine is called. Its work does not count for the program, but for the engine."""
        self._last: _Reading | None = None
        self._lately: list[_Reading] = []
        self._names: dict[str, str] = {}
        """The names of the threads of this process, by their numbers."""

    def has_moved(self) -> bool:
        """Whether the process has done any work since the last call; True at the first call."""
        reading = self._read()
        last, self._last = self._last, reading
        if (
            last is None
            or reading.place != last.place
            or reading.program - last.program > _STILL
        ):
            self._lately = [reading]
            return True
        # a framework's background work comes in bursts, and a single reading may include a whole burst
        self._lately = [one for one in self._lately if reading.when - one.when < _SPAN] or [
            last
        ]
        first = self._lately[0]
        self._lately.append(reading)
        return (
            reading.others - first.others > BUSY * max(_SPAN, reading.when - first.when)
            or self._waits_for_disk()
        )

    def has_engine_moved(self) -> bool:
        """Whether the engine, which is being called, has done any work since the last call; True at the first call."""
        reading = self._read()
        last, self._last = self._last, reading
        if last is None:
            return True
        worked = reading.others + reading.engine - last.others - last.engine
        return worked > BUSY * (reading.when - last.when)

    def program_line(self) -> str:
        """The file, line and function that the program is at, in the innermost frame that is neither xdevice's nor the
        standard library's: a program that waits for a lock or another process is in the latter."""
        stack = traceback.walk_stack(sys._current_frames().get(self.thread.ident or 0))
        frames = [
            f for f, _ in stack if not f.f_globals.get("__name__", "").startswith("xdevice.")
        ]
        of_program = [f for f in frames if not _is_pythons(f.f_code.co_filename)]
        if not frames:
            return "a line that is not known"
        frame = (of_program or frames)[0]
        return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"

    def _read(self) -> _Reading:
        """Reads the processor times of this moment, and where the program's thread is."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        program = _time_of(self.thread)
        reaped = os.times()
        children = reaped.children_user + reaped.children_system + _children_time(os.getpid())
        driver = self._time_of_driver()
        # last and at once: this thread works too, and takes milliseconds for the readings above
        engine, ours = (
            sum(map(_time_of, self.engine_threads)),
            sum(map(_time_of, self.own_threads)),
        )
        others = children + time.process_time() - program - engine - ours - driver
        return _Reading(
            time.monotonic(),
            (id(frame), frame.f_lasti if frame is not None else 0),
            program,
            engine,
            others,
        )

    def _time_of_driver(self) -> float:
        """The processor time that the threads of a GPU's driver have used, in seconds; 0 if the operating system does
        not tell."""
        total = 0.0
        with suppress(OSError, ValueError, IndexError):
            tasks = os.listdir("/proc/self/task")
            self._names = {task: self._names.get(task) or _name_of(task) for task in tasks}
            for task in tasks:
                if self._names[task].startswith(_DRIVER):
                    with open(f"/proc/self/task/{task}/schedstat", encoding="ascii") as file:
                        total += int(file.read().split()[0]) / 1e9
        return total

    def _waits_for_disk(self) -> bool:
        with (
            suppress(OSError, IndexError),
            open(f"/proc/self/task/{self.thread.native_id}/stat") as file,
        ):
            return file.read().rpartition(")")[2].split()[0] == "D"
        return False


def _is_pythons(path: str) -> bool:
    return path.startswith(("<frozen", _LIBRARY)) and "-packages" not in path


def _name_of(task: str) -> str:
    """The name of a thread of this process; "" if it has ended."""
    with (
        suppress(OSError),
        open(f"/proc/self/task/{task}/comm", encoding="utf-8", errors="replace") as file,
    ):
        return file.read()
    return ""


def _time_of(thread: threading.Thread) -> float:
    """The processor time that a thread has used, in seconds; 0 if the operating system does not tell."""
    if (
        thread.ident is None
        or not thread.is_alive()
        or not hasattr(time, "pthread_getcpuclockid")
    ):
        return 0.0
    with suppress(OSError):
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return 0.0


def _children_time(pid: int) -> float:
    """The processor time that the living descendants of a process have used, in seconds; 0 if the operating system does
    not tell."""
    total = 0.0
    with suppress(OSError, ValueError, IndexError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                children = file.read().split()
            for child in children:
                with open(f"/proc/{child}/stat", encoding="ascii") as file:
                    fields = file.read().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                total += _children_time(int(child))
    return total
