"""Determines how the objects of a type are walked. The first applicable rule is used:

1. A type that a user has registered is walked in the registered way.
2. A type that is registered with a framework (a JAX pytree) is walked in the framework's way if it is a mapping, a
   list, or a type to which rule 3 does not apply. For a dict or list, only the framework that defines the type is
   asked.
3. dict, list, tuple, other mappings, sets, and subclasses of these are walked by their items. Dataclasses, attrs
   classes, pydantic models and namespaces are walked by their attributes.
4. Objects of all other types are leaves.

If a container with items also has attributes, as an instance of a subclass of dict may, the attributes that hold
tensors are walked too.
"""

from __future__ import annotations

from collections import UserDict, UserList
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from xdevice.contract import Way
from xdevice.core import registry
from xdevice.errors import ContainerError, shown

from . import looks
from .items import ATTRIBUTES, BY_BASE, Children, Names, Walk

_FIELD_MARKERS: Final = ("__attrs_attrs__", "__pydantic_fields__", "__struct_fields__")
"""The markers that attrs, pydantic and msgspec set in a class. Objects of such a class are walked by their
attributes."""


class MaybeMover(NamedTuple):
    """The way for a type whose objects may move themselves. A move or a copy treats an object that moves itself as one
    leaf. All other functions walk the object, if that is possible."""

    inside: Walk | None
    """The way in which the object is walked; None if it cannot be walked."""
    way: Way | None
    """The way in which the type was registered; None if the type was not registered, but has its own method for moving,
    such as `to`."""


registered: Final[WeakKeyDictionary[type, Way]] = WeakKeyDictionary()
"""The types that users have registered, each with its `Way`, which also applies to subclasses."""


def way_into(x: Any) -> Walk | MaybeMover | None:
    """Returns how objects of the type of `x` are walked: a `Walk`, a `MaybeMover` if they may move themselves, or None
    if they are leaves. The result is the same for all objects of the type, except for proxies."""
    cls = type(x)
    # the keys of a mapping are never replaced, and an object that raises errors when it is examined
    # cannot be walked
    if cls is looks.MappingKeys or not looks.can_be_examined(x):
        return None
    registered_way = next(
        (registered[base] for base in cls.__mro__ if base in registered), None
    )
    if registered_way is not None:
        return (
            MaybeMover(_walk_inside(x), registered_way)
            if registered_way.move is not None
            else _walk_of(registered_way)
        )
    # classes, tensors, symbols and models are leaves; so is None, although JAX treats it as an empty
    # container
    if x is None or issubclass(cls, type) or registry.owner_and_kind(cls) is not None:
        return None
    # a proxy of an unknown kind may have state of its own, so it could not be rebuilt
    if looks.is_proxy(cls) and registry.owner_of(cls) is None:
        return None
    framework_way = _ask_frameworks(x)
    # the framework determines how the object moves, or which of its tensors determine its device
    if framework_way is not None and (
        framework_way.move is not None
        or (framework_way.tensors is not None and framework_way.flatten is None)
    ):
        inside = (
            _by_functions(framework_way)
            if framework_way.flatten is not None
            else _walk_inside(x)
        )
        if inside is not None:
            inside = inside._replace(dense=framework_way.dense)
        return MaybeMover(inside, framework_way)
    inside = _walk_inside(x)
    # this is rule 2 above; tuples, sets and dataclasses are walked by rule 3
    if framework_way is not None and (
        inside is None
        or looks.is_proxy(cls)
        or issubclass(looks.class_behind_proxy(x), Mapping | list)
    ):
        inside = _walk_of(framework_way)
    # a dict with a method `to`, such as a batch of tokens, is walked, so that its other values are kept
    if issubclass(looks.class_behind_proxy(x), dict | UserDict) or not may_move(cls):
        return inside
    return MaybeMover(inside, way=None)


def may_move(cls: type) -> bool:
    """Whether the objects of a type may move themselves, because the type has a method, such as `to`, that libraries
    based on a loaded framework use to move objects."""
    names = {backend.moves_by for backend in registry.list_loaded() if backend.moves_by}
    return any(looks.has_method(cls, name) for name in names)


def _ask_frameworks(x: Any) -> Way | None:
    """Returns the `Way` of `x` that a framework defines. If several frameworks have registered the type of `x`, the
    first one decides; if none has, returns None. For a dict or a list, only the framework that defines the type is
    asked."""
    owner = registry.owner_of(type(x))
    # the owner comes first, because JAX treats every named tuple as a pytree, even one that belongs to
    # PyTorch
    backends = [] if owner is None else [owner]
    if not issubclass(looks.class_behind_proxy(x), dict | UserDict | list | UserList):
        backends += [backend for backend in registry.list_loaded() if backend is not owner]
    return next(
        (way for way in (backend.container_way(x) for backend in backends) if way is not None),
        None,
    )


def _walk_of(way: Way) -> Walk:
    """Returns the `Walk` of a type that was registered as `way`: a walk by the functions in `way` or, if there are
    none, by attributes."""
    return _by_functions(way) if way.flatten is not None else ATTRIBUTES


def _walk_inside(x: Any) -> Walk | None:
    """Returns the `Walk` of `x` by rule 3 in the docstring of this module: Python's containers are walked by their
    items; dataclasses, attrs classes and similar types are walked by their attributes. Returns None if `x` is a leaf. A
    proxy is walked like the container behind it."""
    apparent_class = looks.class_behind_proxy(x)
    for kinds, entry in BY_BASE:
        if issubclass(apparent_class, kinds):
            return entry
    # the type of the proxy itself is enough here, because TensorFlow's proxies stand only for dicts and
    # tuples
    cls = type(x)
    if is_dataclass(cls) or any(hasattr(cls, name) for name in _FIELD_MARKERS):
        return ATTRIBUTES
    return None


def _by_functions(way: Way) -> Walk:
    """Returns the `Walk` of a type that was registered as `way` with two functions. `flatten` returns the children as a
    mapping, a list or a tuple; reading raises `ContainerError` if it returns anything else. `rebuild` gets the new
    children as a dict or a list."""
    flatten, rebuild = way.flatten, way.rebuild
    assert flatten is not None
    assert rebuild is not None

    def read(x: Any) -> tuple[Names, Children]:
        """Returns the keys and the children of `x`. If `flatten` does not return a mapping, the keys are indices."""
        children = flatten(x)
        if isinstance(children, Mapping):
            return children.keys(), list(children.values())
        if isinstance(children, list | tuple):
            return range(len(children)), children
        raise ContainerError(
            f"the flatten function for {type(x).__qualname__} returned {shown(children)} of type "
            f"{type(children).__qualname__}; it must return a dict or a list of the object's contents"
        )

    def write(x: Any, keys: Names, children: Children) -> Any:
        """Returns the result of `rebuild` for `x` and the new children. `rebuild` gets the children as a list if `keys`
        are indices, otherwise as a dict."""
        return rebuild(
            x,
            list(children)
            if isinstance(keys, range)
            else dict(zip(keys, children, strict=True)),
        )

    return Walk(read, write, dense=way.dense)
