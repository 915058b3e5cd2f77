"""Reads the items and attributes of each kind of container, and rebuilds a container with new items and attributes.

State that is neither an item nor an attribute is copied from the old container. If this is not possible, because the
type's constructor or methods change or lose a part of the container, a `ContainerError` is raised.
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
from .attributes import Attribute, attributes, first_lost_attribute, put
from .looks import PLAIN

Names = Iterable[Any]
Children = Sequence[Any]

_KEYS: Final = Attribute("keys()")
"""The key of an additional leaf. If some keys of a mapping hold tensors, the leaf contains all keys of the mapping.
Rebuilding never replaces this leaf."""

# the parts of a `functools.partial`, in the order in which its `__setstate__` expects them
_PARTIAL: Final = tuple(map(Attribute, ("func", "args", "keywords")))


class Walk(NamedTuple):
    """The functions that read and rebuild a container of one type."""

    read: Callable[[Any], tuple[Names, Children]]
    write: Callable[[Any, Names, Children], Any]
    """Rebuilds a container with new children (items and attributes). All other state comes from the old container."""
    is_plain: bool = False
    """Whether the container is rebuilt even if its children are the same. Otherwise the old outer container and its
    rebuilt copy would share this container."""
    dense: str = ""
    """For an object whose tensors cannot be split, joined or summed one by one, such as a sparse array: advice on how
    to make it dense. An error ends with this text. Empty for all other objects."""


def _extra_attributes(x: Any) -> dict[str, Any]:
    """Returns a dict of the attributes of `x`, a container with items, that hold tensors or models. Attributes whose
    values are also items are left out. Raises `ContainerError` if the name of an attribute in the dict is not a
    string."""
    # the attributes of a framework's own container are for the framework's internal use
    if registry.owner_of(type(x)) is not None:
        return {}
    extra = attributes(x)
    # this attribute contains the items themselves
    if isinstance(x, UserDict | UserList):
        del extra["data"]
    if not extra:
        return {}
    if isinstance(x, dict | UserDict):
        # the attributes of some dicts are also their items, as in `argparse` and many configurations
        extra = {
            name: value
            for name, value in extra.items()
            if name not in x or x[name] is not value
        }
    extra = {
        name: value
        for name, value in extra.items()
        if registry.owner_and_kind(type(value)) is not None or looks.search(value)
    }
    for name in extra:
        # an attribute whose name is not a string would have the same kind of key as an item
        if not isinstance(name, str):
            raise ContainerError(
                f"an object of type {type(x).__qualname__} has an attribute whose name, {shown(name)}, is not a "
                "string; rename the attribute"
            )
    return extra


def add_attributes(x: Any, keys: Iterable[Any], items: Iterable[Any]) -> tuple[Names, Children]:
    """Returns two lists: `keys`, followed by the names of the attributes of `x` that hold tensors, and `items`,
    followed by the values of these attributes. `keys` and `items` are the container's own keys and items."""
    extra = _extra_attributes(x)
    return [*keys, *map(Attribute, extra)], [*items, *extra.values()]


def with_key_leaf(keys: Iterable[Any], values: Iterable[Any]) -> tuple[Names, Children]:
    """Returns the keys and the values of a mapping. If a key is or contains a tensor, appends one more key, `_KEYS`,
    with a value that contains all keys."""
    names, children = list(keys), list(values)
    # keys that are strings, numbers or None hold no tensors, so they need not be searched
    if PLAIN.issuperset(map(id, map(type, names))):
        return names, children
    # all keys form one leaf, so that an error can name the key that holds a tensor; keys are never
    # replaced
    mapping_keys = looks.MappingKeys(names)
    return (
        (names, children)
        if strangers.find(mapping_keys, way=None) is None
        else ([*names, _KEYS], [*children, mapping_keys])
    )


