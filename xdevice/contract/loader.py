"""How a framework is imported, so that four of them live in one process: every adapter does it by `importing`."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

import_lock = threading.RLock()
"""Held while a framework is imported: the dlopen flags and the warning filters are process-wide."""


def _new_lock() -> None:
    """A thread of the parent that was importing at the time of a fork is not there to release the old one."""
    global import_lock
    import_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


@contextmanager
def importing(*, own_symbols_after: str | None = None) -> Iterator[None]:
    """The surroundings in which an adapter imports its framework.

    Where the module `own_symbols_after` is imported already, the libraries loaded inside resolve their symbols in
    themselves first. Paddle after TensorFlow needs that: both carry protobuf, and Paddle's would resolve into
    TensorFlow's and segfault (measured on paddlepaddle 3.3.1 with tensorflow 2.21). It is asked under the lock, because
    another thread may be importing that module just now. Warnings are silenced, because Paddle and MXNet fail to import
    where warnings are errors.
    """
    import warnings

    with import_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if own_symbols_after not in sys.modules or not hasattr(sys, "setdlopenflags"):  # Windows has no such flags
            yield
            return
        flags = sys.getdlopenflags()
        sys.setdlopenflags(os.RTLD_NOW | os.RTLD_LOCAL | getattr(os, "RTLD_DEEPBIND", 0))
        try:
            yield
        finally:
            sys.setdlopenflags(flags)
