"""Walks containers, rebuilds them with other tensors, and registers the user's types (`register`).

This module walks Python's own containers itself. The module `batches` is faster for containers with nothing but
tensors, numbers and strings. The module `ways` determines how other types are walked, once for each type. The result is
cached until the type is deleted, a backend is loaded, or a type is registered.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from functools import cached_property
from itertools import islice
from operator import is_
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice.contract import Way
from xdevice.core import registry
from xdevice.errors import ContainerError, UnsupportedError, shown

from . import looks, strangers
from .attributes import Attribute, empty_like, fill_attributes
from .items import (
    ATTRIBUTES,
    SELF_REFERRING,
    Walk,
    add_attributes,
    read_elements,
    with_key_leaf,
    write_keyed,
)
from .looks import PLAIN
from .ways import MaybeMover, registered, way_into

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from xdevice.base.devices import Device
    from xdevice.contract import Backend
    from xdevice.contract.backend import Owned

    _Node = tuple[Any, Walk, Iterable[Any], Sequence[Any], dict[int, Any]]
    """A tuple of five items: a container that was walked; its `Walk`; its keys; its children; and a dict. The dict maps
    the index of each child that is a container to the child's node."""
    Walked = tuple[_Node | None, list[Any], dict[int, type]]
    """The result of a walk: the root node of the container (None if the object was a leaf itself); every leaf, tensor
    or not, in the order of the walk; and a dict of the leaves' types. Its keys are the types' `id`s, because some types
    cannot be hashed. Nodes and results are tuples, because classes are slower: `to_device` took 2.5 times as long for
    three tensors that were already on the device."""


# stands for a type that was not looked up yet, because None stands for a leaf
_NOT_LOOKED_UP: Final = object()
# during a walk, marks a container to which something inside it refers back (see `_walk`)
_REFERRED_TO: Final[Any] = object()
# shared by all nodes that contain no containers, so that they need no dicts of their own
_NO_CONTAINERS: Final[dict[int, Any]] = {}


class Leaf(NamedTuple):
    """A leaf of a container, and the path to the leaf in the form that follows the container's name: `['x'][1]`. A leaf
    is a value that is not walked further."""

    path: str
    value: Any


def flatten(x: Any, keep_movers: bool = False, once: bool = False) -> Walked:
    """Walks a container, and returns `(root, leaves, kinds)`. `root` is the root node, which `rebuild` needs to replace
    the leaves; it is None if `x` is a leaf itself. `leaves` lists every leaf. `kinds` maps the `id` of each leaf's type
    to the type. Raises `ContainerError` if the container contains itself or is nested too deeply.

    If `keep_movers` is True, an object that moves itself is treated as a leaf, and is not walked. If `once` is True, a
    container that is in several places is walked only in the first place. Otherwise, a chain of thirty lists, each
    containing the next list twice, would be walked in a billion places.
    """
    while True:
        ways = walks
        root: _Node | None = None
        leaves: list[Any] = []
        kinds: dict[int, type] = {}
        way: Any = ways.get(id(type(x)), _NOT_LOOKED_UP)
        # `x` is a leaf, its type was not looked up yet, or it may move itself (`MaybeMover`)
        if type(way) is not Walk:
            way = way_of(x, keep_movers)
        if way is None:
            leaves, kinds = [x], {id(type(x)): type(x)}
        else:
            try:
                # fills `leaves` and `kinds`
                root = _walk(x, way, keep_movers, {} if once else None, leaves, kinds)
            except RecursionError:
                raise too_deep(x) from None
        # otherwise a backend was loaded during the walk, so types may be walked differently now
        if ways is walks:
            return root, leaves, kinds


