"""The standard's functions whose results have shapes that depend on values: `nonzero` and the
`unique` functions. NumPy finds the indices on the host, in the same way for every backend. A
kernel then takes the values, so that gradients flow to them."""

from __future__ import annotations

from typing import Any, NamedTuple

from xdevice.errors import ShapeError

from .checks import Checks


class UniqueAllResult(NamedTuple):
    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCountsResult(NamedTuple):
    values: Any
    counts: Any


class UniqueInverseResult(NamedTuple):
    values: Any
    inverse_indices: Any


def nonzero(checks: Checks, x: Any, /) -> tuple[Any, ...]:
    """Returns a vector of indices for each axis: those of the elements that are not 0. Raises
    `ShapeError` for a tensor without dimensions, and `UnsupportedError` for a symbol."""
    x = checks.tensor(x, "nonzero")
    # symbols have no values, so the shape of the result cannot be known
    checks.require_values(x, "the argument of nonzero")
    if not len(x.shape):
        raise ShapeError(
            "nonzero takes tensors with at least one dimension, not 0-dimensional tensors"
        )
    return tuple(checks.kernels.nonzero(x))


def unique_all(checks: Checks, x: Any, /) -> UniqueAllResult:
    """Returns the distinct elements of `x`, for each the index of its first occurrence in the
    flattened `x`, for each element of `x` its index among the distinct ones, and how often each
    distinct element occurs."""
    return UniqueAllResult(
        *_unique(checks, "unique_all", x, has_indices=True, has_inverse=True, has_counts=True)
    )


def unique_counts(checks: Checks, x: Any, /) -> UniqueCountsResult:
    """Returns a vector of the distinct elements of `x`, and how often each occurs."""
    return UniqueCountsResult(*_unique(checks, "unique_counts", x, has_counts=True))


def unique_inverse(checks: Checks, x: Any, /) -> UniqueInverseResult:
    """Returns a vector of the distinct elements of `x`, and for each element of `x` its index
    in that vector."""
    return UniqueInverseResult(*_unique(checks, "unique_inverse", x, has_inverse=True))


def unique_values(checks: Checks, x: Any, /) -> Any:
    """Returns a vector of the distinct elements of `x`."""
    return _unique(checks, "unique_values", x)[0]


def _unique(
    checks: Checks,
    function: str,
    x: Any,
    has_indices: bool = False,
    has_inverse: bool = False,
    has_counts: bool = False,
) -> list[Any]:
    """Returns a list with the distinct elements, then the index of the first occurrence of each
    (if `has_indices`), the index of each element of `x` in the distinct ones (if `has_inverse`),
    and the number of occurrences (if `has_counts`). Raises `UnsupportedError` for a symbol;
    `function` is the name in the error."""
    import numpy as np

    kernels, x = checks.kernels, checks.tensor(x, function)
    checks.require_values(x, f"the argument of {function}")
    # read on the host
    values = checks.backend.peek(x)
    # whether the distinct elements are taken from `x` by their indices, because gradients do
    # not flow through values from the host
    takes_elements = has_indices or checks.has_gradients
    wanted: Any = {
        "return_index": takes_elements,
        "return_inverse": has_inverse,
        "return_counts": has_counts,
    }
    parts = np.unique(values.ravel(), equal_nan=False, **wanted)
    elements, *others = parts if isinstance(parts, tuple) else (parts,)
    tensors = [checks.constant(part.ravel(), x) for part in others]
    # the inverse comes after the indices, if these are there, so its index is `takes_elements`:
    # 1 for True, 0 for False. Its shape differs between versions of NumPy
    if has_inverse:
        tensors[takes_elements] = kernels.reshape(tensors[takes_elements], values.shape)
    if not takes_elements:
        return [checks.constant(elements, x), *tensors]
    # -1 cannot be computed from a shape without elements
    elements = kernels.take(kernels.reshape(x, (-1,) if values.size else (0,)), tensors[0], 0)
    return [elements, *tensors[0 if has_indices else 1 :]]
