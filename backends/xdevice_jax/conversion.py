"""JAX's memory in the hands of other frameworks, and theirs in its own.

- The strides of a transposed array are ignored where it is aligned (jax#7657), so only C order is taken.
- A buffer that is not at a multiple of 64 bytes is copied, even with `copy=False`.
- The import calls `__dlpack__(stream=...)` of what it is given: PyTorch's fails where its current device is another
  GPU, and TensorFlow's always. So it is given a capsule that was made after a wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from xdevice.contract import Takes
from xdevice.contract.conversion import ALIGNMENT, Conversion
from xdevice.errors import UnsupportedError

if TYPE_CHECKING:
    from xdevice.base.devices import Device
    from xdevice.contract.dlpack import Lent

_TAKES = Takes(alignment=ALIGNMENT, strides="compact")
WIDE = ("int64", "uint64", "float64", "complex128")
"""What JAX without 64-bit makes of half the width."""


def require_values(x: jax.Array) -> None:
    """Raises one error for a deleted array, for which JAX has a different one in each function, and none for its
    device."""
    if not isinstance(x, jax.core.Tracer) and x.is_deleted():
        raise UnsupportedError(
            f"jax does not support reading this array of the shape {x.shape}, which was deleted: it was donated to a "
            "jitted function, or told to delete() itself; use what the function has returned, or copy the array "
            "before: xdevice.copy_to"
        )


class JaxConversion(Conversion):
    def shares(self, device: Device) -> bool:
        # of other plugins nothing was seen
        return super().shares(device) and (device.kind == "cpu" or self.hardware() <= {"cuda", "rocm", "hip"})

    def takes(self) -> Takes:
        return _TAKES

    def export(self, x: jax.Array) -> Any:
        self.wait(x)
        return x.__dlpack__()

    def adopt(self, lent: Lent, dtype: str) -> jax.Array:
        return jax.dlpack.from_dlpack(lent)
