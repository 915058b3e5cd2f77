"""Reads and sets the attributes of an object without running the object's code. The attributes are in the object's
slots and its `__dict__`."""

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

# the types whose values `first_lost_attribute` compares
_PLAIN: Final = (bool, int, float, str, bytes)

members: Final[Any] = type.__dict__["__dict__"].__get__
"""Returns the attributes that a class itself defines, without the attributes of its bases. `vars` would call code of
the class's metaclass, which may raise an error."""


class Attribute(str):
    """A key on a path into a container. It is the name of an attribute, not the key of an item."""

    __slots__ = ()


def as_key(name: Any) -> Any:
    """Returns the key that represents the attribute `name` in a walk: an `Attribute` if the name is a string, otherwise
    the name itself. A `__dict__` may have keys that are not strings: flax's `nnx.List` stores its layers under their
    indices."""
    return Attribute(name) if isinstance(name, str) else name


def as_name(key: Any) -> Any:
    """Returns the name of the attribute that this key represents: the reverse of `as_key`."""
    return str(key) if isinstance(key, str) else key


@registry.cached_by_type
def slots(cls: type) -> tuple[str, ...]:
    """Returns the names of the slots of a class and its bases in the form that `setattr` accepts: private names are
    mangled (`_Class__x`)."""
    # the names come from the descriptors, because `__slots__` contains private names in unmangled form:
    # `__x` instead of `_Class__x`
    classes = [base for base in cls.__mro__ if "__slots__" in members(base)]
    return tuple(
        name
        for base in classes
        for name, value in members(base).items()
        if type(value) is types.MemberDescriptorType
    )


def attribute_dict(x: Any) -> Any:
    """Returns the `__dict__` of an object, or None if the object has none. Raises `ContainerError` if the class defines
    `__dict__` as a property that raises an error other than `AttributeError`."""
    try:
        return object.__getattribute__(x, "__dict__")
    except AttributeError:
        return None
    except Exception as error:
        name = type(x).__qualname__
        raise ContainerError(
            f"the __dict__ of an object of type {name} cannot be read ({type(error).__name__}: {error}); describe "
            f"its contents with xdevice.register_container({name}, flatten=..., rebuild=...)"
        ) from error


def attributes(x: Any) -> dict[Any, Any]:
    """Returns a dict of the values in the slots and the `__dict__` of an object, by their names, without slots that
    were never set. Raises `ContainerError` as `attribute_dict` does."""
    values = {}
    for name in slots(type(x)):
        # a slot that was never set raises AttributeError
        with suppress(Exception):
            values[name] = object.__getattribute__(x, name)
    in_dict = attribute_dict(x)
    # an AttrDict is its own `__dict__`, so its attributes are its items, which are walked anyway
    return values | in_dict if type(in_dict) is dict else values


def first_lost_attribute(old: Any, new: Any) -> str:
    """Returns the name of the first attribute of `old` that `new` has lost, or "" if there is none. An attribute is
    lost if `new` lacks it or stores a value of another type there. A number or string is also lost if its value
    differs. Attributes with "hash" in their names are ignored, because a stored hash changes with the contents."""
    before, after = attributes(old), attributes(new)
    for name, value in before.items():
        if "hash" not in str(name) and (name not in after or _differs(value, after[name])):
            return str(name)
    return ""


def _differs(old: Any, new: Any) -> bool:
    """Whether `new` differs from `old` in type or, for a number or string, in value."""
    return type(new) is not type(old) or (isinstance(old, _PLAIN) and old != new)


def put(new: Any, name: Any, value: Any) -> None:
    """Sets the attribute `name` of `new` to `value`. Does not run code of the object's class, because that code may
    forbid the change or compute something."""
    # the object's `__dict__`, and if the attribute is in a slot, the slot's descriptor
    own_dict = getattr(new, "__dict__", None)
    slot = getattr(type(new), name, None) if isinstance(name, str) else None
    if type(slot) is types.MemberDescriptorType:
        slot.__set__(new, value)  # bypasses a frozen class's __setattr__, even if it is in C
    elif own_dict is not None:
        own_dict[name] = value  # bypasses a property
    else:
        object.__setattr__(new, name, value)


