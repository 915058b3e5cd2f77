"""Copies between the host and a GPU of NVIDIA's through the ring of page-locked memory.

What must be kept:

- MXNet's engine knows nothing of these copies: so the host waits for what it reads, and only memory is written that was
  made here, and that nobody else has seen yet. The engine has waited for the GPU before it gives memory out again.
- What is recorded for gradients has to be an operation of MXNet's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import mxnet as mx
import numpy as np

from xdevice.base.dtypes import dtype_name, host_dtype
from xdevice.contract import ring

if TYPE_CHECKING:
    from xdevice.contract import Backend

TO_HOST: Final = 1 << 20
TO_GPU: Final = 1 << 20
"""Bytes from which the ring gains."""


def is_read(x: Any, backend: Backend) -> bool:
    """Whether `read` is for an array."""
    return _is_plain(x, TO_HOST, backend) and x.ctx.device_type == "gpu" and ring.is_measured()


def read(x: Any, backend: Backend) -> np.ndarray[Any, Any] | None:
    """The values of an array on a GPU; None where MXNet's own way is to be taken."""
    values = np.empty(x.shape, host_dtype(dtype_name(x.dtype)))
    return values if _to_host(x, values, values.ctypes.data, backend) else None


def is_put(values: np.ndarray[Any, Any], context: Any) -> bool:
    """Whether `put` is for an array of NumPy's."""
    return context.device_type == "gpu" and values.nbytes >= TO_GPU and values.flags.c_contiguous and ring.is_measured()


def put(values: np.ndarray[Any, Any], context: Any, backend: Backend) -> Any | None:
    """An array on a GPU with these values, which have been read on return; None where MXNet's own is to be taken."""
    made = mx.np.empty(values.shape, dtype=values.dtype, ctx=context)
    return made if _to_gpu(values, values.ctypes.data, made, backend) else None


def moved(x: Any, context: Any, backend: Backend) -> Any | None:
    """An array between the host and a GPU, without its gradient; None where MXNet's own way is to be taken."""
    if mx.autograd.is_recording():
        return None
    if context.device_type == "gpu":
        if not (_is_plain(x, TO_GPU, backend) and x.ctx.device_type == "cpu" and ring.is_measured()):
            return None
        x.wait_to_read()
        made = mx.np.empty(x.shape, dtype=x.dtype, ctx=context)
        is_done = _to_gpu(x, _address(x, backend), made, backend)
    else:
        if context.device_type != "cpu" or not is_read(x, backend):
            return None
        made = mx.np.empty(x.shape, dtype=x.dtype, ctx=context)
        is_done = _to_host(x, made, _address(made, backend), backend)
    if not is_done:
        return None
    return made if isinstance(x, mx.np.ndarray) else made.as_nd_ndarray()


def _to_host(x: Any, owner: Any, target: int, backend: Backend) -> bool:
    x.wait_to_read()
    return ring.to_host(x, _address(x, backend), owner, target, _size(x), None)


def _to_gpu(owner: Any, source: int, made: Any, backend: Backend) -> bool:
    return ring.to_gpu(owner, source, made, _address(made, backend), _size(made), None)


def _address(x: Any, backend: Backend) -> int:
    found = backend.memory_of(x)
    return 0 if found is None else found[0]


def _is_plain(x: Any, least: int, backend: Backend) -> bool:
    return backend.is_dense(x) and _size(x) >= least and dtype_name(x.dtype) in backend.dtypes


def _size(x: Any) -> int:
    return int(x.size) * host_dtype(dtype_name(x.dtype)).itemsize
