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
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from xdevice.base.devices import Device
from xdevice.contract import Way
from xdevice.core import registry
from xdevice.errors import ContainerError, UnsupportedError, shown

from . import looks, strangers
from .batches import PLAIN
from .looks import attributes, beside

Names = Iterable[Any]
Children = Sequence[Any]


class Attribute(str):
    """A key that is the name of an attribute."""

    __slots__ = ()


_KEYS: Final = Attribute("keys()")
"""The way to keys that hold tensors: a leaf beside the values, never replaced."""

_PARTIAL: Final = tuple(map(Attribute, ("func", "args", "keywords")))
_FIELDS: Final = ("__attrs_attrs__", "__pydantic_fields__", "__struct_fields__")
"""What attrs, pydantic and msgspec note in a class whose objects are their attributes."""

_SLICE: Final = tuple(map(Attribute, ("start", "stop", "step")))


class Walk(NamedTuple):
    """The way into a container of one type."""

    read: Callable[[Any], tuple[Names, Children]]
    write: Callable[[Any, Names, Children], Any]
    """Rebuilds it with other children; what is neither child nor key comes from the old one."""
    is_plain: bool = False
    """Whether it is rebuilt with the same children too, so that a copy of what it is in does not share it."""


class Whole(NamedTuple):
    """An object that moves itself, or may: it is a leaf where things are moved, and walked elsewhere if it can be."""

    inside: Walk | None
    way: Way | None
    """As it was registered; None for one that has a method of its own, to be used if it holds tensors."""


def code(key: Any) -> str:
    """What is written behind a container's name to get at a child: `['x']`, `[1]`, `.x`."""
    return f".{key}" if type(key) is Attribute else f"[{shown(key, None)}]"


# which type goes which way

registered: Final[WeakKeyDictionary[type, Way]] = WeakKeyDictionary()
"""What users have registered, for subclasses too."""


def way_into(x: Any) -> Walk | Whole | None:
    """The way into things of the type of `x`; None for a leaf."""
    cls = type(x)
    if cls is looks.MappingKeys or not looks.answers(x):
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
    names = {backend.moves_by for backend in registry.list_loaded() if backend.moves_by}
    return any(looks.has_method(cls, name) for name in names)


def _offered(x: Any) -> Way | None:
    """The way that a framework knows; of a dict or a list only one that knows its own."""
    owner = registry.owner_of(type(x))
    asked = [] if owner is None else [owner]  # first: for JAX any named tuple is a pytree, one of PyTorch's too
    if not issubclass(looks.seen_class(x), dict | UserDict | list | UserList):
        asked += [backend for backend in registry.list_loaded() if backend is not owner]
    return next((way for way in (backend.container_way(x) for backend in asked) if way is not None), None)


def _as_registered(way: Way, x: Any) -> Walk | Whole:
    if way.move is not None:
        return Whole(_inside(x), way)
    return _entry(way)


def _entry(way: Way) -> Walk:
    return _by_functions(way) if way.flatten is not None else ATTRIBUTES


def _inside(x: Any) -> Walk | None:
    exact = EXACT.get(type(x))
    if exact is not None:
        return exact
    seen = looks.seen_class(x)
    for kinds, entry in _SUBCLASSES:
        if issubclass(seen, kinds):
            return entry
    cls = type(x)
    if is_dataclass(cls) or any(hasattr(cls, name) for name in _FIELDS):
        return ATTRIBUTES
    return None


def _by_functions(way: Way) -> Walk:
    """A way by a pair of functions: the children are a mapping or a sequence, and are handed back as one."""
    flatten, rebuild = way.flatten, way.rebuild
    assert flatten is not None
    assert rebuild is not None

    def read(x: Any) -> tuple[Names, Children]:
        children = flatten(x)
        if isinstance(children, Mapping):
            return children.keys(), list(children.values())
        if isinstance(children, list | tuple):
            return range(len(children)), children
        raise ContainerError(
            f"the flatten of {type(x).__qualname__} gave {shown(children)} of type {type(children).__qualname__}; "
            "expected a dict of what is in it, or a list"
        )

    def write(x: Any, keys: Names, children: Children) -> Any:
        return rebuild(x, list(children) if isinstance(keys, range) else dict(zip(keys, children, strict=True)))

    return Walk(read, write)


