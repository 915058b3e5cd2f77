"""The standard's functions with data-dependent shapes: `nonzero` and the `unique` functions. NumPy computes the indices
on the host, in the same way for every backend. A kernel then gathers the values at these indices, so that gradients
flow through the values."""

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
    """Returns a tuple with a vector of indices for each axis. Each vector contains the indices of all nonzero elements
    along its axis. Raises `ShapeError` for a 0-d tensor, and `UnsupportedError` for a symbol."""
    x = checks.checked_tensor(x, "nonzero")
    # symbols have no values, so the shape of the result cannot be known
    checks.require_values(x, "the argument of nonzero")
    if not len(x.shape):
        raise ShapeError(
            "nonzero expects a tensor with at least one dimension, not a 0-dimensional tensor"
        )
    return tuple(checks.kernels.nonzero(x))


def unique_all(checks: Checks, x: Any, /) -> UniqueAllResult:
    """Returns four tensors. The first is a vector of the distinct elements of `x`, and the second contains the index of
    the first occurrence of each in the flattened `x`. The third contains, for each element of `x`, its index in the
    vector of distinct elements. The fourth contains the number of occurrences of each distinct element."""
    return UniqueAllResult(
        *_unique(checks, "unique_all", x, has_indices=True, has_inverse=True, has_counts=True)
    )


def unique_counts(checks: Checks, x: Any, /) -> UniqueCountsResult:
    """Returns a vector of the distinct elements of `x`, and a vector with the number of occurrences of each distinct
    element."""
    return UniqueCountsResult(*_unique(checks, "unique_counts", x, has_counts=True))


def unique_inverse(checks: Checks, x: Any, /) -> UniqueInverseResult:
    """Returns a vector of the distinct elements of `x`, and a tensor of the shape of `x`. This tensor contains, for
    each element of `x`, its index in the vector."""
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
    """Returns a list of tensors. The first contains the distinct elements of `x`. The flags select the tensors that
    follow: for each distinct element, the index of its first occurrence (`has_indices`); for each element of `x`, its
    index among the distinct elements (`has_inverse`); and for each distinct element, the number of its occurrences
    (`has_counts`). Raises `UnsupportedError` for a symbol; `function` is the function name to show in the error
    message."""
    import numpy as np

    kernels, x = checks.kernels, checks.checked_tensor(x, function)
    checks.require_values(x, f"the argument of {function}")
    # the host reads the values of `x`
    values = checks.backend.peek(x)
    # whether the distinct elements are gathered from `x` by their indices; this is needed for
    # gradients, which do not flow through values from the host
    takes_elements = has_indices or checks.has_gradients
    wanted: Any = {
        "return_index": takes_elements,
        "return_inverse": has_inverse,
        "return_counts": has_counts,
    }
    arrays = np.unique(values.ravel(), equal_nan=False, **wanted)
    # NumPy returns a tuple only if more than the elements is wanted
    elements, *others = arrays if isinstance(arrays, tuple) else (arrays,)
    tensors = [checks.array_as_tensor(array.ravel(), x) for array in others]
    # if NumPy returned the indices, the inverse follows them, so the index of the inverse is
    # `takes_elements`, which is 1 for True and 0 for False. The shape of the inverse differs
    # between versions of NumPy
    if has_inverse:
        tensors[takes_elements] = kernels.reshape(tensors[takes_elements], values.shape)
    if not takes_elements:
        return [checks.array_as_tensor(elements, x), *tensors]
    # in a reshape, -1 cannot be resolved if there are no elements
    elements = kernels.take(kernels.reshape(x, (-1,) if values.size else (0,)), tensors[0], 0)
    # the indices, the first of `tensors`, may have been needed only for the elements
    return [elements, *(tensors if has_indices else tensors[1:])]
