"""Tasks that run side by side in threads: how a thread takes over what the framework keeps per thread."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class Parallel(Primitives):
    """The capability of running tasks in threads of their own, each with the state of the thread that has started it,
    such as its device and its gradient mode. If an adapter does not have it, its framework keeps no state per
    thread."""

    needs: ClassVar[tuple[str, ...]] = ("thread_state",)

    threads: Literal["many", "one"] = "many"
    """Whether tasks may run in a thread each ("many"), or one after another in the caller's thread ("one"). Either way
    the adapter's methods are called in any thread: if its framework allows only one at a time, they hold a lock."""

    scope_reach: ClassVar[Literal["thread", "process"]] = "thread"
    """Whether `scope` decides where its own thread creates tensors ("thread"), or also where all other threads do that
    are in no scope themselves ("process")."""

    def thread_state(self) -> Callable[[], AbstractContextManager[Any]]:
        """Reads the state of the calling thread (device scope, gradient mode, autocast, recording, ...). Returns a
        function that makes a context manager; another thread that enters it has that state inside. The context manager
        also makes threads take turns at operations that must not run at the same time. If the function has an attribute
        `rejoin`, the core calls that in the first thread once the other thread has given a result."""
        return nullcontext
