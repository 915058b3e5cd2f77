"""Lends the memory of JAX's arrays to other frameworks, and makes arrays in memory that they lend, without a copy.

Facts about JAX that the code depends on:

- `from_dlpack` ignores the strides of a transposed tensor whose memory is aligned (jax#7657),
  so only memory in C order is taken over.
- `from_dlpack` copies memory whose address is not a multiple of 64 bytes, even with
  `copy=False`.
- `from_dlpack` calls `__dlpack__(stream=...)`, which PyTorch refuses if its current device is
  another GPU, and TensorFlow always refuses. So JAX is given a capsule that was made after a
  wait.
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
"""The dtypes in which JAX holds 64-bit integers if 64-bit is off."""
_64_BIT = 'Enable 64-bit dtypes with jax.config.update("jax_enable_x64", True)'
WIDE = ("int64", "uint64", "float64", "complex128")
"""The dtypes that JAX narrows to half their width unless 64-bit is on."""


def require_values(x: jax.Array) -> None:
    """Raises `UnsupportedError` for an array that was deleted. JAX's own functions raise
    various errors for a deleted array, and none when its device is read."""
    if not isinstance(x, jax.core.Tracer) and x.is_deleted():
        raise UnsupportedError(
            f"jax does not support reading this array of shape {x.shape}, which was deleted: it was donated to a "
            f"jitted function, or its delete() was called; use the result of the function, or copy the array first "
            f"with xdevice.copy_to"
        )


def stored_dtype(dtype: str, values: np.ndarray[Any, Any] | None = None) -> np.dtype[Any]:
    """Returns the dtype in which JAX holds values of `dtype`, the name of a dtype: if 64-bit is
    off, a 32-bit integer dtype for a 64-bit one. If 64-bit is off, raises `DTypeError` for
    float64 and complex128, and if `values` is given and a value does not fit into the narrower
    dtype."""
    if jax.config.jax_enable_x64:
        return host_dtype(dtype)
    if dtype in ("float64", "complex128"):
        raise DTypeError(f"jax has no {dtype} here. {_64_BIT}")
    narrow = host_dtype(_NARROWED.get(dtype, dtype))
    # JAX would drop the upper bits without a warning
    if dtype in _NARROWED and values is not None and values.size:
        limits = np.iinfo(narrow)
        least, most = values.min(), values.max()
        if least < limits.min or most > limits.max:
            value = f"{least}" if values.size == 1 else f"a value between {least} and {most}"
            raise DTypeError(
                f"{value} does not fit into {narrow}, which JAX uses for {dtype} here. {_64_BIT}"
            )
    return narrow


class JaxConversion(Conversion):
    """Memory shared with other frameworks by DLPack."""

    def shares(self, device: Device) -> bool:
        """Whether other frameworks can use the memory of arrays on this device."""
        # sharing the memory of GPUs was tested with these vendors' plugins only
        return super().shares(device) and (
            device.kind == "cpu" or self.hardware() <= {"cuda", "rocm", "hip"}
        )

    def takes(self) -> Takes:
        """Returns the requirements on memory of other frameworks in which JAX is to compute:
        aligned, and in C order."""
        return _TAKES

    def export(self, x: jax.Array) -> Any:
        """Returns a DLPack capsule of `x`, after a wait for its values."""
        self.wait(x)  # exporting an array whose computation failed crashes the process
        return x.__dlpack__()

    def adopt(self, lent: Lent, dtype: str) -> jax.Array:
        """Returns an array in the memory of another framework's tensor, which `lent` describes.
        `dtype` is ignored, because the DLPack capsule names the dtype."""
        return jax.dlpack.from_dlpack(lent)

    def from_buffer(self, array: np.ndarray[Any, Any]) -> jax.Array:
        """Returns an array on the CPU with the values of a NumPy array, in the same memory if
        possible."""
        # bfloat16 and 8-bit floats, which NumPy does not export by DLPack; `isbuiltin` is 2 for
        # dtypes of ml_dtypes
        if array.dtype.isbuiltin == 2:
            return jax.device_put(array, self.to_native(devices.CPU))
        # with 64-bit off the values are narrowed, which needs a copy, or do not fit, which
        # raises
        if array.itemsize >= 8 and stored_dtype(array.dtype.name, array) != array.dtype:
            return self.from_numpy(array, devices.CPU)
        return jax.dlpack.from_dlpack(array)

    def gives_away(self, x: jax.Array) -> bool:
        """Whether `to_numpy(x)` returns an array whose memory nobody else uses: only if `x` is
        read through the ring or by the driver."""
        # `staging.read` makes a new array; an array that JAX itself returns is read-only
        return staging.is_read(x)

    def dtype_refusal(self, dtype: str) -> str | None:
        """Returns why JAX would narrow a dtype, and what to do about that; None if JAX would
        not narrow it."""
        return _64_BIT if dtype in WIDE and not jax.config.jax_enable_x64 else None
