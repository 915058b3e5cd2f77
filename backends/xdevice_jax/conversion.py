"""Shares memory between JAX and other frameworks without copying, in both directions.

Facts about JAX that the code depends on:

- `from_dlpack` ignores the strides of a transposed tensor whose memory is aligned (jax#7657), so only memory in C order
  is adopted.
- `from_dlpack` copies memory whose address is not a multiple of 64 bytes, even with
  `copy=False`.
- `from_dlpack` calls `__dlpack__(stream=...)`, which PyTorch does not accept if its current device is another GPU, and
  which TensorFlow never accepts. Therefore xdevice waits for the tensor, creates the DLPack capsule itself, and passes
  the capsule to JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from xdevice.base import devices
from xdevice.base.dtypes import host_dtype
from xdevice.contract import Takes
from xdevice.contract.conversion import ALIGNMENT, Conversion
from xdevice.errors import DTypeError, UnsupportedError

from . import staging

if TYPE_CHECKING:
    from xdevice.base.devices import Device
    from xdevice.contract.dlpack import Lent

_TAKES = Takes(alignment=ALIGNMENT, strides="compact")
_NARROWED = {"int64": "int32", "uint64": "uint32"}
"""The dtypes in which JAX stores 64-bit integers if 64-bit mode is off."""
_64_BIT = 'Enable 64-bit dtypes with jax.config.update("jax_enable_x64", True)'
WIDE = ("int64", "uint64", "float64", "complex128")
"""The dtypes that JAX narrows to half their width unless 64-bit mode is on."""


def require_values(x: jax.Array) -> None:
    """Raises `UnsupportedError` for an array that was deleted. JAX's own functions raise various errors for a deleted
    array, and no error when the array's device is read."""
    if not isinstance(x, jax.core.Tracer) and x.is_deleted():
        raise UnsupportedError(
            f"jax does not support reading this array of shape {x.shape}, because it was donated to a jitted function, "
            f"or deleted with delete(); use the function's result, or copy the array first with xdevice.copy_to"
        )


def stored_dtype(dtype: str, values: np.ndarray[Any, Any] | None = None) -> np.dtype[Any]:
    """Returns the dtype in which JAX stores values of the dtype named `dtype`. If 64-bit mode is off, JAX stores 64-bit
    integers in a 32-bit dtype. In this case, raises `DTypeError` for float64 and complex128, and also if a value in
    `values` does not fit into the narrower dtype."""
    if jax.config.jax_enable_x64:
        return host_dtype(dtype)
    if dtype in ("float64", "complex128"):
        raise DTypeError(
            f"jax does not support {dtype} while its 64-bit mode is off. {_64_BIT}"
        )
    narrow = host_dtype(_NARROWED.get(dtype, dtype))
    # JAX would drop the upper bits without a warning
    if dtype in _NARROWED and values is not None and values.size:
        limits = np.iinfo(narrow)
        least, most = values.min(), values.max()
        if least < limits.min or most > limits.max:
            value = f"{least}" if values.size == 1 else f"a value between {least} and {most}"
            raise DTypeError(
                f"{value} does not fit into {narrow}, which JAX uses for {dtype} in 32-bit mode. {_64_BIT}"
            )
    return narrow


class JaxConversion(Conversion):
    """Shares memory with other frameworks by DLPack."""

    def shares(self, device: Device) -> bool:
        """Whether other frameworks can use the memory of arrays on this device."""
        # sharing the memory of GPUs was tested only with the plugins of these vendors
        return super().shares(device) and (
            device.kind == "cpu" or self.hardware() <= {"cuda", "rocm", "hip"}
        )

    def takes(self) -> Takes:
        """Returns JAX's requirements on memory that it adopts from other frameworks: the memory must be aligned and in
        C order."""
        return _TAKES

    def export(self, x: jax.Array) -> Any:
        """Waits for the values of `x`, and returns a DLPack capsule of `x`."""
        self.wait(x)  # exporting an array whose computation has failed crashes the process
        return x.__dlpack__()

    def adopt(self, lent: Lent, dtype: str) -> jax.Array:
        """Returns an array in the memory of another framework's tensor, which `lent` describes. `dtype` is ignored,
        because the DLPack capsule contains the dtype."""
        return jax.dlpack.from_dlpack(lent)

    def from_buffer(self, array: np.ndarray[Any, Any]) -> jax.Array:
        """Returns an array on the CPU with the values of a NumPy array, in the same memory if
        possible."""
        # NumPy does not export bfloat16 and 8-bit floats by DLPack; `isbuiltin` is 2 for these dtypes, which ml_dtypes
        # defines
        if array.dtype.isbuiltin == 2:
            return jax.device_put(array, self.to_native(devices.CPU))
        # if 64-bit mode is off, the values are narrowed, which requires a copy, or an error is raised because they do
        # not fit
        if array.itemsize >= 8 and stored_dtype(array.dtype.name, array) != array.dtype:
            return self.from_numpy(array, devices.CPU)
        return jax.dlpack.from_dlpack(array)

    def gives_away(self, x: jax.Array) -> bool:
        """Whether `to_numpy(x)` returns an array whose memory nothing else uses. That is the case only if `x` is read
        through the ring or by the driver."""
        # `staging.read` returns a new array; an array that JAX itself returns is read-only
        return staging.should_read(x)

    def dtype_refusal(self, dtype: str) -> str | None:
        """Returns advice on how to keep JAX from narrowing a dtype, or None if JAX would not narrow the dtype."""
        return _64_BIT if dtype in WIDE and not jax.config.jax_enable_x64 else None
