"""Shares memory between NumPy and other frameworks without a copy, in both directions.

The code depends on these facts about NumPy:

- NumPy's DLPack does not support bfloat16, so a bfloat16 array is exported and imported as uint16.
- NumPy raises `BufferError` if an array that is to be exported is read-only, or has the byte order
  of another machine.
- Arrays that NumPy creates with `from_dlpack` are read-only.
- The address of the memory of NumPy's own arrays is seldom a multiple of 64 bytes, which some
  frameworks require.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xdevice.base.dtypes import host_dtype
from xdevice.contract import Takes
from xdevice.contract.conversion import Conversion, aligned
from xdevice.errors import UnsupportedError

if TYPE_CHECKING:
    from xdevice.contract.dlpack import Lent

    Array = np.ndarray[Any, Any]

# NumPy accepts bfloat16 memory only if it is labelled as uint16; in DLPack, 1 is the code of
# unsigned integers
_TAKES = Takes(labels={"bfloat16": (1, 16)})


def detached(x: Array) -> Array:
    """Returns `x`. Raises `UnsupportedError` for a masked array, because the mask is stored outside the array's
    memory."""
    if isinstance(x, np.ma.MaskedArray):
        raise UnsupportedError(
            "the mask of a masked array would be lost; convert x.filled() instead, or x.data and x.mask"
        )
    # other subclasses may add a unit or a name, but their memory contains their values
    return x


class NumpyConversion(Conversion):
    """Shares memory with other frameworks through DLPack."""

    def takes(self) -> Takes:
        """Returns NumPy's requirement on memory that it uses from other frameworks: bfloat16 must be labelled as
        uint16."""
        return _TAKES

    def detached(self, x: Array) -> Array:
        """Returns `x`. Raises `UnsupportedError` for a masked array."""
        return detached(x)

    def memory_layout(self, x: Array) -> tuple[int, bool, bool]:
        """Returns the address of an array, whether the array is in C order, and whether none of its strides is
        negative."""
        return x.ctypes.data, x.flags.c_contiguous, min(x.strides, default=0) >= 0

    def export(self, x: Array) -> Any:
        """Returns a DLPack capsule of an array. Raises BufferError for an array that is
        read-only, or has the byte order of another machine."""
        # "V" is the kind of bfloat16, which NumPy does not export. Some 8-bit floats have this
        # kind too, but arrays of 8-bit floats are never converted
        return (x.view("uint16") if x.dtype.kind == "V" else x).__dlpack__()

    def compact(self, x: Array) -> Array:
        """Returns a copy of an array. The copy is in C order, and its memory is aligned for all frameworks."""
        # "=" is the byte order of this machine
        copied: Array = np.ndarray(x.shape, x.dtype.newbyteorder("="), aligned(x.nbytes))
        copied[...] = x
        return copied

    def adopt(self, lent: Lent, dtype: str) -> Array:
        """Returns an array that shares the memory of another framework's tensor, which `lent` describes. `dtype` is
        the name of the tensor's dtype. It is needed for bfloat16, which is imported as uint16."""
        array = np.from_dlpack(lent)
        # NumPy has imported bfloat16 with the label uint16
        return array.view(host_dtype(dtype)) if dtype == "bfloat16" else array

    def from_buffer(self, array: Array) -> Array:
        """Returns the array itself, which is already a tensor of NumPy."""
        return array