# attributes


def _put(new: Any, name: str, value: Any) -> None:
    own, slot = getattr(new, "__dict__", None), getattr(type(new), name, None)
    if type(slot) is types.MemberDescriptorType:
        slot.__set__(new, value)  # past a frozen class's __setattr__, one in C too
    elif own is not None:
        own[name] = value  # past a property
    else:
        object.__setattr__(new, name, value)


def _read_attributes(x: Any) -> tuple[Names, Children]:
    named = [field.name for field in fields(x)] if is_dataclass(x) else ()
    found = {name: getattr(x, name) for name in named if hasattr(x, name)}
    found.update((name, value) for name, value in attributes(x).items() if name not in found)
    return [Attribute(name) for name in found], list(found.values())


def _write_attributes(x: Any, keys: Names, children: Children) -> Any:
    try:
        new = object.__new__(type(x))
    except TypeError:  # its memory is laid out by C
        new = copy.copy(x)
    given = dict(zip(map(str, keys), children, strict=True))
    for name, child in given.items():
        _put(new, name, _gone_along(name, child, x, given) if name.endswith("device") else child)
    return new


def _gone_along(name: str, noted: Any, x: Any, given: dict[str, Any]) -> Any:
    """The device that an object notes, if its tensors have left it: `device`, and `some_device` beside `some_keys`."""
    owner = registry.owner_of(type(noted))
    place = owner.from_native(noted) if owner is not None else noted
    before, prefix = attributes(x), name.removesuffix("device").strip("_")
    moves = set()
    for other, child in given.items():
        found = registry.kind_of(type(child))
        if other.startswith(prefix) and found is not None and found.kind == "tensor" and owner in (None, found.backend):
            with suppress(UnsupportedError):  # a symbol is nowhere
                moves.add((found.backend.device_of(before[other]), found.backend.device_of(child)))
    if type(place) is not Device or len(moves) != 1 or not all(was is place for was, _ in moves):
        return noted
    return owner.to_native(moves.pop()[1]) if owner is not None else moves.pop()[1]


ATTRIBUTES: Final = Walk(_read_attributes, _write_attributes)


# items, and the attributes beside them


def _and_beside(x: Any, keys: Iterable[Any], items: Iterable[Any]) -> tuple[Names, Children]:
    more = beside(x)
    return [*keys, *map(Attribute, more)], [*items, *more.values()]


def _and_keys(keys: Iterable[Any], values: Iterable[Any]) -> tuple[Names, Children]:
    names, children = list(keys), list(values)
    if PLAIN.issuperset(map(id, map(type, names))):
        return names, children
    found = looks.MappingKeys(names)
    return (names, children) if strangers.find(found, None) is None else ([*names, _KEYS], [*children, found])


def _read_dict(x: Any) -> tuple[Names, Children]:
    if PLAIN.issuperset(map(id, map(type, x))):
        return x, list(x.values())
    return _and_keys(x, x.values())


def _read_keyed(x: Any) -> tuple[Names, Children]:
    stored = _stored(x)
    items = dict(x.items()) if stored is None else stored
    return _and_beside(x, *_and_keys(items, items.values()))


def _stored(x: Any) -> dict[Any, Any] | None:
    """What a subclass of dict holds, where its items are others: those of a MultiDict are the first of each list."""
    if not isinstance(x, dict) or looks.is_proxy(type(x)):
        return None
    stored, items = dict(dict.items(x)), list(x.items())
    if len(stored) == len(items) and all(stored.get(key, looks) is value for key, value in items):
        return None
    if not _tensors([value for _, value in items]) <= _tensors(x):
        raise ContainerError(
            f"a {type(x).__qualname__} gives tensors that it does not hold; pass dict(x.items()), or say how: "
            f"xdevice.register({type(x).__qualname__}, flatten=..., rebuild=...)"
        )
    return stored


def _tensors(x: Any) -> set[int]:
    return {id(one.value) for one in looks.held(x)}


def _write_keyed(x: Any, keys: Names, children: Children) -> Any:
    if _stored(x) is not None:
        return _write_stored(x, keys, children)
    new = copy.copy(x)
    if new is x or type(new) is not type(x):
        return _write_frozen(x, keys, children)
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


