"""Tasks that run side by side in threads: how one thread adopts the state that the framework keeps for another
thread."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class Parallel(Primitives):
    """The capability to run each task in its own thread, with the state of the thread that has started the task, such
    as its device and its gradient mode. An adapter without this capability declares that its framework keeps no
    per-thread state."""

    needs: ClassVar[tuple[str, ...]] = ("thread_state",)

    threads: Literal["many", "one"] = "many"
    """Whether each task may run in its own thread ("many"), or all tasks must run in turn in the caller's thread
    ("one"). In both cases, the adapter's methods are called in any thread. If the framework allows only one thread at a
    time, these methods must hold a lock."""

    scope_reach: ClassVar[Literal["thread", "process"]] = "thread"
    """The reach of `scope`: "thread" if a scope determines only where its own thread creates tensors, "process" if it
    also applies to threads that have not entered a scope themselves."""

    def thread_state(self) -> Callable[[], AbstractContextManager[Any]]:
        """Reads the state of the calling thread (device scope, gradient mode, autocast, recording, ...), and returns a
        function that creates a context manager. Another thread that enters the context manager has this state inside
        the block. The context manager also makes threads take turns at operations that must not run at the same time.
        If the returned function has an attribute `rejoin`, xdevice calls `rejoin()` in the thread whose state was read,
        after the other thread has returned a result."""
        return nullcontext
