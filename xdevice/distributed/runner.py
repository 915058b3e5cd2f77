"""The one thread in which the engine (NCCL, gloo, ...) is called, so that the program's thread can stop waiting when a
rank fails."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Runner(threading.Thread):
    """A thread that runs jobs, one at a time. Here the jobs are the calls of an engine. If a job never returns, the
    thread exists until the process ends."""

    def __init__(self) -> None:
        super().__init__(name="xdevice engine", daemon=True)
        # two locks that are used as signals: one thread waits by acquiring a lock, and the
        # other thread wakes it by releasing the lock. `_begin` signals that there is a job, and
        # `_end` that the job has ended
        self._begin, self._end = threading.Lock(), threading.Lock()
        self._begin.acquire()
        self._end.acquire()
        self._job: Callable[[], Any] | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def begin(self, job: Callable[[], Any]) -> None:
        """Starts a job in the thread, and returns at once. The previous job must have ended."""
        self._job = job
        self._begin.release()

    def ends_within(self, seconds: float) -> bool:
        """Waits until the current job has ended, for at most `seconds`. Returns whether it has ended."""
        return self._end.acquire(timeout=seconds)

    def result(self) -> Any:
        """Returns the result of the job that has ended, or raises the job's error. It may be
        called only once for each job."""
        # clears both attributes, because they would keep their tensors alive until the next call
        result, error, self._result, self._error = self._result, self._error, None, None
        if error is not None:
            raise error
        return result

    def stop(self) -> None:
        """Tells the thread to end, and does not wait for it. No job may be running."""
        self._job = None
        self._begin.release()

    def run(self) -> None:
        """Runs each job that `begin` passes to this thread, until `stop` is called."""
        while True:
            self._begin.acquire()
            job, self._job = self._job, None
            if job is None:
                return
            try:
                self._result = job()
            # errors of every kind are caught, because `result` raises them in the program's thread
            except BaseException as error:
                self._error = error
            # the variable would keep the job's tensors alive, so it is deleted before the end is signalled
            del job
            self._end.release()
