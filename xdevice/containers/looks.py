"""What an object holds, seen from outside: its slots, its `__dict__`, and the items of the containers in them.

None of the object's code is called, no property either, so what it computes or keeps in C is not seen.
"""

from __future__ import annotations

import gc
import types
from collections import UserDict, UserList, deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice.core import registry
from xdevice.errors import UnsupportedError, shown

from .batches import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from xdevice.contract import Backend, Kind
    from xdevice.core.owned import Owned

_MOST: Final = 10_000
"""How many things are looked at in one object before the rest is left: a training loop holds half of the program."""

_VIEWS: Final[tuple[Any, ...]] = (type({}.keys()), type({}.values()), type({}.items()))
_LISTS: Final[tuple[Any, ...]] = (list, tuple, set, frozenset, deque, *_VIEWS)
_PLAIN: Final = (bool, int, float, str, bytes)
_DESCRIPTORS: Final = (types.GetSetDescriptorType, types.MemberDescriptorType, property)
_NEVER: Final = (type, types.ModuleType, types.FunctionType, types.GeneratorType)
_FIELDS: Final[dict[type, tuple[str, ...]]] = {
    partial: ("func", "args", "keywords"),
    slice: ("start", "stop", "step"),
    types.MethodType: ("__self__",),
    types.BuiltinMethodType: ("__self__",),
    types.MethodWrapperType: ("__self__",),
}
"""What is neither in a slot nor in a `__dict__`, and has a name all the same."""

_CLOSED: Final = ("builtins", "itertools", "_collections", "pandas")
"""The modules whose iterators, and those whose classes, keep in C what Python's garbage collector alone tells."""

_slots: dict[int, tuple[str, ...]] = {}
_empty: dict[int, bool] = {}


class Held(NamedTuple):
    """A tensor or model in an object."""

    path: str
    value: Any
    backend: Backend
    kind: Kind


class Keys(tuple[Any, ...]):
    """The keys of a mapping, which no others can stand for: the program looks things up by them."""

    __slots__ = ()
    __qualname__ = "tuple of keys"


def held(x: Any) -> list[Held]:
    """The tensors and models in an object that is neither, or in an array of objects."""
    inside = _objects(x, _kind(type(x)))
    x = x if inside is None else inside
    return list(_held(x)) if can_hold(type(x)) else []


def answers(x: Any) -> bool:
    """Whether an object and its type let themselves be asked what they are, as `isinstance` and `hasattr` ask."""
    try:
        hash(type(x))
        getattr(type(x), "__xdevice_lacks_it__", None)
        return x.__class__ is not None and getattr(x, "__dict__", None) is not ...
    except Exception:
        return False


def has_method(cls: type, name: str) -> bool:
    """Whether things of a type have a method of that name; neither they nor their metaclass are asked."""
    return callable(next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None))


def can_hold(cls: type) -> bool:
    """Whether things of a type may have anything in them that can be seen."""
    found = _empty.get(id(cls))
    if found is None:
        found = issubclass(cls, _NEVER) or not (
            issubclass(cls, (*_LISTS, dict, *_FIELDS)) or cls.__dictoffset__ or slots(cls) or is_closed(cls)
        )
        registry.remember(_empty, cls, found)
    return not found


def is_closed(cls: type) -> bool:
    """Whether what things of a type hold has no names."""
    root = str(cls.__module__).partition(".")[0]
    is_iterator = "__next__" in vars(cls)
    return cls is types.MappingProxyType or (root in _CLOSED and (is_iterator or root == "pandas"))


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
    return issubclass(type(inner), _DESCRIPTORS)


def _wrapped(x: Any) -> Any:
    try:
        return x.__wrapped__
    except Exception:  # it does not stand for anything yet
        return None


def seen_class(x: Any) -> type:
    """The type of an object, or of what it stands for. What else says that it is of another class, as a mock with a
    `spec` does, has nothing of that class but the name."""
    while is_proxy(type(x)):
        x = _wrapped(x)
    return type(x)


def attributes(x: Any) -> dict[str, Any]:
    """What is in the slots and the `__dict__` of an object."""
    found = {}
    for name in slots(type(x)):
        with suppress(Exception):  # not set
            found[name] = object.__getattribute__(x, name)
    try:
        own = object.__getattribute__(x, "__dict__")
    except AttributeError:
        return found
    except Exception:  # a property of its own hides it
        own = {"__dict__": gc.get_referents(x)}
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
            inside = _objects(child, found)
            if found is not None and inside is None:
                yield Held(path + code, child, *found)
            elif (inside is not None or can_hold(cls)) and id(child) not in seen and len(seen) < _MOST:
                seen.add(id(child))
                way.append((path + code, _children(child if inside is None else inside)))
                break
        else:
            way.pop()


def _children(x: Any) -> Iterator[tuple[str, Any]]:
    cls = type(x)
    if is_proxy(cls):
        yield ".__wrapped__", _wrapped(x)
        return
    if is_closed(cls):
        yield from (("", inner) for inner in gc.get_referents(x))
        return
    if issubclass(cls, dict):
        items = list(dict.items(x))
        yield from ((f"[{shown(key, None)}]", value) for key, value in items if id(type(value)) not in PLAIN)
        yield from ((f".keys(){code}", key) for code, key in _numbered(key for key, _ in items))
    else:
        base = next((base for base in _LISTS if issubclass(cls, base)), None)
        yield from _numbered(base.__iter__(x)) if base is not None else ()
    names = next((names for base, names in _FIELDS.items() if issubclass(cls, base)), ())
    yield from ((f".{name}", getattr(x, name)) for name in names)
    yield from ((f".{name}", value) for name, value in attributes(x).items())


def _numbered(values: Iterable[Any]) -> list[tuple[str, Any]]:
    """Those that may hold something; of the base's own iterator, for a length that lies would be believed."""
    return [(f"[{i}]", value) for i, value in enumerate(values) if id(type(value)) not in PLAIN]


def _objects(x: Any, found: Owned | None) -> Any:
    """The objects that an array is made of; None for numbers, and for anything else."""
    if found is None or not found.backend.is_host_only:
        return None
    way = found.backend.container_way(x)
    return way.flatten(x) if way is not None and way.flatten is not None else None


def _kind(cls: type) -> Owned | None:
    try:
        return registry.kind_of(cls)
    except UnsupportedError:  # of what a framework has beside tensors and models
        return None
