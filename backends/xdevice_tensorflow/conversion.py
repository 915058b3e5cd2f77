"""Shares memory between TensorFlow and other frameworks without a copy, in both directions.

Facts about TensorFlow that the code depends on:

- An operation on memory whose address is not a multiple of 64 bytes crashes the process.
- `x.__dlpack__` refuses the argument `stream`, so tensors are exchanged through
  `tf.experimental.dlpack` after waiting for the device.
- TensorFlow caches 0-d constants: the next `tf.constant` of the same value returns the same tensor. So a program that
  writes into such a constant would also change all later constants of this value.
- `to_dlpack` of a string tensor crashes the process. The core never converts strings, because
  xdevice has no dtype for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from xdevice.base import devices
from xdevice.contract import Takes
from xdevice.contract.conversion import ALIGNMENT, Conversion
from xdevice.errors import UnsupportedError

from . import accelerators, staging

if TYPE_CHECKING:
    import numpy as np

    from xdevice.base.devices import Device
    from xdevice.contract.dlpack import Lent

COMPOSITES = (tf.SparseTensor, tf.RaggedTensor, tf.IndexedSlices)
"""The types of tensors that consist of several dense tensors (their components)."""
TAKES = Takes(alignment=ALIGNMENT, strides="compact")


class TensorflowConversion(Conversion):
    """Shares memory between TensorFlow and other frameworks."""

    def shares(self, device: Device) -> bool:
        """Whether other frameworks can use the memory of a device. This is the case for the CPU, and for real GPUs of
        NVIDIA or AMD."""
        # sharing the memory of other vendors' GPUs has never been tested
        return super().shares(device) and (
            device.kind == "cpu" or accelerators.IS_NVIDIA_OR_AMD
        )

    def takes(self) -> Takes | None:
        """Returns TensorFlow's requirements for memory that belongs to another framework: the memory must be aligned,
        and the elements must be in C order."""
        return TAKES

    def detached(self, x: Any) -> Any:
        """Returns `x` itself. In TensorFlow, tapes record operations for gradients, and a tensor itself has no gradient
        history. Raises `UnsupportedError` for a composite or symbolic tensor."""
        if not hasattr(x, "backing_device"):
            raise UnsupportedError(
                f"an object of type {type(x).__name__} has no single block of memory to share; make it dense first "
                f"(tf.sparse.to_dense(x), x.to_tensor() or tf.convert_to_tensor(x)), or convert its components instead"
            )
        return x

    def finish(self, x: Any) -> None:
        """Waits for all work if `x` is on a GPU, because TensorFlow cannot wait for a single
        tensor."""
        if self.device_of(x).kind != "cpu":  # on the CPU, `to_dlpack` itself waits
            self.synchronize(None)

    def export(self, x: Any) -> Any:
        """Returns a DLPack capsule of `x`. Raises BufferError for a 0-d tensor, because its
        memory may belong to a constant that TensorFlow will reuse."""
        if x.shape.rank == 0:
            raise BufferError("its memory may belong to a constant that TensorFlow will reuse")
        return tf.experimental.dlpack.to_dlpack(x)

    def adopt(self, lent: Lent, dtype: str) -> Any:
        """Returns a tensor that uses the memory of another framework's tensor, which `lent`
        describes."""
        return tf.experimental.dlpack.from_dlpack(lent.capsule)

    def from_buffer(self, array: np.ndarray[Any, Any]) -> Any:
        """Returns a tensor on the CPU that uses the memory of an array. For 8-bit floats, the tensor is a copy of the
        array."""
        # 2 means that the dtype is not NumPy's own: it comes from ml_dtypes, and NumPy cannot
        # export it through DLPack
        if array.dtype.isbuiltin == 2:
            if array.dtype.name in self.short_floats:
                # tf.bitcast does not support these dtypes
                return self.from_numpy(array, devices.CPU)
            # the only other dtype of ml_dtypes is bfloat16; without the scope, tf.bitcast would run on a GPU
            with tf.device("/CPU:0"):
                return tf.bitcast(self.from_buffer(array.view("uint16")), tf.bfloat16)
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())

    def gives_away(self, x: Any) -> bool:
        """Whether the array that `to_numpy(x)` returns has memory that nothing else uses. This is the case only if `x`
        is read through the ring."""
        return staging.should_read(x, self)