def _walk(
    x: Any,
    way: Walk,
    keep_movers: bool,
    nodes: dict[int, _Node | None] | None,
    leaves: list[Any],
    kinds: dict[int, type],
) -> _Node:
    """Walks the container `x` by `way`. Adds its leaves to `leaves` and their types to `kinds`, and returns its node.
    If `keep_movers` is True, an object that moves itself is treated as a leaf.

    If `nodes` is None, a container in several places is walked in each place. Otherwise `nodes` maps the `id` of each
    container that was already walked to its node. While a container is being walked, its `id` maps to None instead. If
    something inside the container refers back to the container, the `id` then maps to `_REFERRED_TO`. Raises
    `RecursionError` for a container that contains itself and could not be rebuilt.
    """
    # a dict whose keys are all strings is read here, without a call of `way.read`
    is_plain = type(x) is dict
    for key in x if is_plain else ():
        if type(key) is not str:
            is_plain = False
            break
    # `way.read` takes three times as long
    keys, children = ([*x], [*x.values()]) if is_plain else way.read(x)
    # this first loop, for containers with nothing but leaves, takes a third of the time of the second
    # loop; most tensors in a list are of the same type, so a type is looked up only when it changes
    cls: Any = None
    for child in children:
        if type(child) is not cls:
            cls = type(child)
            # the child is a container, or its type was not looked up yet
            if walks.get(id(cls), _NOT_LOOKED_UP) is not None:
                break
            kinds[id(cls)] = cls
    else:
        leaves += children
        return x, way, keys, children, _NO_CONTAINERS
    if nodes is not None:
        # marks this container as being walked
        nodes[id(x)] = None
    inner: dict[int, _Node] = {}
    for i, child in enumerate(children):
        cls = type(child)
        child_way: Any = walks.get(id(cls), _NOT_LOOKED_UP)
        # the type was not looked up yet, or the child may move itself (`MaybeMover`)
        if child_way is not None and type(child_way) is not Walk:
            child_way = way_of(child, keep_movers)
        if child_way is None:
            leaves.append(child)
            kinds[id(cls)] = cls
        elif nodes is None:
            inner[i] = _walk(child, child_way, keep_movers, nodes, leaves, kinds)
        elif id(child) not in nodes:
            inner[i] = nodes[id(child)] = _walk(
                child, child_way, keep_movers, nodes, leaves, kinds
            )
        else:
            node = nodes[id(child)]
            if node is None or node is _REFERRED_TO:
                # a list or dict that contains itself cannot be rebuilt; an object with attributes can, because it
                # is created first and filled afterwards
                if child_way is not ATTRIBUTES:
                    raise RecursionError
                nodes[id(child)] = _REFERRED_TO
                node = child, SELF_REFERRING, (), (), _NO_CONTAINERS
            inner[i] = node
    # something inside the children was found to refer back to `x`
    if nodes is not None and nodes[id(x)] is _REFERRED_TO:
        way = SELF_REFERRING
    return x, way, keys, children, inner


def rebuild(walk: Walked, changed: Sequence[Any], touched: Container[int] = ()) -> Any:
    """Returns a container like the walked one, with the leaves `changed`, which are in the order of the walk. If these
    are the same objects as before, returns the container itself. `touched` contains `id`s of leaves; an inner container
    with such a leaf is rebuilt even if nothing in it has changed. Raises `ContainerError` if a container cannot be
    rebuilt."""
    root, leaves, _ = walk
    if root is None:
        # the walked object was a leaf itself
        return changed[0]
    container, _, _, _, inner = root
    # compared by identity, because comparing tensors with `==` would start a computation
    if not touched and all(map(is_, changed, leaves)):
        return container
    try:
        holds_only_leaves = not inner
        if not touched and holds_only_leaves:
            # returns the same as `way.write` for a dict, but is faster
            if type(container) is dict:
                # not strict, because `changed` may end with a leaf that contains the keys, which are never replaced
                return dict(zip(container, changed))  # noqa: B905
            return _write(root, list(changed))
        # an iterator, because `_rebuild` needs the leaves in the order of the walk
        return _rebuild(root, iter(changed), touched, done={})
    except RecursionError:
        raise too_deep(container) from None


