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
from xdevice.contract.alignment import ALIGNMENT

if TYPE_CHECKING:
    from xdevice.contract.dlpack import Lent

TAKES = Takes(alignment=ALIGNMENT, strides="compact")
WIDE = ("int64", "uint64", "float64", "complex128")
"""What JAX without 64-bit makes of half the width."""


def export(x: jax.Array) -> Any:
    return x.__dlpack__()


def adopt(lent: Lent) -> jax.Array:
    return jax.dlpack.from_dlpack(lent)
