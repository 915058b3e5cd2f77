"""Work that a forked child has to repeat: the threads of its parent do not exist there, nor do their connections.

`import xdevice` imports this module, so it imports nothing that takes time.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[[], Any])
    Lock = TypeVar("Lock")


def in_child(function: F) -> F:
    """Registers a function to be called in each child that is forked from now on, and returns the function."""
    if hasattr(os, "register_at_fork"):  # Windows does not fork
        os.register_at_fork(after_in_child=function)
    return function


def renewed(lock: Lock) -> Lock:
    """Returns a lock that is free in a forked child: the thread that would release it does not exist there."""
    renew = getattr(lock, "_at_fork_reinit", None)  # which Python itself calls on its own locks
    if renew is not None:
        in_child(renew)
    return lock
