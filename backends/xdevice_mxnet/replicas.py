"""Splits and joins arrays, writes into arrays, and adds arrays."""

from __future__ import annotations

import ctypes
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Any

import mxnet as mx

from xdevice.base.dtypes import dtype_name, host_dtype
from xdevice.contract.replicas import Replicas, add_up

from . import models
from .library import library

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from xdevice.base.devices import Device

_FLOATS = ("float16", "float32", "float64")
"""The dtypes that have gradients."""
_get_data = library.MXNDArrayGetData


class MxnetReplicas(Replicas):
    """Handles MXNet's arrays on several devices of this process."""

    def split(self, x: Any, sizes: Sequence[int]) -> list[Any]:
        """Returns consecutive parts of `x` along its first axis. `sizes` contains the length of each part along that
        axis."""
        # NumPy's shape semantics are needed, because a part may have no elements
        with mx.util.np_shape(True):
            return super().split(x, sizes)

    def join(self, parts: list[Any]) -> Any:
        """Returns the parts, joined along their first axis. The result is an `mx.np` array or a legacy array, like
        the parts. 0-d parts are joined into a vector."""
        # joined as mx.np arrays, because legacy arrays of bool, and legacy arrays without
        # elements, cannot be concatenated
        with mx.util.np_shape(True):
            arrays = [x.as_np_ndarray() for x in parts]
            joined = mx.np.concatenate(arrays) if arrays[0].ndim else mx.np.stack(arrays)
            return joined if isinstance(parts[0], mx.np.ndarray) else joined.as_nd_ndarray()

    def leaf(self, x: Any, device: Device) -> Any:
        """Returns a copy of `x` on a device. If `x` contains floats, the copy has its own gradient."""
        with mx.util.np_shape(True), mx.autograd.pause():
            new = x.copyto(self.to_native(device))
            if dtype_name(x.dtype) in _FLOATS:
                new.attach_grad()
        return new

    def can_write(self, x: Any) -> bool:
        """Returns True, because every MXNet array can be written into."""
        return True

    def memory_of(self, x: Any) -> tuple[int, tuple[int, ...]] | None:
        """Waits for a dense array, and returns the address of its memory and its strides in bytes. Returns None if
        MXNet does not report the address."""
        # MXNet allocates the memory when it computes the array
        x.wait_to_read()
        address = ctypes.c_void_p()
        has_failed = _get_data(x.handle, ctypes.byref(address))
        if has_failed:
            return None
        # MXNet's arrays are always in C order, so the stride of an axis is the size of all
        # elements along the later axes
        itemsize = host_dtype(dtype_name(x.dtype)).itemsize
        strides = (
            [*accumulate(reversed(x.shape[1:]), mul, initial=itemsize)][::-1] if x.ndim else []
        )
        return address.value or 0, tuple(strides)

    def write(self, x: Any, value: Any) -> None:
        """Writes the values of `value` into the memory of `x`, an array or a Parameter."""
        array = models.array_of(x)
        with mx.util.np_shape(True), mx.autograd.pause():
            # `copyto` does not accept a legacy array together with an mx.np array
            value.as_nd_ndarray().copyto((x if array is None else array).as_nd_ndarray())

    def total(self, tensors: Iterable[Any], mean: bool) -> Any:
        """Returns the sum of arrays on the same device, or their mean if `mean` is True. The arrays are added in the
        given order; float16 is added as float32."""
        remaining = iter(tensors)
        first = next(remaining)
        wide = "float32" if dtype_name(first.dtype) == "float16" else first.dtype
        with mx.util.np_shape(True), mx.autograd.pause():
            # the first `astype` copies even if the dtype stays the same, because `add_up` adds
            # in place
            others = (x.astype(wide, copy=False) for x in remaining)
            total = add_up(first.astype(wide), others, mean)
            return total.astype(first.dtype, copy=False)
