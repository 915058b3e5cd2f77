"""`register_container`, which registers the user's types with xdevice and with the trees (pytrees) of JAX, PyTorch and
optree.

A type whose attributes are walked is also registered with each framework that is loaded now or later. In a tree, the
attributes that hold tensors are children. All other attributes are static, and are compared with `==`, as `jax.jit`
compares static values. A type that is registered with functions is not registered with the frameworks, because its
`rebuild` requires the old object, which trees do not provide.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice.core import registry

from . import attributes, trees

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from xdevice.base.devices import Device
    from xdevice.contract import Backend

    T = TypeVar("T", bound=type)

_shared: Final[list[type]] = []
"""The types to register with the trees of each framework that is loaded."""


def register_container(
    cls: T,
    *,
    flatten: Callable[[Any], Mapping[Any, Any] | Sequence[Any]] | None = None,
    rebuild: Callable[[Any, Any], Any] | None = None,
    move: Callable[[Any, Device], Any] | None = None,
) -> T:
    """Registers how objects of your own type, and of its subclasses, are walked or moved. Returns the type.

    Experimental: it may change in a minor version.

    You need this for objects that hold tensors and have no method `.to(device)`. If you pass no function, as in a
    decorator, the attributes of the objects are walked, and an object is rebuilt without calling `__init__`. The type
    then also becomes a node of the trees of JAX, PyTorch and optree, if these are imported. The registration takes
    effect at once, and does not make xdevice slower for other types. docs/reference/devices.md has examples.

    Args:
        cls: the type. If it is registered several times, the last call applies.
        flatten: a function that returns the contents of an object, as a dict or a list.
        rebuild: `rebuild(old, inside)` returns a new object with the contents `inside`, in `flatten`'s form.
        move: `move(x, device)` returns `x` or a new object, on a `Device`. `copy_to` calls `move` with a deep copy.

    Raises:
        ContainerError: if `cls` is not a type, or is a built-in or tensor type, or the functions cannot be combined.

    Example:
        >>> @xdevice.register_container
        ... class Game:
        ...     def __init__(self, board):
        ...         self.board = board
        >>> xdevice.device_of([Game(xdevice.ones(2, device="cpu"))])
        Device('cpu:0')
    """
    trees.register(cls, flatten, rebuild, move)
    # a type cannot be registered twice with a framework's trees
    if cls not in _shared and flatten is None and move is None:
        _share(cls)
    return cls


class Static(NamedTuple):
    """The static part of an object in a tree: its type, the names of the attributes that hold tensors, and the names
    and values of all other attributes."""

    cls: type
    names: tuple[Any, ...]
    others: tuple[tuple[Any, Any], ...]

    # `others` is left out, because its values may be lists, which cannot be hashed
    def __hash__(self) -> int:
        return hash((self.cls, self.names))


def _share(cls: type) -> None:
    """Registers a type with the trees of the loaded frameworks and, if optree is imported, with optree. `share_all`
    registers the type with frameworks that are loaded later."""
    _shared.append(cls)
    for backend in registry.list_loaded():
        backend.register_tree_node(cls, _flatten, _unflatten)
    optree = sys.modules.get("optree")
    if optree is not None:
        # in a separate namespace, because the program may register the type in the global namespace
        optree.register_pytree_node(cls, _flatten, _unflatten, namespace="xdevice")


def share_all(backend: Backend) -> None:
    """Registers the types in `_shared` with the trees of a backend that is loaded after these types were registered."""
    for cls in _shared:
        backend.register_tree_node(cls, _flatten, _unflatten)


def _flatten(x: Any) -> tuple[tuple[Any, ...], Static]:
    """Returns the children and the static part of an object for a tree. The children are the attributes that hold
    tensors; the static part contains everything else."""
    names, values = attributes.read(x)
    pairs = [
        (attributes.as_name(name), value) for name, value in zip(names, values, strict=True)
    ]
    holding = {
        name
        for name, value in pairs
        if any(_is_tensor(leaf.value) for leaf in trees.leaves(value))
    }
    children = tuple(value for name, value in pairs if name in holding)
    tensor_names = tuple(name for name, _ in pairs if name in holding)
    return children, Static(
        type(x), tensor_names, tuple(pair for pair in pairs if pair[0] not in holding)
    )


def _is_tensor(value: object) -> bool:
    """Whether a value is a tensor or a symbol."""
    owned = registry.owner_and_kind(type(value))
    return owned is not None and owned.kind != "model"


def _unflatten(static: Static, children: Any) -> Any:
    """Creates an object from its static part and its children, without calling `__init__`, because trees also rebuild
    objects with children that are not tensors."""
    new: Any = object.__new__(static.cls)
    for name, value in (*static.others, *zip(static.names, children, strict=True)):
        attributes.put(new, name, value)
    return new


registry.on_load.append(share_all)
