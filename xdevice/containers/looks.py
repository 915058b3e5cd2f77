"""Finds the values that an object holds: those in its slots and its `__dict__`, and the items of the containers in
these.

None of the object's code is called, not even a property, so values that the object computes are not found. Values that
an object keeps in C are found if its type reports them to Python's garbage collector, as Python asks of all types.
Refusing every object that may keep something in C would refuse locks, loggers, open files and random generators in a
batch.
"""

from __future__ import annotations

import gc
import types
import weakref
from collections import deque
from functools import partial
from itertools import chain, count, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice.core import registry
from xdevice.errors import ContainerError, shown

from .attributes import attribute_dict, attributes, members

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdevice.contract import Backend, Kind
    from xdevice.contract.backend import Owned

_MOST: Final = 10_000
"""How many values of one object are searched before the search is given up: a training loop holds half of the
program."""

_DEEPEST: Final = 16
"""How many levels of plain containers `is_plain` looks through: a container that contains itself has no end."""

_IS_COLLECTED: Final = 1 << 14  # Py_TPFLAGS_HAVE_GC
_VIEWS: Final[tuple[Any, ...]] = (type({}.keys()), type({}.values()), type({}.items()))
_LISTS: Final[tuple[Any, ...]] = (list, tuple, set, frozenset, deque, *_VIEWS)
PLAIN: Final = frozenset(map(id, (type(None), bool, int, float, complex, str, bytes)))
"""The `id`s of the types whose objects hold nothing. They are found by `id`, because a type may refuse to be hashed."""

_FLAT: Final = frozenset(map(id, (dict, list, tuple, set, frozenset)))
_DESCRIPTORS: Final = (types.GetSetDescriptorType, types.MemberDescriptorType, property)
_NEVER: Final = (
    *(type, types.ModuleType, types.FunctionType, types.GeneratorType),
    # running code would lead to the whole program; what a weak reference names belongs to others
    *(
        types.CoroutineType,
        types.AsyncGeneratorType,
        types.FrameType,
        types.TracebackType,
        types.CodeType,
    ),
    weakref.ReferenceType,
)
_FIELDS: Final[dict[type, tuple[str, ...]]] = {
    partial: ("func", "args", "keywords"),
    slice: ("start", "stop", "step"),
    types.MethodType: ("__self__",),
    types.BuiltinMethodType: ("__self__",),
    types.MethodWrapperType: ("__self__",),
}
"""The attributes of these types whose names are neither slots nor in a `__dict__`."""


class Inner(NamedTuple):
    """A tensor or model that was found in an object, and the path from the object to it, such as `.x[0]`."""

    path: str
    value: Any
    backend: Backend
    kind: Kind


class MappingKeys(tuple[Any, ...]):
    """The keys of a mapping, as one leaf. No other keys may be put in their place, because the program looks things up
    by the old ones."""

    __slots__ = ()
    __qualname__ = "tuple of keys"


class _View(NamedTuple):
    """Where objects of a type can hold other objects; found out once for each type."""

    is_proxy: bool
    is_open: bool
    """Whether no list or table above says all that objects of the type hold, so that the collector is asked. Without
    that, such types had to be refused: 38 of 66 everyday objects, such as locks, open files and objects with one."""
    base: Any
    fields: tuple[str, ...]


def search(x: Any) -> list[Inner]:
    """Returns the tensors and models in an object that is neither, or in an array of objects. Raises `ContainerError`
    if there is too much in it to be searched."""
    inside = _objects(x, registry.kind_of(type(x)))
    x = x if inside is None else inside
    return list(_search(x)) if can_hold(type(x)) else []


def answers(x: Any) -> bool:
    """Whether Python can ask an object and its type what they are, as `isinstance` and `hasattr` do, without an
    error."""
    try:
        # a metaclass may refuse it
        hash(type(x))
        getattr(type(x), "__xdevice_lacks_it__", None)
        return x.__class__ is not None and getattr(x, "__dict__", None) is not ...
    except Exception:
        return False


def has_method(cls: type, name: str) -> bool:
    """Whether objects of a type have a method of this name; found out without calling code of theirs or of their
    metaclass."""
    return callable(
        # the first class that has the name decides, as in Python's own lookup
        next((members(base)[name] for base in cls.__mro__ if name in members(base)), None)
    )


@registry.kept_by_type
def can_hold(cls: type) -> bool:
    """Whether objects of a type may hold other objects: those that may take part in garbage collection."""
    if not cls.__flags__ & _IS_COLLECTED or issubclass(cls, _NEVER):
        return False
    # types of a framework that hold nothing of the program's
    owner = registry.owner_of(cls)
    return owner is None or not issubclass(cls, owner.opaque)


def _is_function(cls: type) -> bool:
    """Whether objects of a type are functions, those of Cython for example included. Their attributes are not searched
    for tensors, because they lead to the globals of a module, and from there to the whole program."""
    return has_method(cls, "__call__") and has_method(cls, "__get__")


def is_proxy(cls: type) -> bool:
    """Whether objects of a type are proxies of another object, whose class `isinstance` sees. Examples are TensorFlow's
    wrappers around the dicts and tuples of its modules, and `wrapt.ObjectProxy`. A decorator with a property
    `__wrapped__` is not one, because `isinstance` sees its own class."""
    return all(
        # a proxy computes both when asked
        issubclass(type(_defined(cls, name)), _DESCRIPTORS)
        for name in ("__wrapped__", "__class__")
    )


