"""The standard's functions whose results have shapes that depend on values: `nonzero` and the sets. NumPy finds the
places on the host, which is the same on every backend, and a kernel then takes the values, so that gradients flow to
them."""

from __future__ import annotations

from typing import Any, NamedTuple

from xdevice.errors import ShapeError
from xdevice.math.contract.gradients import Gradients

from .checks import Checks, Room


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


class Sets(Room):
    """The functions of a namespace that find elements."""

    def __init__(self, checks: Checks) -> None:
        super().__init__(checks)
        # the contract's default, which raises, says that a backend has no gradients
        own = getattr(checks.backend.value_and_grad, "__func__", None)
        self._has_gradients = own is not Gradients.value_and_grad

    def nonzero(self, x: Any, /) -> tuple[Any, ...]:
        import numpy as np

        x = self._checks.tensor(x, "nonzero")
        self._checks.require_values(x, "the tensor of nonzero")
        if not len(x.shape):
            raise ShapeError(
                "nonzero takes one dimension or more, not a tensor without dimensions"
            )
        if hasattr(self._checks.kernels, "nonzero"):
            return tuple(self._checks.kernels.nonzero(x))
        return tuple(
            self._checks.constant(places, x)
            for places in np.nonzero(self._checks.backend.peek(x))
        )

    def unique_all(self, x: Any, /) -> UniqueAllResult:
        return UniqueAllResult(*self._unique("unique_all", x, True, True, True))

    def unique_counts(self, x: Any, /) -> UniqueCountsResult:
        return UniqueCountsResult(*self._unique("unique_counts", x, False, False, True))

    def unique_inverse(self, x: Any, /) -> UniqueInverseResult:
        return UniqueInverseResult(*self._unique("unique_inverse", x, False, True, False))

    def unique_values(self, x: Any, /) -> Any:
        return self._unique("unique_values", x, False, False, False)[0]

    def _unique(
        self, function: str, x: Any, has_places: bool, has_inverse: bool, has_counts: bool
    ) -> list[Any]:
        """The elements, and what else is asked for."""
        import numpy as np

        kernels, x = self._checks.kernels, self._checks.tensor(x, function)
        self._checks.require_values(x, f"the tensor of {function}")
        values = self._checks.backend.peek(x)
        # gradients flow through `take`, and not through values that come from the host
        takes = has_places or self._has_gradients
        wanted: Any = {
            "return_index": takes,
            "return_inverse": has_inverse,
            "return_counts": has_counts,
        }
        parts = np.unique(values.ravel(), equal_nan=False, **wanted)
        elements, *others = parts if isinstance(parts, tuple) else (parts,)
        tensors = [self._checks.constant(part.ravel(), x) for part in others]
        if has_inverse:
            # NumPy 2.0 and others give it in different shapes
            tensors[takes] = kernels.reshape(tensors[takes], values.shape)
        if not takes:
            return [self._checks.constant(elements, x), *tensors]
        elements = kernels.take(
            kernels.reshape(x, (-1,) if values.size else (0,)), tensors[0], 0
        )
        return [elements, *tensors[0 if has_places else 1 :]]
