"""PyTorch's hooks for seeds and deterministic kernels."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import torch

from xdevice.math.contract.reproducibility import Reproducibility

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORKSPACE: Final = "CUBLAS_WORKSPACE_CONFIG"
"""An environment variable that cuBLAS reads when it starts. If it is not set, PyTorch's
deterministic mode raises an error at the first matrix product on a GPU."""


class TorchReproducibility(Reproducibility):
    """The capability `Reproducibility` on PyTorch; its methods are documented in
    `xdevice.math.contract.reproducibility`."""

    def seed_generators(self, n: int) -> None:
        """Seeds PyTorch's default generators on all devices."""
        torch.manual_seed(n)

    @contextmanager
    def deterministic(self) -> Iterator[list[str]]:
        """A block in which PyTorch chooses deterministic kernels. Yields a list with one line
        for each computation that remains nondeterministic. Restores the settings at the end."""
        cudnn = torch.backends.cudnn
        modes_before = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        flags_before = cudnn.deterministic, cudnn.benchmark
        # for an operation without a deterministic kernel, PyTorch then raises an error instead
        # of a warning
        torch.use_deterministic_algorithms(True)
        # with `benchmark`, cuDNN would choose kernels by their measured times, which differ between runs
        cudnn.deterministic, cudnn.benchmark = True, False
        try:
            yield _lacking()
        finally:
            torch.use_deterministic_algorithms(modes_before[0], warn_only=modes_before[1])
            cudnn.deterministic, cudnn.benchmark = flags_before


def _lacking() -> list[str]:
    """Returns one line for each computation that remains nondeterministic in the block. The
    line includes the remedy. Returns an empty list if everything is deterministic."""
    # without CUDA, or if the variable is set, every kernel is deterministic or raises an error
    if not torch.cuda.is_available() or _WORKSPACE in os.environ:
        return []
    return [
        f"matrix products on a GPU: set {_WORKSPACE}=:4096:8 in the environment before the program starts"
    ]
