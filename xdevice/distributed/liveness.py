"""Determines whether this process is working or stuck, and which line its program has reached.

A rank that does not arrive at a collective may be compiling, loading or saving; then the other
ranks should wait for it. Or it may be stuck for ever: asleep, in a deadlock, or waiting for an
answer that never comes. A process is considered to be working if the program's current line
changes, or if the process uses the processor or waits for the disk. So an endless loop is
considered work, too. During a call of the engine the program's thread only waits, so the
processor time of all other threads is measured instead.
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
"""The share of a core above which the other threads and the child processes, taken together,
are considered to be working."""
_SPAN_SECONDS: Final = 1.0
"""The number of seconds over which that share is measured."""
_DRIVER_PREFIX: Final = "cuda"
"""The prefix of the names of the threads of NVIDIA's driver. These threads poll the GPU for events even if the program
does nothing: in an idle process, cuda-EvtHandlr uses up to 0.8 % of a core for each GPU (H200, driver 580)."""
_STANDARD_LIBRARY: Final = os.path.dirname(os.__file__)
"""The folder of Python's standard library."""
_MOVED_SECONDS: Final = 5e-6
"""The program's thread is considered to be moving if it has used more processor time than this, in seconds, since the
last reading. A blocked thread uses less, and one iteration of a loop that sleeps uses more."""


class _Reading(NamedTuple):
    """The signs of life of this process at one moment. Processor times are in seconds since the process started."""

    when: float
    """The time of the reading, by `time.monotonic`."""
    place: tuple[int, int]
    """The `id` of the innermost frame of the program's thread, and the index of the frame's current instruction."""
    program: float
    """The processor time of the program's thread."""
    engine: float
    """The processor time of the engine's thread."""
    others: float
    """The processor time of all other threads and of the child processes, except xdevice's own threads and those of
    the GPU's driver."""


