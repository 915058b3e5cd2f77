"""The attributes of an object, which are in its slots and its `__dict__`: reads and sets them without running the
object's code."""

from __future__ import annotations

import copy
import types
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

from xdevice.base.devices import Device
from xdevice.core import registry
from xdevice.errors import ContainerError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PLAIN: Final = (bool, int, float, str, bytes)

members: Final[Any] = type.__dict__["__dict__"].__get__
"""Returns what a class itself defines, without its bases. `vars` would call code of its metaclass, which may raise."""


class Attribute(str):
    """A key, on the path into a container, that is the name of an attribute and not the key of an item."""

    __slots__ = ()


def as_key(name: Any) -> Any:
    """Returns the key for an attribute of an object. A `__dict__` may have keys that are not strings: flax's `nnx.List`
    keeps its layers under their numbers."""
    return Attribute(name) if isinstance(name, str) else name


def as_name(key: Any) -> Any:
    return str(key) if isinstance(key, str) else key


@registry.kept_by_type
def slots(cls: type) -> tuple[str, ...]:
    """Returns the names of the slots of a class and its bases, as `setattr` takes them."""
    bases = [members(base) for base in cls.__mro__ if "__slots__" in members(base)]
    return tuple(
        name
        for base in bases
        for name, value in base.items()
        if type(value) is types.MemberDescriptorType
    )


def attribute_dict(x: Any) -> Any:
    """Returns the `__dict__` of an object, None if it has none. Raises `ContainerError` if a property hides it."""
    try:
        return object.__getattribute__(x, "__dict__")
    except AttributeError:
        return None
    except Exception as error:
        name = type(x).__qualname__
        raise ContainerError(
            f"the __dict__ of a {name} cannot be read ({type(error).__name__}: {error}); describe its contents: "
            f"xdevice.register_container({name}, flatten=..., rebuild=...)"
        ) from error


def attributes(x: Any) -> dict[Any, Any]:
    """Returns the values in the slots and the `__dict__` of an object, by name."""
    values = {}
    for name in slots(type(x)):
        with suppress(Exception):  # not set
            values[name] = object.__getattribute__(x, name)
    own = attribute_dict(x)
    # an AttrDict is its own `__dict__`: these are its items
    return values | own if type(own) is dict else values


def first_lost(old: Any, new: Any) -> str:
    """Returns the name of the first attribute that `old` has, and that `new`, an object of the same type, lacks or has
    with another type or another plain value; "" if there is none. Attributes with "hash" in their names do not count,
    because a stored hash changes with the contents."""
    before, after = attributes(old), attributes(new)
    names = (name for name in before if "hash" not in str(name))
    return next(
        (
            str(name)
            for name in names
            if name not in after or _differs(before[name], after[name])
        ),
        "",
    )


def _differs(old: Any, new: Any) -> bool:
    return type(new) is not type(old) or (isinstance(old, _PLAIN) and old != new)


def put(new: Any, name: Any, value: Any) -> None:
    """Sets an attribute without running code of the object's class, which may forbid it or compute something."""
    own, slot = (
        getattr(new, "__dict__", None),
        getattr(type(new), name, None) if isinstance(name, str) else None,
    )
    if type(slot) is types.MemberDescriptorType:
        slot.__set__(new, value)  # bypasses a frozen class's __setattr__, even one in C
    elif own is not None:
        own[name] = value  # bypasses a property
    else:
        object.__setattr__(new, name, value)


def read(x: Any) -> tuple[list[Any], list[Any]]:
    named = [field.name for field in fields(x)] if is_dataclass(x) else ()
    of_fields = {name: getattr(x, name) for name in named if hasattr(x, name)}
    # the fields come first, and as their properties give them
    values = of_fields | attributes(x) | of_fields
    return list(map(as_key, values)), list(values.values())


def empty(x: Any) -> Any:
    """Returns an object of the type of `x`, to be filled by `fill`, made without calling `__init__`."""
    try:
        return object.__new__(type(x))
    except TypeError:  # its memory is laid out by C
        return copy.copy(x)


def write(x: Any, keys: Iterable[Any], children: Sequence[Any]) -> Any:
    return fill(empty(x), x, keys, children)


def fill(new: Any, x: Any, keys: Iterable[Any], children: Sequence[Any]) -> Any:
    values = dict(zip(map(as_name, keys), children, strict=True))
    for name, child in values.items():
        notes_device = isinstance(name, str) and name.endswith("device")
        put(new, name, _gone_along(name, child, x, values) if notes_device else child)
    return new


def _gone_along(name: str, noted: Any, x: Any, values: dict[Any, Any]) -> Any:
    """Returns the new value of an attribute in which an object records a device. If the tensors that the attribute
    describes were on that device and have moved, that is their new device, otherwise the old value. `device` describes
    all tensors of the object, `some_device` those whose names begin with `some`."""
    owner = registry.owner_of(type(noted))
    place = owner.from_native(noted) if owner is not None else noted
    before, prefix = attributes(x), name.removesuffix("device").strip("_")
    moves = set()
    for other, child in values.items():
        owned = registry.kind_of(type(child))
        if (
            str(other).startswith(prefix)
            and owned is not None
            and owned.kind == "tensor"
            and owner in (None, owned.backend)
        ):
            with suppress(UnsupportedError):  # a traced tensor has no device
                moves.add(
                    (owned.backend.device_of(before[other]), owned.backend.device_of(child))
                )
    if (
        type(place) is not Device
        or len(moves) != 1
        or not all(was is place for was, _ in moves)
    ):
        return noted
    return owner.to_native(moves.pop()[1]) if owner is not None else moves.pop()[1]
