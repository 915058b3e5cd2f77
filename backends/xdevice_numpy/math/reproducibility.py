"""Seeds and deterministic kernels on NumPy."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from xdevice.math.contract.reproducibility import Reproducibility

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class NumpyReproducibility(Reproducibility):
    def seed_generators(self, n: int) -> None:
        # NumPy's only generator that a program shares: others are objects that their owners seed
        np.random.seed(n)

    def deterministic(self) -> AbstractContextManager[list[str]]:
        return nullcontext([])  # its sums have one order
