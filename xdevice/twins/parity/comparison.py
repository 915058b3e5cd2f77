"""Defines `Comparison`, the result of `compare`, and functions that compose its texts."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

# in the order in which these problems are checked; only the first one is reported
Problem = Literal["structure", "shape", "dtype", "device", "values", "settings"]


class Comparison(NamedTuple):
    """The result of `compare`. It is truthy if the two values are equal within the tolerances.

    Experimental: it may change in a minor version.

    It describes the leaf (tensor or number) with the largest error, and the worst element of this leaf. The worst
    element is the one whose error is the largest multiple of the allowed error. A field that could not be computed is
    None.
    """

    ok: bool
    problem: Problem | None = None
    """The kind of the difference; None if there is no difference. Values are compared only if structure, shapes, dtypes
    and devices agree. Settings of models are reported as the problem only if the values agree too."""
    leaf: str = ""
    """The path of the leaf in the value, such as `['x'][1]` or `0.weight`; empty if the value itself is a tensor."""
    worst: tuple[int, ...] | None = None
    """The index of the worst element."""
    actual: Any = None
    expected: Any = None
    """`actual` and `expected` are the two values of the worst element, or the shapes, dtypes or devices that differ."""
    abs: float | int | None = None
    rel: float | None = None
    """`abs` and `rel` are the absolute and the relative error of the worst element."""
    ulp: int | None = None
    """The distance between the two values in ULP of the coarser dtype."""
    allowed: float | None = None
    """The largest absolute error that the worst element may have."""
    excess: float = 0.0
    """The error of the worst element as a multiple of the allowed error. A value up to 1 is within the tolerance."""
    off: int = 0
    total: int = 0
    """`off` is the number of elements with an error above the allowed error; `total` is the number of all elements of
    the leaf."""
    settings: tuple[str, ...] = ()
    """Lines about settings of two models or optimizers that differ or could not be compared. The settings were read
    before anything was computed."""
    text: str = ""
    """The result in words. For equal values, the text is empty or names settings that differ, or a count of batches
    that only one value has."""

    def __bool__(self) -> bool:
        # without this method, a NamedTuple with fields would always be true
        return self.ok


def difference(
    problem: Problem, text: str, leaf: str = "", actual: object = None, expected: object = None
) -> Comparison:
    """Returns the `Comparison` of two values whose difference is not a number, such as different structures or shapes.
    `leaf` is the path of the leaf that differs, and `actual` and `expected` are the shapes, dtypes or other properties
    that differ."""
    # the excess is infinite, so that this difference is treated as worse than any numerical error
    return Comparison(
        False, problem, leaf, actual=actual, expected=expected, excess=math.inf, text=text
    )


def at(path: str) -> str:
    """Returns the place of a leaf as text for a message, such as " at 0.weight", or "" if the path is empty."""
    return f" at {path}" if path else ""
