"""The distance between arrays from two frameworks, which may have their axes in different orders.

A distance is the largest difference of two elements, as a share of the largest expected value, so that one limit fits
all layers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Array = numpy.ndarray[Any, Any]

OFF: Final = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""By dtype, the largest distance that still counts as rounding. Correct float32 runs of eleven published architectures
stayed below a 25th of it."""


def limit(arrays: Sequence[Array]) -> float:
    """The largest distance that still counts as rounding, for the coarsest float dtype among these arrays; that of
    float32 if there is none."""
    return max(
        (OFF[x.dtype.name] for x in arrays if x.dtype.name in OFF), default=OFF["float32"]
    )


# distances of arrays whose axes have the same order


def apart(actual: Array, expected: Array) -> float:
    """The distance between two arrays with the same order of axes. Infinite if the shapes differ, if ints or bools
    differ, or if an element is NaN or infinite in one array and different in the other. 0 if both are empty."""
    if actual.shape != expected.shape:
        return math.inf
    return _distance(actual, expected) if expected.size else 0.0


def apart_by_rows(actual: Array, expected: Array) -> float:
    """The distance as in `apart`, enlarged if the rows of a batch are nearly the same: then it is the largest
    difference as a share of how far the rows lie from their mean. A large bias, which all rows share, would otherwise
    hide differences. Not enlarged if it is 0 or infinite, or if there are fewer than two rows."""
    distance = apart(actual, expected)
    if not distance or not math.isfinite(distance) or expected.ndim < 2 or len(expected) < 2:
        return distance
    rows = wide(expected)
    # the largest number, and how far any number is from the mean of its column
    most = float(numpy.abs(rows[numpy.isfinite(rows)]).max())
    spread = numpy.abs(rows - rows.mean(axis=0))
    spread = spread[numpy.isfinite(spread)]
    # 1e-2 bounds the factor to 100, because rounding alone separates rows that are equal
    return (
        distance * max(1.0, most / (float(spread.max()) + 1e-2 * most))
        if spread.size and most
        else distance
    )


def moved(x: Array, last: bool) -> Array:
    """A batch of images with the axis of their channels moved: with `last` from axis 1 to the end, otherwise from the
    end to axis 1."""
    return numpy.moveaxis(x, 1, -1) if last else numpy.moveaxis(x, -1, 1)


def aligned(
    actual: Array, expected: Array, channels_last: tuple[bool | None, bool | None]
) -> Array:
    """Returns `actual` with its channels on the axis where `expected` has them. `channels_last` says for each of the
    two models, the actual one first, whether its channels come last; None if that is not known. Returns `actual`
    unchanged if an entry is None, or if it is closer to `expected` that way."""
    if (
        None in channels_last
        or channels_last[0] == channels_last[1]
        or actual.ndim < 3
        or not expected.size
    ):
        return actual
    # `actual` as it is may fit as well: a sequence has no channels, so the closer of the two is taken
    candidates = [
        candidate
        for candidate in (actual, moved(actual, not channels_last[0]))
        if candidate.shape == expected.shape
    ]
    return min(candidates, key=lambda candidate: _distance(candidate, expected), default=actual)


# distances of arrays whose axes may have different orders


def error_of(actual: Array, expected: Array) -> float | None:
    """The smallest distance between the two arrays, with the axes of `actual` in any order that frameworks use.
    Infinite if the shapes cannot fit; None if both arrays are empty, or if they may hold the same numbers in an order
    that is not tried."""
    if not expected.size and not actual.size:
        return None
    candidates = [
        _distance(candidate, expected) for candidate in _orders(actual, expected.shape)
    ]
    if candidates:
        return min(candidates)
    # the same axes in an order that is not tried, or a reshaped array, may hold the same numbers; the
    # same number of axes with other sizes cannot
    same_ndim = _squeezed(actual).ndim == _squeezed(expected).ndim
    return math.inf if same_ndim and sorted(actual.shape) != sorted(expected.shape) else None


