"""Where memory begins that every framework can take over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np

ALIGNMENT: Final = 64
"""Bytes. The first operation of TensorFlow on memory that begins elsewhere ends the process, and JAX copies it."""


def aligned(nbytes: int) -> np.ndarray[Any, Any]:
    """New memory of so many bytes that begins at a multiple of `ALIGNMENT`; NumPy's own does so only by chance."""
    import numpy

    memory = numpy.empty(nbytes + ALIGNMENT, "uint8")
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes]
