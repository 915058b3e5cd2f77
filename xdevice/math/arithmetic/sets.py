"""The standard's functions whose results have shapes that depend on values: `nonzero` and the sets. NumPy finds the
places on the host, which is the same on every backend, and a kernel then takes the values, so that gradients flow to
them."""

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

    x = checks.tensor(x, "nonzero")
    checks.require_values(x, "the tensor of nonzero")
    if not len(x.shape):
        raise ShapeError("nonzero takes one dimension or more, not a tensor without dimensions")
    return tuple(checks.kernels.nonzero(x))


def unique_all(checks: Checks, x: Any, /) -> UniqueAllResult:
    return UniqueAllResult(*_unique(checks, "unique_all", x, True, True, True))


def unique_counts(checks: Checks, x: Any, /) -> UniqueCountsResult:
    return UniqueCountsResult(*_unique(checks, "unique_counts", x, False, False, True))


def unique_inverse(checks: Checks, x: Any, /) -> UniqueInverseResult:
    return UniqueInverseResult(*_unique(checks, "unique_inverse", x, False, True, False))


def unique_values(checks: Checks, x: Any, /) -> Any:
    return _unique(checks, "unique_values", x, False, False, False)[0]


def _unique(
    checks: Checks, function: str, x: Any, has_places: bool, has_inverse: bool, has_counts: bool
) -> list[Any]:
    """The distinct elements, and the other results that are asked for."""
    import numpy as np

    kernels, x = checks.kernels, checks.tensor(x, function)
    checks.require_values(x, f"the tensor of {function}")
    values = checks.backend.peek(x)
    # gradients flow through `take`, and not through values that come from the host
    takes = has_places or checks.has_gradients
    wanted: Any = {
        "return_index": takes,
        "return_inverse": has_inverse,
        "return_counts": has_counts,
    }
    parts = np.unique(values.ravel(), equal_nan=False, **wanted)
    elements, *others = parts if isinstance(parts, tuple) else (parts,)
    tensors = [checks.constant(part.ravel(), x) for part in others]
    if has_inverse:
        # NumPy 2.0 and others give it in different shapes
        tensors[takes] = kernels.reshape(tensors[takes], values.shape)
    if not takes:
        return [checks.constant(elements, x), *tensors]
    elements = kernels.take(kernels.reshape(x, (-1,) if values.size else (0,)), tensors[0], 0)
    return [elements, *tensors[0 if has_places else 1 :]]
