"""Replaces attributes of a framework while a block is open. Overlapping blocks share a replacement, and at the end of
the last block the attribute is restored.

Also records whether the transfers of a thread or task are reported, because reads by xdevice itself must not be
reported.
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
"""Whether transfers of this thread or task are to be reported. True while the thread or task is inside a block that
requests reports, unless it is inside a transfer that was already reported."""


@contextmanager
def unreported() -> Iterator[None]:
    """Opens a block in which transfers are not reported. The block is meant for reads by xdevice itself that the
    program has not requested."""
    token = listening.set(False)
    try:
        yield
    finally:
        listening.reset(token)


# in place of the previous value, if the owner did not have the attribute itself but inherited it
_ABSENT: Final = object()
lock: Final = forks.unlocked_in_child(threading.RLock())
# the replaced attributes, by the owner's `id` and the attribute's name
_replaced: dict[tuple[int, str], _Hook] = {}


class _Hook:
    """A replaced attribute: its owner, its previous value, its replacement, and the number of open blocks that need the
    replacement. The replacement is the result of `make` for the previous value. For a property of a class, the value is
    the property object."""

    def __init__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self.owner = owner
        self.name = name
        self.blocks = 0
        # read from `vars`: if the owner only inherits the attribute, `undo` deletes the replacement, and does not copy
        # the inherited value into the owner
        self.before = vars(owner).get(name, _ABSENT)
        self.replacement = make(getattr(owner, name))
        setattr(owner, name, self.replacement)

    def undo(self) -> None:
        """Restores the attribute, unless other code has replaced it in the meantime."""
        # the other code still calls this replacement, which from now on only forwards calls
        if vars(self.owner).get(self.name) is not self.replacement:
            return
        if self.before is _ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.before)


class Patches:
    """A context manager that replaces attributes of classes, modules and instances. An attribute that several open
    blocks replace is restored at the end of the last block."""

    def __init__(self) -> None:
        self._used: list[tuple[int, str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with lock:
            # the last replacement first, because it may have been made from the result of an earlier
            # replacement
            for key in reversed(self._used):
                hook = _replaced[key]
                hook.blocks -= 1
                # no open block needs the replacement any longer
                if not hook.blocks:
                    del _replaced[key]
                    hook.undo()
            self._used.clear()

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Sets the attribute `name` of `owner` to `make(value)`, where `value` is the attribute's present value. If
        another open block has already replaced the attribute, that replacement is used here too."""
        with lock:
            # `_Hook` keeps the owner alive, so no other object gets the owner's `id`
            key = id(owner), name
            if key not in _replaced:
                _replaced[key] = _Hook(owner, name, make)
            _replaced[key].blocks += 1
            self._used.append(key)


class Shared:
    """A mode of a framework that applies to one thread (`per_thread`) or to the whole process. The first of several
    overlapping blocks switches the mode on, and the last one switches it off.

    Blocks may end in any order. If the mode is `per_thread` and the last block of a thread ends in another thread, that
    thread cannot switch the mode off. The mode then stays on in the first thread, although `is_wanted` returns False
    there, until the first thread's next block ends.
    """

    def __init__(self, *, per_thread: bool) -> None:
        self._states: Any = threading.local() if per_thread else SimpleNamespace()

    @contextmanager
    def on(self, switch: Callable[[], Callable[[], None]]) -> Iterator[None]:
        """Opens a block in which the mode is on. `switch` is a function that switches the mode on, and returns the
        function that switches the mode off."""
        # read here, because the block may end in another thread
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
        """Whether a block of this mode is open in this thread or, if the mode is not `per_thread`, in any thread."""
        return bool(self._state().blocks)

    def _state(self) -> Any:
        """Returns the state of this thread or of the process: the number of open blocks
        (`blocks`), and the function that switches the mode off (`off`; None while the mode is
        off)."""
        try:
            return self._states.state
        except AttributeError:
            self._states.state = SimpleNamespace(blocks=0, off=None)
            return self._states.state