class Tree:
    """A container that was walked: its leaves, their paths, and methods to rebuild the container with other leaves."""

    def __init__(
        self, x: Any, keep_movers: bool = False, once: bool = False, walk: Walked | None = None
    ) -> None:
        self.is_once = once
        self.strangers: list[tuple[int, strangers.Stranger]] = []
        """The objects of unknown types that hold tensors, each with its index among the leaves. Empty unless
        `tree_with_strangers` has made the tree."""
        self.walk = flatten(x, keep_movers, once) if walk is None else walk
        self.root, self.leaves, self.kinds = self.walk

    @cached_property
    def owners(self) -> dict[int, Owned | None]:
        """The backend and the kind of each type of leaf, by the type's `id`; None for types
        whose objects are neither tensors, symbols nor models."""
        return {type_id: registry.owner_and_kind(cls) for type_id, cls in self.kinds.items()}

    def paths(self) -> list[tuple[Any, ...]]:
        """Returns the path to each leaf, as a tuple of the keys that lead to the leaf. The tuple is empty if the walked
        object is a leaf itself. Raises `ContainerError` if the container is nested too deeply."""
        if self.root is None:
            return [()]
        try:
            return list(_paths(self.root, prefix=(), visited=set() if self.is_once else None))
        except RecursionError:
            raise too_deep(self.root[0]) from None

    def path(self, index: int) -> str:
        """Returns the path to the leaf with this index, in the form that follows the container's name: `['x'][1]`."""
        return path_text(self.paths()[index])

    def named_leaves(self) -> list[Leaf]:
        """Returns every leaf, tensor or not, with its path, in the order of the walk."""
        return [
            Leaf(path_text(keys), value)
            for keys, value in zip(self.paths(), self.leaves, strict=True)
        ]

    def rebuilt(self, changed: Sequence[Any]) -> Any:
        """Returns a container like this one with the leaves `changed`, which are in the order of the walk. If these are
        the same objects as before, returns the container itself. Raises `ContainerError` if the container cannot be
        rebuilt."""
        return rebuild(self.walk, changed)

    def check_rebuilding(self, touched: Container[int]) -> None:
        """Raises `ContainerError` if the container could not be rebuilt with some leaves replaced by other objects.
        `touched` contains the `id`s of these leaves."""
        rebuild(self.walk, self.leaves, touched)

    def unknown(self) -> list[int]:
        """Returns the indices of the leaves that are not tensors, symbols, models, numbers, strings or None."""
        return [
            i
            for i, value in enumerate(self.leaves)
            if self.owners[id(type(value))] is None and id(type(value)) not in PLAIN
        ]

    def refuse_strangers(self, with_models: bool = False) -> None:
        """Raises `ContainerError` if one of the `strangers` holds tensors, because these tensors cannot be replaced. If
        `with_models` is True, also raises the error if a stranger holds only models."""
        for i, stranger in self.strangers:
            refuse_stranger(self.path(i), stranger, with_models)

    def refuse_shared(self) -> None:
        """Raises `ContainerError` if a leaf is an object of an unknown type that holds only NumPy arrays, because a
        copy of the container would share these arrays. (A move may share the arrays, because it leaves them on the
        host.)"""
        # objects that also hold other tensors are copied as a whole
        copied = {i for i, _ in self.strangers}
        for i in self.unknown():
            value = self.leaves[i]
            holder = None if i in copied else strangers.find(value, way=None, with_host=True)
            if holder is not None:
                raise ContainerError(
                    f"{self.path(i) or 'the object'} is of type {type(value).__qualname__} and contains arrays, which "
                    "a copy would share; "
                    + holder.remedy(
                        "or pass its contents in a list or dict instead", is_move=False
                    )
                )

    def refuse_sparse(self, name: str, verb: str) -> None:
        """Raises `UnsupportedError` if the container is or contains an object whose tensors are meaningful only
        together, such as a sparse array. `name` is the name of the container in the error, and `verb` is the function
        that was called."""
        # a list as a stack, because containers may be nested deeply
        nodes: list[tuple[tuple[Any, ...], _Node]] = (
            [] if self.root is None else [((), self.root)]
        )
        while nodes:
            path, (container, way, keys, _, inner) = nodes.pop()
            if way.dense:
                raise UnsupportedError(
                    f"{verb} works on each tensor separately, but {name}{path_text(path)} is of type "
                    f"{type(container).__qualname__}, whose tensors are meaningful only together; {way.dense}"
                )
            # `keys` may be a view of a mapping's keys, which has no indices
            names = list(keys)
            nodes += [((*path, names[i]), node) for i, node in inner.items()]

    def stranger(self, index: int) -> strangers.Stranger | None:
        """Returns the `Stranger` for the leaf with this index if the leaf holds tensors or models, or if its type is
        registered with a function that moves it. Returns None for any other leaf. Raises a `ContainerError` that names
        the path of the leaf if the leaf contains too much to be searched."""
        try:
            return stranger(self.leaves[index])
        except ContainerError as error:
            raise ContainerError(f"{self.path(index) or 'the object'}: {error}") from None


