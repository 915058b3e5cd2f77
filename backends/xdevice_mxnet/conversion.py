"""Lends the memory of MXNet's arrays to other frameworks, and takes over memory of theirs, without a copy.

Facts about MXNet that the code depends on:

- MXNet orders only its own work. `to_dlpack_for_write` waits for all of MXNet's work on an array, also for reads of it.
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

TAKES = Takes(strides="compact", labels={"bool": (1, 1)})


_SHARED = ("float16", "float32", "float64", "int32", "int64", "uint8", "int8")
"""The dtypes that MXNet exports correctly by DLPack: it exports bool as uint8 of 1 bit, and cannot export bfloat16."""


class MxnetConversion(Conversion):
    def takes(self) -> Takes | None:
        return TAKES

    def detached(self, x: Any) -> Any:
        if x.stype != "default":
            raise UnsupportedError(
                f'an array with {x.stype} storage is not in one block of memory; convert x.tostype("default")'
            )
        return x.detach() if x.grad is not None or mx.autograd.is_recording() else x

    def export(self, x: Any) -> Any:
        with mx.util.np_shape(True):
            return mx.nd.to_dlpack_for_write(x.as_nd_ndarray())

    def adopt(self, lent: Lent, dtype: str) -> Any:
        semantics.creating()
        with mx.util.np_shape(True):
            return mx.nd.from_dlpack(lent.capsule).as_np_ndarray()

    def from_buffer(self, array: np.ndarray[Any, Any]) -> Any:
        if array.dtype == "int8":  # mx.nd.from_numpy does not support int8
            return self.from_numpy(array, devices.CPU)
        semantics.creating()
        return mx.nd.from_numpy(array, zero_copy=True).as_np_ndarray()

    def gives_away(self, x: Any) -> bool:
        return True

    def peek(self, x: Any) -> np.ndarray[Any, Any]:
        with mx.util.np_shape(True):
            is_shared = (
                dtype_name(x.dtype) in _SHARED and x.stype == "default" and x.ndim and x.size
            )
            if not is_shared or x.ctx.device_type == "gpu":
                return self.to_numpy(x)
            x.wait_to_read()  # the error of failed work comes out here, and not where it would be taken for another one
            try:
                return Lent(mx.nd.to_dlpack_for_read(x.as_nd_ndarray())).seen_by_numpy()
            except mx.MXNetError:  # a convolution that has run keeps its weight in oneDNN's layout (apache/mxnet#16143)
                return self.to_numpy(x)
