"""Registered containers in the frameworks' own trees: `jax.tree.map`, PyTorch's pytrees and optree then walk them too.

A type whose attributes are walked is handed on to each framework that is loaded, now or later. A tree keeps the
attributes that hold tensors as children; all others are compared by `==`, as `jax.jit` compares what is static. Types
with functions of their own are not handed on: those take the old object, which trees do not have.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice.core import registry

from . import attributes

if TYPE_CHECKING:
    from xdevice.contract import Backend

_shared: Final[list[type]] = []


class Static(NamedTuple):
    """The attributes of an object that hold no tensors, and the names of the others."""

    cls: type
    names: tuple[Any, ...]
    others: tuple[tuple[Any, Any], ...]

    def __hash__(self) -> int:
        return hash((self.cls, self.names))  # the others may be lists, which have no hash


def share(cls: type) -> None:
    """Hands a type on to the trees of the frameworks that are loaded, and to optree's if it is imported."""
    _shared.append(cls)
    for backend in registry.list_loaded():
        backend.register_tree_node(cls, _flatten, _unflatten)
    optree = sys.modules.get("optree")
    if optree is not None:
        # a namespace of our own: the global one is the program's
        optree.register_pytree_node(cls, _flatten, _unflatten, namespace="xdevice")


def share_all(backend: Backend) -> None:
    """Hands the types that are registered already on to a framework that was loaded after them."""
    for cls in _shared:
        backend.register_tree_node(cls, _flatten, _unflatten)


def _flatten(x: Any) -> tuple[tuple[Any, ...], Static]:
    from . import trees

    names, values = attributes.read(x)
    pairs = [(attributes.as_name(name), value) for name, value in zip(names, values, strict=True)]
    holding = {name for name, value in pairs if any(_is_tensor(leaf.value) for leaf in trees.leaves(value))}
    children = tuple(value for name, value in pairs if name in holding)
    names_held = tuple(name for name, _ in pairs if name in holding)
    return children, Static(type(x), names_held, tuple(pair for pair in pairs if pair[0] not in holding))


def _is_tensor(value: object) -> bool:
    owned = registry.kind_of(type(value))
    return owned is not None and owned.kind != "model"


def _unflatten(static: Static, children: Any) -> Any:
    new: Any = object.__new__(static.cls)
    for name, value in (*static.others, *zip(static.names, children, strict=True)):
        attributes.put(new, name, value)
    return new


registry.on_load.append(share_all)
