"""The threads in which `parallel.run` runs tasks. They are kept for the next call.

A call uses at most `MAX_RUNNING` threads. If a task calls `parallel.run`, this nested call must not wait for threads
that never become free. Therefore, a nested call starts only as many threads as `MAX_RUNNING` still allows, and the
calling thread runs the remaining tasks.
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
    """A function that runs one task, and stores its result or error."""

MAX_RUNNING: Final = max(32, os.cpu_count() or 1)
"""The maximum number of tasks of one call of `parallel.run` that run at the same time."""


class Call:
    """One call of `parallel.run`. It contains the tasks that no thread has started yet, and a queue. Each task that has
    ended puts a None into the queue."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.count = len(runs)
        self.ended: SimpleQueue[None] = SimpleQueue()
        self._waiting = deque(runs)

    def next_run(self) -> Run | None:
        """Returns the next task that no thread has started; None if there is no such task. May be called in any
        thread."""
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def drop_waiting(self) -> None:
        """Removes the tasks that are still waiting for a thread, so they never start."""
        self._waiting.clear()

    def work(self, run: Run | None, mark_idle: Callable[[], None] = lambda: None) -> None:
        """Runs a task, and then each task that is still waiting for a thread. `mark_idle` returns this thread to the
        pool. It is called before the end of the last task is reported, so that the thread is free for the caller's next
        call of `parallel.run`."""
        while run is not None:
            run()
            # before the end of the task is reported, since the name `run` would keep the task's
            # result alive
            run = self.next_run()
            if run is None:
                mark_idle()
            self.ended.put(None)

    def wait(self) -> None:
        """Waits until all tasks have ended."""
        for _ in range(self.count):
            self.ended.get()


class _Worker(workers.Worker):
    """A thread that runs the jobs in its queue in order, and ends when it reaches a None."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def run(self) -> None:
        """Runs the thread."""
        while (job := self.jobs.get()) is not None:
            job()
            # the name `job` would keep the job's result alive until the next job arrives
            del job


class Pool:
    """The threads that `parallel.run` keeps. Their number is the largest number of threads that were ever busy at the
    same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._became_idle = threading.Condition(self._lock)
        """Notified each time that a thread becomes idle."""
        self._idle: list[_Worker] = []
        self._busy = 0
        """The number of threads that are running jobs."""
        self._calls: set[Call] = set()
        """The calls of `parallel.run` in progress, without nested calls."""

    def run(self, call: Call) -> None:
        """Runs the tasks of a call in the pool's threads, and returns when they have ended. If the calling thread
        belongs to the pool, because a task has called `parallel.run`, this thread runs some of the tasks itself."""
        if isinstance(threading.current_thread(), _Worker):
            self._start(call, is_nested=True)
            call.work(call.next_run())
            # no deadlock, because no task waits for a thread any longer: the others are already running
            call.wait()
            return
        self._calls.add(call)
        try:
            self._start(call, is_nested=False)
            call.wait()
        finally:
            # after Ctrl-C during the wait, no further tasks may start
            call.drop_waiting()
            self._calls.discard(call)

    def _start(self, call: Call, *, is_nested: bool) -> None:
        """Starts as many tasks of a call as are allowed to run at the same time. After a task has ended, its thread
        starts the next one by itself. `is_nested` says whether a task of another call has made this call."""
        for _ in range(min(call.count, MAX_RUNNING)):
            if not self._submit(call, is_nested):
                return

    def _submit(self, call: Call, is_nested: bool) -> bool:
        """Starts the next task of a call in an idle thread, or in a new thread. Returns False if no task is left, or if
        no more threads may be used. `is_nested` says whether a task of another call has made this call."""
        with self._lock:
            # a call that is not nested may use more than `MAX_RUNNING` busy threads, because its own thread only waits.
            # If the program is ending, no thread is used for a call from one of its daemon threads: the calling thread
            # then blocks in `Call.wait` until Python ends it
            if (is_nested and self._busy >= MAX_RUNNING) or workers.is_thread_doomed():
                return False
            run = call.next_run()
            if run is None:
                return False
            worker = self._idle.pop() if self._idle else None
            self._busy += 1
        if worker is None:
            worker = _Worker("xdevice-parallel")
            try:
                worker.start()
            # the system may be unable to start another thread
            except BaseException:
                self._mark_idle(None)
                raise
        worker.jobs.put(partial(call.work, run, mark_idle=partial(self._mark_idle, worker)))
        return True

    def _mark_idle(self, worker: _Worker | None) -> None:
        """Adds `worker`, which has been busy, to the idle threads. If the thread could not be started, `worker` is
        None, and only the number of busy threads is reduced."""
        with self._lock:
            if worker is not None:
                self._idle.append(worker)
            self._busy -= 1
            self._became_idle.notify_all()

    def close(self) -> None:
        """Ends the idle threads, and waits until they have ended."""
        with self._lock:
            # threads that are busy now are not included: they become idle later, and may be ended by a later call
            ending, self._idle = self._idle, []
        for worker in ending:
            worker.jobs.put(None)
        for worker in ending:
            worker.join()

    def end(self) -> None:
        """Ends the threads when the program ends. Starts no more tasks, and waits up to `PATIENCE` seconds for the
        running tasks. If all tasks have ended by then, ends the threads."""
        for call in tuple(self._calls):
            call.drop_waiting()
        with self._lock:
            # the wait has a limit, because a task may never end, but the program must
            are_all_idle = self._became_idle.wait_for(lambda: not self._busy, workers.PATIENCE)
        if are_all_idle:
            self.close()


threads = Pool()


@forks.in_child
def _after_fork() -> None:
    """Creates a new pool in a forked child, where the parent's threads do not exist."""
    global threads
    threads = Pool()


# a lambda, because `threads` is another pool in a forked child
workers.at_exit(lambda: threads.end())
