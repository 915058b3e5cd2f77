"""Samples for the conformance suite (the tests in `xdevice.testing` that every adapter must pass). They are written
with NumPy's own functions. There are no networks and no gradients, because NumPy has neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xdevice.testing.contract.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Callable


class NumpySamples(Samples):
    """NumPy's samples. `Samples` describes what the suite expects from each method."""

    def other_device(self) -> None:
        return None  # NumPy has only cpu:0

    def native_ones(self, *shape: int) -> np.ndarray[Any, Any]:
        """Returns a tensor of ones with the given shape, created by NumPy's own function."""
        return np.ones(shape)

    def address(self, x: np.ndarray[Any, Any]) -> int:
        """Returns the address at which the memory of an array begins."""
        return int(x.ctypes.data)

    def gradient(self, function: Callable[[Any], Any], x: np.ndarray[Any, Any]) -> None:
        return None  # NumPy has no gradients

    def draw(self) -> list[float]:
        """Returns a list of random numbers from NumPy's global generator."""
        numbers: list[float] = np.random.rand(5).tolist()
        return numbers
