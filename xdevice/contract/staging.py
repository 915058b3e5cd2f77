"""Copies between the host and an NVIDIA GPU through page-locked memory, which adapters use in `move`.

The ring (the page-locked buffers of `xdevice.cuda_driver.ring`) reads and writes memory without the framework's
knowledge. So an adapter that gives it memory must see to it that

- memory that is read has been computed, and stays until it is read; memory that is written was made for the copy, and
  nobody else has seen it yet;
- the copy is ordered with the work before and after it: by the stream that is named, or by waits of the host;
- tensors are plain: dense, in C order, on one device, and no compiler, vmap or gradient computation follows what is
  done with them;
- where the ring gains nothing or refuses, the framework's own copy is made, which raises the framework's own errors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from xdevice.cuda_driver import ring

from .conversion import aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np


def read(
    x: Any, address: int, shape: Sequence[int], dtype: np.dtype[Any], stream: int | None = None
) -> np.ndarray[Any, Any] | None:
    """Returns the values at an address on a GPU, which are those of `x`, as an array whose memory is new and begins at
    a multiple of `ALIGNMENT`. Returns None, for the address 0 for instance, if the framework's own copy is to be
    made."""
    values = aligned(math.prod(shape) * dtype.itemsize)
    is_done = address != 0 and ring.to_host(
        x, address, values, values.ctypes.data, values.nbytes, stream
    )
    return values.view(dtype).reshape(shape) if is_done else None
