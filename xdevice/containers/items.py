"""How the items and attributes of each kind of container are read, and how such a container is made again with other
items and attributes.

State that is neither item nor attribute comes from the old container. If anything else in the new container would
differ from the old one, an error is raised.
"""

from __future__ import annotations

import argparse
import copy
import types
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Mapping, MappingView, Sequence, Set
from functools import partial
from typing import Any, Final, NamedTuple
from weakref import WeakSet, WeakValueDictionary

from xdevice.core import registry
from xdevice.errors import ContainerError, shown

from . import attributes as by_attributes
from . import looks, strangers
from .attributes import Attribute, attributes, first_lost, put
from .looks import PLAIN

Names = Iterable[Any]
Children = Sequence[Any]

_KEYS: Final = Attribute("keys()")
"""If the keys of a mapping hold tensors, the key of an additional leaf that contains all keys. It is never replaced."""

_PARTIAL: Final = tuple(map(Attribute, ("func", "args", "keywords")))


class Walk(NamedTuple):
    """How a container of one type is read and rebuilt."""

    read: Callable[[Any], tuple[Names, Children]]
    write: Callable[[Any, Names, Children], Any]
    """Rebuilds a container with other children (items and attributes); whatever else it has comes from the old
    container."""
    is_plain: bool = False
    """Whether a container is rebuilt even with the same children, so that a copy of what contains it does not share
    it."""
    dense: str = ""
    """How to make an object dense, if its tensors cannot be split, joined or summed one by one, like those of a sparse
    array."""


def _extra_attributes(x: Any) -> dict[str, Any]:
    """Returns those attributes of a container with items that hold tensors or models. Left out are attributes that are
    items of the container under another name, and attributes that a framework itself adds to its own containers."""
    # a framework's own container, whose attributes are bookkeeping
    if registry.owner_of(type(x)) is not None:
        return {}
    beside = attributes(x)
    # the items themselves
    if isinstance(x, UserDict | UserList):
        del beside["data"]
    if not beside:
        return {}
    if isinstance(x, dict | UserDict):
        # a dict whose attributes are its items, as in `argparse` and many configurations
        beside = {
            name: value
            for name, value in beside.items()
            if name not in x or x[name] is not value
        }
    beside = {
        name: value
        for name, value in beside.items()
        if registry.kind_of(type(value)) is not None or looks.search(value)
    }
    for name in beside:
        if not isinstance(name, str):  # it would look like an item
            raise ContainerError(
                f"a {type(x).__qualname__} has an attribute {shown(name)}, which is not a text"
            )
    return beside


def add_attributes(x: Any, keys: Iterable[Any], items: Iterable[Any]) -> tuple[Names, Children]:
    """Returns keys and items, followed by the names and values of the container's attributes that hold tensors."""
    more = _extra_attributes(x)
    return [*keys, *map(Attribute, more)], [*items, *more.values()]


def and_keys(keys: Iterable[Any], values: Iterable[Any]) -> tuple[Names, Children]:
    """Returns the keys and the values of a mapping. If keys hold tensors, all keys together are added as one more
    value."""
    names, children = list(keys), list(values)
    if PLAIN.issuperset(map(id, map(type, names))):
        return names, children
    # one leaf for all keys: a single key could not be replaced
    mapping_keys = looks.MappingKeys(names)
    return (
        (names, children)
        if strangers.find(mapping_keys, None) is None
        else ([*names, _KEYS], [*children, mapping_keys])
    )


def _read_keyed(x: Any) -> tuple[Names, Children]:
    """Returns the keys and values of a dict. Raises `ContainerError` for a subclass that shows different values than it
    stores, if tensors are among them."""
    items = dict(x.items())
    # what the dict really stores, past the methods of its class
    if isinstance(x, dict) and not looks.is_proxy(type(x)):
        stored = dict(dict.items(x))
        # a multi-dict stores lists and returns the first item of each; how to put another one there is unknown
        if (
            len(items) != len(stored)
            or any(items.get(key, looks) is not stored[key] for key in stored)
        ) and (_tensors(x) or _tensors([*items.values()])):
            raise ContainerError(_other_than_held(x, "gives different items than it stores"))
    return add_attributes(x, *and_keys(items, items.values()))


