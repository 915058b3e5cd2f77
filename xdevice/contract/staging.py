"""Copies between the host and an NVIDIA GPU through page-locked memory, which adapters use in `move`.

The framework does not notice when the ring (the page-locked buffers of `xdevice.cuda_driver.ring`) reads and writes
memory. An adapter that passes memory to the ring must therefore make sure that

- the source contains the computed values, and is kept until the ring has read it; the target was allocated for the
  copy, and nothing else uses it yet;
- the copy is ordered with the work before and after it, either by the stream that the adapter passes, or because the
  host waits;
- tensors are dense, in C order, on one device, and not recorded by a compiler, vmap or a gradient computation;
- if the ring would not be faster, or refuses the copy, the framework makes its own copy, and raises its own errors.
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
    """Returns the values of the GPU tensor `x` in a new array. The tensor's memory begins at `address`; the array's
    memory begins at a multiple of `ALIGNMENT`. The copy waits for the work in `stream`, a stream of the framework.
    Returns None if the framework has to make the copy itself."""
    values = aligned(math.prod(shape) * dtype.itemsize)
    # a tensor without memory, such as one without elements, has the address 0. `x` and `values` are passed next to
    # the addresses, because the ring keeps them alive during the copy
    is_done = address != 0 and ring.to_host(
        x, address, values, values.ctypes.data, values.nbytes, stream=stream
    )
    return values.view(dtype).reshape(shape) if is_done else None
