"""`Doors`: finds a backend's functions by the type of a tensor, for `array_namespace` and `xdevice.nn`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from xdevice.core import registry
from xdevice.errors import NotATensorError, shown

from .ground import Ground

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.contract import Backend


class Door:
    """The functions of one backend. If `enter` is not None, each thread has to call it before it computes with them."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.backend = ground.backend
        self.enter: Callable[[], None] | None = getattr(ground.kernels, "enter", None)


D = TypeVar("D", bound=Door)

_grounds: dict[str, Ground] = {}


class Doors(Generic[D]):
    """The `Door`s of one sort (for `array_namespace` or for `xdevice.nn`): one for each backend, made by `make`."""

    def __init__(self, make: Callable[[Ground], D]) -> None:
        self._make = make
        self._made: dict[str, D] = {}
        self.seen: dict[type, D] = {}
        """The doors by the types of the tensors seen so far: a fast lookup, valid while the `refusal` of the backend is
        None."""

    def of(self, backend: Backend) -> D:
        """The `Door` of a backend, made when it is first asked for."""
        door = self._made.get(backend.name)
        # another backend may have been registered under this name
        if door is None or door.backend is not backend:
            door = self._made[backend.name] = backend.eagerly(lambda: self._make(_ground(backend)))
        return door

    def find(self, x: Any, function: str) -> D:
        """The `Door` of the backend that `x` belongs to. Raises `NotATensorError` if `x` is neither a tensor nor a
        variable."""
        owned = registry.kind_of(type(registry.as_array(x)))
        if owned is None or (owned.kind == "model" and owned.backend.tensor_of(x) is None):
            raise NotATensorError(f"{function} takes tensors, not {shown(x)} of type {type(x).__qualname__}")
        door = self.of(owned.backend)
        # of a model's type, each object has to be asked whether it is a variable
        if owned.kind != "model":
            self.seen[type(x)] = door
        return door


def _ground(backend: Backend) -> Ground:
    ground = _grounds.get(backend.name)
    if ground is None or ground.backend is not backend:
        ground = _grounds[backend.name] = Ground(backend)
    return ground
