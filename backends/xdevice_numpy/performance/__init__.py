"""NumPy's part of the product `performance`: copies for `prefetch`. NumPy has no transfers that could be reported."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from xdevice.performance.contract.prefetch import Prefetch
from xdevice.performance.contract.transfers import Transfer, Transfers

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from xdevice.base.devices import Device


class NumpyPrefetch(Prefetch):
    """Copies batches, because the program may overwrite a batch after passing it to xdevice."""

    def stage(self, x: np.ndarray[Any, Any], device: Device) -> np.ndarray[Any, Any]:
        """Returns a copy of an array. `device` is ignored, because NumPy has only the CPU."""
        return np.array(x, copy=True, subok=True)


class NumpyTransfers(Transfers):
    """Reports no transfers, because NumPy has none."""

    def watch(self, report: Callable[[Transfer], None]) -> AbstractContextManager[Any]:
        """Returns a context manager that has no effect, because NumPy has only one device."""
        return nullcontext()


MIXINS: Final = (NumpyPrefetch, NumpyTransfers)
