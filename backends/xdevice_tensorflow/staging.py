"""Copies between the host and a GPU of NVIDIA's through the ring of page-locked memory.

What must be kept:

- Tensors do not change, and operations may share their memory: only memory is written that was made here, and that
  nobody else has seen yet.
- TensorFlow's stream is its own, and its allocator gives memory out again in the order of that stream, so that work
  which is not done yet may still use what `Empty` gives. So the host waits for what it reads, and for what it was
  given, and the ring has done its copy before anybody sees the result.
- TensorFlow tells its tapes of its own copies: so it is told of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf
from tensorflow.python.eager import record

from xdevice.base.dtypes import DTYPES
from xdevice.contract import ring
from xdevice.contract.alignment import aligned
from xdevice.contract.dlpack import Lent

from . import sharing

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from xdevice.base.devices import Device
    from xdevice.contract import Backend

TO_HOST: Final = 1 << 20
TO_GPU: Final = 1 << 20
"""Bytes from which the ring gains."""


def is_read(x: Any, backend: Backend) -> bool:
    """Whether `read` is for a tensor. Its result is nobody else's."""
    return (
        _is_plain(x)
        and _size(x) >= TO_HOST
        and backend.device_of(x).kind == "gpu"
        and not backend.virtual
        and ring.is_measured()
    )


def read(x: Any, backend: Backend) -> np.ndarray[Any, Any] | None:
    """The values of a tensor on a GPU, in memory of their own that begins at a multiple of `ALIGNMENT`; None where
    TensorFlow's own way is to be taken."""
    backend.finish(x)
    lent = Lent(sharing.export(x))
    values = aligned(_size(x))
    if not ring.to_host(x, lent.address, values, values.ctypes.data, values.nbytes, None):
        return None
    return values.view(x.dtype.as_numpy_dtype).reshape(x.shape)


def is_put(values: np.ndarray[Any, Any], device: Device, backend: Backend) -> bool:
    """Whether `put` is for an array of NumPy's."""
    return (
        device.kind == "gpu"
        and values.nbytes >= TO_GPU
        and values.flags.c_contiguous
        and values.dtype.name in DTYPES
        and values.dtype.name not in backend.short_floats
        and not backend.virtual
        and tf.executing_eagerly()
        and ring.is_measured()
    )


def put(values: np.ndarray[Any, Any], device: Device, backend: Backend) -> Any | None:
    """A tensor on a GPU with these values, which have been read on return; None where TensorFlow's own way is to be
    taken."""
    with backend.scope(device):
        made = tf.raw_ops.Empty(shape=values.shape, dtype=tf.as_dtype(values.dtype))
    if backend.device_of(made) is not device:  # it has no kernel there for this dtype
        return None
    backend.finish(made)
    lent = Lent(sharing.export(made))
    is_done = ring.to_gpu(values, values.ctypes.data, made, lent.address, values.nbytes, None)
    return made if is_done else None


def moved(x: Any, device: Device, backend: Backend) -> Any | None:
    """A tensor between the host and a GPU; None where TensorFlow's own way is to be taken."""
    made = _to_host(x, backend) if device.kind == "cpu" else _to_gpu(x, device, backend)
    if made is None:
        return None
    record.record_operation("_copy", [made], [x], _back_to(backend.device_of(x), backend))
    return made


def _to_host(x: Any, backend: Backend) -> Any | None:
    values = read(x, backend) if is_read(x, backend) else None
    return None if values is None else backend.from_buffer(values)


def _to_gpu(x: Any, device: Device, backend: Backend) -> Any | None:
    if not _is_plain(x) or _size(x) < TO_GPU or backend.device_of(x).kind != "cpu":
        return None
    values = backend.to_numpy(x)
    return put(values, device, backend) if is_put(values, device, backend) else None


def _back_to(place: Device, backend: Backend) -> Callable[[Any], list[Any]]:
    return lambda gradient: [backend.move(gradient, place) if hasattr(gradient, "_copy") else gradient]


def _is_plain(x: Any) -> bool:
    return hasattr(x, "backing_device") and tf.executing_eagerly() and x.dtype.name in DTYPES


def _size(x: Any) -> int:
    return int(x.shape.num_elements()) * int(x.dtype.size)
