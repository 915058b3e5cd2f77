"""Copies between the host and a GPU of NVIDIA's by way of page-locked memory, as adapters make them for `move`.

The ring, `xdevice.cuda.ring`, reads and writes memory behind a framework's back. So what an adapter gives it keeps to:

- What is read is computed, and stays until it is read. What is written was made for the copy, and nobody else has seen
  it yet.
- The copy is ordered with the work before and behind it: by the stream that is named, or by waits of the host.
- Tensors are plain: dense, in C order, on one device; and nothing traces, maps or records what is done with them.
- Where the ring gains nothing or refuses, the framework's own way is taken, which raises the framework's own errors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from xdevice.cuda import ring

from .conversion import aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np


def read(
    x: Any, address: int, shape: Sequence[int], dtype: np.dtype[Any], stream: int | None = None
) -> np.ndarray[Any, Any] | None:
    """The values at an address on a GPU, which are those of `x`, in memory of their own that begins at a multiple of
    `ALIGNMENT`; None where the framework's own way is to be taken, as for the address 0."""
    values = aligned(math.prod(shape) * dtype.itemsize)
    is_done = address != 0 and ring.to_host(x, address, values, values.ctypes.data, values.nbytes, stream)
    return values.view(dtype).reshape(shape) if is_done else None
