"""Containers: walking them, rebuilding them with their tensors replaced, and `register` for types of the user's own.

`ways` says how one gets into each. A type that is met for the first time is asked for its way once; that is
forgotten when the type is gone, when a backend is loaded, or when another type is registered.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import islice
from operator import is_
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from xdevice.contract import Way
from xdevice.core import registry
from xdevice.errors import ContainerError, shown

from . import looks, strangers
from .batches import PLAIN
from .ways import Walk, Whole, code, registered, way_into

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from xdevice.base.devices import Device
    from xdevice.contract import Backend

T = TypeVar("T", bound=type)

_UNSEEN: Final = object()
_NOTHING: Final[Any] = {}
_ways: dict[int, Walk | Whole | None] = {}
"""By the `id` of a type, as `registry.remember` keeps it."""


class Leaf(NamedTuple):
    """A leaf of a container and the way to it, to be written behind the container's name: `['x'][1]`."""

    path: str
    value: Any


class _Node(NamedTuple):
    """A container on the way."""

    container: Any
    entry: Walk
    keys: Iterable[Any]
    children: Sequence[Any]
    inner: dict[int, _Node]
    """Those of the children that are containers."""


class Tree:
    """The walk through a container: its leaves, the ways to them, and the container with others in their places.

    With `whole`, what moves itself is a leaf.
    """

    __slots__ = ("_root", "leaves")

    def __init__(self, x: Any, whole: bool = False) -> None:
        with _not_too_deep(x):
            while True:
                known = registry.number_loaded()
                self.leaves: list[Any] = []
                """Every leaf, tensor or not, in the order of the walk."""
                way = _way(x, whole)
                self._root = _walk(x, way, whole, self.leaves) if way is not None else None
                if self._root is None:
                    self.leaves.append(x)
                if known == registry.number_loaded():  # else a type may have a way since
                    return

    @property
    def is_container(self) -> bool:
        """Whether there was a way into it."""
        return self._root is not None

    def paths(self) -> list[tuple[Any, ...]]:
        """The keys on the way to each leaf."""
        if self._root is None:
            return [()]
        with _not_too_deep(self._root.container):
            return list(_paths(self._root, ()))

    def has_keys_of(self, other: Tree) -> bool:
        """Whether another container has the same keys in the same order: whether `paths` are equal."""
        with _not_too_deep(self._root and self._root.container):
            return _have_same_keys(self._root, other._root)

    def path(self, index: int) -> str:
        """The way to a leaf, to be written behind the container's name."""
        return written(self.paths()[index])

    def rebuilt(self, changed: Sequence[Any]) -> Any:
        """The container with other leaves; itself where they are the very same."""
        root = self._root
        if root is None:
            return changed[0]
        if all(map(is_, changed, self.leaves)):
            return root.container
        with _not_too_deep(root.container):
            return _rebuild(root, iter(changed), (), {})

    def check_rebuilding(self, touched: Container[int]) -> None:
        """Raises `ContainerError` if it cannot be rebuilt with others for the leaves of these `id`s."""
        if self._root is not None:
            with _not_too_deep(self._root.container):
                _rebuild(self._root, iter(self.leaves), touched, {})

    def refuse_strangers(self) -> None:
        """Raises `ContainerError` for an object whose tensors cannot be replaced."""
        for i, value in enumerate(self.leaves):
            if registry.kind_of(type(value)) is None and self.stranger(i) is not None:
                refuse_stranger(self.path(i), value)

    def stranger(self, index: int) -> strangers.Stranger | None:
        """`stranger` of a leaf, named in the error of one that is too large."""
        try:
            return stranger(self.leaves[index])
        except ContainerError as error:
            raise ContainerError(f"{self.path(index) or 'it'}: {error}") from None


@contextmanager
def _not_too_deep(x: Any) -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise ContainerError(
            f"a {type(x).__qualname__} contains itself, or is nested hundreds deep; "
            "pass the tensors in a container without cycles"
        ) from None


def refuse_stranger(path: str, x: Any) -> None:
    """Raises `ContainerError` for a leaf that is neither a tensor nor a model, and yet holds tensors."""
    found = stranger(x)
    if found is not None and found.has_tensors():
        raise ContainerError(
            f"{path or 'it'} is a {type(x).__qualname__} that holds tensors, and is not known to xdevice as a "
            f"container; {found.remedy('or how: flatten=..., rebuild=...')}"
        )


def is_container(x: object) -> bool:
    """Whether there is a way into `x`."""
    return _way(x, False) is not None


def leaves(x: object) -> list[Leaf]:
    """Every leaf of `x`, tensors or not, in the order of the walk."""
    tree = Tree(x)
    return [Leaf(written(keys), value) for keys, value in zip(tree.paths(), tree.leaves, strict=True)]


def written(keys: Iterable[Any]) -> str:
    """The way that keys tell, as one writes it behind the container's name: `['x'][1]`."""
    return "".join(map(code, keys))


def map_leaves(x: Any, change: Callable[[list[Any]], list[Any]]) -> Any:
    """`x` rebuilt with `change(its leaves)`; `x` itself where that returns the very same leaves."""
    tree = Tree(x)
    tree.refuse_strangers()
    return tree.rebuilt(change(tree.leaves))


def _way(x: Any, whole: bool) -> Walk | None:
    cls = type(x)
    way: Any = _ways.get(id(cls), _UNSEEN)
    if way is _UNSEEN:
        way = way_into(x)
        if not looks.is_proxy(cls):  # the next one may stand for something else
            registry.remember(_ways, cls, way)
    if type(way) is not Whole:
        return way  # type: ignore[no-any-return]
    if whole:
        found = strangers.find(x, way.way)
        if found is not None and found.moves:
            return None
    return way.inside


