"""xdevice's own threads, and how they end with the program.

While Python exits, it lets daemon threads run on, and ends each as soon as it asks for Python's lock: inside a
framework's C++ that ends the whole process, by SIGABRT (measured on PyTorch, TensorFlow, JAX and NumPy). For a thread
that is not a daemon Python waits, without telling it to end. So xdevice's threads are daemons. When Python exits,
xdevice tells them to end, and then waits for them.
"""

from __future__ import annotations

import atexit
import threading
from typing import TYPE_CHECKING, Final

from xdevice.base import forks
from xdevice.core import registry

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE: Final = 10
"""Seconds to wait for a thread that is in the middle of something."""

_ends: Final[list[Callable[[], None]]] = []
_is_ending = False


def at_exit(end: Callable[[], None]) -> None:
    """Registers a function that is called when the program ends, before frameworks and modules are torn down. `end` has
    to end threads and open blocks."""
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
    """If the program is ending and the calling thread is a daemon of the program's, makes it wait for ever, which is
    harmless.

    The thread would end before it has its results, and must not go on with half of them.
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
    """Registers `_end` again after a framework has registered an exit function: the one registered last is called
    first."""
    atexit.unregister(_end)
    atexit.register(_end)


registry.on_load.append(_be_first)


@forks.in_child
def _after_fork() -> None:
    global _is_ending
    _is_ending = False