def _write_stored(x: Any, keys: Names, children: Children) -> Any:
    """Past the methods of its own: a dict with other values, and the attributes."""
    cls = type(x)
    base: Any = OrderedDict if issubclass(cls, OrderedDict) else dict
    new = base.__new__(cls)  # raises for one with more in C
    given = dict(zip(keys, children, strict=True))
    dict.update(new, {key: given[key] for key in dict.keys(x)})
    for name, value in looks.attributes(x).items():
        _put(new, name, given.get(Attribute(name), value) if name not in dict.keys(x) else value)
    return new


def _read_frozen(x: Any) -> tuple[Names, Children]:
    items = list(x.items())  # some have several of one key
    names, values = _and_keys([key for key, _ in items], [value for _, value in items])
    if _tensors(x) <= _tensors([*values]):
        return names, values
    return _and_beside(x, names, values)


def _write_frozen(x: Any, keys: Names, children: Children) -> Any:
    given = [(key, child) for key, child in zip(keys, children, strict=True) if key is not _KEYS]
    items = [(key, child) for key, child in given if type(key) is not Attribute]
    new = _made(x, [items] if len(dict(items)) < len(items) else [dict(items), items], items)
    for key, child in given:
        if type(key) is Attribute:
            _put(new, key, child)
    return new


def _made(x: Any, forms: Sequence[Any], items: Sequence[Any]) -> Any:
    """Another one of the type of `x` with these items, by its constructor, or by what it is unpickled by, whichever
    takes them as they are."""
    reasons = []
    for make in filter(None, (type(x), _unpickling(x))):
        for form in forms:
            new, reason = _attempt(make, form, x, items)
            if not reason:
                return new
            reasons.append(reason)
    raise ContainerError(reasons[0])


def _attempt(make: Any, form: Any, x: Any, items: Sequence[Any]) -> tuple[Any, str]:
    """What comes out, and why it will not do."""
    try:
        new = make(form)
        if type(new) is not type(x) or not _has(new, items):
            return None, "what it is made of does not come out again"
        lost = looks.lost(x, new)
    except Exception as error:
        return None, str(error) or type(error).__name__
    return new, f"its {lost} would be lost" if lost else ""


def _unpickling(x: Any) -> Any:
    try:
        make, given, *_ = x.__reduce_ex__(4)
    except Exception:  # it cannot be pickled
        return None
    return make if len(given) == 1 else None


def _has(new: Any, items: Sequence[Any]) -> bool:
    """Whether these are its items: a mapping may convert what it is given, and a set may count it in another order."""
    if isinstance(new, Mapping):
        found = list(new.items())
        return len(found) == len(items) and all(
            (key is old or key == old) and _is_as(value, child)
            for (key, value), (old, child) in zip(found, items, strict=True)
        )
    return {id(one) for one in new} == {id(one) for one in items}


def _is_as(found: Any, given: Any) -> bool:
    return found is given or (type(found) is type(given) and registry.kind_of(type(given)) is None)


def _write_copied(x: Any, keys: Names, children: Children) -> Any:
    """Of a mapping that says how it is copied, by putting each item. The copy that Python makes of another holds the
    very same dict, and one with several values of a key would lose them."""
    items = list(x.items())
    if not looks.has_method(type(x), "__copy__") or len(dict(items)) < len(items):
        return _write_frozen(x, keys, children)
    return _write_keyed(x, keys, children)


def _checked(new: Any, keys: Names, children: Children) -> Any:
    """`new`, if it has taken the children as they are: some mappings convert what they are given."""
    for key, child in zip(keys, children, strict=True):
        if type(key) is not Attribute and type(new[key]) is not type(child):
            raise ContainerError(f"its {shown(key)} became a {type(new[key]).__qualname__}")
    return new


def _refuse_weak(x: Any, keys: Names, children: Children) -> Any:
    raise ContainerError("what is in it lives only as long as something else holds it")


def _read_listed(x: Any) -> tuple[Names, Children]:
    items = _items(x)
    return _and_beside(x, range(len(items)), items)


def _items(x: Any) -> list[Any]:
    """By its iterator alone: `list(x)` believes a subclass's `__len__`, which may lie."""
    return list(iter(x))