def _other_than_held(x: Any, what: str) -> str:
    name = type(x).__qualname__
    return (
        f"a {name} {what}; pass dict(x.items()), or say how: "
        f"xdevice.register_container({name}, flatten=..., rebuild=...)"
    )


def _tensors(x: Any) -> set[int]:
    return {id(one.value) for one in looks.search(x)}


def write_keyed(x: Any, keys: Names, children: Children) -> Any:
    """Returns a copy of a dict with other values and attributes, made by
    `copy.copy`, which keeps everything else that the dict has."""
    # by the class's own `__copy__` if it has one
    new = copy.copy(x)
    if new is x or type(new) is not type(x):
        return _write_mapping(x, keys, children)
    # the copy's attributes, some of which may be its items under another name
    own = getattr(new, "__dict__", {})
    if getattr(x, "__dict__", None) is x:
        new.__dict__ = own = new  # the attributes are the items
    for key, child in zip(keys, children, strict=True):
        if type(key) is Attribute:
            if key is not _KEYS:
                put(new, key, child)
            continue
        old = new[key]
        if old is child:
            continue
        new[key] = child
        if isinstance(key, str) and own.get(key) is old:
            own[key] = child  # the attribute was the item
    return _check_taken(new, keys, children)


def _read_mapping(x: Any) -> tuple[Names, Children]:
    items = [*x.items()]
    names, values = and_keys([key for key, _ in items], [value for _, value in items])
    # multi-dicts, as for the headers of HTTP, yield a key once for each of its values
    if len(dict(items)) < len(items) and _tensors(x):
        raise ContainerError(_other_than_held(x, "has several values for a key"))
    # all tensors are among the values, so the attributes need not be walked
    if _tensors(x) <= _tensors([*values]):
        return names, values
    return add_attributes(x, names, values)


def _write_mapping(x: Any, keys: Names, children: Children) -> Any:
    """Returns a new mapping of the type of `x`, made from a dict by the type's constructor. A copy of `x` is not
    written into instead: without a `__copy__`, Python's copy would share the inner dict of `x`."""
    pairs = [
        (key, child) for key, child in zip(keys, children, strict=True) if key is not _KEYS
    ]
    items = {key: child for key, child in pairs if type(key) is not Attribute}
    new = _made(x, items)
    if len(new) != len(items) or not all(
        _is_kept(new[key], child) for key, child in items.items()
    ):
        raise ContainerError("what it is made of does not come out again")
    for key, child in pairs:
        if type(key) is Attribute:
            put(new, key, child)
    return new


def _made(x: Any, inside: Any) -> Any:
    """Returns a new object that the type of `x` makes from these contents. Raises `ContainerError` if it has another
    type than `x` or lacks an attribute of `x`."""
    # by the constructor, which may refuse, convert or lose something: each is checked below
    new = type(x)(inside)
    if type(new) is not type(x):
        raise ContainerError(f"it became a {type(new).__qualname__}")
    # an attribute that the constructor does not set
    if lost := first_lost(x, new):
        raise ContainerError(f"its {lost} would be lost")
    return new


def _is_kept(new: Any, old: Any) -> bool:
    """Whether a mapping has kept the value `old` that was put into it. The mapping returns it as `new`, which may be
    another object of the same type unless it is a tensor."""
    return new is old or (type(new) is type(old) and registry.kind_of(type(old)) is None)


def _check_taken(new: Any, keys: Names, children: Children) -> Any:
    """Returns `new`, or raises `ContainerError` if it has changed the type of a child: some mappings convert the values
    that are put into them."""
    for key, child in zip(keys, children, strict=True):
        if type(key) is not Attribute and type(new[key]) is not type(child):
            raise ContainerError(f"its {shown(key)} became a {type(new[key]).__qualname__}")
    return new


def _refuse_weak(x: Any, keys: Names, children: Children) -> Any:
    raise ContainerError("its contents live only as long as something else holds them")


