"""Finds the tensors and models that an object holds in its slots, in its `__dict__`, and in the containers and objects
inside these.

The search does not run the object's code, not even a property, so it does not find values that the object computes.
Some objects store references only in C. The search finds the values behind these references if the object's type
reports them to Python's garbage collector, as Python requires of all types. xdevice cannot refuse every object that may
store references in C, because batches may contain such objects: locks, loggers, open files and random generators.
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

_SEARCH_LIMIT: Final = 10_000
"""The maximum number of values of one object that are searched. From some objects, such as a training loop, half of the
program can be reached."""

_PLAIN_DEPTH: Final = 16
"""The number of levels of plain containers that `is_plain` searches. Without a limit, the search of a container that
contains itself would never end."""

# a bit of `__flags__`: Py_TPFLAGS_HAVE_GC of Python's C API
_IS_COLLECTED: Final = 1 << 14
# the types whose iterators yield all items of an object
_VIEWS: Final[tuple[Any, ...]] = (type({}.keys()), type({}.values()), type({}.items()))
_LISTS: Final[tuple[Any, ...]] = (list, tuple, set, frozenset, deque, *_VIEWS)
PLAIN: Final = frozenset(map(id, (type(None), bool, int, float, complex, str, bytes)))
"""The `id`s of the types whose objects refer to no other objects: numbers, strings and None. The set contains `id`s
because the type that is looked up may be unhashable."""

# the containers that `is_plain` searches, and the types of class attributes that compute a value when
# it is read
_PLAIN_CONTAINERS: Final = frozenset(map(id, (dict, list, tuple, set, frozenset)))
_DESCRIPTORS: Final = (types.GetSetDescriptorType, types.MemberDescriptorType, property)
# types that are never searched: from code and classes, the whole program can be reached, and the
# object of a weak reference belongs to another owner
_NEVER_SEARCHED: Final = (
    *(type, types.ModuleType, types.FunctionType, types.GeneratorType),
    *(
        types.CoroutineType,
        types.AsyncGeneratorType,
        types.FrameType,
        types.TracebackType,
        types.CodeType,
    ),
    weakref.ReferenceType,
)
_HIDDEN_FIELDS: Final[dict[type, tuple[str, ...]]] = {
    partial: ("func", "args", "keywords"),
    slice: ("start", "stop", "step"),
    types.MethodType: ("__self__",),
    types.BuiltinMethodType: ("__self__",),
    types.MethodWrapperType: ("__self__",),
}
"""For each type whose attributes are neither in slots nor in a `__dict__`, the names of the attributes to search."""


class Inner(NamedTuple):
    """A tensor or model that was found in an object (`value`), the path from the object to it, such as `.x[0]`, and its
    backend and kind."""

    path: str
    value: Any
    backend: Backend
    kind: Kind


class MappingKeys(tuple[Any, ...]):
    """The keys of a mapping, as one leaf. The keys are never replaced, because the program looks values up by the old
    keys."""

    __slots__ = ()
    __qualname__ = "tuple of keys"


class _References(NamedTuple):
    """The places where objects of a type can have references to other objects. They are determined once for each
    type."""

    is_proxy: bool
    asks_collector: bool
    """Whether xdevice asks the garbage collector for an object's references, because the object may have references
    other than its attributes. xdevice does not ask about a function, or about an object whose type has a `base` or
    `fields`, from which xdevice reads the references. If xdevice refused the objects about which it asks, it would
    refuse 38 of 66 everyday objects, such as locks, open files, and objects that contain these."""
    base: Any
    """The built-in container type that the type is or inherits from; None if the type is not a container."""
    fields: tuple[str, ...]
    """The names of the attributes to search, from `_HIDDEN_FIELDS`."""


def search(x: Any) -> list[Inner]:
    """Returns the tensors and models in an object that is neither a tensor nor a model, or in a NumPy array of Python
    objects. Raises `ContainerError` if the object contains too much to be searched."""
    inside = _object_elements(x, registry.owner_and_kind(type(x)))
    x = x if inside is None else inside
    return list(_search(x)) if can_hold(type(x)) else []


def can_be_examined(x: Any) -> bool:
    """Whether the type of an object can be hashed, and whether `isinstance` and `hasattr` work for the object and for
    its type. These checks run code that belongs to the object or its metaclass, and that code may raise any error."""
    try:
        hash(type(x))
        # no class has this name, so a `__getattr__` of the metaclass would be called, which may raise
        # another error than AttributeError
        getattr(type(x), "__xdevice_lacks_it__", None)
        # both comparisons are True for any ordinary object; their purpose is to read the two attributes,
        # which may raise an error
        return x.__class__ is not None and getattr(x, "__dict__", None) is not ...
    except Exception:
        return False


def has_method(cls: type, name: str) -> bool:
    """Whether a type, or one of its bases, defines a method of this name. Does not run any code of the type, its
    objects or its metaclass."""
    return callable(
        # the first class that has the name decides, as in Python's own lookup
        next((members(base)[name] for base in cls.__mro__ if name in members(base)), None)
    )


@registry.cached_by_type
def can_hold(cls: type) -> bool:
    """Whether objects of a type may refer to other objects that are worth searching."""
    # a type whose objects can refer to other objects takes part in garbage collection
    if not cls.__flags__ & _IS_COLLECTED or issubclass(cls, _NEVER_SEARCHED):
        return False
    # a framework's `opaque` types, such as random generators, contain no tensors of the program
    owner = registry.owner_of(cls)
    return owner is None or not issubclass(cls, owner.opaque)


def _is_function(cls: type) -> bool:
    """Whether objects of a type are functions, including functions that are not written in Python, such as Cython's.
    The garbage collector is not asked about functions, because a function refers to the globals of a module, and
    through these to the whole program."""
    return has_method(cls, "__call__") and has_method(cls, "__get__")


def is_proxy(cls: type) -> bool:
    """Whether objects of a type are proxies: each proxy represents another object, and `isinstance` uses the class of
    that object. Examples are TensorFlow's wrappers around the dicts and tuples of its modules, and `wrapt.ObjectProxy`.
    A decorator with a property `__wrapped__` is not a proxy, because `isinstance` uses the decorator's own class."""
    return all(
        # a proxy computes both attributes when these are read
        issubclass(type(_defined(cls, name)), _DESCRIPTORS)
        for name in ("__wrapped__", "__class__")
    )