def tree_with_strangers(x: Any, keep_movers: bool = False, walk: Walked | None = None) -> Tree:
    """Returns the `Tree` of a container. The attribute `strangers` of the tree lists the objects of unknown types that
    hold tensors. If `keep_movers` is True, an object that moves itself is treated as a leaf, and is not walked. `walk`
    is the result of `flatten(x, keep_movers, once=True)` if the caller already has this result. Raises `ContainerError`
    as `flatten` and `Tree.stranger` do."""
    while True:
        # loading a backend replaces the global dict `walks` by a new dict; this is how the end of the loop
        # detects that types were walked by outdated rules
        ways = walks
        tree = Tree(x, keep_movers, once=True, walk=walk)
        for i in tree.unknown():
            # the first object of a framework makes this call load the backend; then types may be walked
            # differently, so the loop begins again
            holder = tree.stranger(i)
            if holder is not None:
                tree.strangers.append((i, holder))
        if ways is walks:
            return tree
        # the caller's walk is outdated
        walk = None


def too_deep(x: Any) -> ContainerError:
    """Returns the error for a container whose walk has reached Python's recursion limit."""
    return ContainerError(
        f"an object of type {type(x).__qualname__} contains itself, or is nested hundreds of levels deep; "
        "pass the tensors in a container without cycles"
    )


def refuse_stranger(
    path: str, holder: strangers.Stranger | None, with_models: bool = False
) -> None:
    """Raises `ContainerError` if `holder`, the leaf at `path` of a container, holds tensors or can move itself. If
    `with_models` is True, also raises the error if `holder` holds only models. Does nothing if `holder` is None."""
    if holder is not None and (with_models or holder.has_tensors()):
        raise ContainerError(
            f"{path or 'the object'} is of type {type(holder.x).__qualname__} and contains tensors, but xdevice does "
            "not know that type as a container; "
            + holder.remedy("or pass flatten=... and rebuild=... too", is_move=False)
        )


def is_container(x: object) -> bool:
    """Whether `x` is a container, that is, not a leaf."""
    return way_of(x, keep_movers=False) is not None


def leaves(x: object) -> list[Leaf]:
    """Returns every leaf of `x`, tensor or not, with its path, in the order of the walk. If `x` is not a container, the
    only leaf is `x` itself."""
    return Tree(x).named_leaves()


def path_text(keys: Iterable[Any]) -> str:
    """Returns the path that consists of these keys, in the form that follows the container's name: `['x'][1]`."""
    return "".join(
        f".{key}" if type(key) is Attribute else f"[{shown(key, limit=None)}]" for key in keys
    )


