"""The one thread that the engine's calls are made in, so that the program's own can see that a rank has failed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Runner(threading.Thread):
    """Does one job after another. Where one never ends, the thread is left to the end of the process."""

    def __init__(self) -> None:
        super().__init__(name="xdevice engine", daemon=True)
        self._begin, self._end = threading.Lock(), threading.Lock()
        self._begin.acquire()
        self._end.acquire()
        self._job: Callable[[], Any] | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def begin(self, job: Callable[[], Any]) -> None:
        self._job = job
        self._begin.release()

    def ends_within(self, seconds: float) -> bool:
        """Whether the job ends within so many seconds; waits that long at most."""
        return self._end.acquire(timeout=seconds)

    def result(self) -> Any:
        """The result of the job that has ended, or its error, raised."""
        result, error, self._result, self._error = self._result, self._error, None, None
        if error is not None:
            raise error
        return result

    def stop(self) -> None:
        self._job = None
        self._begin.release()

    def run(self) -> None:
        while True:
            self._begin.acquire()
            job, self._job = self._job, None
            if job is None:
                return
            try:
                self._result = job()
            except BaseException as error:
                self._error = error
            del job
            self._end.release()
