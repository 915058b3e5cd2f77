"""Compares the inputs of two layers in two frameworks. Two inputs are treated as the same even if they differ in one of
these ways:

- one has its channels first, and the other has its channels last;
- both are flattened images, with their pixels in different orders;
- only one is already padded;
- only one has the steps of all sequences, or the pixels of an image, joined along one axis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from xdevice.twins.tracing.distances import channel_orders, reshaped_images, without_zero_edges

if TYPE_CHECKING:
    from collections.abc import Sequence

    Array = np.ndarray[Any, Any]

_SAME: Final = 1e-3
"""The largest difference between two elements of arrays that are treated as the same, as a fraction of the largest
element."""
# used in place of 0, so that the tolerance for an array of zeros is not 0
_TINY: Final = 1e-30


class LayerInput(NamedTuple):
    """The first input of a layer, with two numbers, `largest` and `total`. Another layout of the input, or padding with
    zeros, does not change these two numbers."""

    x: Array
    largest: float
    """The largest absolute value in `x`."""
    total: float
    """The sum of the absolute values in `x`."""


def as_input(inputs: Sequence[Array]) -> LayerInput | None:
    """Returns the first of a layer's inputs, or None if the layer has no inputs. 16-bit floats and integers are
    converted to float64, and complex numbers are replaced by their absolute values."""
    if not inputs:
        return None
    x = inputs[0]
    # only the absolute values of complex numbers are compared
    if x.dtype not in (np.float32, np.float64):
        # sums and differences of 16-bit floats and of integers would round or overflow
        x = (np.abs(x) if x.dtype.kind == "c" else x).astype("float64")
    sizes = np.abs(x)
    return LayerInput(x, float(sizes.max(initial=0.0)), float(sizes.sum(dtype="float64")))


def is_same_input(one: LayerInput | None, other: LayerInput | None) -> bool:
    """Whether two inputs are treated as the same. That is the case if their elements are nearly equal in one of the
    layouts that the module's docstring lists. None means a layer without inputs; it is the same only as None."""
    # two layers without inputs are treated as having the same input
    if one is None or other is None:
        return one is other
    x, y = _with_equal_axes(one.x, other.x)
    # `y` as an image in the shape of `x`, if one of the two arrays has rows and columns along one axis
    images = list(reshaped_images(y, x.shape))
    # arrays with different numbers of axes are not the same; empty arrays are the same if their shapes are equal
    if (x.ndim != y.ndim and not images) or not x.size or not y.size:
        return x.shape == y.shape
    tolerance = _SAME * max(one.largest, _TINY)
    # comparing two numbers rules out most pairs in microseconds; reading the arrays takes milliseconds. Each element
    # may be off by the tolerance, so the sum may be off by the tolerance times the number of elements
    if abs(one.largest - other.largest) > tolerance or abs(
        one.total - other.total
    ) > tolerance * max(x.size, y.size):
        return False
    candidates = images or list(channel_orders(y))
    # arrays of different shapes may still be equal once the padding of one is removed
    of_one_shape = [(x, candidate) for candidate in candidates if candidate.shape == x.shape]
    pairs = of_one_shape or (_without_zeros(x, candidate) for candidate in candidates)
    if any(_is_close(*pair, tolerance) for pair in pairs):
        return True
    # the elements of two flattened images may be in different orders
    is_flat = x.ndim == 2 and x.shape == y.shape
    return is_flat and _is_close(np.sort(x, axis=1), np.sort(y, axis=1), tolerance)


def _with_equal_axes(x: Array, y: Array) -> tuple[Array, Array]:
    """Reshapes two arrays to the same number of axes if possible, and returns them. That is possible if they differ
    only by axes of length 1, or if one array has the batch and the steps of sequences joined along one axis. Otherwise
    the returned arrays still have different numbers of axes."""
    if x.ndim != y.ndim:
        x, y = x.squeeze(), y.squeeze()
    # both have the same number of features on the last axis, so all other axes are joined into one
    if x.ndim != y.ndim and x.size == y.size and x.shape[-1:] == y.shape[-1:]:
        x, y = (array.reshape(-1, *array.shape[-1:]) for array in (x, y))
    return x, y


def _is_close(one: Array, other: Array, tolerance: float) -> bool:
    """Whether two arrays have the same shape and values that differ by at most `tolerance`."""
    if one.shape != other.shape:
        return False
    # a sample rules out most of the remaining pairs, which is faster: every third element along the other axes of the
    # first and the last row
    sample = (
        slice(None, None, max(1, one.shape[0] - 1)),
        *(slice(None, None, 3) for _ in one.shape[1:]),
    )
    return all(
        np.abs(x - y).max(initial=0.0) <= tolerance
        for x, y in ((one[sample], other[sample]), (one, other))
    )


def _without_zeros(one: Array, other: Array) -> tuple[Array, Array]:
    """Returns two images without the zeros at their edges, which may be padding. Zeros are removed only along the axes
    in which the sizes of the images differ. Arrays of one or two axes are returned unchanged."""
    axes = [
        axis
        for axis in range(1, one.ndim)
        if one.ndim > 2 and one.shape[axis] != other.shape[axis]
    ]
    return without_zero_edges(one, axes), without_zero_edges(other, axes)


def similarity(one: LayerInput | None, other: LayerInput | None) -> float:
    """Returns the similarity of the overlapping elements of two inputs, in the layout with the highest similarity. It
    is the larger of the correlation and the fraction of elements that agree, so it is at most 1. Returns -1 if the two
    inputs cannot be compared."""
    if one is None or other is None or one.x.ndim != other.x.ndim:
        return -1.0
    best = -1.0
    for candidate in channel_orders(other.x):
        x, y = _without_zeros(one.x, candidate)
        overlap = tuple(map(slice, map(min, x.shape, y.shape)))
        # if two images overlap only in a small part, they may agree there by chance
        if x[overlap].size * 2 >= max(x.size, y.size):
            best = max(
                best,
                _agreement(
                    x[overlap].astype("float64").ravel(), y[overlap].astype("float64").ravel()
                ),
            )
    return best


def _agreement(one: Array, other: Array) -> float:
    """Returns the larger of two numbers: the correlation of two flat arrays, and the fraction of nearly equal elements.
    The correlation is taken as 0 if one of the arrays is constant, and the fraction as 0 if the first array contains
    only zeros."""
    largest = float(np.abs(one).max(initial=0.0))
    same = (
        float((np.abs(one - other) <= _SAME * max(largest, _TINY)).mean()) if largest else 0.0
    )
    one, other = one - one.mean(), other - other.mean()
    size = float(np.sqrt((one @ one) * (other @ other)))
    return max(same, float(one @ other) / size if size else 0.0)
