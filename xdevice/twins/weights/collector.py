"""A pause for Python's garbage collector, for work in which it would cost time and find nothing."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def paused() -> Iterator[None]:
    """Turns off Python's garbage collector in the block, for code that makes very many objects that stay alive: the
    collector would search all of them again and again, which takes up to half of the time of such code. Afterwards the
    collector is on again if it was on before."""
    # the program may have turned it off itself, and then it stays off
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