def _read_keyed(x: Any) -> tuple[Names, Children]:
    """Returns the keys and values of a dict, followed by the names and values of its attributes that hold tensors.
    Raises `ContainerError` if the dict holds tensors, but its method `items()` does not return the stored items."""
    items = dict(x.items())
    # the items that the dict really stores, read without the methods of its class
    if isinstance(x, dict) and not looks.is_proxy(type(x)):
        stored = dict(dict.items(x))
        # compared by identity, because comparing tensors with `==` would start a computation
        has_other_items = len(items) != len(stored) or any(
            key not in items or items[key] is not value for key, value in stored.items()
        )
        # a multi-dict stores lists and returns the first item of each list, and xdevice does not know how
        # to replace that item
        if has_other_items and (_tensor_ids(x) or _tensor_ids([*items.values()])):
            raise ContainerError(
                _not_rebuildable(x, "returns items that differ from its stored items")
            )
    return add_attributes(x, *with_key_leaf(items, items.values()))


def _not_rebuildable(x: Any, what: str) -> str:
    """Returns the error message for a mapping that xdevice cannot rebuild. `what` is the predicate of the sentence, and
    says why: "has several values for one key"."""
    name = type(x).__qualname__
    return (
        f"a mapping of type {name} {what}; pass dict(x.items()), or describe the contents with "
        f"xdevice.register_container({name}, flatten=..., rebuild=...)"
    )


def _tensor_ids(x: Any) -> set[int]:
    """Returns the set of the `id`s of the tensors and models in an object. Raises `ContainerError` if the object
    contains too much to be searched."""
    return {id(part.value) for part in looks.search(x)}


def write_keyed(x: Any, keys: Names, children: Children) -> Any:
    """Returns a copy of the dict `x` with new values and attributes. These are in `children`, and their keys are in
    `keys` (an `Attribute` for each attribute). The copy is made with `copy.copy`, which preserves all other state of
    `x`. Raises `ContainerError` if the copy changes the type of a value."""
    new = copy.copy(x)
    # the class has its own `__copy__`, which returned something else
    if new is x or type(new) is not type(x):
        return _write_mapping(x, keys, children)
    # the copy's attributes, some of which may also be its items
    new_attributes = getattr(new, "__dict__", {})
    # `x` is an AttrDict, whose attributes are its items; the attributes of the copy are still those of
    # `x`
    if getattr(x, "__dict__", None) is x:
        new.__dict__ = new_attributes = new
    for key, child in zip(keys, children, strict=True):
        if type(key) is Attribute:
            # the copy has the keys of `x`, which are never replaced
            if key is not _KEYS:
                put(new, key, child)
            continue
        old = new[key]
        if old is child:
            continue
        new[key] = child
        # the item is also stored as an attribute of the same name
        if isinstance(key, str) and new_attributes.get(key) is old:
            new_attributes[key] = child
    # restores attributes that a copy of the class's own loses, as a copy of an addict `Dict` loses
    # whether the `Dict` is frozen
    kept = attributes(new)
    for name, value in attributes(x).items():
        if name not in kept:
            put(new, name, value)
    return _check_types(new, keys, children)


def _read_mapping(x: Any) -> tuple[Names, Children]:
    """Returns the keys and values of a mapping that is not a dict. If its attributes hold further tensors, their names
    and values follow. Raises `ContainerError` if the mapping holds tensors and has several values for one key."""
    items = [*x.items()]
    names, values = with_key_leaf([key for key, _ in items], [value for _, value in items])
    # a multi-dict, such as a dict for HTTP headers, yields a key once for each of the key's values
    if len(dict(items)) < len(items) and _tensor_ids(x):
        raise ContainerError(_not_rebuildable(x, "has several values for one key"))
    # all tensors are among the values, so the attributes need not be walked
    if _tensor_ids(x) <= _tensor_ids([*values]):
        return names, values
    return add_attributes(x, names, values)


def _write_mapping(x: Any, keys: Names, children: Children) -> Any:
    """Returns a new mapping, created by calling the type of `x` with a dict. The values and attributes of the new
    mapping are in `children`, and their keys are in `keys` (an `Attribute` for each attribute). `copy.copy` is not
    used, because its result would share the inner dict of `x` unless the type defines `__copy__`. Raises
    `ContainerError` if the new mapping does not contain exactly these children, or lacks an attribute of `x`."""
    pairs = [
        (key, child) for key, child in zip(keys, children, strict=True) if key is not _KEYS
    ]
    items = {key: child for key, child in pairs if type(key) is not Attribute}
    new = _constructed(x, items)
    if len(new) != len(items) or not all(
        _has_kept(new[key], child) for key, child in items.items()
    ):
        raise ContainerError("its constructor changes the values that are passed to it")
    for key, child in pairs:
        if type(key) is Attribute:
            put(new, key, child)
    return new


