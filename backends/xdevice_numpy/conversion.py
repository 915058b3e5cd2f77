"""Lends the memory of NumPy's arrays to frameworks, and makes arrays in memory that they lend, without a copy.

Facts about NumPy that the code depends on:

- NumPy's DLPack does not support bfloat16, so such an array is exported and imported as uint16.
- NumPy raises `BufferError` if an array to export is read-only, or has the byte order of
  another machine.
- Arrays that NumPy makes by `from_dlpack` are read-only.
- The memory of NumPy's own arrays is seldom at a multiple of 64 bytes, which some frameworks
  need.
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

# NumPy takes memory that is labelled as uint16: in DLPack, 1 is the code of unsigned integers
_TAKES = Takes(labels={"bfloat16": (1, 16)})


def detached(x: Array) -> Array:
    """Returns `x` if its memory holds its values. Raises `UnsupportedError` for a masked
    array."""
    if isinstance(x, np.ma.MaskedArray):
        raise UnsupportedError(
            "the mask of a masked array would be lost; convert x.filled(), or x.data and x.mask"
        )
    return x  # other subclasses may add a unit or a name, but their memory holds their values


class NumpyConversion(Conversion):
    """Memory shared with other frameworks by DLPack."""

    def takes(self) -> Takes:
        """Returns the requirement on memory of other frameworks in which NumPy is to compute:
        bfloat16 must be labelled as uint16."""
        return _TAKES

    def detached(self, x: Array) -> Array:
        """Returns `x`. Raises `UnsupportedError` for a masked array."""
        return detached(x)

    def memory_layout(self, x: Array) -> tuple[int, bool, bool]:
        """Returns the address of an array, whether the array is in C order, and whether all of
        its strides are 0 or positive."""
        return x.ctypes.data, x.flags.c_contiguous, min(x.strides, default=0) >= 0

    def export(self, x: Array) -> Any:
        """Returns a DLPack capsule of an array. Raises BufferError for an array that is
        read-only, or has the byte order of another machine."""
        # "V" is the kind of bfloat16, which NumPy does not export; 8-bit floats, some of which
        # have this kind too, are not converted
        return (x.view("uint16") if x.dtype.kind == "V" else x).__dlpack__()

    def compact(self, x: Array) -> Array:
        """Returns a copy of an array in C order, in memory that is aligned for all
        frameworks."""
        # "=" is the byte order of this machine
        copied: Array = np.ndarray(x.shape, x.dtype.newbyteorder("="), aligned(x.nbytes))
        copied[...] = x
        return copied

    def adopt(self, lent: Lent, dtype: str) -> Array:
        """Returns an array in the memory of another framework's tensor, which `lent` describes.
        `dtype` is the name of its dtype, needed for bfloat16, which arrives as uint16."""
        array = np.from_dlpack(lent)
        # NumPy has taken bfloat16 over under the label of uint16
        return array.view(host_dtype(dtype)) if dtype == "bfloat16" else array

    def from_buffer(self, array: Array) -> Array:
        """Returns the array itself, which is a tensor of NumPy already."""
        return array
