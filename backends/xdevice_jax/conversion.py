"""Lends the memory of JAX's arrays to other frameworks, and takes over memory of theirs, without a copy.

Facts about JAX that the code depends on:

- `from_dlpack` ignores the strides of a transposed tensor whose memory is aligned (jax#7657), so only memory in C order
  is taken over.
- `from_dlpack` copies memory whose address is not a multiple of 64 bytes, even with `copy=False`.
- `from_dlpack` calls `__dlpack__(stream=...)`, which PyTorch refuses if its current device is another GPU, and
  TensorFlow always refuses. So JAX is given a capsule that was made after a wait.
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
_64_BIT = 'JAX has it only where 64-bit is on: jax.config.update("jax_enable_x64", True)'
WIDE = ("int64", "uint64", "float64", "complex128")
"""The dtypes that JAX narrows to half their width unless 64-bit is on."""


def require_values(x: jax.Array) -> None:
    """Raises `UnsupportedError` for an array that was deleted. JAX's own functions raise various errors for such an
    array, and none if they are asked for its device."""
    if not isinstance(x, jax.core.Tracer) and x.is_deleted():
        raise UnsupportedError(
            f"jax does not support reading this array of the shape {x.shape}, which was deleted: it was donated to a "
            "jitted function, or delete() was called; use the result of the function, or copy the array before: "
            "xdevice.copy_to"
        )


def stored_dtype(dtype: str, values: np.ndarray[Any, Any] | None = None) -> np.dtype[Any]:
    """Returns the dtype in which JAX holds values of `dtype`. If 64-bit is off, that is a 32-bit dtype for 64-bit
    integers; raises `DTypeError` if one of `values` does not fit into it, and for 64-bit floats."""
    if jax.config.jax_enable_x64:
        return host_dtype(dtype)
    if dtype in ("float64", "complex128"):
        raise DTypeError(f"jax has no {dtype} here; {_64_BIT}")
    narrow = host_dtype(_NARROWED.get(dtype, dtype))
    if dtype in _NARROWED and values is not None and values.size:
        limits = np.iinfo(narrow)
        least, most = values.min(), values.max()
        if least < limits.min or most > limits.max:
            what = f"{least}" if values.size == 1 else f"a value between {least} and {most}"
            raise DTypeError(
                f"{what} does not fit into {narrow}, the stand-in for {dtype} here; {_64_BIT}"
            )
    return narrow


class JaxConversion(Conversion):
    def shares(self, device: Device) -> bool:
        # sharing memory was tried with these plugins only
        return super().shares(device) and (
            device.kind == "cpu" or self.hardware() <= {"cuda", "rocm", "hip"}
        )

    def takes(self) -> Takes:
        return _TAKES

    def export(self, x: jax.Array) -> Any:
        self.wait(x)
        return x.__dlpack__()

    def adopt(self, lent: Lent, dtype: str) -> jax.Array:
        return jax.dlpack.from_dlpack(lent)

    def from_buffer(self, array: np.ndarray[Any, Any]) -> jax.Array:
        if array.dtype.isbuiltin == 2:  # bfloat16 and 8-bit floats, which NumPy does not export
            return jax.device_put(array, self.to_native(devices.CPU))
        if array.itemsize >= 8 and stored_dtype(array.dtype.name, array) != array.dtype:
            return self.from_numpy(array, devices.CPU)
        return jax.dlpack.from_dlpack(array)

    def gives_away(self, x: jax.Array) -> bool:
        return staging.is_read(x)  # the arrays that JAX itself gives are read-only

    def dtype_refusal(self, dtype: str) -> str | None:
        return _64_BIT if dtype in WIDE and not jax.config.jax_enable_x64 else None
