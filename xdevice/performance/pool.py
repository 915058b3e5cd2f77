"""The threads in which `parallel.run` runs tasks, kept for its next call.

A call uses at most `MOST` threads. If a task calls `parallel.run`, this nested call must not
wait for threads that never become free, so it gets only as many as are left of the `MOST`. Its
caller's thread runs the other tasks.
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
    """One call of `parallel.run`: the tasks that no thread has taken yet, and a queue that gets a None for each task
    that has ended."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.count = len(runs)
        self.ended: SimpleQueue[None] = SimpleQueue()
        self._waiting = deque(runs)

    def next(self) -> Run | None:
        """Returns the next task that no thread has taken; None if there is none. May be called
        in any thread."""
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def drop(self) -> None:
        """Forgets the tasks that still wait for a thread, so that they never start."""
        self._waiting.clear()

    def work(self, run: Run | None, mark_idle: Callable[[], None] = lambda: None) -> None:
        """Runs a task, and then the tasks that wait for a thread, one after another. Calls `mark_idle`, which returns
        this thread to the pool, before it reports the end of the last task, so that the thread is free for the
        caller's next call of `parallel.run`."""
        while run is not None:
            run()
            # before the report, since the name `run` would keep the last result alive
            run = self.next()
            if run is None:
                mark_idle()
            self.ended.put(None)

    def wait(self) -> None:
        """Waits until all tasks have ended."""
        for _ in range(self.count):
            self.ended.get()


class _Worker(workers.Worker):
    """A thread that runs the jobs in its queue one after another, until it gets None from the
    queue."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def run(self) -> None:
        """Runs the thread."""
        while (job := self.jobs.get()) is not None:
            job()
            # the name would keep the job's result alive until the next job comes
            del job


class Pool:
    """The threads that `parallel.run` keeps: as many as were ever busy at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._became_idle = threading.Condition(self._lock)
        """Notified each time that a thread becomes idle."""
        self._idle: list[_Worker] = []
        self._busy = 0
        """How many threads are at work."""
        self._calls: set[Call] = set()
        """The calls of `parallel.run` in progress, except those that tasks have made."""

    def run(self, call: Call) -> None:
        """Runs the tasks of a call in the pool's threads, and returns when they have ended. If
        the calling thread is one of the pool's, because a task has called `parallel.run`, it
        runs some of the tasks itself."""
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
            # after Ctrl-C during the wait, the tasks that have not started must not start any
            # more
            call.drop()
            self._calls.discard(call)

    def _start(self, call: Call, *, is_nested: bool) -> None:
        """Starts as many tasks of a call as may run at once. Each thread then takes the next task by itself.
        `is_nested` says whether a task of another call has made this call."""
        for _ in range(min(call.count, MOST)):
            if not self._submit(call, is_nested):
                return

    def _submit(self, call: Call, is_nested: bool) -> bool:
        """Gives the next task of a call to an idle thread, or to a new one. Returns False if no task is left, or if no
        further thread may be used. `is_nested` says whether a task of another call has made this call."""
        with self._lock:
            # a call that is not nested may use more than `MOST` busy threads, because its own
            # thread only waits. If the program is ending, a call from one of its daemon threads
            # gets none: that thread then blocks in `Call.wait` until Python ends it
            if (is_nested and self._busy >= MOST) or workers.must_block():
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
            # the system may have no thread left
            except BaseException:
                self._mark_idle(None)
                raise
        worker.jobs.put(partial(call.work, run, partial(self._mark_idle, worker)))
        return True

    def _mark_idle(self, worker: _Worker | None) -> None:
        """Counts `worker`, which has been busy, as idle. With None, for a thread that could not
        be started, only lowers the number of busy threads."""
        with self._lock:
            if worker is not None:
                self._idle.append(worker)
            self._busy -= 1
            self._became_idle.notify_all()

    def close(self) -> None:
        """Ends the idle threads, and waits until they have ended."""
        with self._lock:
            # threads at work are not included: they become idle again, and may be closed later
            ending, self._idle = self._idle, []
        for worker in ending:
            worker.jobs.put(None)
        for worker in ending:
            worker.join()

    def end(self) -> None:
        """Ends the threads when the program ends: starts no further tasks, waits up to
        `PATIENCE` seconds for those at work, and ends the threads if all tasks have ended by
        then."""
        for call in tuple(self._calls):
            call.drop()
        with self._lock:
            # with a limit, because a task may never end, but the program must
            are_all_idle = self._became_idle.wait_for(lambda: not self._busy, workers.PATIENCE)
        if are_all_idle:
            self.close()


threads = Pool()


@forks.in_child
def _after_fork() -> None:
    """Makes a new pool in a forked child, where the parent's threads do not exist."""
    global threads
    threads = Pool()


# a lambda, because the name `threads` has another value in a forked child
workers.at_exit(lambda: threads.end())
