"""The values that a program names with `xdevice.parity.log`, for listeners in this process. `log` imports this module,
so it must import little."""

from __future__ import annotations

from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Final

    Listener = Callable[[str, object], None]

listeners: Final[list[Listener]] = []
"""Functions that `log` calls with each name and value, in any thread."""


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """A block in which `log` calls this function, too."""
    listeners.append(listener)
    try:
        yield
    finally:
        listeners.remove(listener)
