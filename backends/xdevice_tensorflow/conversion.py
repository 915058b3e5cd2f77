"""Lends the memory of TensorFlow's tensors to other frameworks, and takes over memory of theirs, without a copy.

Facts about TensorFlow that the code depends on:

- An operation on memory whose address is not a multiple of 64 bytes crashes the process.
- `x.__dlpack__` refuses a `stream`, so tensors are exchanged through `tf.experimental.dlpack`, after a wait.
- TensorFlow keeps 0-d constants, and returns them again from the next `tf.constant` of the same value. Writing into
  such a constant would change all later ones.
- `to_dlpack` of a string tensor crashes the process. Strings never get here, because xdevice has no dtype for them.
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
TAKES = Takes(alignment=ALIGNMENT, strides="compact")


class TensorflowConversion(Conversion):
    def shares(self, device: Device) -> bool:
        # sharing memory was tried on GPUs of NVIDIA and AMD only
        return super().shares(device) and (
            device.kind == "cpu" or accelerators.IS_NVIDIA_OR_AMD
        )

    def takes(self) -> Takes | None:
        return TAKES

    def detached(self, x: Any) -> Any:
        if not hasattr(x, "backing_device"):
            raise UnsupportedError(
                f"an object of type {type(x).__name__} has no memory of its own; convert a dense tensor "
                f"(tf.sparse.to_dense(x), x.to_tensor() or tf.convert_to_tensor(x)), or the components of the object"
            )
        return x

    def finish(self, x: Any) -> None:
        if self.device_of(x).kind != "cpu":  # on the CPU `to_dlpack` itself waits
            self.synchronize(None)

    def export(self, x: Any) -> Any:
        if x.shape.rank == 0:
            raise BufferError("TensorFlow caches 0-d constants and returns them again")
        return tf.experimental.dlpack.to_dlpack(x)

    def adopt(self, lent: Lent, dtype: str) -> Any:
        return tf.experimental.dlpack.from_dlpack(lent.capsule)

    def from_buffer(self, array: np.ndarray[Any, Any]) -> Any:
        # a dtype of ml_dtypes, which NumPy does not export by DLPack
        if array.dtype.isbuiltin == 2:
            if array.dtype.name in self.short_floats:
                # tf.bitcast does not support these dtypes
                return self.from_numpy(array, devices.CPU)
            with tf.device("/CPU:0"):  # otherwise tf.bitcast would run on a GPU
                return tf.bitcast(self.from_buffer(array.view("uint16")), tf.bfloat16)
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())

    def gives_away(self, x: Any) -> bool:
        return staging.is_read(x, self)
