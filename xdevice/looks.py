"""What an object holds, seen from outside: its slots, its `__dict__`, and the items of the containers in them.

None of the object's code is called, no property either, so what it computes or keeps in C is not seen.
"""

from __future__ import annotations

import types
from collections import UserDict, UserList, deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from . import registry
from .errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .contract import Backend, Kind

_MOST: Final = 10_000
"""How many things are looked at in one object before the rest is left: a training loop holds half of the program."""

_LISTS: Final[tuple[Any, ...]] = (list, tuple, set, frozenset, deque, type({}.values()), type({}.items()))
_KEYED: Final = (dict, types.MappingProxyType)
_PLAIN: Final = (bool, int, float, str, bytes)
_DESCRIPTORS: Final = (types.GetSetDescriptorType, types.MemberDescriptorType, property)
_NEVER: Final = (type, types.ModuleType, types.FunctionType, types.MethodType, types.GeneratorType)
_slots: dict[int, tuple[str, ...]] = {}
_empty: dict[int, bool] = {}


class Held(NamedTuple):
    """A tensor or model in an object."""

    path: str
    value: Any
    backend: Backend
    kind: Kind


def held(x: Any) -> list[Held]:
    """The tensors and models in an object that is none itself."""
    return list(_held(x)) if can_hold(type(x)) else []


def can_hold(cls: type) -> bool:
    """Whether things of a type may have anything in them that can be seen."""
    found = _empty.get(id(cls))
    if found is None:
        found = issubclass(cls, _NEVER) or not (issubclass(cls, _LISTS + _KEYED) or cls.__dictoffset__ or slots(cls))
        registry.remember(_empty, cls, found)
    return not found


def slots(cls: type) -> tuple[str, ...]:
    """The slots of a class and its bases, as `setattr` knows them."""
    found = _slots.get(id(cls))
    if found is None:
        bases = [vars(base) for base in cls.__mro__ if "__slots__" in vars(base)]
        found = tuple(n for base in bases for n, value in base.items() if type(value) is types.MemberDescriptorType)
        registry.remember(_slots, cls, found)
    return found


def is_proxy(cls: type) -> bool:
    """Whether things of a type stand for another one, whose class `isinstance` sees: TensorFlow's wrappers around the
    dicts and tuples of its modules do, and `wrapt.ObjectProxy`."""
    inner = next((vars(base)["__wrapped__"] for base in cls.__mro__ if "__wrapped__" in vars(base)), None)
    return isinstance(inner, _DESCRIPTORS)


def seen_class(x: Any) -> type:
    """The type of an object, or of what it stands for. What else says that it is of another class, as a mock with a
    `spec` does, has nothing of that class but the name."""
    while is_proxy(type(x)):
        x = x.__wrapped__
    return type(x)


def attributes(x: Any) -> dict[str, Any]:
    """What is in the slots and the `__dict__` of an object."""
    names = slots(type(x))
    found = {name: getattr(x, name) for name in names if hasattr(x, name)} if names else {}
    own = getattr(x, "__dict__", None)
    if type(own) is dict:
        found.update(own)
    return found


def lost(old: Any, new: Any) -> str:
    """The first attribute that another object of a type lacks, or that holds another plain value there."""
    before, after = attributes(old), attributes(new)
    return next((name for name, value in before.items() if name not in after or _differs(value, after[name])), "")


def _differs(old: Any, new: Any) -> bool:
    return isinstance(old, _PLAIN) and (type(new) is not type(old) or old != new)


def beside(x: Any) -> dict[str, Any]:
    """The attributes of a container with items, as far as they hold tensors or models; those that are its items under
    another name do not count, nor what a framework notes beside its own containers."""
    if registry.owner_of(type(x)) is not None:
        return {}
    found = attributes(x)
    if isinstance(x, UserDict | UserList):
        del found["data"]
    if not found:
        return {}
    if isinstance(x, dict | UserDict):
        found = {name: value for name, value in found.items() if name not in x or x[name] is not value}
    return {name: value for name, value in found.items() if _kind(type(value)) is not None or held(value)}


def _held(x: Any) -> Iterator[Held]:
    seen = {id(x)}
    way = [("", _children(x))]  # no recursion: a list may be linked by thousands of objects
    while way:
        path, children = way[-1]
        for code, child in children:
            cls = type(child)
            found = _kind(cls)
            if found is not None:
                yield Held(path + code, child, *found)
            elif can_hold(cls) and id(child) not in seen and len(seen) < _MOST:
                seen.add(id(child))
                way.append((path + code, _children(child)))
                break
        else:
            way.pop()


def _children(x: Any) -> Iterator[tuple[str, Any]]:
    cls = type(x)
    if is_proxy(cls):
        yield ".__wrapped__", x.__wrapped__
        return
    if issubclass(cls, _KEYED):
        items = dict.items(x) if issubclass(cls, dict) else x.items()
        yield from ((f"[{key!r}]", value) for key, value in list(items))
    elif issubclass(cls, _LISTS):
        yield from ((f"[{i}]", value) for i, value in enumerate(list(x)))
    yield from ((f".{name}", value) for name, value in attributes(x).items())


def _kind(cls: type) -> tuple[Backend, Kind] | None:
    try:
        return registry.kind_of(cls)
    except UnsupportedError:  # of what a framework has beside tensors and models
        return None
