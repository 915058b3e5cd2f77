"""The ways into containers and out again: one for each sort of container, and how a type gets one.

A type that a user has registered goes as it was registered. dict, list, tuple and their subclasses go by their items,
then what a framework has registered with itself (a pytree of JAX), then other mappings and sets by their items, and
dataclasses, attrs classes, pydantic models and namespaces by their attributes. Whatever else a container has, as the
attributes of a subclass of dict, is kept and walked too. All other types are leaves.
"""

from __future__ import annotations

import argparse
import copy
import types
from collections import ChainMap, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, MappingView, MutableMapping, Sequence, Set
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from xdevice.contract import Way
from xdevice.core import registry
from xdevice.errors import ContainerError, shown

from . import looks, strangers
from .batches import PLAIN
from .looks import attributes, beside

Keys = Iterable[Any]
Children = Sequence[Any]


class Attribute(str):
    """A key that is the name of an attribute."""

    __slots__ = ()


_KEYS: Final = Attribute("keys()")
"""The way to keys that hold tensors: a leaf beside the values, never replaced."""

_PARTIAL: Final = tuple(map(Attribute, ("func", "args", "keywords")))
_SLICE: Final = tuple(map(Attribute, ("start", "stop", "step")))


class Entry(NamedTuple):
    """The way into a container of one type."""

    read: Callable[[Any], tuple[Keys, Children]]
    write: Callable[[Any, Keys, Children], Any]
    """Rebuilds it with other children; what is neither child nor key comes from the old one."""
    is_plain: bool = False
    """Whether it is rebuilt with the same children too, so that a copy of what it is in does not share it."""


class Whole(NamedTuple):
    """An object that moves itself, or may: it is a leaf where things are moved, and walked elsewhere if it can be."""

    inside: Entry | None
    way: Way | None
    """As it was registered; None for one that has a method of its own, to be used if it holds tensors."""


def code(key: Any) -> str:
    """What is written behind a container's name to get at a child: `['x']`, `[1]`, `.x`."""
    return f".{key}" if type(key) is Attribute else f"[{shown(key, None)}]"


# which type goes which way

registered: Final[WeakKeyDictionary[type, Way]] = WeakKeyDictionary()
"""What users have registered, for subclasses too."""


def way_into(x: Any) -> Entry | Whole | None:
    """The way into things of the type of `x`; None for a leaf."""
    cls = type(x)
    if cls is looks.Keys or not looks.answers(x):
        return None
    own = next((registered[base] for base in cls.__mro__ if base in registered), None)
    if own is not None:
        return _as_registered(own, x)
    if x is None or issubclass(cls, type) or registry.kind_of(cls) is not None:
        return None  # for JAX, None is a container without anything in it
    offered = _offered(x)
    if offered is not None and (offered.move is not None or (offered.tensors is not None and offered.flatten is None)):
        return Whole(_by_functions(offered) if offered.flatten is not None else _inside(x), offered)
    inside = _inside(x)
    if offered is not None and (
        inside is None or looks.is_proxy(cls) or issubclass(looks.seen_class(x), Mapping | list)
    ):
        inside = _entry(offered)
    if issubclass(looks.seen_class(x), dict | UserDict) or not may_move(cls):
        return inside
    return Whole(inside, None)


def may_move(cls: type) -> bool:
    """Whether a type has the method by which objects of some loaded framework's libraries move themselves."""
    names = {backend.moves_by for backend in registry.loaded() if backend.moves_by}
    return any(looks.has_method(cls, name) for name in names)


def _offered(x: Any) -> Way | None:
    """The way that a framework knows; of a dict or a list only one that knows its own."""
    owner = registry.owner_of(type(x))
    asked = [] if owner is None else [owner]  # first: for JAX any named tuple is a pytree, one of PyTorch's too
    if not issubclass(looks.seen_class(x), dict | UserDict | list | UserList):
        asked += [backend for backend in registry.loaded() if backend is not owner]
    return next((way for way in (backend.container_way(x) for backend in asked) if way is not None), None)


def _as_registered(way: Way, x: Any) -> Entry | Whole:
    if way.move is not None:
        return Whole(_inside(x), way)
    return _entry(way)


def _entry(way: Way) -> Entry:
    return _by_functions(way) if way.flatten is not None else ATTRIBUTES


