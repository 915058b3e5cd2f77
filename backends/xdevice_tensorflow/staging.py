"""Copies between the host and a GPU of NVIDIA's through the ring of page-locked memory.

What must be kept:

- TensorFlow's stream is its own, and its allocator gives memory out again in the order of that stream: work that is not
  done yet may still use what `Empty` gives. So the host waits for what it reads, and for what it was given, and the
  ring has done its copy before anybody sees the result.
- TensorFlow tells its tapes of its own copies; so they are told of these.
- A tensor comes to the host by TensorFlow's own copy, which is no slower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf
from tensorflow.python.eager import record

from xdevice.base.dtypes import DTYPES, host_dtype
from xdevice.contract import staging
from xdevice.contract.dlpack import Lent
from xdevice.cuda import ring

if TYPE_CHECKING:
    import numpy as np

    from xdevice.base.devices import Device
    from xdevice.contract.conversion import Conversion

TO_HOST: Final = 64 << 20
TO_GPU: Final = 16 << 20
MOVED: Final = 64 << 20
"""Bytes from which the ring gains: what is read, an array that is put on a GPU, and a tensor that is moved there."""
_ON_GPUS: Final = frozenset(("uint8", "int8", "int32", "int64", "uint64", "bfloat16", "float16", "float32", "float64"))
"""What `Empty` makes there (2.21)."""


def is_read(x: Any, backend: Conversion) -> bool:
    """Whether `read` is for a tensor. Its result is nobody else's."""
    return (
        backend.device_of(x).kind == "gpu"
        and not backend.virtual
        and hasattr(x, "backing_device")
        and x.dtype.name in DTYPES
        and _size(x) >= TO_HOST
        and tf.executing_eagerly()
        and ring.is_measured()
    )


def read(x: Any, backend: Conversion) -> np.ndarray[Any, Any] | None:
    """The values of a tensor on a GPU; None where TensorFlow's own way is to be taken."""
    backend.finish(x)
    return staging.read(x, Lent(backend.export(x)).address, x.shape.as_list(), host_dtype(x.dtype.name))


def put(values: np.ndarray[Any, Any], device: Device, backend: Conversion) -> Any | None:
    """A tensor on a GPU with the values of an array, which have been read on return; None where TensorFlow's own way is
    to be taken."""
    if device.kind != "gpu" or values.nbytes < TO_GPU or not values.flags.c_contiguous:
        return None
    if values.dtype.name not in _ON_GPUS or backend.virtual or not tf.executing_eagerly() or not ring.is_measured():
        return None
    with backend.scope(device):
        made = tf.raw_ops.Empty(shape=values.shape, dtype=tf.as_dtype(values.dtype))
    if backend.device_of(made) is not device:
        return None
    backend.finish(made)
    lent = Lent(backend.export(made))
    is_done = ring.to_gpu(values, values.ctypes.data, made, lent.address, values.nbytes, None)
    return made if is_done else None


def moved(x: Any, device: Device, backend: Conversion) -> Any | None:
    """A tensor from the host on a GPU; None where TensorFlow's own way is to be taken."""
    if device.kind != "gpu" or x.dtype.name not in _ON_GPUS or _size(x) < MOVED:
        return None
    place = backend.device_of(x)
    made = put(backend.to_numpy(x), device, backend) if place.kind == "cpu" else None
    if made is None:
        return None

    def back(gradient: Any) -> list[Any]:
        return [backend.move(gradient, place) if hasattr(gradient, "_copy") else gradient]

    record.record_operation("_copy", [made], [x], back)
    return made


def _size(x: Any) -> int:
    return int(x.shape.num_elements()) * int(x.dtype.size)
