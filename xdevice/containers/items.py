"""How the items of each sort of container, and the attributes beside them, are read, and how such a container is made
again with other items and attributes.

State that is neither item nor attribute comes from the old container. If the new one would not be as the old one was,
an error is raised.
"""

from __future__ import annotations

import argparse
import copy
import types
from collections import ChainMap, OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Mapping, MappingView, MutableMapping, Sequence, Set
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
"""The key of the leaf that stands for all keys of a mapping, beside its values, if keys hold tensors. It is never
replaced."""

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
    """How to make an object dense, if its tensors cannot be cut, joined or summed one by one, as those of a sparse
    array."""


def _find_beside(x: Any) -> dict[str, Any]:
    """Returns those attributes of a container with items that hold tensors or models. Left out are attributes that are
    items of the container under another name, and what a framework notes beside the items of its own containers."""
    if registry.owner_of(type(x)) is not None:
        return {}
    beside = attributes(x)
    if isinstance(x, UserDict | UserList):
        del beside["data"]
    if not beside:
        return {}
    if isinstance(x, dict | UserDict):
        beside = {name: value for name, value in beside.items() if name not in x or x[name] is not value}
    beside = {
        name: value
        for name, value in beside.items()
        if registry.kind_of(type(value)) is not None or looks.search(value)
    }
    for name in beside:
        if not isinstance(name, str):  # it could not be told from an item
            raise ContainerError(f"a {type(x).__qualname__} has an attribute {shown(name)}, which is not a text")
    return beside


def add_beside(x: Any, keys: Iterable[Any], items: Iterable[Any]) -> tuple[Names, Children]:
    more = _find_beside(x)
    return [*keys, *map(Attribute, more)], [*items, *more.values()]


def and_keys(keys: Iterable[Any], values: Iterable[Any]) -> tuple[Names, Children]:
    """Returns the keys and the values of a mapping. If keys hold tensors, all keys together are added as one more
    value."""
    names, children = list(keys), list(values)
    if PLAIN.issuperset(map(id, map(type, names))):
        return names, children
    mapping_keys = looks.MappingKeys(names)
    return (
        (names, children)
        if strangers.find(mapping_keys, None) is None
        else ([*names, _KEYS], [*children, mapping_keys])
    )


def _read_keyed(x: Any) -> tuple[Names, Children]:
    stored = _find_stored(x)
    items = dict(x.items()) if stored is None else stored
    return add_beside(x, *and_keys(items, items.values()))


def _find_stored(x: Any) -> dict[Any, Any] | None:
    """Returns what a subclass of dict stores, if `items()` gives something else: a MultiDict stores lists, and gives
    the first element of each. Otherwise returns None. Raises `ContainerError` if `items()` gives tensors that are not
    stored."""
    if not isinstance(x, dict) or looks.is_proxy(type(x)):
        return None
    stored, items = dict(dict.items(x)), list(x.items())
    if len(stored) == len(items) and all(stored.get(key, looks) is value for key, value in items):
        return None
    if not _tensors([value for _, value in items]) <= _tensors(x):
        raise ContainerError(
            f"a {type(x).__qualname__} gives tensors that it does not hold; pass dict(x.items()), or say how: "
            f"xdevice.register_container({type(x).__qualname__}, flatten=..., rebuild=...)"
        )
    return stored


def _tensors(x: Any) -> set[int]:
    return {id(one.value) for one in looks.search(x)}


def write_keyed(x: Any, keys: Names, children: Children) -> Any:
    if _find_stored(x) is not None:
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
                put(new, key, child)
            continue
        old = new[key]
        if old is child:
            continue
        new[key] = child
        if isinstance(key, str) and own.get(key) is old:
            own[key] = child  # the attribute was the item
    return _check_taken(new, keys, children)


def _write_stored(x: Any, keys: Names, children: Children) -> Any:
    """Returns a dict of the same type with other values and the same attributes, made without calling methods that the
    type itself defines."""
    cls = type(x)
    base: Any = OrderedDict if issubclass(cls, OrderedDict) else dict
    new = base.__new__(cls)  # raises for one with more in C
    by_key = dict(zip(keys, children, strict=True))
    dict.update(new, {key: by_key[key] for key in dict.keys(x)})
    for name, value in attributes(x).items():
        put(new, name, by_key.get(Attribute(name), value) if name not in dict.keys(x) else value)
    return new


def _read_frozen(x: Any) -> tuple[Names, Children]:
    items = list(x.items())  # some have several of one key
    names, values = and_keys([key for key, _ in items], [value for _, value in items])
    if _tensors(x) <= _tensors([*values]):
        return names, values
    return add_beside(x, names, values)


def _write_frozen(x: Any, keys: Names, children: Children) -> Any:
    pairs = [(key, child) for key, child in zip(keys, children, strict=True) if key is not _KEYS]
    items = [(key, child) for key, child in pairs if type(key) is not Attribute]
    new = _make_with(x, [items] if len(dict(items)) < len(items) else [dict(items), items], items)
    for key, child in pairs:
        if type(key) is Attribute:
            put(new, key, child)
    return new


def _make_with(x: Any, forms: Sequence[Any], items: Sequence[Any]) -> Any:
    """Returns a container of the type of `x` with these items, which the type's constructor takes in one of the
    forms."""
    reasons = []
    for form in forms:
        new, reason = _attempt(form, x, items)
        if not reason:
            return new
        reasons.append(reason)
    raise ContainerError(reasons[0])


