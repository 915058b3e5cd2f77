"""The values that a program names with `xdevice.parity.log`, for listeners in this process. `log` imports this module,
so it must import little."""

from __future__ import annotations

from contextlib import contextmanager

# not from `typing`, whose import would take time
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Final

    Listener = Callable[[str, object], None]

listeners: Final[list[Listener]] = []
"""The functions of the open blocks. `log` calls each with the name and the value, in the thread that calls `log`."""


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """A block in which `log`, in any thread, also calls `listener(name, value)`."""
    # a list, because blocks may be nested, and the listener of each gets all values
    listeners.append(listener)
    try:
        yield
    finally:
        listeners.remove(listener)
