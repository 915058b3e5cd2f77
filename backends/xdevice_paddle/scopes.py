"""Scopes with Paddle's current device, which is one for the whole process: scopes of several threads may overlap.

The device before all scopes is put back by the last one that is left: a scope that is left while later ones are open
passes the device that it found on to the next one.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import paddle

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Open:
    """An open scope, with the device that was current before."""

    def __init__(self, before: str) -> None:
        self.before = before


_lock = threading.Lock()
_open: list[_Open] = []


@contextmanager
def scope(name: str) -> Iterator[None]:
    with _lock:
        own = _Open(paddle.get_device())
        paddle.set_device(name)
        _open.append(own)
    try:
        yield
    finally:
        with _lock:
            _leave(own)


def _leave(own: _Open) -> None:
    place = _open.index(own)
    del _open[place]
    if place == len(_open):
        paddle.set_device(own.before)
    else:
        _open[place].before = own.before
