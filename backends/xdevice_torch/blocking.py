"""Blocking mode: a dispatch mode waits after each of PyTorch's operations. Each thread enters
the mode for itself."""

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
"""Counts the open blocks of each thread: the first enters the dispatch mode, and the last ends
it."""


def is_blocking() -> bool:
    """Whether this thread is inside a `with backend.blocking():` block."""
    return _waited.is_wanted()


class _Wait(Mode):
    """The dispatch mode that waits for all devices of the backend after each operation of its
    thread."""

    def __init__(self, backend: Primitives) -> None:
        super().__init__()
        self._backend = backend

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls an operation, waits until its result is computed, and returns the result."""
        result = func(*args, **(kwargs or {}))
        # the last block may have ended in another thread, which cannot end this thread's mode
        if not _waited.is_wanted():
            return result
        # an operation that a CUDA graph records is not carried out now, so there is nothing to
        # wait for; the function that tells whether one is recorded fails without CUDA or its
        # driver
        if not torch.cuda.is_initialized() or not torch.cuda.is_current_stream_capturing():
            self._backend.synchronize(None)
        return result


def blocking(backend: Primitives) -> AbstractContextManager[Any]:
    """Returns a context manager: inside its block, each PyTorch operation of this thread
    returns only when its result is computed. Raises `UnsupportedError` if PyTorch lacks a
    private name that this needs."""
    private.require("blocking")
    return _waited.on(lambda: enter_mode(_Wait(backend)))
