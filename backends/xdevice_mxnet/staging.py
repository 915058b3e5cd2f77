"""Copies large arrays between the host and an NVIDIA GPU through the ring. The ring (`xdevice.cuda_driver.ring`) is a
set of page-locked buffers that xdevice allocates for copies.

Rules for this module, with their reasons:

- The host waits for an array before the ring reads it, because these copies bypass MXNet's
  scheduler. Reused memory needs no wait, because MXNet waits for the GPU before it allocates
  freed memory again.
- MXNet makes each copy that is recorded for gradients, because such a copy must be an MXNet operation.
- NumPy's semantics must be enabled; the callers enable them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import mxnet as mx
import numpy as np

from xdevice.base.dtypes import dtype_name, host_dtype
from xdevice.contract import staging
from xdevice.cuda_driver import ring

if TYPE_CHECKING:
    from xdevice.contract.replicas import Replicas

MINIMUM: Final = 16 << 20
"""The minimum size in bytes at which a copy through the ring (of page-locked buffers) is faster than MXNet's own
copy."""


def read(x: Any, backend: Replicas) -> np.ndarray[Any, Any] | None:
    """Reads an array on a GPU through the ring, and returns its values. Returns None if MXNet must read the array."""
    if not _is_staged(x, "gpu", backend):
        return None
    # `staging` is the module `xdevice.contract.staging`, not this module
    return staging.read(x, _address(x, backend), x.shape, host_dtype(dtype_name(x.dtype)))


def put(values: np.ndarray[Any, Any], native: Any, backend: Replicas) -> Any | None:
    """Copies a NumPy array to a GPU through the ring, and returns the new array. Returns None if MXNet must copy the
    array."""
    if native.device_type != "gpu" or values.nbytes < MINIMUM or not values.flags.c_contiguous:
        return None
    if values.dtype.name not in backend.dtypes or not ring.is_usable():
        return None
    array = mx.np.empty(values.shape, dtype=values.dtype, ctx=native)
    return array if _to_gpu(values, values.ctypes.data, array, backend) else None


def moved(x: Any, native: Any, backend: Replicas) -> Any | None:
    """Returns a copy of `x` on the context `native`, made through the ring. One of `x` and the copy is on the host,
    and the other is on a GPU. Returns None if MXNet must copy the array."""
    from_kind, to_kind = ("cpu", "gpu") if native.device_type == "gpu" else ("gpu", "cpu")
    # the first condition excludes contexts of pinned and of shared memory
    if (
        native.device_type != to_kind
        or mx.autograd.is_recording()
        or not _is_staged(x, from_kind, backend)
    ):
        return None
    copy = mx.np.empty(x.shape, dtype=x.dtype, ctx=native)
    if to_kind == "gpu":
        is_done = _to_gpu(x, _address(x, backend), copy, backend)
    else:
        # the stream is None, which means that the copy may start at once, because `_address`
        # has waited for MXNet's work
        source, target = _address(x, backend), _address(copy, backend)
        is_done = bool(source and target) and ring.to_host(
            x, source, copy, target, _size(x), stream=None
        )
    if not is_done:
        return None
    # the result is an `mx.np` array or a legacy array, like `x`
    return copy if isinstance(x, mx.np.ndarray) else copy.as_nd_ndarray()


def _to_gpu(owner: Any, source: int, array: Any, backend: Replicas) -> bool:
    """Copies data from the host to `array`, which is on a GPU. The data begins at the address `source`, in the memory
    of `owner`. Returns whether the ring has made the copy; the result is also False if one of the addresses is 0."""
    target = _address(array, backend)
    return bool(source and target) and ring.to_gpu(
        owner, source, array, target, _size(array), stream=None
    )


def _address(x: Any, backend: Replicas) -> int:
    """Waits for an array, and returns the address of its memory. Returns 0 if MXNet does not report the address."""
    memory = backend.memory_of(x)
    return 0 if memory is None else memory[0]


def _is_staged(x: Any, kind: str, backend: Replicas) -> bool:
    """Whether `x` is on a device of the kind `kind`, and is copied through the ring."""
    return (
        backend.device_of(x).kind == kind
        and not backend.virtual
        and _size(x) >= MINIMUM
        and x.ctx.device_type == kind  # excludes pinned memory
        and backend.is_dense(x)
        and dtype_name(x.dtype) in backend.dtypes
        and ring.is_usable()
    )


def _size(x: Any) -> int:
    """Returns the number of bytes that the values of an array occupy."""
    return int(x.size) * host_dtype(dtype_name(x.dtype)).itemsize
