"""Blocking mode: waits after each of PyTorch's operations, with a dispatch mode, which each thread has for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from xdevice.contract.patching import Shared

from .modes import Mode, put_on
from .private import private

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from xdevice.contract.primitives import Primitives

_waited = Shared(per_thread=True)


def is_blocking() -> bool:
    """Whether this thread is inside a `with backend.blocking():` block."""
    return _waited.is_wanted()


class _Wait(Mode):
    def __init__(self, backend: Primitives) -> None:
        super().__init__()
        self._backend = backend

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not _waited.is_wanted():
            return result
        # an operation that is being recorded is not done now, so there is nothing to wait for; without CUDA or its
        # driver, PyTorch cannot be asked whether it records
        if not torch.cuda.is_initialized() or not torch.cuda.is_current_stream_capturing():
            self._backend.synchronize(None)
        return result


def blocking(backend: Primitives) -> AbstractContextManager[Any]:
    private.require("blocking")
    return _waited.on(lambda: put_on(_Wait(backend)))
