"""Copies between the host and an NVIDIA GPU through the ring of page-locked memory.

What must be kept:

- MXNet's engine does not know of these copies, so the host waits for an array before it reads it. Before the engine
  gives out memory again, it has waited for the GPU.
- A copy that is recorded for gradients must be an operation of MXNet's.
- NumPy's semantics are on: the caller has switched them on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import mxnet as mx
import numpy as np

from xdevice.base.dtypes import dtype_name, host_dtype
from xdevice.contract import staging
from xdevice.cuda import ring

if TYPE_CHECKING:
    from xdevice.contract.replicas import Replicas

LEAST: Final = 16 << 20
"""The size in bytes from which a copy by the ring (of page-locked buffers) is faster than MXNet's own."""


def read(x: Any, backend: Replicas) -> np.ndarray[Any, Any] | None:
    """The values of an array on a GPU; None if MXNet is to read them."""
    if not _is_staged(x, "gpu", backend):
        return None
    return staging.read(x, _address(x, backend), x.shape, host_dtype(dtype_name(x.dtype)))


def put(values: np.ndarray[Any, Any], context: Any, backend: Replicas) -> Any | None:
    """An array on a GPU with the values of a NumPy array; None if MXNet is to copy them."""
    if context.device_type != "gpu" or values.nbytes < LEAST or not values.flags.c_contiguous:
        return None
    if values.dtype.name not in backend.dtypes or not ring.is_measured():
        return None
    made = mx.np.empty(values.shape, dtype=values.dtype, ctx=context)
    return made if _to_gpu(values, values.ctypes.data, made, backend) else None


def moved(x: Any, context: Any, backend: Replicas) -> Any | None:
    """A copy of an array of the host on a GPU, or the reverse; None if MXNet is to copy it."""
    from_kind, to_kind = ("cpu", "gpu") if context.device_type == "gpu" else ("gpu", "cpu")
    if context.device_type != to_kind or mx.autograd.is_recording() or not _is_staged(x, from_kind, backend):
        return None
    made = mx.np.empty(x.shape, dtype=x.dtype, ctx=context)
    if to_kind == "gpu":
        is_done = _to_gpu(x, _address(x, backend), made, backend)
    else:
        source, target = _address(x, backend), _address(made, backend)
        is_done = bool(source and target) and ring.to_host(x, source, made, target, _size(x), None)
    if not is_done:
        return None
    return made if isinstance(x, mx.np.ndarray) else made.as_nd_ndarray()


def _to_gpu(owner: Any, source: int, made: Any, backend: Replicas) -> bool:
    target = _address(made, backend)
    return bool(source and target) and ring.to_gpu(owner, source, made, target, _size(made), None)


def _address(x: Any, backend: Replicas) -> int:
    """The address of an array, after waiting for it; 0 if MXNet does not tell the address."""
    found = backend.memory_of(x)
    return 0 if found is None else found[0]


def _is_staged(x: Any, kind: str, backend: Replicas) -> bool:
    return (
        backend.device_of(x).kind == kind
        and not backend.virtual
        and _size(x) >= LEAST
        and x.ctx.device_type == kind  # excludes pinned memory
        and backend.is_dense(x)
        and dtype_name(x.dtype) in backend.dtypes
        and ring.is_measured()
    )


def _size(x: Any) -> int:
    return int(x.size) * host_dtype(dtype_name(x.dtype)).itemsize
