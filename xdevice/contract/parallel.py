"""Tasks side by side: what a framework keeps for each thread."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class Parallel(Primitives):
    """Tasks in threads of their own go on in the state of the thread that has started them. Without it a framework
    keeps nothing for a thread."""

    needs: ClassVar[tuple[str, ...]] = ("thread_state",)

    threads: Literal["many", "one"] = "many"
    """Whether tasks may run in a thread each, or must share one enqueueing thread. Either way methods are called in any
    thread: an adapter whose framework is for one at a time holds a lock."""

    scope_reach: ClassVar[Literal["thread", "process"]] = "thread"
    """Whether `scope` places what its own thread creates, or what all threads do that are in no scope themselves."""

    def thread_state(self) -> Callable[[], AbstractContextManager[Any]]:
        """Reads the calling thread's state (device scope, gradient mode, autocast, recording, ...) and gives a function
        that makes a context manager of it for another thread. What threads may not do at once is serialised inside.
        If it has an attribute `rejoin`, that is called in the first thread when the other one has given a result."""
        return nullcontext