def _constructed(x: Any, inside: Any) -> Any:
    """Calls the type of `x` with the contents `inside`, and returns the new object. Raises `ContainerError` if the type
    of the new object is not the type of `x`, or if the new object lacks an attribute of `x`."""
    # the constructor may return an object of another type, if the class defines `__new__`
    new = type(x)(inside)
    if type(new) is not type(x):
        raise ContainerError(
            f"its constructor returns an object of type {type(new).__qualname__}"
        )
    # the lost attribute was set by another argument of the constructor, or by the program
    if lost := first_lost_attribute(x, new):
        raise ContainerError(f"its attribute {lost} would be lost")
    return new


def _has_kept(new: Any, old: Any) -> bool:
    """Whether a mapping has preserved the value `old` that was put into it. `new` is the value that the mapping now
    returns. If `old` is a tensor or model, `new` must be the same object; otherwise only the types must be equal."""
    return new is old or (type(new) is type(old) and registry.owner_and_kind(type(old)) is None)


def _check_types(new: Any, keys: Names, children: Children) -> Any:
    """Returns the mapping `new`, in which `children` were stored under `keys`. Raises `ContainerError` if the mapping
    has changed the type of one of these values, as mappings that convert their values do."""
    for key, child in zip(keys, children, strict=True):
        if type(key) is not Attribute and type(new[key]) is not type(child):
            raise ContainerError(
                f"the type of its item {shown(key)} would change to {type(new[key]).__qualname__}"
            )
    return new


def _refuse_weak(x: Any, keys: Names, children: Children) -> Any:
    """Raises `ContainerError` for a container with weak references. Such a container cannot be rebuilt: nothing else
    refers to its new contents (`children`), so the contents would be deleted at once."""
    raise ContainerError("its contents exist only while something else refers to them")


def _read_listed(x: Any) -> tuple[Names, Children]:
    """Returns the indices and items of a list, followed by the names and values of its attributes that hold tensors."""
    items = _items(x)
    return add_attributes(x, range(len(items)), items)


def _items(x: Any) -> list[Any]:
    """Returns the items of `x`, read only from its iterator, because `list(x)` relies on a subclass's `__len__`, which
    may be wrong."""
    return list(iter(x))


def _write_listed(x: Any, keys: Names, children: Children) -> Any:
    """Returns a copy of the list `x` with new items and attributes. `children` contains first the items and then the
    attributes; `keys` are their keys."""
    new = copy.copy(x)
    # the first children are the items; the attributes follow
    count = len(_items(x))
    new[:] = children[:count]
    return _put_attributes(new, count, keys, children)


def _put_attributes(new: Any, count: int, keys: Names, children: Children) -> Any:
    """Sets the attributes of `new`, and returns `new`. The first `count` children are items, which are ignored. The
    remaining children are the attributes, and their keys are the attributes' names."""
    for name, child in list(zip(keys, children, strict=True))[count:]:
        put(new, name, child)
    return new


def _read_tuple(x: Any) -> tuple[Names, Children]:
    """Returns the keys and items of a tuple, followed by the names and values of its attributes that hold tensors. The
    keys of the items are their names or, if the items have no names, their indices."""
    # a namedtuple has names, with which paths in errors are easier to read
    names = getattr(x, "_fields", None)
    # time.struct_time and the types in torch.return_types name their items, but are not namedtuples
    if hasattr(x, "n_sequence_fields"):
        names = type(x).__match_args__
    items = _items(x)
    if isinstance(names, tuple) and len(names) == len(items):
        return add_attributes(x, map(Attribute, names), items)
    return add_attributes(x, range(len(items)), items)


