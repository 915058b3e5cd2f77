"""One tensor or one model: how it is moved, copied, and asked where it is. What containers do is made of it."""

from __future__ import annotations

from xdevice.base.dtypes import dtype_name
from xdevice.errors import UnsupportedError

from .refusals import traced

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from xdevice.base.devices import Device
    from xdevice.contract import Backend

    Place = tuple[Callable[[], str], Device, str]
    """How to name a tensor in an error, its device, and a hint."""


_names: dict[tuple[str, Any], str] = {}
"""Of each framework's dtypes that were met: `dtype_name` takes 1 us, longer than sharing a tensor does."""


def dtype_of(backend: Backend, x: Any) -> str:
    key = backend.name, x.dtype
    name = _names.get(key)
    if name is None:
        name = _names[key] = dtype_name(x.dtype)
    return name


def move(backend: Backend, kind: str, x: Any, target: Device) -> Any:
    if kind == "tensor":
        return x if is_on(backend, x, target) else backend.move(x, target)
    if kind == "symbol":
        return backend.move(x, target)
    if backend.is_all_on(x, target):
        return x
    moved = backend.move_model(x, target)
    return x if moved is None else moved


def start_move(backend: Backend, kind: str, x: Any, target: Device) -> Any:
    if kind == "tensor" and not is_on(backend, x, target):
        return backend.start_move(x, target)
    return move(backend, kind, x, target)


def is_on(backend: Backend, x: Any, target: Device) -> bool:
    try:
        return backend.device_of(x) is target
    except UnsupportedError:
        return False


def copy(backend: Backend, kind: str, x: Any, target: Device) -> Any:
    return backend.copy_model(x, target) if kind == "model" else backend.copy(x, target)


def places(backend: Backend, kind: str, x: Any, name: Callable[[], str]) -> Iterator[Place]:
    if kind == "tensor":
        yield name, backend.device_of(x), ""
    elif kind == "symbol":
        raise traced(backend, name() or type(x).__qualname__)
    else:
        for inner, place in backend.model_devices(x):
            yield lambda inner=inner: _name_inside(name, inner), place, ""  # type: ignore[misc]


def _name_inside(name: Callable[[], str], inner: str) -> str:
    return f"{name()}.{inner}".lstrip(".")