def _inside(x: Any) -> Entry | None:
    exact = EXACT.get(type(x))
    if exact is not None:
        return exact
    seen = looks.seen_class(x)
    for kinds, entry in _SUBCLASSES:
        if issubclass(seen, kinds):
            return entry
    cls = type(x)
    if is_dataclass(cls) or hasattr(cls, "__attrs_attrs__") or hasattr(cls, "__pydantic_fields__"):
        return ATTRIBUTES
    return None


def _by_functions(way: Way) -> Entry:
    """A way by a pair of functions: the children are a mapping or a sequence, and are handed back as one."""
    flatten, rebuild = way.flatten, way.rebuild
    assert flatten is not None
    assert rebuild is not None

    def read(x: Any) -> tuple[Keys, Children]:
        children = flatten(x)
        if isinstance(children, Mapping):
            return children.keys(), list(children.values())
        if isinstance(children, list | tuple):
            return range(len(children)), children
        raise ContainerError(
            f"the flatten of {type(x).__qualname__} gave {shown(children)} of type {type(children).__qualname__}; "
            "expected a dict of what is in it, or a list"
        )

    def write(x: Any, keys: Keys, children: Children) -> Any:
        return rebuild(x, list(children) if isinstance(keys, range) else dict(zip(keys, children, strict=True)))

    return Entry(read, write)


# attributes


def _put(new: Any, name: str, value: Any) -> None:
    own = getattr(new, "__dict__", None)
    if own is not None and type(getattr(type(new), name, None)) is not types.MemberDescriptorType:
        own[name] = value  # past a property or a frozen class's __setattr__
    else:
        object.__setattr__(new, name, value)


def _read_attributes(x: Any) -> tuple[Keys, Children]:
    named = [field.name for field in fields(x)] if is_dataclass(x) else ()
    found = {name: getattr(x, name) for name in named if hasattr(x, name)}
    found.update((name, value) for name, value in attributes(x).items() if name not in found)
    return [Attribute(name) for name in found], list(found.values())


def _write_attributes(x: Any, keys: Keys, children: Children) -> Any:
    try:
        new = object.__new__(type(x))
    except TypeError:  # its memory is laid out by C
        new = copy.copy(x)
    for name, child in zip(keys, children, strict=True):
        _put(new, str(name), child)
    return new


ATTRIBUTES: Final = Entry(_read_attributes, _write_attributes)


# items, and the attributes beside them


def _and_beside(x: Any, keys: Iterable[Any], items: Iterable[Any]) -> tuple[Keys, Children]:
    more = beside(x)
    return [*keys, *map(Attribute, more)], [*items, *more.values()]


def _and_keys(keys: Iterable[Any], values: Iterable[Any]) -> tuple[Keys, Children]:
    names, children = list(keys), list(values)
    if PLAIN.issuperset(map(id, map(type, names))):
        return names, children
    found = looks.Keys(names)
    return (names, children) if strangers.find(found, None) is None else ([*names, _KEYS], [*children, found])


def _read_dict(x: Any) -> tuple[Keys, Children]:
    if PLAIN.issuperset(map(id, map(type, x))):
        return x, list(x.values())
    return _and_keys(x, x.values())


def _read_keyed(x: Any) -> tuple[Keys, Children]:
    items = dict(x.items())
    return _and_beside(x, *_and_keys(items, items.values()))


def _write_keyed(x: Any, keys: Keys, children: Children) -> Any:
    new = copy.copy(x)
    own = getattr(new, "__dict__", {})
    if getattr(x, "__dict__", None) is x:
        new.__dict__ = own = new  # the attributes are the items
    for key, child in zip(keys, children, strict=True):
        if type(key) is Attribute:
            if key is not _KEYS:
                _put(new, key, child)
            continue
        old = new[key]
        if old is child:
            continue
        new[key] = child
        if isinstance(key, str) and own.get(key) is old:
            own[key] = child  # the attribute was the item
    return _checked(new, keys, children)


def _write_frozen(x: Any, keys: Keys, children: Children) -> Any:
    new = type(x)({key: child for key, child in zip(keys, children, strict=True) if key is not _KEYS})
    lost = looks.lost(x, new)
    if lost:
        raise ContainerError(f"its {lost} would be lost")
    return _checked(new, keys, children)


def _read_frozen(x: Any) -> tuple[Keys, Children]:
    items = dict(x.items())
    return _and_keys(items, items.values())


