"""Seeds and deterministic kernels on NumPy."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from xdevice.math.contract.reproducibility import Reproducibility

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class NumpyReproducibility(Reproducibility):
    """The capability `Reproducibility` on NumPy; its methods are documented in
    `xdevice.math.contract.reproducibility`."""

    def seed_generators(self, n: int) -> None:
        """Seeds NumPy's global generator."""
        # the only generator that all code of a program shares; others are objects, seeded by
        # the code that makes them
        np.random.seed(n)

    def deterministic(self) -> AbstractContextManager[list[str]]:
        """Returns a block that changes nothing and yields an empty list."""
        # nothing is set or missing: NumPy adds up in the same order in each run
        return nullcontext([])