def _write_listed(x: Any, keys: Names, children: Children) -> Any:
    new = copy.copy(x)
    count = len(_items(x))
    new[:] = children[:count]
    return _with_beside(new, count, keys, children)


def _with_beside(new: Any, count: int, keys: Names, children: Children) -> Any:
    for name, child in list(zip(keys, children, strict=True))[count:]:
        _put(new, name, child)
    return new


def _read_tuple(x: Any) -> tuple[Names, Children]:
    names = getattr(x, "_fields", None)
    if hasattr(x, "n_sequence_fields"):  # time.struct_time, torch.return_types
        names = type(x).__match_args__
    items = _items(x)
    if isinstance(names, tuple) and len(names) == len(items):
        return _and_beside(x, map(Attribute, names), items)
    return _and_beside(x, range(len(items)), items)


def _write_tuple(x: Any, keys: Names, children: Children) -> Any:
    if hasattr(x, "n_sequence_fields"):
        return type(x)(children)
    count = len(_items(x))
    new = tuple.__new__(type(x), children[:count])  # past a constructor of its own
    for name, value in attributes(x).items():
        _put(new, name, value)
    return _with_beside(new, count, keys, children)


def _read_partial(x: Any) -> tuple[Names, Children]:
    more = attributes(x)
    return [*_PARTIAL, *map(Attribute, more)], [x.func, x.args, x.keywords or None, *more.values()]


def _write_partial(x: Any, keys: Names, children: Children) -> Any:
    new = copy.copy(x)
    more = list(zip(keys, children, strict=True))[len(_PARTIAL) :]
    new.__setstate__((*children[: len(_PARTIAL)], {str(name): child for name, child in more}))
    return new


def _read_elements(x: Any) -> tuple[Names, Children]:
    elements = _items(x)
    return range(len(elements)), elements


def _remake(x: Any, keys: Names, children: Children) -> Any:
    return type(x)(children)


def _remake_set(x: Any, keys: Names, children: Children) -> Any:
    return _made(x, [children], children)


def _write_deque(x: Any, keys: Names, children: Children) -> Any:
    new = type(x)(children, x.maxlen)
    lost = looks.lost(x, new)
    if lost:
        raise ContainerError(f"its {lost} would be lost")
    return new


EXACT: Final[dict[type, Walk]] = {
    # what comes behind the values stands for the keys
    dict: Walk(_read_dict, lambda x, keys, new: dict(zip(x, new, strict=False)), True),
    OrderedDict: Walk(_read_dict, lambda x, keys, new: OrderedDict(zip(x, new, strict=False)), True),
    defaultdict: Walk(_read_dict, lambda x, keys, new: defaultdict(x.default_factory, zip(x, new, strict=False)), True),
    list: Walk(lambda x: (range(len(x)), x), lambda x, keys, new: list(new), True),
    tuple: Walk(lambda x: (range(len(x)), x), lambda x, keys, new: tuple(new)),
    deque: Walk(lambda x: (range(len(x)), list(x)), lambda x, keys, new: deque(new, x.maxlen), True),
    set: Walk(_read_elements, _remake, True),
    frozenset: Walk(_read_elements, _remake),
    slice: Walk(lambda x: (_SLICE, (x.start, x.stop, x.step)), lambda x, keys, new: slice(*new)),
}

_SUBCLASSES: Final[tuple[tuple[Any, Walk], ...]] = (
    (dict | UserDict, Walk(_read_keyed, _write_keyed)),
    (list | UserList, Walk(_read_listed, _write_listed)),
    (deque, Walk(_read_elements, _write_deque)),
    (tuple, Walk(_read_tuple, _write_tuple)),
    # nothing but its dict makes a view, so it comes back as a list
    (MappingView, Walk(_read_elements, lambda x, keys, new: list(new))),
    (ChainMap | types.SimpleNamespace | argparse.Namespace, ATTRIBUTES),
    (WeakValueDictionary, Walk(_read_frozen, _refuse_weak)),
    (WeakSet, Walk(_read_elements, _refuse_weak)),
    (MutableMapping, Walk(_read_frozen, _write_copied)),
    (Mapping, Walk(_read_frozen, _write_frozen)),
    (Set, Walk(_read_elements, _remake_set)),
    (partial, Walk(_read_partial, _write_partial)),
)