def have_same_keys(first: Walked, second: Walked) -> bool:
    """Whether the containers of two walks have the same keys in the same order at all levels, so that their leaves have
    the same paths."""
    nodes = [(first[0], second[0])]
    # the list grows while it is iterated over
    for node, twin in nodes:
        if node is None or twin is None:
            return node is twin
        (_, _, keys, _, inner), (_, _, twin_keys, _, twin_inner) = node, twin
        if inner.keys() != twin_inner.keys() or [*keys] != [*twin_keys]:
            return False
        # pairs of inner containers; leaves are not compared
        if inner:
            nodes += [(inner[i], twin_inner[i]) for i in inner]
    return True


def map_leaves(x: Any, change: Callable[[list[Any]], list[Any]], copies: bool = False) -> Any:
    """Returns `x` rebuilt with other leaves, the result of `change(leaves)`, which is a list of the same length as
    `leaves`. If these are the same objects as before, returns `x` itself.

    Raises:
        ContainerError: if a leaf is an object that holds tensors or, if `copies` is True, NumPy arrays. The result
            would share these with `x`. Also raised if a container cannot be walked or rebuilt.
    """
    tree = tree_with_strangers(x)
    tree.refuse_strangers()
    if copies:
        tree.refuse_shared()
    return tree.rebuilt(change(tree.leaves))


def way_of(x: Any, keep_movers: bool) -> Walk | None:
    """Returns the `Walk` of `x`; None if `x` is a leaf. If `keep_movers` is True, an object that moves itself is
    treated as a leaf."""
    cls = type(x)
    way: Any = walks.get(id(cls), _NOT_LOOKED_UP)
    if way is _NOT_LOOKED_UP:
        way = way_into(x)
        # not cached for proxies, because the next proxy of this type may stand for an object of another
        # type
        if not looks.is_proxy(cls):
            registry.remember(walks, cls, way)
    if type(way) is not MaybeMover:
        return way  # type: ignore[no-any-return]
    if keep_movers:
        # whether an object moves itself may depend on the object, not only on its type; `way.way` is the
        # way in which the type was registered
        holder = strangers.find(x, way.way)
        if holder is not None and holder.moves:
            return None
    return way.inside


def mover(x: Any) -> strangers.Stranger | None:
    """Returns the `Stranger` (the tensors in an object, and how the object moves) for an object with a registered
    function that moves it. A user or a framework has registered this function for the object's type. Returns None for
    any other object, and for an object if no object of its type has been walked yet."""
    way = walks.get(id(type(x)))
    if type(way) is not MaybeMover or way.way is None:
        return None
    holder = strangers.find(x, way.way)
    return holder if holder is not None and holder.moves else None


def stranger(x: Any) -> strangers.Stranger | None:
    """Returns the `Stranger` for a leaf that holds tensors or models, or that a registered function can move. Returns
    None for any other leaf. Raises `ContainerError` if the leaf contains too much to be searched."""
    cls = type(x)
    if id(cls) in PLAIN:
        return None
    way = walks[id(cls)] if id(cls) in walks else way_into(x)
    # only a `MaybeMover` says how the type of a leaf was registered; other leaves have no registered type
    return strangers.find(x, way.way if type(way) is MaybeMover else None)


def _paths(
    node: _Node, prefix: tuple[Any, ...], visited: set[int] | None
) -> Iterator[tuple[Any, ...]]:
    """Yields a tuple of keys for each leaf below a node: the keys of `prefix`, followed by the keys that lead from the
    node to the leaf. If `visited` is None, a container that is in several places is entered in each place. Otherwise,
    the container is entered only in the first place, and `visited` collects the `id`s of the containers."""
    container, _, keys, _, inner = node
    if visited is not None:
        if id(container) in visited:
            return
        visited.add(id(container))
    for i, key in enumerate(keys):
        path = (*prefix, key)
        if i in inner:
            yield from _paths(inner[i], path, visited)
        else:
            yield path