def _checked(new: Any, keys: Keys, children: Children) -> Any:
    """`new`, if it has taken the children as they are: some mappings convert what they are given."""
    for key, child in zip(keys, children, strict=True):
        if type(key) is not Attribute and type(new[key]) is not type(child):
            raise ContainerError(f"its {shown(key)} became a {type(new[key]).__qualname__}")
    return new


def _read_listed(x: Any) -> tuple[Keys, Children]:
    items = _items(x)
    return _and_beside(x, range(len(items)), items)


def _items(x: Any) -> list[Any]:
    """By its iterator alone: `list(x)` believes a subclass's `__len__`, which may lie."""
    return list(iter(x))


def _write_listed(x: Any, keys: Keys, children: Children) -> Any:
    new = copy.copy(x)
    count = len(_items(x))
    new[:] = children[:count]
    return _with_beside(new, count, keys, children)


def _with_beside(new: Any, count: int, keys: Keys, children: Children) -> Any:
    for name, child in list(zip(keys, children, strict=True))[count:]:
        _put(new, name, child)
    return new


def _read_tuple(x: Any) -> tuple[Keys, Children]:
    names = getattr(x, "_fields", None)
    if hasattr(x, "n_sequence_fields"):  # time.struct_time, torch.return_types
        names = type(x).__match_args__
    items = _items(x)
    if isinstance(names, tuple) and len(names) == len(items):
        return _and_beside(x, map(Attribute, names), items)
    return _and_beside(x, range(len(items)), items)


def _write_tuple(x: Any, keys: Keys, children: Children) -> Any:
    if hasattr(x, "n_sequence_fields"):
        return type(x)(children)
    count = len(_items(x))
    new = tuple.__new__(type(x), children[:count])  # past a constructor of its own
    for name, value in attributes(x).items():
        _put(new, name, value)
    return _with_beside(new, count, keys, children)


def _read_partial(x: Any) -> tuple[Keys, Children]:
    more = attributes(x)
    return [*_PARTIAL, *map(Attribute, more)], [x.func, x.args, x.keywords or None, *more.values()]


def _write_partial(x: Any, keys: Keys, children: Children) -> Any:
    new = copy.copy(x)
    more = list(zip(keys, children, strict=True))[len(_PARTIAL) :]
    new.__setstate__((*children[: len(_PARTIAL)], {str(name): child for name, child in more}))
    return new


def _read_elements(x: Any) -> tuple[Keys, Children]:
    elements = _items(x)
    return range(len(elements)), elements


def _remake(x: Any, keys: Keys, children: Children) -> Any:
    return type(x)(children)


EXACT: Final[dict[type, Entry]] = {
    # what comes behind the values stands for the keys
    dict: Entry(_read_dict, lambda x, keys, new: dict(zip(x, new, strict=False)), True),
    OrderedDict: Entry(_read_dict, lambda x, keys, new: OrderedDict(zip(x, new, strict=False)), True),
    defaultdict: Entry(
        _read_dict, lambda x, keys, new: defaultdict(x.default_factory, zip(x, new, strict=False)), True
    ),
    list: Entry(lambda x: (range(len(x)), x), lambda x, keys, new: list(new), True),
    tuple: Entry(lambda x: (range(len(x)), x), lambda x, keys, new: tuple(new)),
    deque: Entry(lambda x: (range(len(x)), list(x)), lambda x, keys, new: deque(new, x.maxlen), True),
    set: Entry(_read_elements, _remake, True),
    frozenset: Entry(_read_elements, _remake),
    slice: Entry(lambda x: (_SLICE, (x.start, x.stop, x.step)), lambda x, keys, new: slice(*new)),
}

_SUBCLASSES: Final[tuple[tuple[Any, Entry], ...]] = (
    (dict | UserDict, Entry(_read_keyed, _write_keyed)),
    (list | UserList, Entry(_read_listed, _write_listed)),
    (deque, Entry(_read_elements, lambda x, keys, new: type(x)(new, x.maxlen))),
    (tuple, Entry(_read_tuple, _write_tuple)),
    # nothing but its dict makes a view, so it comes back as a list
    (MappingView, Entry(_read_elements, lambda x, keys, new: list(new))),
    (ChainMap | types.SimpleNamespace | argparse.Namespace, ATTRIBUTES),
    (MutableMapping, Entry(_read_keyed, _write_keyed)),
    (Mapping, Entry(_read_frozen, _write_frozen)),
    (Set, Entry(_read_elements, _remake)),
    (partial, Entry(_read_partial, _write_partial)),
)