def _defined(cls: type, name: str) -> Any:
    """Returns the attribute `name` that a type or one of its bases, except `object`, defines. A property is returned as
    the property object, without computing its value. Returns None if none of these classes defines the attribute."""
    return next(
        (members(base)[name] for base in cls.__mro__[:-1] if name in members(base)), None
    )


def _behind_proxy(x: Any) -> Any:
    """Returns the object that the proxy `x` represents; None if the proxy has no object yet."""
    try:
        return x.__wrapped__
    # the proxy may be lazy, for example, and may have no object yet
    except Exception:
        return None


def class_behind_proxy(x: Any) -> type:
    """Returns the type of an object or, for a proxy, the type of the object behind it. `x.__class__` is not used,
    because it may be a class that the object only imitates, as a mock with a `spec` does."""
    # the object behind a proxy may be a proxy too
    while is_proxy(type(x)):
        x = _behind_proxy(x)
    return type(x)


def _search(x: Any) -> Iterator[Inner]:
    """Yields the tensors and models in an object, depth first. Raises `ContainerError` if more than `_SEARCH_LIMIT`
    values have to be searched."""
    # objects may refer to each other in cycles
    visited = {id(x)}
    # a stack instead of recursion, because a linked list may be thousands of objects deep; each entry
    # consists of the step that led to an object, in the form that `_children` yields, and the iterator
    # over the object's children
    stack: list[tuple[str, Any, Iterator[Any]]] = [("", "", _children(x))]
    while stack:
        for form, key, child in stack[-1][2]:
            cls = type(child)
            if id(cls) in PLAIN:
                continue
            owned = registry.owner_and_kind(cls)
            inside = _object_elements(child, owned) if owned is not None else None
            if owned is not None and inside is None:
                # the string of a path is created only now, because most objects contain no tensors
                steps = [*((form, key) for form, key, _ in stack[1:]), (form, key)]
                yield Inner("".join(_step_as_code(*step) for step in steps), child, *owned)
            elif (inside is not None or can_hold(cls)) and id(child) not in visited:
                if len(visited) == _SEARCH_LIMIT:
                    raise _too_large(x)
                visited.add(id(child))
                stack.append((form, key, _children(child if inside is None else inside)))
                # the search continues in the child
                break
        # all children were visited, so the search continues in the parent
        else:
            stack.pop()


def _step_as_code(form: str, key: Any) -> str:
    """Returns one step of a path as code, such as `[0]` or `.x`. `form` is either complete, such as `.x`, or ends with
    `[{}]`. In the second case, the `repr` of `key` replaces the `{}`."""
    return form.replace("{}", shown(key, limit=None)) if form.endswith("[{}]") else form


