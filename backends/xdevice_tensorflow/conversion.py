"""TensorFlow's memory in the hands of other frameworks, and theirs in its own.

- The first operation on a buffer that is not at a multiple of 64 bytes ends the process.
- `x.__dlpack__(stream=...)` is refused, so everything goes by `tf.experimental.dlpack`, after a wait.
- 0-d constants are kept for the next `tf.constant` of that value: who writes into one changes all later ones.
- `to_dlpack` of a string tensor ends the process; no string gets here, because xdevice has no dtype for it.
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
        # of others nothing was seen
        return super().shares(device) and (device.kind == "cpu" or accelerators.IS_NVIDIA_OR_AMD)

    def takes(self) -> Takes | None:
        return TAKES

    def detached(self, x: Any) -> Any:
        if not hasattr(x, "backing_device"):
            raise UnsupportedError(
                f"a {type(x).__name__} has no memory of its own; convert the dense tensor (tf.sparse.to_dense(x), "
                f"x.to_tensor(), tf.convert_to_tensor(x)), or its components"
            )
        return x

    def finish(self, x: Any) -> None:
        if self.device_of(x).kind != "cpu":  # to_dlpack waits for the host's work
            self.synchronize(None)

    def export(self, x: Any) -> Any:
        if x.shape.rank == 0:
            raise BufferError("TensorFlow keeps 0-d constants and gives them out again")
        return tf.experimental.dlpack.to_dlpack(x)

    def adopt(self, lent: Lent, dtype: str) -> Any:
        return tf.experimental.dlpack.from_dlpack(lent.capsule)

    def from_buffer(self, array: np.ndarray[Any, Any]) -> Any:
        if array.dtype.isbuiltin == 2:  # of ml_dtypes, and NumPy exports none
            if array.dtype.name in self.short_floats:
                return self.from_numpy(array, devices.CPU)  # bitcast knows none of them
            with tf.device("/CPU:0"):  # else TensorFlow would take it to a GPU
                return tf.bitcast(self.from_buffer(array.view("uint16")), tf.bfloat16)
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())

    def gives_away(self, x: Any) -> bool:
        return staging.is_read(x, self)
