"""Moves, copies and locates one tensor or one model. The module `contents` does this for
containers."""

from __future__ import annotations

from xdevice.base.dtypes import dtype_name
from xdevice.containers import strangers
from xdevice.core import registry
from xdevice.errors import UnsupportedError

from . import unlisted
from .refusals import operators_hint, symbol_error

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from xdevice.base.devices import Device
    from xdevice.contract import Backend

    Location = tuple[Callable[[], str], Device, str]
    """A tuple for an error about a tensor: a function that returns the tensor's name, the tensor's device, and a
    hint."""


_names: dict[tuple[str, Any], str] = {}
"""A cache of dtype names, by the backend's name and the framework's dtype. It is needed because
`dtype_name` takes 1 us, which is longer than it takes to share a tensor."""


def dtype_of(backend: Backend, x: Any) -> str:
    """Returns NumPy's name of the dtype of a tensor."""
    key = backend.name, x.dtype
    name = _names.get(key)
    if name is None:
        name = _names[key] = dtype_name(x.dtype)
    return name


def move(backend: Backend, kind: str, x: Any, target: Device) -> Any:
    """Returns `x`, a tensor, symbol or model (`kind`), on the device `target`. A tensor that is on the device already
    is returned unchanged; a model is moved in place."""
    if kind == "tensor":
        return (
            x
            if is_on(backend, x, target)
            else require_new(backend, x, backend.move(x, target), verb="moving")
        )
    if kind == "symbol":
        return backend.move(x, target)
    return unlisted.move(backend, x, target)


def start_move(backend: Backend, kind: str, x: Any, target: Device) -> Any:
    """Returns `x`, a tensor, symbol or model (`kind`), on the device `target`, as `move` does, but may return before
    the values of a tensor have been copied."""
    if kind == "tensor" and not is_on(backend, x, target):
        return require_new(backend, x, backend.start_move(x, target), verb="moving")
    return move(backend, kind, x, target)


def is_on(backend: Backend, x: Any, target: Device) -> bool:
    """Whether a tensor is on the device `target`; False if the tensor is on several devices, or on a device that the
    adapter does not know."""
    try:
        return backend.device_of(x) is target
    except UnsupportedError:
        return False


def copy(backend: Backend, kind: str, x: Any, target: Device) -> Any:
    """Returns a copy of `x`, a tensor, symbol or model (`kind`), on the device `target`."""
    if kind == "symbol":
        return backend.copy(x, target)
    if kind == "model":
        twin = unlisted.WholeModel(backend, x).copy(target)
        return require_new(backend, x, twin, verb="copying")
    return _with_own_attributes(
        x, require_new(backend, x, backend.copy(x, target), verb="copying")
    )


def leaf(backend: Backend, x: Any, target: Device) -> Any:
    """Returns a copy of a tensor on the device `target`. The copy is a leaf of the framework's graph: gradients can be
    computed with respect to it."""
    return _with_own_attributes(x, backend.leaf(x, target))


@registry.cached_by_type
def _may_have_attributes(cls: type) -> bool:
    """Whether a type of tensors is defined outside its framework, so its objects may have
    additional attributes."""
    owned = registry.owner_and_kind(cls)
    return owned is None or cls.__module__.partition(".")[0] not in owned.backend.modules


def _with_own_attributes(x: Any, new: Any) -> Any:
    """Returns `new`, a copy of the tensor `x`. If the class of `x` is defined outside the framework, attributes that
    `new` shares with `x` are first replaced by copies."""
    if _may_have_attributes(type(x)):
        strangers.unshare_attributes(x, new)
    return new


def require_new(backend: Backend, x: Any, new: Any, verb: str) -> Any:
    """Returns `new`, the result of moving or copying `x`. Raises `UnsupportedError` if `new` is `x` itself, as when a
    method of a user's class returns `self`. The error begins with `verb`, such as "moving"."""
    if new is x:
        raise backend.unsupported(
            f"{verb} an object of type {type(x).__qualname__}, because its class returns the same object",
            "move or copy its parts instead",
        )
    return new


def places(backend: Backend, kind: str, x: Any, name: Callable[[], str]) -> Iterator[Location]:
    """Yields a `Location` for a tensor, or for each variable of a model. The hint of the `Location` is for the error
    about tensors on two devices. `name` returns the name of `x` in errors. Raises `UnsupportedError` for a symbol."""
    if kind == "tensor":
        operators = operators_hint(backend)
        yield name, backend.device_of(x), operators and f"use xdevice.to_device{operators}"
    elif kind == "symbol":
        raise symbol_error(backend, name() or type(x).__qualname__)
    else:
        for inner, place in unlisted.WholeModel(backend, x).places():
            # the default argument stores this value of `inner`, because the function is called later
            yield lambda inner=inner: f"{name()}.{inner}".lstrip("."), place, ""  # type: ignore[misc]
