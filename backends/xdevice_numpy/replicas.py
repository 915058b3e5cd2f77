"""Splits, joins and adds arrays. Other adapters do this for several devices; NumPy has only one device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xdevice.contract.replicas import Replicas, add_up

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xdevice.base.devices import Device

    Array = np.ndarray[Any, Any]

_SHORT = ("float16", "bfloat16")
"""The dtypes that `total` adds as float32."""


class NumpyReplicas(Replicas):
    """Splits, joins and adds arrays, which are all on the CPU."""

    def join(self, parts: list[Array]) -> Array:
        """Returns the arrays, joined along their first axis. 0-d arrays are joined into a vector."""
        # `concatenate` does not accept 0-d arrays
        return np.concatenate(parts) if parts[0].ndim else np.stack(parts)

    def leaf(self, x: Array, device: Device) -> Array:
        """Returns a copy of `x`. `device` is ignored, because NumPy has only the CPU."""
        # NumPy has no gradients, so an ordinary copy is enough
        copied: Array = self.copy(x, device)
        return copied

    def can_write(self, x: Array) -> bool:
        """Whether an array can be written into."""
        return x.flags.writeable

    def memory_of(self, x: Array) -> tuple[int, tuple[int, ...]]:
        """Returns the address of an array's first element, and its strides in bytes."""
        return x.ctypes.data, x.strides

    def write(self, x: Array, value: Array) -> None:
        """Writes the values of `value` into `x`."""
        np.copyto(x, value)

    def total(self, tensors: Iterable[Array], mean: bool) -> Array:
        """Returns the sum of arrays, or their mean if `mean` is True, in the dtype of the first array. The arrays are
        added in the given order."""
        remaining = iter(tensors)
        first = next(remaining)
        # a copy, because `add_up` adds the other arrays in place. 16-bit floats are added as
        # float32, because they would otherwise be rounded after each addition
        start = np.array(first, dtype="float32" if first.dtype.name in _SHORT else first.dtype)
        total: Array = add_up(start, remaining, mean)
        return total.astype(first.dtype, copy=False)
