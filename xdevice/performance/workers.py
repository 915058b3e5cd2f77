"""The threads that xdevice starts, and how they end when the program ends.

While Python exits, it lets daemon threads continue, and ends each of these threads as soon as the thread requests
Python's lock. If that happens inside a framework's C++ code, SIGABRT kills the whole process (measured on PyTorch,
TensorFlow, JAX and NumPy). For a thread that is not a daemon, Python waits without telling the thread to end.
Therefore, xdevice's threads are daemons, and when Python exits, xdevice tells its threads to end and then waits for
them.
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
"""How many seconds xdevice waits for a busy thread that was told to end."""

_exit_functions: Final[list[Callable[[], None]]] = []
"""The functions that `at_exit` has registered."""
_is_ending = False
"""Whether the program is ending."""


def at_exit(end: Callable[[], None]) -> None:
    """Registers the function `end`, which is called when the program ends, before frameworks and modules are torn down.
    `end` must end threads and exit open blocks. The function that was registered last is called first."""
    _exit_functions.append(end)
    _register_first()


class Worker(threading.Thread):
    """A daemon thread of xdevice. The code that starts the thread must also register a function with `at_exit` that
    ends the thread."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread, and makes sure that xdevice's exit function is called first."""
        # a framework that was imported in the meantime may have registered an exit function
        _register_first()
        super().start()

    def join(self, timeout: float | None = None) -> None:
        """Waits for the thread, as in Python. Returns at once if the thread was never started."""
        # None if Ctrl-C was pressed before the thread was started: Python would raise an error
        if self.ident is not None:
            super().join(timeout)


def block_if_ending() -> None:
    """Blocks forever if the program is ending and the calling thread is one of the program's own daemon threads, which
    Python is going to end. Otherwise returns at once.

    When the program is ending, the threads of xdevice start no new work. The calling thread may therefore lack results,
    and must not continue without them.
    """
    if is_thread_doomed():
        threading.Event().wait()


def is_thread_doomed() -> bool:
    """Whether the program is ending and the calling thread is a daemon thread that xdevice has not started. Python is
    going to end such a thread."""
    if not _is_ending:
        return False
    thread = threading.current_thread()
    return thread.daemon and not isinstance(thread, Worker)


def _end() -> None:
    """Calls the functions that `at_exit` has registered. Python calls this when it exits."""
    global _is_ending
    _is_ending = True
    for end in reversed(_exit_functions):
        end()


def _register_first(*_: object) -> None:
    """Registers `_end` again as an exit function. Python calls exit functions in the reverse order of their
    registration, so it calls `_end` before the exit functions of all frameworks that have been imported so far.
    Arguments are ignored."""
    atexit.unregister(_end)
    atexit.register(_end)


# called with each backend that is loaded
registry.on_load.append(_register_first)


@forks.in_child
def _after_fork() -> None:
    """Resets the state in a forked child, which continues even if its parent was ending."""
    global _is_ending
    _is_ending = False
