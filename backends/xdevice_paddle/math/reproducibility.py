"""Implements seeds and deterministic kernels on Paddle."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import paddle

from xdevice.math.contract.reproducibility import Reproducibility

if TYPE_CHECKING:
    from collections.abc import Iterator

_FLAGS: Final = ("FLAGS_cudnn_deterministic", "FLAGS_embedding_deterministic")


class PaddleReproducibility(Reproducibility):
    """Implements the capability `Reproducibility` for Paddle. `xdevice.math.contract.reproducibility` documents its
    methods."""

    def seed_generators(self, n: int) -> None:
        """Seeds Paddle's default generators on all devices."""
        paddle.seed(n)

    @contextmanager
    def deterministic(self) -> Iterator[list[str]]:
        """While the block is open, Paddle uses deterministic kernels. Yields an empty list,
        because no operations remain nondeterministic."""
        # a build for CPUs does not have the flags, which affect only kernels for GPUs
        if not paddle.is_compiled_with_cuda():
            yield []
            return
        # the list is empty here too, because nothing else has to be set
        flags_before = paddle.get_flags(list(_FLAGS))
        paddle.set_flags(dict.fromkeys(_FLAGS, 1))
        try:
            yield []
        finally:
            paddle.set_flags(flags_before)
