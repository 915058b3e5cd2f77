"""Detects MXNet's transfers (reads of arrays by the host, and copies between devices) by replacing methods of MXNet's
array classes."""

from __future__ import annotations

from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

from xdevice.performance.contract.hooks import Hooks
from xdevice.performance.contract.transfers import Transfers
from xdevice_mxnet.private import MOVES, NUMPY_MOVES, NUMPY_READS, READS, private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdevice.base.devices import Device
    from xdevice.performance.contract.transfers import Transfer


def _with_subclasses(cls: type) -> list[type]:
    """Returns a list with a class and all of its subclasses."""
    family = [cls]
    # the loop adds the subclasses of each class to the list, which therefore grows during the
    # loop
    for heir in family:
        family += heir.__subclasses__()
    return family


def _size(x: Any) -> int:
    """Returns the number of bytes of an array. The zeros of a sparse array are included, because it is read as a
    dense array."""
    # `size` is not used, because a sparse array lacks it. NumPy's shapes are needed, because
    # without them, a 0 in a shape would mean that the length is unknown
    with mx.util.np_shape(True):
        return prod(x.shape) * np.dtype(x.dtype).itemsize


class MxnetTransfers(Transfers):
    """Reports reads by the host, and copies between devices."""

    @contextmanager
    def watch(self, report: Callable[[Transfer], None]) -> Iterator[None]:
        """Opens a block in which `report` is called for each transfer."""
        private.require_names_for("transfers")

        def target_of(x: Any, other: Any) -> Device | None:
            """Returns the device to which `x.copyto(other)` or a similar method copies `x`."""
            # the argument of `copyto` is an array or a context
            return (
                self.device_of(other)
                if isinstance(other, mx.nd.NDArray)
                else self.from_native(other)
            )

        with Hooks(self, report, _size) as hooks:
            # records transfers by xdevice's own functions under the names that the program calls
            hooks.verbs()
            hooks.numpy_reads()
            # `mx.np.ndarray` and the sparse arrays are subclasses that override methods
            for cls in _with_subclasses(mx.nd.NDArray):
                hooks.reads(
                    cls, *(name for name in (*READS, *NUMPY_READS) if name in vars(cls))
                )
                for name in (*MOVES, *NUMPY_MOVES):
                    if name in vars(cls):
                        hooks.moves(cls, name, target_of)
            yield
