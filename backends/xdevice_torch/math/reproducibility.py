"""Seeds and deterministic kernels on PyTorch."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import torch

from xdevice.math.contract.reproducibility import Reproducibility

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORKSPACE: Final = "CUBLAS_WORKSPACE_CONFIG"
"""A variable that cuBLAS reads when it starts. If it is not set, PyTorch's deterministic mode
raises an error at the first product of matrices on a GPU."""


class TorchReproducibility(Reproducibility):
    """The capability `Reproducibility` on PyTorch; its methods are documented in
    `xdevice.math.contract.reproducibility`."""

    def seed_generators(self, n: int) -> None:
        """Seeds PyTorch's default generators on all devices."""
        torch.manual_seed(n)

    @contextmanager
    def deterministic(self) -> Iterator[list[str]]:
        """A block in which PyTorch chooses deterministic kernels. Yields a list with a line for
        each thing that stays nondeterministic, and restores the settings at the end."""
        cudnn = torch.backends.cudnn
        before = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        flags = cudnn.deterministic, cudnn.benchmark
        # raises for an operation without a deterministic kernel, instead of a warning
        torch.use_deterministic_algorithms(True)
        # `benchmark` lets cuDNN choose kernels by their times, which differ between runs
        cudnn.deterministic, cudnn.benchmark = True, False
        try:
            yield _lacking()
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            cudnn.deterministic, cudnn.benchmark = flags


def _lacking() -> list[str]:
    """Returns a line for each thing that stays nondeterministic in the block, with the remedy;
    an empty list if everything is deterministic."""
    # without CUDA, or with the workspace set, all kernels are deterministic or raise
    if not torch.cuda.is_available() or _WORKSPACE in os.environ:
        return []
    return [
        f"matrix products on a GPU: set {_WORKSPACE}=:4096:8 in the environment before the program starts"
    ]
