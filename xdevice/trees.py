"""Containers: walking them, and rebuilding them with their tensors replaced. The walk itself is optree's.

optree takes some containers for leaves: dataclasses, sets, `UserDict`, mapping proxies, and subclasses of list, tuple
and dict. A tensor inside one would stay behind in silence, so each such type is registered, in a namespace of ours,
when it is first met.
"""

from __future__ import annotations

import copy
import threading
from collections import UserDict, UserList
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import fields, is_dataclass
from typing import Any, Final, NamedTuple

import optree

from . import registry
from .errors import ContainerError

_NAMESPACE: Final = "xdevice"
_plain: set[type] = {type(None), bool, int, float, complex, str, bytes}
"""Types of leaves known to hold no tensors."""
_lock = threading.RLock()


class Leaf(NamedTuple):
    """A leaf of a container and the way to it, to be written behind the container's name: `['x'][1]`."""

    path: str
    value: Any


def is_container(x: object) -> bool:
    """Whether there is a way into `x`."""
    return not _flatten(x)[1].is_leaf(strict=True)


def leaves(x: object) -> list[Leaf]:
    """Every leaf of `x`, tensors or not, in the order of the walk."""
    values, spec = _flatten(x)
    return [Leaf(path.codify(""), value) for path, value in zip(spec.accessors(), values, strict=True)]


def named_leaves(x: object) -> list[tuple[tuple[str, ...], Leaf]]:
    """Every leaf with the keys on the way to it: of a mapping, a sequence, the fields of a class."""
    values, spec = _flatten(x)
    paths = zip(spec.accessors(), values, strict=True)
    return [(tuple(str(getattr(e, "field", e.entry)) for e in path), Leaf(path.codify(""), v)) for path, v in paths]


def values(x: object) -> list[Any]:
    """Every leaf of `x`, without the ways to them, which take most of the time of `leaves`."""
    return _flatten(x)[0]


def map_leaves(x: Any, change: Callable[[list[Any]], list[Any]]) -> Any:
    """`x` rebuilt with `change(its leaves)`; `x` itself where that returns the very same leaves."""
    values, spec = _flatten(x)
    changed = change(values)
    if all(new is old for new, old in zip(changed, values, strict=True)):
        return x
    return spec.unflatten(changed)


def _flatten(x: Any) -> tuple[list[Any], optree.PyTreeSpec]:
    try:
        while True:
            values, spec = optree.tree_flatten(x, none_is_leaf=True, namespace=_NAMESPACE)
            if not _register_new({type(value): value for value in values}):
                return values, spec
    except RecursionError:
        raise ContainerError(
            f"a {type(x).__qualname__} contains itself, or is nested more than 1,000 deep; "
            "pass the tensors in a container without cycles"
        ) from None


def _register_new(examples: dict[type, Any]) -> bool:
    """Registers the container types among the leaves; whether there was one."""
    new = False
    for cls, example in examples.items():
        if cls in _plain:
            continue
        how = _way_into(example) if registry.kind_of(cls) is None else None
        if how is None:
            _plain.add(cls)
            continue
        with _lock:
            if cls not in _registered:
                _registered.add(cls)
                optree.register_pytree_node(
                    cls, how.flatten, how.rebuild, path_entry_type=how.entry, namespace=_NAMESPACE
                )
        new = True
    return new


_registered: set[type] = set()


class _Way(NamedTuple):
    """How optree gets into a container and out again."""

    flatten: Callable[[Any], tuple[Iterable[Any], Any, Iterable[Any]]]
    rebuild: Callable[[Any, Iterable[Any]], Any]
    entry: type[optree.PyTreeEntry]


class _Original:
    """The container itself, as optree's metadata, which has to be hashable."""

    __slots__ = ("children", "container", "keys")

    def __init__(self, container: Any, keys: Iterable[Any], children: Iterable[Any]) -> None:
        self.container, self.keys, self.children = container, tuple(keys), tuple(children)


def _way(
    read: Callable[[Any], tuple[Iterable[Any], Iterable[Any]]],
    write: Callable[[Any, tuple[Any, ...], list[Any]], Any],
    entry: type[optree.PyTreeEntry],
) -> _Way:
    def flatten(x: Any) -> tuple[Iterable[Any], Any, Iterable[Any]]:
        original = _Original(x, *read(x))
        return original.children, original, original.keys

    def rebuild(original: _Original, children: Iterable[Any]) -> Any:
        changed = list(children)
        if all(new is old for new, old in zip(changed, original.children, strict=True)):
            return original.container
        try:
            return write(original.container, original.keys, changed)
        except Exception as error:
            raise ContainerError(
                f"cannot rebuild a {type(original.container).__qualname__} with its tensors replaced ({error}); "
                "pass a dict, list, tuple or dataclass"
            ) from error

    return _Way(flatten, rebuild, entry)


def _way_into(x: Any) -> _Way | None:
    if isinstance(x, type):
        return None
    if isinstance(x, dict | UserDict):
        return _KEYED
    if isinstance(x, Mapping):
        return _FROZEN_KEYED
    if isinstance(x, list | UserList):
        return _LISTED
    if isinstance(x, tuple):
        return _TUPLED
    if isinstance(x, Set):
        return _REMADE
    if is_dataclass(x):
        return _ATTRIBUTES
    return None


def _read_items(x: Any) -> tuple[Iterable[Any], Iterable[Any]]:
    return x.keys(), x.values()


def _read_elements(x: Any) -> tuple[Iterable[Any], Iterable[Any]]:
    elements = list(x)
    return range(len(elements)), elements


def _read_attributes(x: Any) -> tuple[Iterable[Any], Iterable[Any]]:
    names = [field.name for field in fields(x) if hasattr(x, field.name)]
    names += [name for name in getattr(x, "__dict__", ()) if name not in names]
    return names, [getattr(x, name) for name in names]


def _write_items(x: Any, keys: tuple[Any, ...], children: list[Any]) -> Any:
    new = copy.copy(x)
    for key, child in zip(keys, children, strict=True):
        new[key] = child
    return new


def _write_elements(x: Any, keys: tuple[Any, ...], children: list[Any]) -> Any:
    new = copy.copy(x)
    new[:] = children
    return new


def _write_attributes(x: Any, keys: tuple[Any, ...], children: list[Any]) -> Any:
    new = object.__new__(type(x))
    for name, child in zip(keys, children, strict=True):
        object.__setattr__(new, name, child)
    return new


def _write_tuple(x: Any, keys: tuple[Any, ...], children: list[Any]) -> Any:
    new = tuple.__new__(type(x), children)
    getattr(new, "__dict__", {}).update(getattr(x, "__dict__", {}))
    return new


def _remake_mapping(x: Any, keys: tuple[Any, ...], children: list[Any]) -> Any:
    return type(x)(dict(zip(keys, children, strict=True)))


def _remake(x: Any, keys: tuple[Any, ...], children: list[Any]) -> Any:
    return type(x)(children)


_KEYED: Final = _way(_read_items, _write_items, optree.MappingEntry)
_FROZEN_KEYED: Final = _way(_read_items, _remake_mapping, optree.MappingEntry)
_LISTED: Final = _way(_read_elements, _write_elements, optree.SequenceEntry)
_TUPLED: Final = _way(_read_elements, _write_tuple, optree.SequenceEntry)
_REMADE: Final = _way(_read_elements, _remake, optree.SequenceEntry)
_ATTRIBUTES: Final = _way(_read_attributes, _write_attributes, optree.GetAttrEntry)