def _too_large(x: Any) -> ContainerError:
    """Returns the error for an object that contains too much to be searched."""
    name = type(x).__qualname__
    return ContainerError(
        f"an object of type {name} contains more than {_SEARCH_LIMIT:,} objects, too many to search for tensors; "
        f"remove the object from the container, or register its type with flatten= and rebuild=. To move none of its "
        f"contents, call xdevice.register_container({name}, flatten=lambda x: [], rebuild=lambda x, inside: x)"
    )


@registry.cached_by_type
def _references(cls: type) -> _References:
    """Returns the places where objects of a type can have references to other objects."""
    base = next((base for base in (dict, *_LISTS) if issubclass(cls, base)), None)
    fields = next(
        (names for base, names in _HIDDEN_FIELDS.items() if issubclass(cls, base)), ()
    )
    # the collector is not asked if `base` or `fields` say where the references are, nor about functions, whose globals
    # lead to the whole program
    return _References(
        is_proxy(cls),
        asks_collector=base is None and not fields and not _is_function(cls),
        base=base,
        fields=fields,
    )


def _children(x: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields `(form, key, value)` for each value directly inside an object that may hold tensors. Skips attributes that
    are numbers or strings, and containers of only numbers and strings. `form` is the code of the step to the value. It
    is either `[{}]`, where `key` replaces the `{}`, or complete, such as `.x`, and then `key` is ''. If there is no
    code for the step, `form` and `key` are both ''."""
    cls = type(x)
    references = _references(cls)
    if references.is_proxy:
        inner = _behind_proxy(x)
        yield ".__wrapped__", "", inner
        # the other contents of a framework's own proxies are for the framework's internal use
        if registry.owner_of(cls) is None:
            yield from (
                ("", "", referent) for referent in gc.get_referents(x) if referent is not inner
            )
        return
    if references.base is dict:
        if not is_plain(list(dict.values(x))):
            yield from (("[{}]", key, value) for key, value in list(dict.items(x)))
        # the keys may be tensors
        yield from _numbered(".keys()[{}]", list(dict.keys(x)))
    elif references.base is not None:
        # the built-in iterator, because a subclass may have its own iterator, which would run its code
        yield from _numbered("[{}]", list(references.base.__iter__(x)))
    yield from ((f".{name}", "", getattr(x, name)) for name in references.fields)
    try:
        own_attributes, dicts = attributes(x), [attribute_dict(x)]
    # a property hides the `__dict__`, but the garbage collector finds the `__dict__` below
    except ContainerError:
        own_attributes, dicts = {}, []
    yield from (
        (f".{name}", "", value)
        for name, value in own_attributes.items()
        if id(type(value)) not in PLAIN
    )
    # the collector also returns the `__dict__` and the attributes, which were already yielded above
    # with their names
    if references.asks_collector:
        listed = set(map(id, chain(dicts, own_attributes.values())))
        yield from (("", "", inner) for inner in gc.get_referents(x) if id(inner) not in listed)


def _numbered(form: str, values: list[Any]) -> Iterator[tuple[str, Any, Any]]:
    """Returns an iterator over `(form, index, value)` for the values of a list. The iterator is empty if all values are
    plain (see `is_plain`)."""
    return iter(()) if is_plain(values) else zip(repeat(form), count(), values, strict=False)


def is_plain(values: list[Any]) -> bool:
    """Whether the values are only numbers, strings and None, or built-in containers of these. The inner loops run in C,
    because a tokenizer may have 50,000 pairs, and a loop in Python takes ten times as long."""
    for _ in range(_PLAIN_DEPTH):
        kinds = set(map(id, map(type, values))) - PLAIN
        # True if all values are plain; False if a value is neither plain nor a built-in container
        if not kinds or not kinds <= _PLAIN_CONTAINERS:
            return not kinds
        # continues with the next level: the contents of all these containers, each of which is searched
        # once
        containers = {
            id(value): value for value in values if id(type(value)) in _PLAIN_CONTAINERS
        }.values()
        values = list(chain.from_iterable(containers))
        values += chain.from_iterable(x.values() for x in containers if type(x) is dict)
    return False


def _object_elements(x: Any, owned: Owned | None) -> Any:
    """Returns the elements of a NumPy array of Python objects; None for an array of numbers, and for any other object.
    `owned` is the backend and kind of the type of `x`; None if the type belongs to no backend."""
    # if an adapter has only host memory, its `container_way` is called for tensors too, and returns a
    # `Way` only for an array of Python objects
    if owned is None or not owned.backend.is_host_only:
        return None
    way = owned.backend.container_way(x)
    return way.flatten(x) if way is not None and way.flatten is not None else None
