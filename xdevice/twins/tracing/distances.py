"""The distance between arrays from two frameworks, whose axes may be in different orders.

The distance between two arrays is the largest difference between corresponding elements, divided by the largest
expected value. Because it is relative, the same limit can be used for all layers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Array = numpy.ndarray[Any, Any]

OFF: Final = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""For each dtype, the largest distance that is still attributed to rounding. In correct float32 runs of eleven
published architectures, all distances were less than a 25th of this limit."""


def limit(arrays: Sequence[Array]) -> float:
    """Returns the largest distance between these arrays that is attributed to rounding. It is the limit for the
    coarsest float dtype among the arrays, or the limit for float32 if no array has a float dtype."""
    return max(
        (OFF[x.dtype.name] for x in arrays if x.dtype.name in OFF), default=OFF["float32"]
    )


# distances of arrays whose axes have the same order


def distance_between(actual: Array, expected: Array) -> float:
    """Returns the distance between two arrays with the same order of axes. The distance is infinite if the shapes
    differ, if ints or bools differ, or if an element differs and is NaN or infinite in at least one array. The distance
    is 0 if both arrays are empty."""
    if actual.shape != expected.shape:
        return math.inf
    return _distance(actual, expected) if expected.size else 0.0


def distance_by_spread(actual: Array, expected: Array) -> float:
    """Returns the distance as `distance_between` does, but increases it if the rows of a batch are nearly equal. In
    this case, divides the largest difference by the largest deviation of the rows from their mean, not by the largest
    expected value. Otherwise a large bias that all rows share would hide differences. The distance is not increased if
    it is 0 or infinite, or if there are fewer than two rows."""
    distance = distance_between(actual, expected)
    if not distance or not math.isfinite(distance) or expected.ndim < 2 or len(expected) < 2:
        return distance
    rows = to_double(expected)
    # the largest finite absolute value, and how far each number is from the mean of its column. A finite value exists,
    # because the distance would otherwise be 0 or infinite
    most = float(numpy.abs(rows[numpy.isfinite(rows)]).max())
    spread = numpy.abs(rows - rows.mean(axis=0))
    spread = spread[numpy.isfinite(spread)]
    # 1e-2 limits the factor to 100, because rows that should be equal differ by rounding
    return (
        distance * max(1.0, most / (float(spread.max()) + 1e-2 * most))
        if spread.size and most
        else distance
    )


def move_channels(x: Array, *, to_end: bool) -> Array:
    """Returns a batch of images with the channel axis moved: from axis 1 to the end if `to_end` is True, otherwise from
    the end to axis 1."""
    return numpy.moveaxis(x, 1, -1) if to_end else numpy.moveaxis(x, -1, 1)


def aligned(
    actual: Array, expected: Array, channels_last: tuple[bool | None, bool | None]
) -> Array:
    """Returns `actual` with its channels on the same axis as in `expected`. `channels_last` contains two entries, for
    the actual and the expected model. Each entry says whether the model's channels come last, or is None if this is not
    known. Returns `actual` unchanged if an entry is None, or if the unchanged array is closer to `expected`."""
    if (
        None in channels_last
        or channels_last[0] == channels_last[1]
        or actual.ndim < 3
        or not expected.size
    ):
        return actual
    # both may have the expected shape, and it is not known whether this is an image, whose channels must be moved, or a
    # sequence, whose axes must stay; the numbers decide
    candidates = [
        candidate
        for candidate in (actual, move_channels(actual, to_end=not channels_last[0]))
        if candidate.shape == expected.shape
    ]
    return min(candidates, key=lambda candidate: _distance(candidate, expected), default=actual)


# distances of arrays whose axes may have different orders


def distance_in_any_order(actual: Array, expected: Array) -> float | None:
    """Returns the smallest distance between the two arrays, for all orders of the axes of `actual` that frameworks use.
    Returns infinity if the shapes cannot match in any order. Returns None if both arrays are empty, or if they may
    contain the same numbers in an order that this function does not try."""
    if not expected.size and not actual.size:
        return None
    candidates = [
        _distance(candidate, expected) for candidate in _orders(actual, expected.shape)
    ]
    if candidates:
        return min(candidates)
    # an array with the same axes in an order that is not tried, or a reshaped array, may contain the same numbers. An
    # array with the same number of axes but different sizes cannot
    same_ndim = _squeezed(actual).ndim == _squeezed(expected).ndim
    return math.inf if same_ndim and sorted(actual.shape) != sorted(expected.shape) else None


