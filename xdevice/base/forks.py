"""Functions for work that a forked child has to do again, because the threads and the
connections of its parent do not exist there.

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
    """Returns `lock`, registered to be free in each forked child: the thread that would release
    it does not exist there."""
    # the private method that Python's own modules, such as logging, call on their locks
    renew = getattr(lock, "_at_fork_reinit", None)
    if renew is not None:
        in_child(renew)
    return lock
