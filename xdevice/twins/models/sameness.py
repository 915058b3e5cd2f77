"""Compares the inputs of two layers in two frameworks. Inputs also count as the same if one has its channels first and
the other last, if a flattened image has its numbers in another order, if one has its padding already, or if one has all
steps of all sequences along one axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from xdevice.twins.tracing.distances import layouts

if TYPE_CHECKING:
    from collections.abc import Sequence

    Array = np.ndarray[Any, Any]

_SAME: Final = 1e-3
"""How much two arrays that count as the same may differ, as a share of their largest number."""


class Given(NamedTuple):
    """The first input of a layer, with two numbers that stay the same if its layout changes or zeros are put around
    it."""

    x: Array
    largest: float
    total: float
    """The sum of the absolute values in `x`."""


def as_given(inputs: Sequence[Array]) -> Given | None:
    """The first of a layer's inputs as a `Given`; None if the layer has no inputs."""
    if not inputs:
        return None
    x = inputs[0] if inputs[0].dtype in (np.float32, np.float64) else _wide(inputs[0])
    sizes = np.abs(x)
    return Given(x, float(sizes.max(initial=0.0)), float(sizes.sum(dtype="float64")))


def _wide(x: Array) -> Array:
    wide: Array = np.abs(x) if x.dtype.kind == "c" else x
    return wide.astype("float64")


def is_same(one: Given | None, other: Given | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.x.ndim != other.x.ndim:
        one, other = (given._replace(x=given.x.squeeze()) for given in (one, other))
    if one.x.ndim != other.x.ndim and one.x.size == other.x.size and one.x.shape[-1:] == other.x.shape[-1:]:
        one, other = (given._replace(x=given.x.reshape(-1, *given.x.shape[-1:])) for given in (one, other))
    if one.x.ndim != other.x.ndim or not one.x.size or not other.x.size:
        return one.x.shape == other.x.shape
    most = _SAME * max(one.largest, 1e-30)
    if abs(one.largest - other.largest) > most or abs(one.total - other.total) > most * max(one.x.size, other.x.size):
        return False  # the rest need not be read
    ways = list(layouts(other.x))
    fitting = [(one.x, there) for there in ways if there.shape == one.x.shape]
    if any(_is_close(*pair, most) for pair in fitting or (_without_zeros(one.x, there) for there in ways)):
        return True
    is_flat = one.x.ndim == 2 and one.x.shape == other.x.shape
    return is_flat and _is_close(np.sort(one.x, axis=1), np.sort(other.x, axis=1), most)


def _is_close(one: Array, other: Array, most: float) -> bool:
    if one.shape != other.shape:
        return False
    few = (slice(None, None, max(1, one.shape[0] - 1)), *(slice(None, None, 3) for _ in one.shape[1:]))
    return _off(one[few], other[few]) <= most and _off(one, other) <= most


def _off(one: Array, other: Array) -> float:
    return float(np.abs(one - other).max(initial=0.0))


def _without_zeros(one: Array, other: Array) -> tuple[Array, Array]:
    """Two images. Along each axis in which their sizes differ, both lose the zeros at their edges, which may be
    padding."""
    if one.ndim < 3:
        return one, other
    for axis in range(1, one.ndim):
        if one.shape[axis] != other.shape[axis]:
            one, other = _trim(one, axis), _trim(other, axis)
    return one, other


def _trim(x: Array, axis: int) -> Array:
    filled = np.flatnonzero(x.any(axis=tuple(other for other in range(x.ndim) if other != axis)))
    if not filled.size:
        return x
    return x[(slice(None),) * axis + (slice(int(filled[0]), int(filled[-1]) + 1),)]


def similarity(one: Given | None, other: Given | None) -> float:
    """How alike two inputs are where they overlap, in the layout that fits best: their correlation or the share of
    numbers that agree, whichever is larger. -1 if they cannot be compared."""
    if one is None or other is None or one.x.ndim != other.x.ndim:
        return -1.0
    found = [-1.0]
    for there in layouts(other.x):
        ours, theirs = _without_zeros(one.x, there)
        cut = tuple(slice(0, min(sizes)) for sizes in zip(ours.shape, theirs.shape, strict=True))
        if ours[cut].size * 2 >= max(ours.size, theirs.size):
            found.append(_agreement(ours[cut].astype("float64").ravel(), theirs[cut].astype("float64").ravel()))
    return max(found)


def _agreement(one: Array, other: Array) -> float:
    same = float((np.abs(one - other) <= _SAME * max(float(np.abs(one).max()), 1e-30)).mean()) if one.any() else 0.0
    one, other = one - one.mean(), other - other.mean()
    size = float(np.sqrt((one @ one) * (other @ other)))
    return max(same, float(one @ other) / size if size else 0.0)