def _attempt(form: Any, x: Any, items: Sequence[Any]) -> tuple[Any, str]:
    """Returns what the constructor makes of a form, and why that cannot stand for `x`: an empty text if it can."""
    try:
        new = type(x)(form)
        if type(new) is not type(x) or not _holds(new, items):
            return None, "its items do not come out again"
        lost = first_lost(x, new)
    except Exception as error:
        return None, str(error) or type(error).__name__
    return new, f"its {lost} would be lost" if lost else ""


def _holds(new: Any, items: Sequence[Any]) -> bool:
    """Whether `new` has these items. Keys may be equal ones, and a mapping may have replaced a value that is no tensor
    by one of the same type; a set may have another order."""
    if isinstance(new, Mapping):
        pairs = list(new.items())
        return len(pairs) == len(items) and all(
            (key is old or key == old) and _is_as(value, child)
            for (key, value), (old, child) in zip(pairs, items, strict=True)
        )
    return {id(one) for one in new} == {id(one) for one in items}


def _is_as(new: Any, old: Any) -> bool:
    return new is old or (type(new) is type(old) and registry.kind_of(type(old)) is None)


def _write_copied(x: Any, keys: Names, children: Children) -> Any:
    """Returns a mapping with other values. If its type has `__copy__`, they are put into a copy. Without that, Python's
    copy would share the inner dict of `x`, so the mapping is made anew from its items. So is one with several values
    for a key, of which a copy would keep one."""
    items = list(x.items())
    if not looks.has_method(type(x), "__copy__") or len(dict(items)) < len(items):
        return _write_frozen(x, keys, children)
    return write_keyed(x, keys, children)


def _check_taken(new: Any, keys: Names, children: Children) -> Any:
    """Returns `new`, or raises `ContainerError` if it has not taken the children as they are: some mappings convert
    what is put into them."""
    for key, child in zip(keys, children, strict=True):
        if type(key) is not Attribute and type(new[key]) is not type(child):
            raise ContainerError(f"its {shown(key)} became a {type(new[key]).__qualname__}")
    return new


def _refuse_weak(x: Any, keys: Names, children: Children) -> Any:
    raise ContainerError("its contents live only as long as something else holds them")


def _read_listed(x: Any) -> tuple[Names, Children]:
    items = _items(x)
    return add_beside(x, range(len(items)), items)


def _items(x: Any) -> list[Any]:
    """Returns the items of `x`, by its iterator alone: `list(x)` believes a subclass's `__len__`, which may be
    wrong."""
    return list(iter(x))


def _write_listed(x: Any, keys: Names, children: Children) -> Any:
    new = copy.copy(x)
    count = len(_items(x))
    new[:] = children[:count]
    return _with_beside(new, count, keys, children)


def _with_beside(new: Any, count: int, keys: Names, children: Children) -> Any:
    for name, child in list(zip(keys, children, strict=True))[count:]:
        put(new, name, child)
    return new


def _read_tuple(x: Any) -> tuple[Names, Children]:
    names = getattr(x, "_fields", None)
    if hasattr(x, "n_sequence_fields"):  # time.struct_time, torch.return_types
        names = type(x).__match_args__
    items = _items(x)
    if isinstance(names, tuple) and len(names) == len(items):
        return add_beside(x, map(Attribute, names), items)
    return add_beside(x, range(len(items)), items)


def _write_tuple(x: Any, keys: Names, children: Children) -> Any:
    if hasattr(x, "n_sequence_fields"):
        return type(x)(children)
    count = len(_items(x))
    new = tuple.__new__(type(x), children[:count])  # past a constructor of its own
    for name, value in attributes(x).items():
        put(new, name, value)
    return _with_beside(new, count, keys, children)


def _read_partial(x: Any) -> tuple[Names, Children]:
    more = attributes(x)
    return [*_PARTIAL, *map(Attribute, more)], [x.func, x.args, x.keywords or None, *more.values()]


def _write_partial(x: Any, keys: Names, children: Children) -> Any:
    new = copy.copy(x)
    more = list(zip(keys, children, strict=True))[len(_PARTIAL) :]
    new.__setstate__((*children[: len(_PARTIAL)], {str(name): child for name, child in more}))
    return new


def read_elements(x: Any) -> tuple[Names, Children]:
    elements = _items(x)
    return range(len(elements)), elements


def _remake_set(x: Any, keys: Names, children: Children) -> Any:
    return _make_with(x, [children], children)


def _write_deque(x: Any, keys: Names, children: Children) -> Any:
    new = type(x)(children, x.maxlen)
    lost = first_lost(x, new)
    if lost:
        raise ContainerError(f"its {lost} would be lost")
    return new


ATTRIBUTES: Final = Walk(by_attributes.read, by_attributes.write)
KNOWING_ITSELF: Final = Walk(by_attributes.read, by_attributes.write)
"""How an object is walked that something in it refers to, as a transform and its inverse know each other."""

BY_BASE: Final[tuple[tuple[Any, Walk], ...]] = (
    (dict | UserDict, Walk(_read_keyed, write_keyed)),
    (list | UserList, Walk(_read_listed, _write_listed)),
    (deque, Walk(read_elements, _write_deque)),
    (tuple, Walk(_read_tuple, _write_tuple)),
    # nothing but its dict makes a view, so it comes back as a list
    (MappingView, Walk(read_elements, lambda x, keys, new: list(new))),
    (ChainMap | types.SimpleNamespace | argparse.Namespace, ATTRIBUTES),
    (WeakValueDictionary, Walk(_read_frozen, _refuse_weak)),
    (WeakSet, Walk(read_elements, _refuse_weak)),
    (MutableMapping, Walk(_read_frozen, _write_copied)),
    (Mapping, Walk(_read_frozen, _write_frozen)),
    (Set, Walk(read_elements, _remake_set)),
    (partial, Walk(_read_partial, _write_partial)),
)
