"""The threads in which `parallel.run` runs tasks, kept for its next call.

A call uses `MOST` threads at most. Tasks that call `parallel.run` themselves could wait for free threads for ever, so a
nested call gets only the threads that are left of the `MOST`, and its caller's thread does the other tasks.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from xdevice.base import forks
from xdevice.performance import workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Run = Callable[[], None]
    """Runs one task, and keeps its result or error."""

MOST: Final = max(32, os.cpu_count() or 1)
"""How many tasks of one call of `parallel.run` run at the same time, at most."""


class Call:
    """One call of `parallel.run`: the tasks that no thread has taken yet, and a queue that tells which tasks have
    ended."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.count = len(runs)
        self.ended: SimpleQueue[None] = SimpleQueue()
        self._waiting = deque(runs)

    def next(self) -> Run | None:
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def drop(self) -> None:
        """Forgets the tasks that still wait for a thread, so that they never start."""
        self._waiting.clear()

    def work(self, run: Run | None, rest: Callable[[], None] = lambda: None) -> None:
        """Runs a task, and then the tasks that wait for a thread, one after another. Calls `rest` before it reports the
        end of the last task, so that this thread is free for the caller's next call of `parallel.run`."""
        while run is not None:
            run()
            # before the report, since the name `run` would keep the last result alive
            run = self.next()
            if run is None:
                rest()
            self.ended.put(None)

    def wait(self) -> None:
        for _ in range(self.count):
            self.ended.get()


class _Worker(workers.Worker):
    """A thread that runs one job after another until it gets None."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            job()
            del job  # the name would keep the job's result alive until the next job


class Pool:
    """The threads that `parallel.run` keeps: as many as were ever busy at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rested = threading.Condition(self._lock)
        self._idle: list[_Worker] = []
        self._busy = 0
        self._calls: set[Call] = set()
        """The calls of `parallel.run` under way, without those that tasks have made."""

    def run(self, call: Call) -> None:
        """Runs the tasks of a call in threads of their own. If a task made the call, that task's thread does some of
        them too."""
        if isinstance(threading.current_thread(), _Worker):
            self._start(call, is_nested=True)
            call.work(call.next())
            call.wait()
            return
        self._calls.add(call)
        try:
            self._start(call, is_nested=False)
            call.wait()
        finally:
            call.drop()  # after Ctrl-C, tasks may be left
            self._calls.discard(call)

    def _start(self, call: Call, *, is_nested: bool) -> None:
        for _ in range(min(call.count, MOST)):
            if not self._submit(call, is_nested):
                return

    def _submit(self, call: Call, is_nested: bool) -> bool:
        """Gives the next task to an idle thread, or to a new one. Returns False if no task is left, or no thread may be
        taken."""
        with self._lock:
            # an outermost call gets its threads in any case, because its own thread only waits
            if (is_nested and self._busy >= MOST) or workers.must_park():
                return False
            run = call.next()
            if run is None:
                return False
            worker = self._idle.pop() if self._idle else None
            self._busy += 1
        if worker is None:
            worker = _Worker("xdevice-parallel")
            try:
                worker.start()
            except BaseException:
                self._rest(None)
                raise
        worker.jobs.put(partial(call.work, run, partial(self._rest, worker)))
        return True

    def _rest(self, worker: _Worker | None) -> None:
        with self._lock:
            if worker is not None:
                self._idle.append(worker)
            self._busy -= 1
            self._rested.notify_all()

    def close(self) -> None:
        with self._lock:
            # threads at work are not among them: they become idle again, and may be closed later
            ending, self._idle = self._idle, []
        for worker in ending:
            worker.jobs.put(None)
        for worker in ending:
            worker.join()

    def end(self) -> None:
        """At exit: waits some seconds for the tasks at work, starts no other tasks, and ends the threads if no task is
        left."""
        for call in tuple(self._calls):
            call.drop()
        with self._lock:
            # a task may never end, and the program has to
            is_at_rest = self._rested.wait_for(lambda: not self._busy, workers.PATIENCE)
        if is_at_rest:
            self.close()


threads = Pool()


@forks.in_child
def _after_fork() -> None:
    global threads
    threads = Pool()  # the threads of the parent do not exist in its child


workers.at_exit(lambda: threads.end())