def _rebuild(
    node: _Node,
    changed: Iterator[Any],
    touched: Container[int],
    done: dict[int, tuple[_Node, list[Any], Any]],
) -> Any:
    """Returns a new container for a node, with leaves from the iterator `changed`. `touched` contains `id`s of leaves;
    a container with such a leaf is rebuilt even if nothing in it has changed. `done` maps the `id` of each rebuilt
    container to its node, its new children and the new container. So a container in two places remains a single
    container."""
    container, way, keys, children, inner = node
    # not None if this container was already rebuilt in another place. If `flatten` was called with `once`, both places
    # have the same node, and its leaves are in `changed` only once. Otherwise each place has its own node and leaves
    earlier_node, earlier_children, earlier_twin = done.get(id(container), (None, None, None))
    if earlier_node is not None and (earlier_node is node or way is SELF_REFERRING):
        return earlier_twin
    # created before its children, which refer to it, and filled after them
    if way is SELF_REFERRING:
        done[id(container)] = node, [], empty_like(container)
    if inner:
        new = [
            _rebuild(inner[i], changed, touched, done) if i in inner else next(changed)
            for i in range(len(children))
        ]
    else:
        new = list(islice(changed, len(children)))
    # the new children are the same as in the other place, so the new container is too
    if earlier_children is not None and all(map(is_, earlier_children, new)):
        return earlier_twin
    if way is SELF_REFERRING:
        _, _, unfilled = done[id(container)]
        return fill_attributes(unfilled, container, keys, new)
    twin = container
    # if none of these conditions is met, nothing in this container has changed, so the new outer
    # container shares it with the old one
    if (
        way.is_plain
        or not all(map(is_, new, children))
        or (touched and any(id(x) in touched for x in new))
    ):
        twin = _write(node, new)
    done[id(container)] = node, new, twin
    return twin


def _write(node: _Node, new: list[Any]) -> Any:
    """Returns the container of a node, rebuilt with the children `new`. Raises `ContainerError`
    if the container cannot be rebuilt."""
    container, way, keys, _, _ = node
    try:
        return way.write(container, keys, new)
    # `rebuild` reports this as a container that is nested too deeply
    except RecursionError:
        raise
    except Exception as error:
        name = type(container).__qualname__
        raise ContainerError(
            f"cannot rebuild an object of type {name} with other tensors ({error}); pass a dict, list, tuple or "
            f"dataclass, or register functions to rebuild it: xdevice.register_container({name}, flatten=..., "
            f"rebuild=...)"
        ) from error


# Python's own containers


def _read_dict(x: Any) -> tuple[Iterable[Any], Sequence[Any]]:
    """Returns the keys and values of a dict."""
    return with_key_leaf(x, x.values())


def _read_ordered(x: Any) -> tuple[Iterable[Any], Sequence[Any]]:
    """Returns the keys and values of an `OrderedDict`, followed by the names and values of its attributes that hold
    tensors."""
    return add_attributes(x, *_read_dict(x)) if x.__dict__ else _read_dict(x)


def _write_ordered(x: Any, keys: Iterable[Any], new: Sequence[Any]) -> Any:
    """Returns an `OrderedDict` with the keys of `x` and with the values and attributes in `new`. `keys` are the keys
    that `_read_ordered` returned for `x`."""
    # a PyTorch state_dict, for example, stores the versions of its layers in the attribute `_metadata`
    return write_keyed(x, keys, new) if x.__dict__ else OrderedDict(zip(x, new, strict=False))


def _read_items(x: Any) -> tuple[Iterable[Any], Sequence[Any]]:
    """Returns the indices and the items of a list or tuple."""
    return range(len(x)), x


_SLICE: Final = tuple(map(Attribute, ("start", "stop", "step")))