def read(x: Any) -> tuple[list[Any], list[Any]]:
    """Returns two lists: the keys and the values of the attributes of an object. The fields of a dataclass come
    first."""
    field_names = [field.name for field in fields(x)] if is_dataclass(x) else ()
    field_values = {name: getattr(x, name) for name in field_names if hasattr(x, name)}
    # the first `field_values` determines the order, and the second one the values, because a field may
    # be a property that returns a different value than the stored one
    values = field_values | attributes(x) | field_values
    return list(map(as_key, values)), list(values.values())


def empty_like(x: Any) -> Any:
    """Returns a new object of the type of `x`; `fill_attributes` will set its attributes. The object is created without
    calling `__init__`. If the type has a base class written in C, as exceptions have, returns a shallow copy of `x`."""
    try:
        return object.__new__(type(x))
    # a type with a base in C, such as an exception, refuses `object.__new__`
    except TypeError:
        return copy.copy(x)


def write(x: Any, keys: Iterable[Any], children: Sequence[Any]) -> Any:
    """Returns a new object like `x`. Its attributes have the values `children`, in the order of `keys`, the attributes'
    keys."""
    return fill_attributes(empty_like(x), x, keys, children)


def fill_attributes(new: Any, x: Any, keys: Iterable[Any], children: Sequence[Any]) -> Any:
    """Sets the attributes of `new`, the result of `empty_like(x)`, to `children`, and returns `new`. `keys` are the
    attributes' keys. An attribute that records the device of the object's tensors is set to their new device if they
    have moved."""
    values = dict(zip(map(as_name, keys), children, strict=True))
    # an attribute with a name such as `device` or `weights_device` may record a device
    for name, child in values.items():
        records_device = isinstance(name, str) and name.endswith("device")
        put(new, name, _updated_device(name, child, x, values) if records_device else child)
    return new


def recorded_device(recorded: Any) -> Device | None:
    """Returns the device that an attribute records, as a framework's own device object or as a `Device`. Returns None
    if the attribute's value is not a device."""
    owner = registry.owner_of(type(recorded))
    place = owner.from_native(recorded) if owner is not None else recorded
    return place if type(place) is Device else None


def described_prefix(name: str) -> str:
    """Returns how the names of the tensors begin whose device the attribute `name` records: `key` for `key_device`. The
    result is empty for `device`, because every name begins with it."""
    return name.removesuffix("device").strip("_")


def _updated_device(name: str, recorded: Any, x: Any, values: dict[Any, Any]) -> Any:
    """Returns the new value of the attribute `name`, in which an object records a device. `recorded` is the attribute's
    old value, `x` is the old object, and `values` contains the attributes of the new object by name. The attribute
    `device` describes all tensors of the object; `some_device` describes the tensors whose names begin with `some`. If
    all described tensors were on the recorded device and are now on the same device, returns that device; otherwise
    returns the old value."""
    owner = registry.owner_of(type(recorded))
    place = recorded_device(recorded)
    before = attributes(x)
    prefix = described_prefix(name)
    # the pairs of the old and the new device of each described tensor
    moves = set()
    for other, child in values.items():
        owned = registry.owner_and_kind(type(child))
        if (
            str(other).startswith(prefix)
            and owned is not None
            and owned.kind == "tensor"
            # a `Device` describes tensors of all frameworks; a framework's own device object describes only
            # tensors of that framework
            and owner in (None, owned.backend)
        ):
            # a traced tensor, or one on several devices, has no device
            with suppress(UnsupportedError):
                moves.add(
                    (owned.backend.device_of(before[other]), owned.backend.device_of(child))
                )
    # if the old value is not a device, or the tensors have not all moved from that device to one other
    # device, it is not certain that the attribute describes the tensors
    if place is None or len(moves) != 1 or not all(was is place for was, _ in moves):
        return recorded
    _, new_place = moves.pop()
    return owner.to_native(new_place) if owner is not None else new_place
