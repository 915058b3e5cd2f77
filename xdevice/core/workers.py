"""xdevice's own threads, and how they end with the program.

Python lets a daemon thread run on while it exits, and ends it as soon as it asks for Python's lock: inside a
framework's C++ that ends the whole process, by SIGABRT (measured on PyTorch, TensorFlow, JAX and NumPy). A thread that
is not a daemon is waited for first, without being told to end. So these are daemons, which are told at exit, and then
waited for.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING, Final

from . import registry

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE: Final = 10
"""Seconds to wait for a thread that is in the middle of something."""

_ends: Final[list[Callable[[], None]]] = []
_is_ending = False


def at_exit(end: Callable[[], None]) -> None:
    """Calls `end` when the program ends, before frameworks and modules do. It is to end threads and open blocks."""
    _ends.append(end)
    _be_first()


class Worker(threading.Thread):
    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)

    def start(self) -> None:
        _be_first()
        super().start()

    def join(self, timeout: float | None = None) -> None:
        if self.ident is not None:  # None if Ctrl-C came before it was started
            super().join(timeout)


def park() -> None:
    """Makes a daemon thread that calls this while the program is ending wait for ever, where it does no harm.

    The thread would not live to see its results, and must not go on with half of them.
    """
    if must_park():
        threading.Event().wait()


def must_park() -> bool:
    if not _is_ending:
        return False
    thread = threading.current_thread()
    return thread.daemon and not isinstance(thread, Worker)


def _end() -> None:
    global _is_ending
    _is_ending = True
    for end in reversed(_ends):
        end()


def _be_first(*_: object) -> None:
    """Registers `_end` anew after a framework has registered its own: the last one registered is called first."""
    atexit.unregister(_end)
    atexit.register(_end)


registry.on_load.append(_be_first)


def _after_fork() -> None:
    global _is_ending
    _is_ending = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