def stranger(x: Any) -> strangers.Stranger | None:
    """What to know of a leaf that is neither a tensor nor a model, if something in it may have to be moved."""
    cls = type(x)
    if id(cls) in PLAIN:
        return None
    way = _ways[id(cls)] if id(cls) in _ways else way_into(x)
    return strangers.find(x, way.way if type(way) is Whole else None)


def _walk(x: Any, entry: Walk, whole: bool, found: list[Any]) -> _Node:
    keys, children = entry.read(x)
    tensors = registry.probes
    try:
        if all(map(tensors.__contains__, map(type, children))):
            found.extend(children)
            return _Node(x, entry, keys, children, _NOTHING)
    except Exception:  # a metaclass whose types cannot be hashed
        pass
    inner = {}
    for i, child in enumerate(children):
        try:
            is_tensor = type(child) in tensors
        except Exception:  # a metaclass whose types cannot be hashed
            is_tensor = False
        way = None if is_tensor or id(type(child)) in PLAIN else _way(child, whole)
        if way is None:
            found.append(child)
        else:
            inner[i] = _walk(child, way, whole, found)
    return _Node(x, entry, keys, children, inner)


def _paths(node: _Node, before: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for i, key in enumerate(node.keys):
        here = (*before, key)
        if i in node.inner:
            yield from _paths(node.inner[i], here)
        else:
            yield here


def _have_same_keys(one: _Node | None, other: _Node | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.inner.keys() != other.inner.keys() or list(one.keys) != list(other.keys):
        return False
    return all(_have_same_keys(node, other.inner[i]) for i, node in one.inner.items())


def _rebuild(
    node: _Node, changed: Iterator[Any], touched: Container[int], done: dict[int, tuple[list[Any], Any]]
) -> Any:
    """`done` has each container by its `id`, what was put in and what came out: what stands in two places stays one."""
    container, entry, keys, children, inner = node
    if inner:
        new = [
            _rebuild(inner[i], changed, touched, done) if i in inner else next(changed) for i in range(len(children))
        ]
    else:
        new = list(islice(changed, len(children)))
    if not entry.is_plain and all(map(is_, new, children)) and not (touched and any(id(x) in touched for x in new)):
        return container
    before, twin = done.get(id(container), (None, None))
    if before is not None and all(map(is_, before, new)):
        return twin
    try:
        twin = entry.write(container, keys, new)
    except RecursionError:
        raise
    except Exception as error:
        name = type(container).__qualname__
        raise ContainerError(
            f"cannot rebuild a {name} with its tensors replaced ({error}); pass a dict, list, tuple or dataclass, or "
            f"say how: xdevice.register({name}, flatten=..., rebuild=...)"
        ) from error
    done[id(container)] = new, twin
    return twin


# types of the user's own


def register(
    cls: T,
    *,
    flatten: Callable[[Any], Mapping[Any, Any] | Sequence[Any]] | None = None,
    rebuild: Callable[[Any, Any], Any] | None = None,
    move: Callable[[Any, Device], Any] | None = None,
) -> T:
    """Says how objects of a type of your own, and of its subclasses, are walked or moved; gives the type back.

    Young: it may change in a minor version.

    Needed for objects that hold tensors and have no `.to(device)` of their own. Without further arguments, also as a
    decorator, their attributes are walked, and rebuilding makes a new object without calling `__init__`. It holds at
    once, also for types met before, and costs nothing for others. docs/reference/devices.md has more examples.

    Args:
        cls: the type. If it is registered again, the last call counts.
        flatten: gives what is in an object, as a dict or a list.
        rebuild: `rebuild(old, inside)` gives a new object with this in it, a dict or list as `flatten` gave it.
        move: `move(x, device)` gives an object on a `Device`, itself or a new one. `copy_to` calls it on a deep copy.

    Raises:
        ContainerError: not a type; a type of tensors or models; one of `flatten` and `rebuild` without the other, or
            either beside `move`.

    Example:
        >>> @xdevice.register
        ... class Game:
        ...     def __init__(self, board):
        ...         self.board = board
        >>> xdevice.device_of([Game(xdevice.ones(2, device="cpu"))])
        Device('cpu:0')
    """
    _refuse(cls, flatten, rebuild, move)
    registered[cls] = Way(flatten, rebuild, move)
    forget()
    return cls


def _refuse(cls: object, flatten: object, rebuild: object, move: object) -> None:
    if not isinstance(cls, type):
        raise ContainerError(
            f"register takes a type, not {shown(cls)}; call xdevice.register({type(cls).__qualname__})"
        )
    found = registry.kind_of(cls)
    if found is not None:
        raise ContainerError(
            f"{cls.__qualname__} is a {found.kind} of {found.backend.name}, which xdevice moves by its own rules"
        )
    if cls.__module__ == "builtins":
        raise ContainerError(f"{cls.__qualname__} is Python's own, and cannot be redefined; register a subclass of it")
    if (flatten is None) is not (rebuild is None):
        raise ContainerError(f"register({cls.__qualname__}) needs both flatten and rebuild, or neither")
    if flatten is not None and move is not None:
        raise ContainerError(f"register({cls.__qualname__}) takes flatten and rebuild, or move, not both")
    for name, given in (("flatten", flatten), ("rebuild", rebuild), ("move", move)):
        if given is not None and not callable(given):
            raise ContainerError(f"register({cls.__qualname__}) needs a function as {name}, not {shown(given)}")


def forget(_: Backend | None = None) -> None:
    """Lets every type be asked anew."""
    _ways.clear()


registry.on_load.append(forget)
