"""Helps adapters to list kernels in a table, instead of writing a line for each; also kernels
shared by adapters whose frameworks index as NumPy does."""

from __future__ import annotations

from typing import Any


def named(*same: str, **others: str) -> dict[str, str]:
    """Returns a dict from names in the standard to the framework's names: each in `same` to
    itself, and the keywords of `others` to their values. `named("sin", acos="arccos")` is
    `{"sin": "sin", "acos": "arccos"}`."""
    return {name: name for name in same} | others


def argsort(x: Any, axis: int, descending: bool) -> Any:
    """The kernel `argsort` for NumPy arrays: the indices that sort `x` along the axis; equal
    elements keep their order."""
    import numpy

    if not descending:
        return numpy.argsort(x, axis, kind="stable")
    # NumPy sorts in ascending order only. The values are reversed, sorted and reversed again;
    # so the first of equal elements stays the first. `x.shape[axis] - 1 - i` turns an index of
    # the reversed values into one of `x`
    mirrored = numpy.argsort(numpy.flip(x, axis), axis, kind="stable")
    return x.shape[axis] - 1 - numpy.flip(mirrored, axis)


def sliced(x: Any, axis: int, start: int, stop: int) -> Any:
    """The kernel `sliced` for tensors that take a tuple of slices as an index: the elements
    from `start` up to, but not including, `stop` along the axis."""
    return x[(slice(None),) * axis + (slice(start, stop),)]
