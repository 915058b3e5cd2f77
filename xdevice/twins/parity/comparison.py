"""`Comparison`, the result of `compare`, and the parts that all its texts share."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

# in the order in which they are looked for; only the first one found is reported
Problem = Literal["structure", "shape", "dtype", "device", "values", "settings"]


class Comparison(NamedTuple):
    """The result of `compare`. As a bool it is True if the two values are equal within the tolerances.

    Experimental: it may change in a minor version.

    It describes the leaf that is furthest off, and the worst element of that leaf: the element whose error is the
    largest multiple of the error allowed. A field that could not be computed is None.
    """

    ok: bool
    problem: Problem | None = None
    """The kind of the difference; None if there is none. Values are compared only if structure, shapes, dtypes and
    devices agree, and the settings of models are a problem only if the values agree too."""
    leaf: str = ""
    """The path of the leaf in the value: `['x'][1]`, `0.weight`; empty if the value itself is a tensor."""
    worst: tuple[int, ...] | None = None
    """The index of the worst element."""
    actual: Any = None
    expected: Any = None
    """`actual` and `expected` are the two values of the worst element, or the shapes, dtypes or devices that differ."""
    abs: float | int | None = None
    rel: float | None = None
    """`abs` and `rel` are the absolute and the relative error of the worst element."""
    ulp: int | None = None
    """How many numbers of the coarser dtype lie between the two values."""
    allowed: float | None = None
    """The largest absolute error that the worst element may have."""
    excess: float = 0.0
    """The worst element's error as a multiple of what is allowed: 1 is the limit."""
    off: int = 0
    total: int = 0
    """`off` is how many elements of the leaf are off; `total` is how many elements the leaf has."""
    settings: tuple[str, ...] = ()
    """Lines about the settings of two models or optimizers, read before anything was computed: those that differ, and
    those that could not be compared."""
    text: str = ""
    """The result in words. If the values are equal, the text is empty, or it names settings that differ or a count of
    batches that only one side has."""

    def __bool__(self) -> bool:
        # without this method a NamedTuple with fields is always true
        return self.ok


def difference(
    problem: Problem, text: str, leaf: str = "", actual: object = None, expected: object = None
) -> Comparison:
    """The `Comparison` of two values whose difference has no size, such as different structures or shapes. `leaf` is
    the path of the difference, and `actual` and `expected` are the shapes, dtypes or other properties that differ."""
    # an infinite excess, so that it counts as worse than any error of numbers
    return Comparison(
        False, problem, leaf, actual=actual, expected=expected, excess=math.inf, text=text
    )


def at(path: str) -> str:
    """The words that name a leaf's path in a message, such as " at 0.weight"; "" if the path is empty."""
    return f" at {path}" if path else ""
