"""Finds out how the objects of a type are walked.

A type that a user has registered is walked as it was registered. dict, list, tuple and their subclasses are walked by
their items, then types that are registered with a framework (a pytree of JAX) as the framework says, then other
mappings and sets by their items, and dataclasses, attrs classes, pydantic models and namespaces by their attributes.
Whatever else a container has, such as the attributes of a subclass of dict, is kept and walked too. Objects of all
other types are leaves.
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

_FIELDS: Final = ("__attrs_attrs__", "__pydantic_fields__", "__struct_fields__")
"""The markers that attrs, pydantic and msgspec set in a class. Objects of such a class are walked by their
attributes."""


class Whole(NamedTuple):
    """How to treat an object that moves itself, or may: it is a leaf where things are moved, and elsewhere it is
    walked, if that is possible."""

    inside: Walk | None
    way: Way | None
    """How the type was registered; None if it was not, and has a method of its own that moves it if it holds
    tensors."""


registered: Final[WeakKeyDictionary[type, Way]] = WeakKeyDictionary()
"""How users have registered types; it holds for their subclasses, too."""


def way_into(x: Any) -> Walk | Whole | None:
    """Returns how objects of the type of `x` are walked; None if they are leaves."""
    cls = type(x)
    if cls is looks.MappingKeys or not looks.answers(x):
        return None
    own = next((registered[base] for base in cls.__mro__ if base in registered), None)
    if own is not None:
        return Whole(_walk_inside(x), own) if own.move is not None else _walk_of(own)
    if x is None or issubclass(cls, type) or registry.kind_of(cls) is not None:
        return None  # for JAX, None is a container without anything in it
    if looks.is_proxy(cls) and registry.owner_of(cls) is None:
        return None  # it may hold more than the object behind it, and cannot be made again
    offered = _ask_frameworks(x)
    if offered is not None and (
        offered.move is not None or (offered.tensors is not None and offered.flatten is None)
    ):
        inside = _by_functions(offered) if offered.flatten is not None else _walk_inside(x)
        return Whole(inside and inside._replace(dense=offered.dense), offered)
    inside = _walk_inside(x)
    if offered is not None and (
        inside is None or looks.is_proxy(cls) or issubclass(looks.seen_class(x), Mapping | list)
    ):
        inside = _walk_of(offered)
    if issubclass(looks.seen_class(x), dict | UserDict) or not may_move(cls):
        return inside
    return Whole(inside, None)


def may_move(cls: type) -> bool:
    """Whether a type has the method by which objects of some loaded framework's libraries move themselves."""
    names = {backend.moves_by for backend in registry.list_loaded() if backend.moves_by}
    return any(looks.has_method(cls, name) for name in names)


def _ask_frameworks(x: Any) -> Way | None:
    """Returns how a framework says that `x` is walked or moved; None if none says so. About a dict or a list only the
    framework to which its type belongs is asked."""
    owner = registry.owner_of(type(x))
    # first: for JAX any named tuple is a pytree, one of PyTorch's too
    backends = [] if owner is None else [owner]
    if not issubclass(looks.seen_class(x), dict | UserDict | list | UserList):
        backends += [backend for backend in registry.list_loaded() if backend is not owner]
    return next(
        (way for way in (backend.container_way(x) for backend in backends) if way is not None),
        None,
    )


def _walk_of(way: Way) -> Walk:
    return _by_functions(way) if way.flatten is not None else ATTRIBUTES


def _walk_inside(x: Any) -> Walk | None:
    apparent_class = looks.seen_class(x)
    for kinds, entry in BY_BASE:
        if issubclass(apparent_class, kinds):
            return entry
    cls = type(x)
    if is_dataclass(cls) or any(hasattr(cls, name) for name in _FIELDS):
        return ATTRIBUTES
    return None


def _by_functions(way: Way) -> Walk:
    """Returns the `Walk` of a type that was registered with two functions: `flatten` returns the children as a mapping
    or a sequence, and `rebuild` gets the new ones in the same form."""
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
            "expected a dict of its contents, or a list"
        )

    def write(x: Any, keys: Names, children: Children) -> Any:
        return rebuild(
            x,
            list(children)
            if isinstance(keys, range)
            else dict(zip(keys, children, strict=True)),
        )

    return Walk(read, write, dense=way.dense)
