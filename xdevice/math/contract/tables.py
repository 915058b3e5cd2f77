"""`named`, a function with which adapters list their kernels in a table instead of writing a line for each kernel. This
module also contains kernels that several adapters share, because their frameworks use NumPy's indexing."""

from __future__ import annotations

from typing import Any


def named(*same: str, **others: str) -> dict[str, str]:
    """Returns a dict that maps names in the standard to the framework's names. Each name in `same` is mapped to
    itself, and each keyword of `others` is mapped to its value. `named("sin", acos="arccos")` returns
    `{"sin": "sin", "acos": "arccos"}`."""
    return {name: name for name in same} | others


def argsort(x: Any, axis: int, descending: bool) -> Any:
    """The kernel `argsort` for NumPy arrays. Returns the indices that sort `x` along the axis; equal elements keep
    their order."""
    import numpy

    if not descending:
        return numpy.argsort(x, axis, kind="stable")
    # NumPy sorts only in ascending order. The values are reversed, sorted and reversed again,
    # so that equal elements keep their order. `x.shape[axis] - 1 - i` converts the index i of a
    # reversed value into the index in `x`
    mirrored = numpy.argsort(numpy.flip(x, axis), axis, kind="stable")
    return x.shape[axis] - 1 - numpy.flip(mirrored, axis)


def sliced(x: Any, axis: int, start: int, stop: int) -> Any:
    """The kernel `sliced` for tensors that can be indexed with a tuple of slices. Returns the elements along the axis
    from `start` up to, but not including, `stop`."""
    return x[(slice(None),) * axis + (slice(start, stop),)]
