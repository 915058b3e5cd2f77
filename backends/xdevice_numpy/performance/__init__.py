"""NumPy's part of the product `performance`: copies of batches. It has no transfers and no
graphs."""

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
    def stage(self, x: np.ndarray[Any, Any], device: Device) -> np.ndarray[Any, Any]:
        return np.array(x, copy=True, subok=True)


class NumpyTransfers(Transfers):
    def watch(self, report: Callable[[Transfer], None]) -> AbstractContextManager[Any]:
        # NumPy has only the CPU, so nothing is transferred
        return nullcontext()


MIXINS: Final = (NumpyPrefetch, NumpyTransfers)