def _read_listed(x: Any) -> tuple[Names, Children]:
    items = _items(x)
    return add_attributes(x, range(len(items)), items)


def _items(x: Any) -> list[Any]:
    """Returns the items of `x`, using its iterator only: `list(x)` relies on a subclass's `__len__`, which may be
    wrong."""
    return list(iter(x))


def _write_listed(x: Any, keys: Names, children: Children) -> Any:
    new = copy.copy(x)
    count = len(_items(x))
    new[:] = children[:count]
    return _put_attributes(new, count, keys, children)


def _put_attributes(new: Any, count: int, keys: Names, children: Children) -> Any:
    for name, child in list(zip(keys, children, strict=True))[count:]:
        put(new, name, child)
    return new


def _read_tuple(x: Any) -> tuple[Names, Children]:
    """Returns the items of a tuple by their names, or by their indices if they have none."""
    # of a namedtuple, whose paths are better read with names
    names = getattr(x, "_fields", None)
    # time.struct_time and torch.return_types have names for their items, but are no namedtuples
    if hasattr(x, "n_sequence_fields"):
        names = type(x).__match_args__
    items = _items(x)
    if isinstance(names, tuple) and len(names) == len(items):
        return add_attributes(x, map(Attribute, names), items)
    return add_attributes(x, range(len(items)), items)


def _write_tuple(x: Any, keys: Names, children: Children) -> Any:
    if hasattr(x, "n_sequence_fields"):
        return type(x)(children)
    count = len(_items(x))
    new = tuple.__new__(type(x), children[:count])  # bypasses its own constructor
    for name, value in attributes(x).items():
        put(new, name, value)
    return _put_attributes(new, count, keys, children)


def _read_partial(x: Any) -> tuple[Names, Children]:
    more = attributes(x)
    return [*_PARTIAL, *map(Attribute, more)], [
        x.func,
        x.args,
        x.keywords or None,
        *more.values(),
    ]


def _write_partial(x: Any, keys: Names, children: Children) -> Any:
    new = copy.copy(x)
    more = list(zip(keys, children, strict=True))[len(_PARTIAL) :]
    # the only way to change a partial
    new.__setstate__((*children[: len(_PARTIAL)], {str(name): child for name, child in more}))
    return new


def read_elements(x: Any) -> tuple[Names, Children]:
    elements = _items(x)
    return range(len(elements)), elements


def _write_set(x: Any, keys: Names, children: Children) -> Any:
    new = _made(x, children)
    if set(map(id, new)) != set(map(id, children)):
        raise ContainerError("what it is made of does not come out again")
    return new


def _write_deque(x: Any, keys: Names, children: Children) -> Any:
    new = type(x)(children, x.maxlen)
    lost = first_lost(x, new)
    if lost:
        raise ContainerError(f"its {lost} would be lost")
    return new


ATTRIBUTES: Final = Walk(by_attributes.read, by_attributes.write)
KNOWING_ITSELF: Final = Walk(by_attributes.read, by_attributes.write)
"""How an object is walked to which something inside it refers, as a transform and its inverse refer to each other."""

BY_BASE: Final[tuple[tuple[Any, Walk], ...]] = (
    (dict | UserDict, Walk(_read_keyed, write_keyed)),
    (list | UserList, Walk(_read_listed, _write_listed)),
    (deque, Walk(read_elements, _write_deque)),
    (tuple, Walk(_read_tuple, _write_tuple)),
    # only its dict can make a view, so it comes back as a list
    (MappingView, Walk(read_elements, lambda x, keys, new: list(new))),
    (ChainMap | types.SimpleNamespace | argparse.Namespace, ATTRIBUTES),
    (WeakValueDictionary, Walk(_read_mapping, _refuse_weak)),
    (WeakSet, Walk(read_elements, _refuse_weak)),
    (Mapping, Walk(_read_mapping, _write_mapping)),
    (Set, Walk(read_elements, _write_set)),
    (partial, Walk(_read_partial, _write_partial)),
)
