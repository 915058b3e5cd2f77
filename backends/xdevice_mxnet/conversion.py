"""Shares memory between MXNet and other frameworks without a copy, in both directions. The code depends on these
facts about MXNet:

- MXNet's scheduler orders only MXNet's own work. `to_dlpack_for_write` waits for all of this
  work on an array, including work that only reads it.
- MXNet exports bool as an integer of one bit.
- MXNet refuses strides other than those of C order, even for axes of size 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mxnet as mx

from xdevice.base import devices
from xdevice.base.dtypes import dtype_name
from xdevice.contract import Takes
from xdevice.contract.conversion import Conversion
from xdevice.contract.dlpack import Lent
from xdevice.errors import UnsupportedError

from . import semantics

if TYPE_CHECKING:
    import numpy as np

# (1, 1): DLPack's code of unsigned integers, and one bit
TAKES = Takes(strides="compact", labels={"bool": (1, 1)})

_SHARED = ("float16", "float32", "float64", "int32", "int64", "uint8", "int8")
"""The dtypes that MXNet exports correctly through DLPack. It exports bool as an unsigned integer of 1 bit, and cannot
export bfloat16."""


class MxnetConversion(Conversion):
    """Shares memory between MXNet and other frameworks."""

    def takes(self) -> Takes | None:
        """Returns MXNet's requirement on memory that it uses from other frameworks: the memory must be in C order."""
        return TAKES

    def detached(self, x: Any) -> Any:
        """Returns an array that shares the memory of `x`, and is not part of a gradient computation. Raises
        `UnsupportedError` for a sparse array."""
        if x.stype != "default":
            raise UnsupportedError(
                f'an array with {x.stype} storage is not in one block of memory; convert x.tostype("default")'
            )
        # while MXNet is recording, any array may be part of the graph
        return x.detach() if x.grad is not None or mx.autograd.is_recording() else x

    def export(self, x: Any) -> Any:
        """Returns a DLPack capsule of `x`, after all of MXNet's work on `x` has finished."""
        with mx.util.np_shape(True):
            return mx.nd.to_dlpack_for_write(x.as_nd_ndarray())

    def adopt(self, lent: Lent, dtype: str) -> Any:
        """Returns an `mx.np` array that shares the memory of another framework's tensor, which `lent` describes.
        `dtype` is ignored, because the DLPack capsule contains the dtype."""
        semantics.enable_for_creation()
        with mx.util.np_shape(True):
            return mx.nd.from_dlpack(lent.capsule).as_np_ndarray()

    def from_buffer(self, array: np.ndarray[Any, Any]) -> Any:
        """Returns an `mx.np` array on the CPU that shares the memory of a NumPy array. For int8, returns a copy
        instead."""
        if array.dtype == "int8":  # mx.nd.from_numpy does not support int8
            return self.from_numpy(array, devices.CPU)
        semantics.enable_for_creation()
        return mx.nd.from_numpy(array, zero_copy=True).as_np_ndarray()

    def gives_away(self, x: Any) -> bool:
        """Returns True, because `asnumpy()` always creates a new array."""
        return True

    def peek(self, x: Any) -> np.ndarray[Any, Any]:
        """Returns the values of `x` as an array for reading. The array shares the memory of `x` if that memory is on
        the host and MXNet can export it; otherwise it is a copy."""
        with mx.util.np_shape(True):
            # the memory can be shared if `x` is dense, has axes and elements, and has a dtype
            # that MXNet exports correctly
            is_shared = (
                dtype_name(x.dtype) in _SHARED and x.stype == "default" and x.ndim and x.size
            )
            if not is_shared or x.ctx.device_type == "gpu":
                return self.to_numpy(x)
            # an error of failed work must be raised here, and not below, where every error
            # means that the memory cannot be exported
            x.wait_to_read()
            try:
                return Lent(mx.nd.to_dlpack_for_read(x.as_nd_ndarray())).numpy_view()
            # after a convolution has run, its weight remains in oneDNN's layout
            # (apache/mxnet#16143)
            except mx.MXNetError:
                return self.to_numpy(x)
