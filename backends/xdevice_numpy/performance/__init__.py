"""Transfers on NumPy, of which there are none."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from xdevice.performance.contract.transfers import Transfer, Transfers

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class NumpyTransfers(Transfers):
    def watch(self, report: Callable[[Transfer], None]) -> AbstractContextManager[Any]:
        return nullcontext()  # NumPy has no devices, so nothing is transferred


MIXINS: Final = (NumpyTransfers,)