def _defined(cls: type, name: str) -> Any:
    """Returns what a type or a base of it, except `object`, defines under a name; None if none does."""
    return next(
        (members(base)[name] for base in cls.__mro__[:-1] if name in members(base)), None
    )


def _unwrap(x: Any) -> Any:
    try:
        return x.__wrapped__
    except Exception:  # there is no object behind it yet
        return None


def seen_class(x: Any) -> type:
    """Returns the type of an object, or for a proxy the type of the object behind it. Other objects may claim to be of
    another class, as a mock with a `spec` does, but have only the name of that class."""
    while is_proxy(type(x)):
        x = _unwrap(x)
    return type(x)


def _search(x: Any) -> Iterator[Inner]:
    """Yields the tensors and models in an object, depth first, each object in it once. Raises `ContainerError` if there
    are too many."""
    # objects refer to each other in circles
    visited = {id(x)}
    # no recursion: a list may be linked by thousands of objects
    way: list[tuple[str, Any, Iterator[Any]]] = [("", "", _children(x))]
    while way:
        for form, key, child in way[-1][2]:
            cls = type(child)
            if id(cls) in PLAIN:
                continue
            owned = registry.kind_of(cls)
            inside = _objects(child, owned) if owned is not None else None
            if owned is not None and inside is None:
                # the path is written only for what was found, since most objects hold nothing
                steps = [*((form, key) for form, key, _ in way[1:]), (form, key)]
                yield Inner("".join(_code(*step) for step in steps), child, *owned)
            elif (inside is not None or can_hold(cls)) and id(child) not in visited:
                if len(visited) == _MOST:
                    raise _too_large(x)
                visited.add(id(child))
                way.append((form, key, _children(child if inside is None else inside)))
                break
        else:
            way.pop()


def _code(form: str, key: Any) -> str:
    """Returns one step of the path to a tensor, as written in code: `[0]`, or `.x`, for which `key` does not matter."""
    return form.replace("{}", shown(key, None)) if form.endswith("[{}]") else form


def _too_large(x: Any) -> ContainerError:
    name = type(x).__qualname__
    return ContainerError(
        f"a {name} holds more than {_MOST:,} things, too many to search for tensors; take it out of the container, or "
        f"register which of its parts move. None do after xdevice.register_container({name}, flatten=lambda x: [], "
        "rebuild=lambda x, inside: x)"
    )


@registry.kept_by_type
def _view(cls: type) -> _View:
    base = next((base for base in (dict, *_LISTS) if issubclass(cls, base)), None)
    fields = next((names for base, names in _FIELDS.items() if issubclass(cls, base)), ())
    return _View(
        is_proxy(cls), base is None and not fields and not _is_function(cls), base, fields
    )


def _children(x: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields a tuple for each value that is directly in an object: how its key is written (`[{}]`), the key, and the
    value."""
    cls = type(x)
    view = _view(cls)
    if view.is_proxy:
        inner = _unwrap(x)
        yield ".__wrapped__", "", inner
        # data that a framework itself adds to its own proxies does not count
        if registry.owner_of(cls) is None:
            yield from (("", "", own) for own in gc.get_referents(x) if own is not inner)
        return
    if view.base is dict:
        if not is_plain(list(dict.values(x))):
            yield from (("[{}]", key, value) for key, value in list(dict.items(x)))
        # tensors may be keys
        yield from _number(".keys()[{}]", list(dict.keys(x)))
    elif view.base is not None:
        yield from _number("[{}]", list(view.base.__iter__(x)))
    yield from ((f".{name}", "", getattr(x, name)) for name in view.fields)
    try:
        own, named = attributes(x), [attribute_dict(x)]
    except ContainerError:  # a property hides its `__dict__`, which it reports below
        own, named = {}, []
    yield from (
        (f".{name}", "", value) for name, value in own.items() if id(type(value)) not in PLAIN
    )
    if view.is_open:
        listed = set(map(id, chain(named, own.values())))
        yield from (("", "", inner) for inner in gc.get_referents(x) if id(inner) not in listed)


def _number(form: str, values: list[Any]) -> Iterator[tuple[str, Any, Any]]:
    return iter(()) if is_plain(values) else zip(repeat(form), count(), values, strict=False)


def is_plain(values: list[Any]) -> bool:
    """Whether values are numbers and strings only, or containers of these. It runs in C, because a tokenizer has 50,000
    pairs, and a loop over them in Python takes ten times as long."""
    for _ in range(_DEEPEST):
        kinds = set(map(id, map(type, values))) - PLAIN
        if not kinds or not kinds <= _FLAT:
            return not kinds
        once = {id(value): value for value in values if id(type(value)) in _FLAT}.values()
        values = list(chain.from_iterable(once))
        values += chain.from_iterable(box.values() for box in once if type(box) is dict)
    return False


def _objects(x: Any, owned: Owned | None) -> Any:
    """Returns the Python objects that a NumPy array is made of; None for an array of numbers, and for anything else."""
    # adapters for host memory only, as NumPy's, have a way to walk an array only if it is made of objects
    if owned is None or not owned.backend.is_host_only:
        return None
    way = owned.backend.container_way(x)
    return way.flatten(x) if way is not None and way.flatten is not None else None
