"""Blocking mode for Paddle: sets the flag FLAGS_benchmark, which makes Paddle wait after each operation on a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import paddle

from xdevice.contract.blocking import Blocking
from xdevice.contract.patching import Shared

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_BENCHMARK = "FLAGS_benchmark"
_blocked = Shared(per_thread=False)
"""Counts the open blocks of all threads together, because Paddle has one flag for the whole
process. The last block to end, in any thread, restores the flag."""


def _block() -> Callable[[], None]:
    """Sets the flag, and returns a function that restores its previous value."""
    flags_before = paddle.get_flags(_BENCHMARK)
    paddle.set_flags({_BENCHMARK: True})
    return partial(paddle.set_flags, flags_before)


class PaddleBlocking(Blocking):
    """Implements blocking mode for Paddle."""

    _gpus: int
    """The number of devices of the kind `gpu`."""

    def blocking(self) -> AbstractContextManager[Any]:
        """Returns a context manager in which each operation returns only after its result has been
        computed."""
        # without real GPUs, Paddle computes synchronously anyway, and with the flag it would print
        # a line for each matrix product
        if not self._gpus or self.virtual:
            return nullcontext()
        return _blocked.on(_block)