# how Python's own containers are walked; True is the value of `Walk.is_plain`. `zip` is not strict,
# because one more child may follow the values of a dict: the leaf for keys that hold tensors (see
# `with_key_leaf`). `zip` leaves this child out.
OWN: Final[dict[type, Walk]] = {
    dict: Walk(_read_dict, lambda x, keys, new: dict(zip(x, new, strict=False)), True),
    OrderedDict: Walk(_read_ordered, _write_ordered, True),
    defaultdict: Walk(
        _read_dict,
        lambda x, keys, new: defaultdict(x.default_factory, zip(x, new, strict=False)),
        True,
    ),
    list: Walk(_read_items, lambda x, keys, new: new, True),
    tuple: Walk(_read_items, lambda x, keys, new: tuple(new)),
    deque: Walk(read_elements, lambda x, keys, new: deque(new, x.maxlen), True),
    set: Walk(read_elements, lambda x, keys, new: set(new), True),
    frozenset: Walk(read_elements, lambda x, keys, new: frozenset(new)),
    slice: Walk(
        lambda x: (_SLICE, (x.start, x.stop, x.step)), lambda x, keys, new: slice(*new)
    ),
}


# registering the user's types


def register(
    cls: type,
    flatten: Callable[[Any], Mapping[Any, Any] | Sequence[Any]] | None,
    rebuild: Callable[[Any, Any], Any] | None,
    move: Callable[[Any, Device], Any] | None,
) -> None:
    """Registers how objects of a type are walked (`flatten` and `rebuild`) or moved (`move`). The arguments and errors
    are those of `register_container`."""
    _refuse_registration(cls, flatten, rebuild, move)
    registered[cls] = Way(flatten, rebuild, move)
    forget()


def _refuse_registration(cls: object, flatten: object, rebuild: object, move: object) -> None:
    """Raises `ContainerError` if the arguments of `register_container` are invalid: if `cls` cannot be registered, or
    if the functions `flatten`, `rebuild` and `move` cannot be combined."""
    if not isinstance(cls, type):
        raise ContainerError(
            f"register_container expects a type, not {shown(cls)}; "
            f"call xdevice.register_container({type(cls).__qualname__})"
        )
    # tensors of a registered type would be walked instead of moved
    owned = registry.owner_and_kind(cls)
    if owned is not None:
        raise ContainerError(
            f"{cls.__qualname__} is the type of a {owned.kind} in {owned.backend.name}, so it cannot be registered"
        )
    if cls.__module__ == "builtins":
        raise ContainerError(
            f"{cls.__qualname__} is a built-in type, which cannot be registered; register a subclass instead"
        )
    # with only one of these functions, an object could be walked but not rebuilt, or rebuilt but not
    # walked
    if (flatten is None) is not (rebuild is None):
        raise ContainerError(
            f"register_container({cls.__qualname__}) needs both flatten and rebuild, or neither"
        )
    if flatten is not None and move is not None:
        raise ContainerError(
            f"register_container({cls.__qualname__}) accepts either flatten and rebuild, or move, but not both"
        )
    for name, function in (("flatten", flatten), ("rebuild", rebuild), ("move", move)):
        if function is not None and not callable(function):
            raise ContainerError(
                f"register_container({cls.__qualname__}) needs a function as {name}, not {shown(function)}"
            )


def forget(_: Backend | None = None) -> None:
    """Discards the cache of how types are walked. Called whenever a backend is loaded, because this may change how
    types are walked. The argument (the backend) is ignored. Replaces the cache `walks` by a new dict, so that a walk in
    progress detects that it has to begin again."""
    global walks
    walks = dict.fromkeys(PLAIN) | {id(cls): way for cls, way in OWN.items()}


walks: dict[int, Walk | MaybeMover | None]
"""How objects of each type are walked, by the `id` of the type; None for leaves. `registry.remember` adds types to this
dict."""
forget()
registry.on_load.append(forget)
