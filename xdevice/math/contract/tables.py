"""Helps adapters to list kernels in a table, instead of writing a line for each; also kernels shared by adapters whose
frameworks index as NumPy does."""

from __future__ import annotations

from typing import Any


def named(*same: str, **others: str) -> dict[str, str]:
    """Returns the framework's name for each name of the standard: the same one for those in `same`, and for `others`
    the one that is given."""
    return {name: name for name in same} | others


def argsort(x: Any, axis: int, descending: bool) -> Any:
    """The kernel `argsort` for NumPy's arrays."""
    import numpy

    if not descending:
        return numpy.argsort(x, axis, kind="stable")
    # the order of the reversed values, reversed: so the first of equals stays the first
    mirrored = numpy.argsort(numpy.flip(x, axis), axis, kind="stable")
    return x.shape[axis] - 1 - numpy.flip(mirrored, axis)


def sliced(x: Any, axis: int, start: int, stop: int) -> Any:
    """The kernel `sliced` for tensors that take tuples of slices."""
    return x[(slice(None),) * axis + (slice(start, stop),)]
