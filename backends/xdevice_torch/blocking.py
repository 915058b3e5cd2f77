"""Blocking mode: a dispatch mode that waits after each PyTorch operation. Each thread must
enter the mode separately."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from xdevice.contract.patching import Shared

from .modes import Mode, enter_mode
from .private import private

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from xdevice.contract.primitives import Primitives

_waited = Shared(per_thread=True)
"""Counts the open `with backend.blocking():` blocks of each thread. The first block enters the dispatch mode, and the
last block to end exits it."""


def is_blocking() -> bool:
    """Whether this thread is inside a `with backend.blocking():` block."""
    return _waited.is_wanted()


class _Wait(Mode):
    """The dispatch mode of a thread. After each operation of the thread, it waits for all devices of the backend."""

    def __init__(self, backend: Primitives) -> None:
        super().__init__()
        self._backend = backend

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls an operation, waits until its result has been computed, and returns the result."""
        result = func(*args, **(kwargs or {}))
        # the last block may have ended in another thread, which cannot exit this thread's mode
        if not _waited.is_wanted():
            return result
        # if a CUDA graph is being recorded, the operation does not run now, so there is nothing
        # to wait for. `is_current_stream_capturing` fails without CUDA or its driver
        if not torch.cuda.is_initialized() or not torch.cuda.is_current_stream_capturing():
            self._backend.synchronize(None)  # None: all devices
        return result


def blocking(backend: Primitives) -> AbstractContextManager[Any]:
    """Returns a context manager in which each PyTorch operation of this thread returns only
    after its result has been computed. Raises `UnsupportedError` if this version of PyTorch lacks a private function or
    class that blocking mode needs."""
    private.require_names_for("blocking")
    return _waited.on(lambda: enter_mode(_Wait(backend)))
