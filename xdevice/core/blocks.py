"""Records which thread and which asyncio task entered each `with` block. Several threads and tasks may use the same
object in their `with` statements, and may exit their blocks in any order."""

from __future__ import annotations

import _thread  # importing threading would take a third of the time of `import xdevice`
import sys

from xdevice.base import forks
from xdevice.errors import ScopeError

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Protocol

    class OpenBlock(Protocol):
        """An open block: the object with which it was entered (`key`), and the thread and task that entered it
        (`owner`)."""

        key: Any
        owner: tuple[int, Any]


_lock = forks.unlocked_in_child(_thread.allocate_lock())


def thread_and_task() -> tuple[int, Any]:
    """Returns the id of this thread and the asyncio task that the thread is running. The task is None if the thread is
    running no task."""
    return _thread.get_ident(), current_task()


def current_task() -> Any:
    """Returns the asyncio task that this thread is running; None if it runs none."""
    # a program that has not imported asyncio has no tasks, so asyncio is not imported here
    asyncio = sys.modules.get("asyncio")
    # if another thread is still importing asyncio, this function may not exist yet; then no loop runs
    # in this thread
    loop = getattr(asyncio, "_get_running_loop", lambda: None)()
    return None if loop is None else asyncio.current_task(loop)  # type: ignore[union-attr]


def index_in(stack: Sequence[OpenBlock], key: object, code: str) -> int:
    """Returns the index of the last block in `stack` that this thread and task entered with the object `key`. `stack`
    contains open blocks, and `code` is the `with` statement in the form in which errors show it.

    Raises:
        ScopeError: if there is no such block.
    """
    this_owner = thread_and_task()
    for index in reversed(range(len(stack))):
        # several threads may have entered blocks with the same object
        if stack[index].key is key and stack[index].owner == this_owner:
            return index
    raise ScopeError(
        f"{code} was exited in a thread or asyncio task that had not entered it; enter and exit it in the same thread "
        f"and task, as a `with` statement does"
    )


class OpenBlocks:
    """The open blocks of all `with` statements that use the same object. Each block is stored with its owner, the
    thread and task that entered the block. The caller decides which object represents a block."""

    def __init__(self, code: str) -> None:
        # the `with` statement in the form in which errors show it
        self._code = code
        self._open: list[tuple[tuple[int, Any], Any]] = []

    def add(self, block: Any) -> None:
        """Adds `block`, which this thread and task have entered."""
        self._open.append((thread_and_task(), block))

    def take(self) -> tuple[Any, int]:
        """Removes the block that is being exited, and returns it with the id of the thread that entered it. This is the
        last block of this thread and task or, if this thread and task have no open block, the last block of any thread.

        Raises:
            ScopeError: if no block is open.
        """
        this_owner = thread_and_task()
        with _lock:
            for index in reversed(range(len(self._open))):
                # the last block of this thread and task
                if self._open[index][0] == this_owner:
                    break
            else:
                if not self._open:
                    raise ScopeError(
                        f"{self._code} was exited without having been entered, or was exited twice"
                    )
                # the last block of any thread, because this thread may be closing a generator that entered its
                # block in another thread
                index = -1
            (thread, _), block = self._open.pop(index)
        return block, thread