def _write_tuple(x: Any, keys: Names, children: Children) -> Any:
    """Returns a tuple of the type of `x` with new items and attributes. `children` contains first the items and then
    the attributes; `keys` are their keys."""
    # a struct sequence (see `_read_tuple`) has its own layout in C, so only its constructor can create
    # it
    if hasattr(x, "n_sequence_fields"):
        return type(x)(children)
    count = len(_items(x))
    # not the type's own constructor, which may expect other arguments, as that of a namedtuple does
    new = tuple.__new__(type(x), children[:count])
    for name, value in attributes(x).items():
        put(new, name, value)
    return _put_attributes(new, count, keys, children)


def _read_partial(x: Any) -> tuple[Names, Children]:
    """Returns the keys and values of a `functools.partial`: its function, its stored arguments, and its other
    attributes."""
    more = attributes(x)
    # None in place of an empty dict, which would be walked as a container; `__setstate__` treats None
    # as an empty dict
    return [*_PARTIAL, *map(Attribute, more)], [
        x.func,
        x.args,
        x.keywords or None,
        *more.values(),
    ]


def _write_partial(x: Any, keys: Names, children: Children) -> Any:
    """Returns a copy of `x`, a `functools.partial`, with a new function, new arguments and new attributes. `children`
    contains these in the order in which `_read_partial` returns them; `keys` are their keys."""
    new = copy.copy(x)
    more = list(zip(keys, children, strict=True))[len(_PARTIAL) :]
    # the attributes of a partial are read-only, but its state can be set, as pickle does
    new.__setstate__((*children[: len(_PARTIAL)], {str(name): child for name, child in more}))
    return new


def read_elements(x: Any) -> tuple[Names, Children]:
    """Returns the keys and the elements of a set, a deque or a view of a dict. The elements are in the order of
    iteration, and their keys are their positions (0, 1, ...)."""
    elements = _items(x)
    return range(len(elements)), elements


def _write_set(x: Any, keys: Names, children: Children) -> Any:
    """Returns a new set of the type of `x` with the elements `children`. Ignores `keys`, the positions of the elements.
    Raises `ContainerError` if the type's constructor changes an element or loses an attribute."""
    new = _constructed(x, children)
    # compared by `id`, because comparing tensors with `==` would start a computation
    if set(map(id, new)) != set(map(id, children)):
        raise ContainerError("its constructor changes the elements that are passed to it")
    return new


def _write_deque(x: Any, keys: Names, children: Children) -> Any:
    """Returns a new deque of the type of `x` with the items `children` and the same `maxlen`. Ignores `keys`, the
    positions of the items. Raises `ContainerError` if the type's constructor loses an attribute."""
    new = type(x)(children, x.maxlen)
    lost = first_lost_attribute(x, new)
    if lost:
        raise ContainerError(f"its attribute {lost} would be lost")
    return new


ATTRIBUTES: Final = Walk(by_attributes.read, by_attributes.write)
SELF_REFERRING: Final = Walk(by_attributes.read, by_attributes.write)
"""The `Walk` of an object if something inside it refers back to the object. For example, the inverse of a transform
refers to the transform. This `Walk` equals `ATTRIBUTES`, so the two are distinguished with `is`."""

# the first entry whose classes include the type is used, so special classes come before general
# classes
BY_BASE: Final[tuple[tuple[Any, Walk], ...]] = (
    (dict | UserDict, Walk(_read_keyed, write_keyed)),
    (list | UserList, Walk(_read_listed, _write_listed)),
    (deque, Walk(read_elements, _write_deque)),
    (tuple, Walk(_read_tuple, _write_tuple)),
    # a view of a dict (`d.values()`) is rebuilt as a list, because only a dict can create a view
    (MappingView, Walk(read_elements, lambda x, keys, new: list(new))),
    (ChainMap | types.SimpleNamespace | argparse.Namespace, ATTRIBUTES),
    (WeakValueDictionary, Walk(_read_mapping, _refuse_weak)),
    (WeakSet, Walk(read_elements, _refuse_weak)),
    (Mapping, Walk(_read_mapping, _write_mapping)),
    (Set, Walk(read_elements, _write_set)),
    (partial, Walk(_read_partial, _write_partial)),
)
