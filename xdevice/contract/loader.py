"""The context manager `importing`. Every adapter imports its framework inside it, so that several frameworks work in
one process."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from xdevice.base import forks

if TYPE_CHECKING:
    from collections.abc import Iterator

import_lock = forks.unlocked_in_child(threading.RLock())
"""Held while a framework is imported, because the import changes the dlopen flags and the warning filters, which apply
to the whole process."""


@contextmanager
def importing(*, own_symbols_after: str | None = None) -> Iterator[None]:
    """A context manager in which an adapter imports its framework.

    If the module `own_symbols_after` is already imported, shared libraries that are loaded in the block look up linker
    symbols in themselves first. Paddle needs this if it is imported after TensorFlow: both contain protobuf, and Paddle
    would call TensorFlow's copy and segfault (measured on paddlepaddle 3.3.1 with tensorflow 2.21; no upstream issue
    known). The function checks under a lock whether the module is imported, because another thread may be importing the
    module. Warnings are silenced, because Paddle and MXNet cannot be imported if warnings are errors.
    """
    import warnings

    with import_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # None is never in `sys.modules`
        if own_symbols_after not in sys.modules:
            yield
            return
        with _own_symbols():
            yield


def import_apart(name: str, *, beside: str) -> None:
    """Imports the module `name` so that its shared libraries use their own linker symbols. Does nothing if the module
    is not installed, or if the module `beside` has not been imported yet.

    Call this function inside `importing()`. PyTorch's builds for GPUs come with triton, and import triton for the first
    optimizer. TensorFlow 2.20 and 2.21 make the symbols of their LLVM global, so triton would call TensorFlow's LLVM
    and segfault (https://github.com/tensorflow/tensorflow/issues/124205). Importing triton takes half a second.
    """
    import importlib
    import importlib.util
    from contextlib import suppress

    if (
        beside not in sys.modules
        or name in sys.modules
        or importlib.util.find_spec(name.partition(".")[0]) is None
    ):
        return
    # an import error is ignored here, because code that needs the module imports it again, and then
    # gets the error
    with _own_symbols(), suppress(ImportError):
        importlib.import_module(name)


@contextmanager
def _own_symbols() -> Iterator[None]:
    """Opens a block in which newly loaded shared libraries look up linker symbols in themselves first. On Windows the
    block has no effect."""
    if not hasattr(sys, "setdlopenflags"):
        yield
        return
    flags = sys.getdlopenflags()
    # RTLD_DEEPBIND exists only on Linux
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_LOCAL | getattr(os, "RTLD_DEEPBIND", 0))
    try:
        yield
    finally:
        sys.setdlopenflags(flags)
