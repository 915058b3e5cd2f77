"""Copies large tensors between the host and an NVIDIA GPU through the ring. The ring (`xdevice.cuda_driver.ring`) is a
set of page-locked buffers that xdevice allocates for copies.

Rules for this module, and the reasons for them:

- The host waits for TensorFlow before the ring reads or writes a tensor, and the copy through the ring is complete
  before the tensor is returned. TensorFlow's stream is not accessible, and TensorFlow reuses memory in the order of
  this stream. So earlier work may still use the memory of a tensor that `Empty` returns.
- Gradient tapes record moves through the ring, as they record TensorFlow's own copies.
- TensorFlow itself moves tensors from a GPU to the host, because the ring is not faster in this direction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf

from xdevice.base.dtypes import DTYPES, host_dtype
from xdevice.contract import staging
from xdevice.contract.dlpack import Lent
from xdevice.cuda_driver import ring

if TYPE_CHECKING:
    import numpy as np

    from xdevice.base.devices import Device
    from xdevice.contract.conversion import Conversion

MIN_TO_HOST: Final = 64 << 20
MIN_TO_GPU: Final = 16 << 20
MIN_MOVED: Final = 64 << 20
"""The minimum sizes in bytes at which a copy through the ring is faster than TensorFlow's own copy. `MIN_TO_HOST`
applies to reading a tensor as an array, `MIN_TO_GPU` to creating a tensor on a GPU from an array, and `MIN_MOVED` to
moving a tensor from the host to a GPU."""
_ON_GPUS: Final = frozenset(
    ("uint8", "int8", "int32", "int64", "uint64", "bfloat16", "float16", "float32", "float64")
)
"""The dtypes in which the operation `Empty` can create tensors on a GPU (TensorFlow 2.21)."""


def should_read(x: Any, backend: Conversion) -> bool:
    """Whether the host should read `x` through the ring with the function `read`. The array that `read` returns shares
    no memory with a tensor."""
    # variables, which have a device but no `backing_device`, are left out
    return (
        backend.device_of(x).kind == "gpu"
        and not backend.virtual
        and hasattr(x, "backing_device")
        and x.dtype.name in DTYPES
        and _size(x) >= MIN_TO_HOST
        and tf.executing_eagerly()
        and ring.is_usable()
    )


def read(x: Any, backend: Conversion) -> np.ndarray[Any, Any] | None:
    """Reads a tensor on a GPU through the ring, and returns its values. Returns None if TensorFlow must read the tensor
    instead."""
    # the ring does not wait for TensorFlow's work
    backend.finish(x)
    # `staging` is the module `xdevice.contract.staging`, not this module
    return staging.read(
        x, Lent(backend.export(x)).address, x.shape.as_list(), host_dtype(x.dtype.name)
    )


def put(values: np.ndarray[Any, Any], device: Device, backend: Conversion) -> Any | None:
    """Copies an array to a GPU through the ring, and returns the new tensor. Returns None if TensorFlow must create the
    tensor instead. The array may be changed as soon as this function returns."""
    if device.kind != "gpu" or values.nbytes < MIN_TO_GPU or not values.flags.c_contiguous:
        return None
    if (
        values.dtype.name not in _ON_GPUS
        or backend.virtual
        or not tf.executing_eagerly()
        or not ring.is_usable()
    ):
        return None
    with backend.scope(device):
        tensor = tf.raw_ops.Empty(shape=values.shape, dtype=tf.as_dtype(values.dtype))
    # despite the scope, a tensor whose dtype GPUs do not support stays on the host
    if backend.device_of(tensor) is not device:
        return None
    # earlier work on the GPU may still use this memory
    backend.finish(tensor)
    lent = Lent(backend.export(tensor))
    is_done = ring.to_gpu(
        values, values.ctypes.data, tensor, lent.address, values.nbytes, stream=None
    )
    return tensor if is_done else None


def moved(x: Any, device: Device, backend: Conversion) -> Any | None:
    """Copies a tensor from the host to a GPU through the ring. Returns the copy, or None if TensorFlow must copy the
    tensor instead."""
    if device.kind != "gpu" or x.dtype.name not in _ON_GPUS or _size(x) < MIN_MOVED:
        return None
    place = backend.device_of(x)
    copy = put(backend.to_numpy(x), device, backend) if place.kind == "cpu" else None
    if copy is None:
        return None
    # integers have no gradient that a tape could record
    if not x.dtype.is_floating:
        return copy

    def moved_back(gradient: Any) -> Any:
        """Returns the gradient of the copy on the device of `x`. A symbolic gradient is
        returned unchanged."""
        # a symbolic gradient has no device, and TensorFlow copies it to where it is needed
        return (
            backend.move(gradient, place) if hasattr(gradient, "backing_device") else gradient
        )

    # `custom_gradient` passes the copy through an operation that runs on the device of the
    # scope
    with backend.scope(device):
        return tf.custom_gradient(lambda x: (copy, moved_back))(x)


def _size(x: Any) -> int:
    """Returns the number of bytes that the values of a tensor occupy."""
    return int(x.shape.num_elements()) * int(x.dtype.size)
