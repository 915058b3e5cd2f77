"""Attributes of a framework that are replaced while a block is open, shared by overlapping blocks, and put back after
the last one.

Also whether this thread or task is listening for transfers: the reads that xdevice makes itself are not to be reported.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from xdevice.base import forks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

listening: Final[ContextVar[bool]] = ContextVar("xdevice_listening", default=False)
"""Whether this thread or task is inside a block that wants reports of transfers, and not inside a transfer that was
already reported."""


@contextmanager
def unseen() -> Iterator[None]:
    """Inside the block, reads by xdevice itself are not reported, because they are not transfers of the program."""
    token = listening.set(False)
    try:
        yield
    finally:
        listening.reset(token)


_ABSENT: Final = object()
lock: Final = forks.renewed(threading.RLock())
_set: dict[tuple[int, str], _Hook] = {}


class _Hook:
    def __init__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self.owner = owner
        self.name = name
        self.blocks = 0
        # from `vars`, so that an inherited attribute is deleted afterwards and not copied into the class
        self.before = vars(owner).get(name, _ABSENT)
        self.replacement = make(
            self.before if isinstance(self.before, property) else getattr(owner, name)
        )
        # one hook for all blocks, or the inner block's end would undo the outer one's
        setattr(owner, name, self.replacement)

    def undo(self) -> None:
        if vars(self.owner).get(self.name) is not self.replacement:
            return  # someone else has replaced it since: our hook stays below theirs, and passes every call on
        if self.before is _ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.before)


class Patches:
    """A context manager that replaces attributes of classes, modules and instances. An attribute that several open
    blocks replace is put back when the last of them ends."""

    def __init__(self) -> None:
        self._used: list[tuple[int, str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with lock:
            # the last replacement first, because one may have been made of another
            for key in reversed(self._used):
                hook = _set[key]
                hook.blocks -= 1
                # no open block needs it any more
                if not hook.blocks:
                    del _set[key]
                    hook.undo()
            self._used.clear()

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Sets the attribute `name` of `owner` to `make(its value)`. If another open block has replaced it already,
        that replacement is used here too."""
        with lock:
            key = id(owner), name
            if key not in _set:
                _set[key] = _Hook(owner, name, make)
            _set[key].blocks += 1
            self._used.append(key)


class Shared:
    """A mode of a framework, for one thread or the process, that the first of several blocks switches on and the last
    one off.

    Blocks may end in any order. If the last block of a thread ends in another thread, the mode cannot be switched off
    there: it stays on in the first thread, although `is_wanted` is False there, until the next block of the first
    thread ends.
    """

    def __init__(self, *, per_thread: bool) -> None:
        self._here: Any = threading.local() if per_thread else SimpleNamespace()

    @contextmanager
    def on(self, switch: Callable[[], Callable[[], None]]) -> Iterator[None]:
        """Switches the mode on for the block. `switch` does that, and returns the function that switches the mode
        off."""
        # taken here, because the block may end in another thread
        state = self._state()
        with lock:
            state.blocks += 1
            if state.off is None:
                state.off = switch()
        try:
            yield
        finally:
            with lock:
                state.blocks -= 1
                # only the thread that the mode belongs to can switch it off
                if not state.blocks and state is self._state():
                    off, state.off = state.off, None
                    off()

    def is_wanted(self) -> bool:
        """Whether a block of this mode is open: in this thread if the mode is `per_thread`, otherwise in any thread."""
        return bool(self._state().blocks)

    def _state(self) -> Any:
        try:
            return self._here.state
        except AttributeError:
            self._here.state = SimpleNamespace(blocks=0, off=None)
            return self._here.state
