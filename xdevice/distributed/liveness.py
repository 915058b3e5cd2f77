"""Liveness: finds out whether this process is working or stuck, and which line its program has reached.

A rank that does not arrive at a collective may be compiling, loading or saving, and the other
ranks should wait for it. Or it may be stuck for ever: asleep, in a deadlock, or waiting for an
answer that never comes. A process counts as working if the program's current line changes, or
if it uses the processor or waits for the disk. An endless loop counts as work, too. During a
call of the engine the program's thread only waits, so the processor time of all other threads
counts.
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
"""The share of a core above which the other threads and the child processes together count as
working."""
_SPAN_SECONDS: Final = 1.0
"""The number of seconds over which that share is measured."""
_DRIVER_PREFIX: Final = "cuda"
"""The beginning of the names of the threads of NVIDIA's driver. They ask the GPU for events all
the time, which is no sign that the program works: cuda-EvtHandlr takes up to 0.8 % of a core,
for each GPU of an idle process (H200, driver 580)."""
_LIBRARY: Final = os.path.dirname(os.__file__)
"""The folder of Python's standard library."""
_MOVED_SECONDS: Final = 5e-6
"""The processor time, in seconds since the last reading, above which the program's thread counts as moving: a blocked
thread uses less, and one pass of a loop that sleeps uses more."""


class _Reading(NamedTuple):
    """The signs of life of this process at one moment. Processor times are in seconds since the
    process started."""

    when: float
    """The time of the reading, by `time.monotonic`."""
    place: tuple[int, int]
    """The `id` of the innermost frame of the program's thread, and the instruction that it is
    at."""
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
        """xdevice's own threads, whose work is no sign that the program works."""
        self.engine_threads: list[threading.Thread] = []
        """The thread in which the engine is called. Its work counts for the engine, and not for
        the program."""
        self._last: _Reading | None = None
        self._recent: list[_Reading] = []
        """The readings of the last `_SPAN_SECONDS` seconds, without those before the program's thread
        last moved."""
        self._names: dict[str, str] = {}
        """The names of the threads of this process, by their numbers in /proc."""

    def has_moved(self) -> bool:
        """Whether the process has done any work since the last call; True at the first call."""
        reading = self._read()
        last, self._last = self._last, reading
        # the program's thread itself has moved
        if (
            last is None
            or reading.place != last.place
            or reading.program - last.program > _MOVED_SECONDS
        ):
            self._recent = [reading]
            return True
        # measured over a span, because a framework's background work comes in bursts: the time
        # between two readings may contain a whole burst, which is no sign of progress
        self._recent = [
            earlier for earlier in self._recent if reading.when - earlier.when < _SPAN_SECONDS
        ] or [last]
        oldest = self._recent[0]
        self._recent.append(reading)
        return (
            reading.others - oldest.others
            > BUSY * max(_SPAN_SECONDS, reading.when - oldest.when)
            or self._waits_for_disk()
        )

    def has_engine_moved(self) -> bool:
        """Whether the engine has done any work since the last call of this method; True at the
        first call. To be called during a call of the engine."""
        reading = self._read()
        last, self._last = self._last, reading
        if last is None:
            return True
        # engines also work in threads of their own, which count as others
        worked = reading.others + reading.engine - last.others - last.engine
        return worked > BUSY * (reading.when - last.when)

    def program_line(self) -> str:
        """Returns the file, line and function that the program is at: "train.py:12 in step".
        That is the innermost frame outside xdevice and the standard library, because a program
        that waits for a lock or another process is inside the standard library. Returns "an
        unknown line" if the program's thread has ended."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        # the thread has ended; given None, `walk_stack` would walk the stack of this thread
        if frame is None:
            return "an unknown line"
        frames = [
            f
            for f, _ in traceback.walk_stack(frame)
            if not f.f_globals.get("__name__", "").startswith("xdevice.")
        ]
        of_program = [f for f in frames if not _is_in_standard_library(f.f_code.co_filename)]
        frame = [*of_program, *frames, frame][0]
        return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"

    def _read(self) -> _Reading:
        """Returns a reading of this moment."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        program = _time_of(self.thread)
        # child processes that have ended count too, or their end would look like time that runs
        # backwards
        reaped = os.times()
        children = reaped.children_user + reaped.children_system + _children_time(os.getpid())
        driver = self._time_of_driver()
        # read last, and one directly after the other: this thread is one of xdevice's own, and
        # the readings above take it milliseconds
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
        """Returns the processor time that the threads of a GPU's driver have used, in seconds;
        0 if the operating system does not tell."""
        total = 0.0
        # a thread may end while it is read
        with suppress(OSError, ValueError, IndexError):
            tasks = os.listdir("/proc/self/task")
            # each name is read once, and forgotten when its thread has ended
            self._names = {task: self._names.get(task) or _name_of(task) for task in tasks}
            for task in tasks:
                if self._names[task].startswith(_DRIVER_PREFIX):
                    # the first number is the processor time in nanoseconds
                    with open(f"/proc/self/task/{task}/schedstat", encoding="ascii") as file:
                        total += int(file.read().split()[0]) / 1e9
        return total

    def _waits_for_disk(self) -> bool:
        """Whether the program's thread waits for the disk; False if the operating system does
        not tell."""
        with (
            suppress(OSError, IndexError),
            open(f"/proc/self/task/{self.thread.native_id}/stat") as file,
        ):
            # the first field after the name in parentheses is the state; D is "uninterruptible
            # sleep"
            return file.read().rpartition(")")[2].split()[0] == "D"
        return False


def _is_in_standard_library(path: str) -> bool:
    """Whether a source file belongs to Python's standard library, and not to an installed
    package in the same folder."""
    return path.startswith(("<frozen", _LIBRARY)) and "-packages" not in path


def _name_of(task: str) -> str:
    """Returns the name of a thread of this process, given by its number in /proc; "" if it has
    ended."""
    with (
        suppress(OSError),
        open(f"/proc/self/task/{task}/comm", encoding="utf-8", errors="replace") as file,
    ):
        return file.read()
    return ""


def _time_of(thread: threading.Thread) -> float:
    """Returns the processor time that a thread has used, in seconds; 0 if it is not running, or
    if the operating system does not tell."""
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
    seconds; 0 if the operating system does not tell."""
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