class Liveness:
    """Watches this process for signs of life: the thread that calls the collectives, the other threads, and the child
    processes."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        """The thread of the program that calls the collectives."""
        self.own_threads: list[threading.Thread] = []
        """xdevice's own threads. Their work does not show that the program is working."""
        self.engine_threads: list[threading.Thread] = []
        """The thread in which the engine is called. Its work is attributed to the engine, and
        not to the program."""
        self._last: _Reading | None = None
        self._recent: list[_Reading] = []
        """The readings of the last `_SPAN_SECONDS` seconds, except readings taken before the program's thread last
        moved."""
        self._names: dict[str, str] = {}
        """The names of the threads of this process, by the numbers of the threads in /proc."""

    def has_moved(self) -> bool:
        """Whether the process has done any work since the last call; True at the first call."""
        reading = self._read()
        last, self._last = self._last, reading
        # the program's own thread has moved
        if (
            last is None
            or reading.place != last.place
            or reading.program - last.program > _MOVED_SECONDS
        ):
            self._recent = [reading]
            return True
        # the other threads are measured over a longer span, because a framework's background work comes in bursts: a
        # whole burst may fall between two readings, and is no sign of progress. If no earlier reading is within this
        # span, the last reading is used
        recent = [
            earlier for earlier in self._recent if reading.when - earlier.when < _SPAN_SECONDS
        ] or [last]
        oldest = recent[0]
        self._recent = [*recent, reading]
        # `max`, because after a shorter time, a single burst would be a large part of that time
        return (
            reading.others - oldest.others
            > BUSY * max(_SPAN_SECONDS, reading.when - oldest.when)
            or self._waits_for_disk()
        )

    def has_engine_moved(self) -> bool:
        """Whether the engine has done any work since the last call of this method; True at the first call. This method
        must be called during a call of the engine.
        """
        reading = self._read()
        last, self._last = self._last, reading
        if last is None:
            return True
        # engines also work in threads of their own, whose time is part of `others`
        worked = reading.others + reading.engine - last.others - last.engine
        return worked > BUSY * (reading.when - last.when)

    def program_line(self) -> str:
        """Returns the file, line and function that the program has reached, such as
        "train.py:12 in step". This is the innermost frame outside xdevice and the standard
        library, because a program that waits for a lock or another process is inside the
        standard library. Returns "an unknown line" if the program's thread has ended."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        # the thread has ended; `walk_stack(None)` would walk the stack of the current thread
        if frame is None:
            return "an unknown line"
        frames = [
            f
            for f, _ in traceback.walk_stack(frame)
            if not f.f_globals.get("__name__", "").startswith("xdevice.")
        ]
        of_program = [f for f in frames if not _is_in_standard_library(f.f_code.co_filename)]
        # the innermost frame of the program; if there is none, of the standard library, and then of xdevice
        frame = [*of_program, *frames, frame][0]
        return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"

    def _read(self) -> _Reading:
        """Returns the current signs of life."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        program = _time_of(self.thread)
        # these times of `os.times` are those of child processes that have ended; without them the total would decrease
        # when a child process ends
        ended = os.times()
        children = ended.children_user + ended.children_system + _children_time(os.getpid())
        driver = self._time_of_driver()
        # these times are read last, one directly after the other, because the current thread is
        # one of xdevice's own, and the readings above take milliseconds of its time
        engine, ours = (
            sum(map(_time_of, self.engine_threads)),
            sum(map(_time_of, self.own_threads)),
        )
        others = children + time.process_time() - program - engine - ours - driver
        return _Reading(
            when=time.monotonic(),
            place=(id(frame), frame.f_lasti if frame is not None else 0),
            program=program,
            engine=engine,
            others=others,
        )

    def _time_of_driver(self) -> float:
        """Returns the processor time that the threads of the GPU driver have used, in seconds,
        or 0 if the operating system does not report it."""
        total = 0.0
        # a thread may end while its files are read
        with suppress(OSError, ValueError, IndexError):
            tasks = os.listdir("/proc/self/task")
            # each name is read once, and discarded when its thread has ended
            self._names = {task: self._names.get(task) or _name_of(task) for task in tasks}
            for task in tasks:
                if self._names[task].startswith(_DRIVER_PREFIX):
                    # the first number is the processor time in nanoseconds
                    with open(f"/proc/self/task/{task}/schedstat", encoding="ascii") as file:
                        total += int(file.read().split()[0]) / 1e9
        return total

    def _waits_for_disk(self) -> bool:
        """Whether the program's thread is waiting for the disk; False if the operating system
        does not report it."""
        with (
            suppress(OSError, IndexError),
            open(f"/proc/self/task/{self.thread.native_id}/stat") as file,
        ):
            # the first field after the name in parentheses is the state; D is "uninterruptible sleep"
            return file.read().rpartition(")")[2].split()[0] == "D"
        return False


def _is_in_standard_library(path: str) -> bool:
    """Whether a source file belongs to Python's standard library. Files of an installed package in the same folder do
    not belong to it.
    """
    return path.startswith(("<frozen", _STANDARD_LIBRARY)) and "-packages" not in path


def _name_of(task: str) -> str:
    """Returns the name of the thread of this process with the number `task` in /proc, or "" if
    the thread has ended."""
    with (
        suppress(OSError),
        open(f"/proc/self/task/{task}/comm", encoding="utf-8", errors="replace") as file,
    ):
        return file.read()
    return ""


def _time_of(thread: threading.Thread) -> float:
    """Returns the processor time that a thread has used, in seconds. Returns 0 if the thread is
    not running, or if the operating system does not report the time."""
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
    """Returns the processor time that the running descendants of a process have used, in
    seconds. Returns 0 if the operating system does not report the time."""
    total = 0.0
    with suppress(OSError, ValueError, IndexError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                children = file.read().split()
            for child in children:
                with open(f"/proc/{child}/stat", encoding="ascii") as file:
                    # the name in parentheses may contain spaces; utime and stime are the 12th
                    # and 13th field after it
                    fields = file.read().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                total += _children_time(int(child))
    return total