def error_of_padded(actual: Array, expected: Array) -> float | None:
    """Like `error_of`, for the inputs of a convolution: if the error is infinite, as for shapes that cannot fit, zeros
    at the edges are removed from both, because in one framework the previous layer may have padded. The batch, axis 0,
    keeps its zeros."""
    error = error_of(actual, expected)
    if error != math.inf:
        return error
    return error_of(*(trimmed(x, range(1, x.ndim)) for x in (actual, expected)))


def trimmed(x: Array, axes: Iterable[int]) -> Array:
    """An image without the zeros at the edges of these axes, which may be padding. An image of zeros alone stays as it
    is."""
    for axis in axes:
        # the places along this axis that have a number other than 0
        used = numpy.flatnonzero(
            x.any(axis=tuple(other for other in range(x.ndim) if other != axis))
        )
        if used.size:
            x = numpy.take(x, range(used[0], used[-1] + 1), axis)
    return x


def layouts(x: Array) -> Iterator[Array]:
    """Yields the array as it is, and if it has three axes or more, with axis 1 moved to the end and with the last axis
    moved to axis 1: the places where frameworks have channels."""
    yield x
    if x.ndim > 2:
        yield numpy.moveaxis(x, 1, -1)
        yield numpy.moveaxis(x, -1, 1)


def regrouped(x: Array, shape: Sequence[int]) -> Iterator[Array]:
    """Yields `x` reshaped to `shape`, in each order of its axes in which batch and channels fit. One of the two shapes
    must have rows and columns as two axes, and the other must have them as one, as an attention over pixels does;
    otherwise yields nothing."""
    if x.ndim == len(shape) or min(x.ndim, len(shape)) < 3 or x.size != math.prod(shape):
        return
    for reordered in layouts(x):
        if reordered.shape[0] == shape[0] and (
            reordered.shape[1] == shape[1] or reordered.shape[-1] == shape[-1]
        ):
            yield reordered.reshape(shape)


def _orders(x: Array, shape: tuple[int, ...]) -> Iterator[Array]:
    """Yields the array in each order of axes that frameworks use, if it then has the given shape. Axes of one element
    do not count. Yields nothing if no order fits."""
    wanted = tuple(size for size in shape if size != 1)
    # besides the places of channels, the first two axes exchanged: a recurrent layer may have the steps before the
    # batch
    candidates = [*layouts(x), *([numpy.swapaxes(x, 0, 1)] if x.ndim > 2 else [])]
    for reordered in candidates:
        if _squeezed(reordered).shape == wanted:
            yield reordered.reshape(shape)


def _squeezed(x: Array) -> Array:
    """The array without its axes of length 1."""
    return x.reshape([size for size in x.shape if size != 1])


def _distance(actual: Array, expected: Array) -> float:
    """The distance between two arrays of one shape that are not empty: their largest difference, divided by the largest
    finite number of `expected`. The special cases are those of `apart`: 0 or infinite if `expected` has ints or bools,
    and infinite where only one array has a NaN or an infinity."""
    if expected.dtype.kind in "iub":
        return 0.0 if (actual == expected).all() else math.inf
    # float32 is compared as it is, because widening two large arrays takes longer than the rest; other floats as
    # float64
    a, b = (
        (actual, expected)
        if actual.dtype == expected.dtype == numpy.float32
        else (wide(actual), wide(expected))
    )
    # NumPy would warn of inf - inf
    with numpy.errstate(invalid="ignore"):
        off = numpy.abs(a - b)
        most = float(off.max())
    # NaN where both have NaN, and equal infinities, are no difference
    if not math.isfinite(most):
        off[(a == b) | (numpy.isnan(a) & numpy.isnan(b))] = 0.0
        most = float(off.max())
    if not most or not math.isfinite(most):
        return most if most == 0.0 else math.inf
    # if all expected values are 0, or none is finite, the difference itself
    sizes = numpy.abs(b)
    return most / (float(sizes[numpy.isfinite(sizes)].max(initial=0.0)) or 1.0)


def wide(x: Array) -> Array:
    """The array as complex128 if it is complex, and otherwise as float64."""
    return x.astype("complex128" if x.dtype.kind == "c" else "float64")
