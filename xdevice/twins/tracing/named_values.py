"""Passes the values that a program records with `xdevice.parity.log` to listeners in this process. `log` imports this
module, so it must not import anything slow."""

from __future__ import annotations

from contextlib import contextmanager

# not from `typing`, whose import would take time
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Final

    Listener = Callable[[str, object], None]

listeners: Final[list[Listener]] = []
"""The listeners of the blocks that are open. `log` calls each listener with the name and the value, in the same
thread."""


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """While the block is open, each call of `log` in any thread also calls `listener(name, value)`."""
    # blocks may be nested, and the listener of each block receives all values
    listeners.append(listener)
    try:
        yield
    finally:
        listeners.remove(listener)