def distance_without_padding(actual: Array, expected: Array) -> float | None:
    """Returns the same as `distance_in_any_order`, but for inputs of a convolution, which the previous layer may have
    padded with zeros in one framework. If `distance_in_any_order` returns infinity, removes the zeros at the edges of
    both arrays, and compares the arrays again. Zeros along the batch axis (axis 0) are not removed."""
    error = distance_in_any_order(actual, expected)
    if error != math.inf:
        return error
    return distance_in_any_order(
        *(without_zero_edges(x, range(1, x.ndim)) for x in (actual, expected))
    )


def without_zero_edges(x: Array, axes: Iterable[int]) -> Array:
    """Returns an image without the zeros at the edges of the given axes, which may be padding. Returns an image of only
    zeros unchanged."""
    for axis in axes:
        # the positions along this axis with any number other than 0
        used = numpy.flatnonzero(
            x.any(axis=tuple(other for other in range(x.ndim) if other != axis))
        )
        if used.size:
            x = numpy.take(x, range(used[0], used[-1] + 1), axis)
    return x


def channel_orders(x: Array) -> Iterator[Array]:
    """Yields the array unchanged. If it has three or more axes, also yields it with axis 1 moved to the end, and with
    the last axis moved to axis 1. The reason is that channels are on axis 1 in some frameworks, and on the last axis in
    others."""
    yield x
    if x.ndim > 2:
        yield numpy.moveaxis(x, 1, -1)
        yield numpy.moveaxis(x, -1, 1)


def reshaped_images(x: Array, shape: Sequence[int]) -> Iterator[Array]:
    """Yields `x` reshaped to `shape`, for each order of its axes in which the batch and the channels match. Rows and
    columns must be two axes in one of the two shapes, and a single axis in the other, as in an attention over pixels.
    Otherwise yields nothing."""
    if x.ndim == len(shape) or min(x.ndim, len(shape)) < 3 or x.size != math.prod(shape):
        return
    for reordered in channel_orders(x):
        if reordered.shape[0] == shape[0] and (
            reordered.shape[1] == shape[1] or reordered.shape[-1] == shape[-1]
        ):
            yield reordered.reshape(shape)


def _orders(x: Array, shape: tuple[int, ...]) -> Iterator[Array]:
    """Yields the array in each order of axes that frameworks use, reshaped to `shape`. An order is left out if its
    sizes do not match `shape`; axes of length 1 are ignored in this check. Yields nothing if no order matches."""
    wanted = tuple(size for size in shape if size != 1)
    # in addition to the orders of channels, the first two axes are exchanged, because a recurrent layer may have the
    # steps before the batch
    candidates = [*channel_orders(x), *([numpy.swapaxes(x, 0, 1)] if x.ndim > 2 else [])]
    for reordered in candidates:
        if _squeezed(reordered).shape == wanted:
            yield reordered.reshape(shape)


def _squeezed(x: Array) -> Array:
    """Returns the array without its axes of length 1."""
    return x.reshape([size for size in x.shape if size != 1])


def _distance(actual: Array, expected: Array) -> float:
    """Returns the distance between two non-empty arrays of the same shape: their largest difference, divided by the
    largest finite number in `expected`. If `expected` contains ints or bools, the distance is 0 for equal arrays, and
    infinite otherwise. The distance is also infinite if an element differs and is NaN or infinite in at least one of
    the arrays."""
    if expected.dtype.kind in "iub":
        return 0.0 if (actual == expected).all() else math.inf
    # two float32 arrays are compared without conversion, because widening two large arrays would take longer than the
    # comparison. Other floats are compared as float64
    a, b = (
        (actual, expected)
        if actual.dtype == expected.dtype == numpy.float32
        else (to_double(actual), to_double(expected))
    )
    # NumPy would warn about inf - inf
    with numpy.errstate(invalid="ignore"):
        differences = numpy.abs(a - b)
        largest_difference = float(differences.max())
    # two NaNs at the same position, and equal infinities, are not a difference
    if not math.isfinite(largest_difference):
        differences[(a == b) | (numpy.isnan(a) & numpy.isnan(b))] = 0.0
        largest_difference = float(differences.max())
    # a difference that is still NaN is an infinite distance: only one of the two elements is NaN
    if not largest_difference or not math.isfinite(largest_difference):
        return largest_difference if largest_difference == 0.0 else math.inf
    # if all expected values are 0, or none is finite, the difference is divided by 1
    sizes = numpy.abs(b)
    return largest_difference / (float(sizes[numpy.isfinite(sizes)].max(initial=0.0)) or 1.0)


def to_double(x: Array) -> Array:
    """Returns the array as complex128 if it is complex, and otherwise as float64."""
    return x.astype("complex128" if x.dtype.kind == "c" else "float64")
