"""Implements seeds and deterministic kernels on NumPy."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from xdevice.math.contract.reproducibility import Reproducibility

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class NumpyReproducibility(Reproducibility):
    """Implements the capability `Reproducibility` for NumPy. `xdevice.math.contract.reproducibility` documents its
    methods."""

    def seed_generators(self, n: int) -> None:
        """Seeds NumPy's global generator."""
        # this is the only generator that all code of a program shares; other generators are
        # objects, which are seeded by the code that creates them
        np.random.seed(n)

    def deterministic(self) -> AbstractContextManager[list[str]]:
        """Returns a context manager that has no effect and yields an empty list."""
        # there is nothing to set, because NumPy adds numbers in the same order in each run
        return nullcontext([])
