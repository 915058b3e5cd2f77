"""Pauses Python's garbage collector during work that creates no garbage, which the collector would only slow down."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def paused() -> Iterator[None]:
    """Disables Python's garbage collector in the block, for code that creates many long-lived objects. The collector
    would search all these objects repeatedly, which takes up to half of the time of such code. Afterwards the collector
    is enabled again if it was enabled before."""
    # if the program has disabled the collector itself, it stays disabled
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
