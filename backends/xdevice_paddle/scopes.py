"""Scopes that set Paddle's current device. The whole process has one current device, and scopes of several threads may
overlap and end in any order.

The scope that ends last restores the device that was current before all scopes. If a scope ends while a later scope is
still open, the later scope takes over the device that the earlier scope should restore. The later scope restores that
device at its own end.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import paddle

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Open:
    """An open scope. `before` is the name of the device that the scope restores at its end."""

    def __init__(self, before: str) -> None:
        self.before = before


_lock = threading.Lock()
_open: list[_Open] = []
"""The open scopes of all threads, in the order in which they were entered."""


@contextmanager
def scope(name: str) -> Iterator[None]:
    """While the block is open, the device that Paddle calls `name`, such as "gpu:1", is the current
    device of the process."""
    # locked, because no other thread may change the device after it is read and before it is set
    with _lock:
        opened = _Open(paddle.get_device())
        paddle.set_device(name)
        _open.append(opened)
    try:
        yield
    finally:
        # None while the interpreter shuts down, because modules lose their globals; then nothing
        # has to be restored
        if _lock is not None:
            with _lock:
                _close(opened)


def _close(opened: _Open) -> None:
    """Closes the scope `opened`. If it is the most recent open scope, its device `before` becomes current again.
    Otherwise the scope that was entered next takes over this device, and restores it later."""
    position = _open.index(opened)
    del _open[position]
    # true if no scope that was entered later is open
    if position == len(_open):
        paddle.set_device(opened.before)
    else:
        _open[position].before = opened.before
