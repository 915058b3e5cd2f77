"""Functions for work that has to be repeated in a forked child, because the parent's threads and connections do not
exist in the child.

`import xdevice` imports this module, so this module must not import anything that takes time.
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
    """Registers a function to be called in each child that is forked from now on. Returns the function, so this can be
    used as a decorator."""
    if hasattr(os, "register_at_fork"):  # Windows has no fork
        os.register_at_fork(after_in_child=function)
    return function


def unlocked_in_child(lock: Lock) -> Lock:
    """Registers a lock to be released in each forked child, and returns the lock. Otherwise a lock that another thread
    of the parent held would never be released in the child, because the child does not have that thread."""
    # Python's own modules, such as logging, call this private method of their locks
    renew = getattr(lock, "_at_fork_reinit", None)
    if renew is not None:
        in_child(renew)
    return lock
