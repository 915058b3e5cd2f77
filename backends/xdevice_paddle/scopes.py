"""Scopes that set Paddle's current device. Paddle has one current device for the whole process,
so scopes of several threads may overlap, and end in any order.

The scope that ends last restores the device that was current before all scopes. If a scope ends while another one,
which was entered after it, is open, the other one restores at its end the device that the first would have restored.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import paddle

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Open:
    """An open scope. `before` is the name of the device that becomes current again when the
    scope ends."""

    def __init__(self, before: str) -> None:
        self.before = before


_lock = threading.Lock()
_open: list[_Open] = []
"""The open scopes of all threads, in the order in which they were entered."""


@contextmanager
def scope(name: str) -> Iterator[None]:
    """A block in which the device that Paddle calls `name`, such as "gpu:1", is the current one
    of the process."""
    # no other thread may change the device between reading and setting it
    with _lock:
        own = _Open(paddle.get_device())
        paddle.set_device(name)
        _open.append(own)
    try:
        yield
    finally:
        # while the interpreter ends, modules lose their globals, and nothing has to be restored
        if _lock is not None:
            with _lock:
                _close(own)


def _close(own: _Open) -> None:
    """Closes a scope. If `own` was entered last, the device from before it becomes current
    again. Otherwise the scope that was entered next takes over that device, and restores it
    later."""
    position = _open.index(own)
    del _open[position]
    # true if no scope is open that was entered after this one
    if position == len(_open):
        paddle.set_device(own.before)
    else:
        _open[position].before = own.before
