"""Compares the inputs of two layers in two frameworks. Inputs also count as the same if one has its channels first and
the other last, if a flattened image has its numbers in another order, if one is already padded, or if one has all
steps of all sequences, or all pixels of an image, along one axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from xdevice.twins.tracing.distances import layouts, regrouped, trimmed

if TYPE_CHECKING:
    from collections.abc import Sequence

    Array = np.ndarray[Any, Any]

_SAME: Final = 1e-3
"""The largest difference of two numbers in arrays that count as the same, as a share of the largest number."""
# in place of 0, so that an array of zeros has a tolerance
_TINY: Final = 1e-30


class LayerInput(NamedTuple):
    """The first input of a layer, with two numbers that do not change if the layout changes or zeros are put around the
    input."""

    x: Array
    largest: float
    """The largest absolute value in `x`."""
    total: float
    """The sum of the absolute values in `x`."""


def as_input(inputs: Sequence[Array]) -> LayerInput | None:
    """Returns the first of a layer's inputs, with 16-bit floats and integers converted to float64, and complex numbers
    replaced by their absolute values; None if the layer has no inputs."""
    if not inputs:
        return None
    x = inputs[0]
    # complex numbers are compared by their absolute values only
    if x.dtype not in (np.float32, np.float64):
        # sums and differences of 16-bit floats and of integers would round or overflow
        x = (np.abs(x) if x.dtype.kind == "c" else x).astype("float64")
    sizes = np.abs(x)
    return LayerInput(x, float(sizes.max(initial=0.0)), float(sizes.sum(dtype="float64")))


def is_same(one: LayerInput | None, other: LayerInput | None) -> bool:
    """Whether two inputs count as the same: whether their numbers are nearly equal in one of the layouts that the
    module's docstring lists. None, for a layer without inputs, is the same only as None."""
    # two layers without inputs count as having the same
    if one is None or other is None:
        return one is other
    x, y = _with_equal_axes(one.x, other.x)
    # `y` as an image in the shape of `x`, if one of the two has rows and columns along one axis
    images = list(regrouped(y, x.shape))
    # arrays with different numbers of axes are not the same, and empty arrays are if their shapes are equal
    if (x.ndim != y.ndim and not images) or not x.size or not y.size:
        return x.shape == y.shape
    tolerance = _SAME * max(one.largest, _TINY)
    # two numbers distinguish most pairs in microseconds; reading the arrays takes milliseconds. Each element may be off
    # by the tolerance, so the sum may be off by the tolerance times their count
    if abs(one.largest - other.largest) > tolerance or abs(
        one.total - other.total
    ) > tolerance * max(x.size, y.size):
        return False
    candidates = images or list(layouts(y))
    # arrays of different shapes may still be equal without the padding of one
    of_one_shape = [(x, candidate) for candidate in candidates if candidate.shape == x.shape]
    pairs = of_one_shape or (_without_zeros(x, candidate) for candidate in candidates)
    if any(_is_close(*pair, tolerance) for pair in pairs):
        return True
    # flattened images may have their numbers in different orders
    is_flat = x.ndim == 2 and x.shape == y.shape
    return is_flat and _is_close(np.sort(x, axis=1), np.sort(y, axis=1), tolerance)


def _with_equal_axes(x: Array, y: Array) -> tuple[Array, Array]:
    """Returns the two arrays with the same number of axes, if they differ only by axes of
    length 1, or if one has the batch and the steps of sequences along one axis. Otherwise the
    arrays still have different numbers of axes."""
    if x.ndim != y.ndim:
        x, y = x.squeeze(), y.squeeze()
    # the same number of features on the last axis: all other axes become one
    if x.ndim != y.ndim and x.size == y.size and x.shape[-1:] == y.shape[-1:]:
        x, y = (array.reshape(-1, *array.shape[-1:]) for array in (x, y))
    return x, y


def _is_close(one: Array, other: Array, tolerance: float) -> bool:
    """Whether two arrays have one shape, and values that differ by at most `tolerance`."""
    if one.shape != other.shape:
        return False
    # a sample distinguishes most of the remaining pairs: the first and the last row, and every third number in them
    sample = (
        slice(None, None, max(1, one.shape[0] - 1)),
        *(slice(None, None, 3) for _ in one.shape[1:]),
    )
    return all(
        np.abs(x - y).max(initial=0.0) <= tolerance
        for x, y in ((one[sample], other[sample]), (one, other))
    )


def _without_zeros(one: Array, other: Array) -> tuple[Array, Array]:
    """Returns two images without the zeros at their edges, which may be padding, along each axis in which their sizes
    differ. Arrays of one or two axes are returned as they are."""
    axes = [
        axis
        for axis in range(1, one.ndim)
        if one.ndim > 2 and one.shape[axis] != other.shape[axis]
    ]
    return trimmed(one, axes), trimmed(other, axes)


def similarity(one: LayerInput | None, other: LayerInput | None) -> float:
    """Returns how alike two inputs are where they overlap, at most 1, in the layout that fits best: their correlation
    or the share of numbers that agree, whichever is larger. -1 if they cannot be compared."""
    if one is None or other is None or one.x.ndim != other.x.ndim:
        return -1.0
    best = -1.0
    for candidate in layouts(other.x):
        x, y = _without_zeros(one.x, candidate)
        overlap = tuple(map(slice, map(min, x.shape, y.shape)))
        # two images whose common part is small may agree there by chance
        if x[overlap].size * 2 >= max(x.size, y.size):
            best = max(
                best,
                _agreement(
                    x[overlap].astype("float64").ravel(), y[overlap].astype("float64").ravel()
                ),
            )
    return best


def _agreement(one: Array, other: Array) -> float:
    """Returns the larger of two numbers: the share of equal values in two flat arrays, which counts as 0 if the first
    has only zeros, and their correlation, which counts as 0 if one of the arrays is constant."""
    largest = float(np.abs(one).max(initial=0.0))
    same = (
        float((np.abs(one - other) <= _SAME * max(largest, _TINY)).mean()) if largest else 0.0
    )
    one, other = one - one.mean(), other - other.mean()
    size = float(np.sqrt((one @ one) * (other @ other)))
    return max(same, float(one @ other) / size if size else 0.0)
