"""The standard's functions whose results have shapes that depend on values: `nonzero` and the sets. NumPy finds the
places on the host, which is the same on every backend, and a kernel then takes the values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from xdevice.core import registry
from xdevice.errors import ShapeError
from xdevice.tensors import refusals

from .ground import Ground

if TYPE_CHECKING:
    import numpy as np

    Places = np.ndarray[Any, Any]


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


class Sets:
    """The functions of a namespace that find elements."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def nonzero(self, x: Any, /) -> tuple[Any, ...]:
        import numpy as np

        values = self._read("nonzero", x)
        if not values.ndim:
            raise ShapeError("nonzero takes one dimension or more, not a tensor without dimensions")
        return tuple(self._ground.constant(places, x) for places in np.nonzero(values))

    def unique_all(self, x: Any, /) -> UniqueAllResult:
        return UniqueAllResult(*self._unique("unique_all", x, True, True))

    def unique_counts(self, x: Any, /) -> UniqueCountsResult:
        values, _, counts = self._unique("unique_counts", x, False, True)
        return UniqueCountsResult(values, counts)

    def unique_inverse(self, x: Any, /) -> UniqueInverseResult:
        values, _, inverse = self._unique("unique_inverse", x, True, False)
        return UniqueInverseResult(values, inverse)

    def unique_values(self, x: Any, /) -> Any:
        return self._unique("unique_values", x, False, False)[0]

    def _unique(self, function: str, x: Any, has_inverse: bool, has_counts: bool) -> list[Any]:
        """The elements, their first places, and what else is asked for."""
        import numpy as np

        values = self._read(function, x)
        wanted: Any = {"return_index": True, "return_inverse": has_inverse, "return_counts": has_counts}
        _, *found = np.unique(values.ravel(), equal_nan=False, **wanted)
        kernels = self._ground.kernels
        made = [self._ground.constant(part.ravel(), x) for part in found]
        if has_inverse:
            made[1] = kernels.reshape(made[1], values.shape)
        return [kernels.take(kernels.reshape(x, (-1,) if values.size else (0,)), made[0], 0), *made]

    def _read(self, function: str, x: Any) -> Places:
        x = self._ground.tensor(x, function)
        found = registry.kind_of(type(x))
        if found is None or found[1] != "tensor":
            raise refusals.traced(self._ground.backend, f"the tensor of {function}")
        values: Places = self._ground.backend.peek(x)
        return values
