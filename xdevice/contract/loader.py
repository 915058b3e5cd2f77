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
    """Replaces the lock in a forked child, in which the thread that would release it does not exist."""
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
        if own_symbols_after not in sys.modules:
            yield
            return
        with _own_symbols():
            yield


def import_apart(name: str, *, beside: str) -> None:
    """Imports a module that is installed, with symbols of its own, if the module `beside` is imported.

    Call it inside `importing()`. PyTorch's builds for GPUs bring triton, and import it for the first optimizer.
    TensorFlow 2.20 and 2.21 put the symbols of their LLVM where everybody's resolve, so triton's resolve into them and
    segfault (https://github.com/tensorflow/tensorflow/issues/124205). An import of triton takes half a second.
    """
    import importlib
    import importlib.util
    from contextlib import suppress

    if beside not in sys.modules or name in sys.modules or importlib.util.find_spec(name.partition(".")[0]) is None:
        return
    with _own_symbols(), suppress(ImportError):  # the next import of it raises the error
        importlib.import_module(name)


@contextmanager
def _own_symbols() -> Iterator[None]:
    if not hasattr(sys, "setdlopenflags"):  # Windows has no such flags
        yield
        return
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_LOCAL | getattr(os, "RTLD_DEEPBIND", 0))
    try:
        yield
    finally:
        sys.setdlopenflags(flags)
