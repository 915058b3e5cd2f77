"""The values that a function reads besides its arguments: global variables, those of functions around it, defaults.

The list of what may be read is closed:

| value | its changes |
|---|---|
| numbers, texts, tensors, dtypes, devices | are another value of the variable, which is seen |
| dicts, lists, sets and tuples of what is in this table | are seen: the parts are compared at each call |
| plain functions and classes of the program | are seen: code, defaults, and what they read in turn |
| what Python, a framework or an installed package has under a name of its own | do not count |
| everything else | cannot be seen, so it is refused by name |
"""

from __future__ import annotations

import builtins
import random
import sys
import sysconfig
from enum import Enum, EnumMeta
from functools import partial
from itertools import repeat
from numbers import Number
from operator import attrgetter, is_
from types import (
    BuiltinFunctionType,
    CodeType,
    EllipsisType,
    FunctionType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import TYPE_CHECKING, Any, Final

from xdevice.base.devices import Device
from xdevice.base.dtypes import dtype_name
from xdevice.core import registry
from xdevice.errors import DTypeError, UnsupportedError, shown
from xdevice.math.arithmetic.namespace import Namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

_GONE: Final = object()
_OF_NAMESPACES: Final = Namespace.__module__.rpartition(".")[0]
"""The package of what is bound to a namespace, such as `xp.reshape`."""
_CONSTANT: Final = frozenset((NoneType, bool, str, bytes, range, slice, EllipsisType, Device))
_FROZEN: Final = frozenset((tuple, frozenset))
_CONTAINERS: Final = frozenset((dict, list, set))
_PARTS_OF_A_FUNCTION: Final = attrgetter("__code__", "__defaults__", "__kwdefaults__")
_LOOKS_UP: Final = (globals, eval, exec, __import__)
"""Functions of Python that find variables by texts."""
_GENERATED: Final = frozenset(("__init__", "__new__", "__eq__", "__repr__", "__hash__", "__setattr__", "__delattr__"))
"""The methods that dataclasses and named tuples generate."""
_INSTALLED: Final = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


class Outside:
    """The variables that functions read, and their values when this object was made. Raises `UnsupportedError` for one
    whose changes could not be seen."""

    def __init__(self, functions: Iterable[Any]) -> None:
        self._visited: dict[int, Any] = {}  # the values themselves, so that no `id` is used again
        self._watched: list[tuple[Callable[[], Iterable[Any]], list[Any], Sequence[str]]] = []
        """Functions that read values, what they gave first, and the names of these values."""
        functions = list(functions)
        self._own = {str(getattr(function, "__module__", "")).partition(".")[0] for function in functions}
        for function in functions:
            self._visit(function, getattr(function, "__qualname__", "the function"))

    def has_changed(self) -> str:
        """Returns the name of a variable that is another object than before, or has other contents; "" if none is."""
        for read, before, names in self._watched:
            now = [*read()]
            if len(now) != len(before) or not all(map(is_, now, before)):
                changed = (name for name, x, y in zip(names, now, before, strict=False) if x is not y)
                return next(changed, names[0])
        return ""

    def _visit(self, value: Any, name: str) -> None:
        if value is _GONE or id(value) in self._visited:
            return
        self._visited[id(value)] = value
        # by text: what they read cannot be told from the code
        if any(value is one for one in _LOOKS_UP):
            raise _unseen(name, value)
        cls = type(value)
        if is_constant(value, self._own):
            return
        if cls in _FROZEN:
            for part in value:
                self._visit(part, name)
        elif cls in _CONTAINERS:
            self._watch(partial(_parts, value), name)
        elif cls is FunctionType:
            self._visit_function(value, name)
        elif isinstance(value, type) and is_of_library(cls.__module__):
            self._watch(partial(_read_in_class, value), value.__qualname__)
        elif not _is_tensor(value):
            raise _unseen(name, value)

    def _visit_function(self, function: FunctionType, name: str) -> None:
        if function.__dict__.keys() - {"__wrapped__"}:
            raise _unseen(name, function, " with attributes")
        variables = function.__globals__
        module = variables.get("__name__", "")
        if module.partition(".")[0] == "xdevice":
            # nothing of xdevice's own in its closure changes; a function of the program that it is made around may
            self._visit(vars(function).get("__wrapped__", _GONE), name)
            return
        self._watch(partial(_PARTS_OF_A_FUNCTION, function), f"a default of {name}")
        if cells := function.__closure__:
            self._watch(lambda: map(_in_cell, cells), *function.__code__.co_freevars)
        if is_of_library(module, self._own):  # it was made around others, which are in its cells
            return
        names = sorted(_names(function.__code__))
        self._watch(lambda: map(variables.get, names, repeat(_GONE)), *names)
        for unbound in names:
            if unbound not in variables:  # a function of Python, an attribute, or a module that is imported inside
                self._visit(vars(builtins).get(unbound, _GONE), unbound)
                self._visit(sys.modules.get(unbound, _GONE), unbound)

    def _watch(self, read: Callable[[], Iterable[Any]], *names: str) -> None:
        """Notes the values that `read` gives now, and what can be read in them. One name is that of all of them."""
        values = [*read()]
        if len(names) != len(values):
            names *= max(len(values), 1)
        self._watched.append((read, values, names))
        for value, name in zip(values, names, strict=False):
            self._visit(value, name)


def is_constant(value: Any, own: Container[str] = ()) -> bool:
    """Whether nothing in a value can change: a number, a text, a dtype, or what a library holds under its name.
    Packages in `own` do not count as libraries."""
    cls = type(value)
    if cls in _CONSTANT or isinstance(value, Enum | EnumMeta | CodeType | Namespace):
        return True
    if isinstance(value, ModuleType):
        return is_of_library(value.__name__, own)
    if isinstance(value, partial | MethodType):
        function = value.func if isinstance(value, partial) else value.__func__
        return getattr(function, "__module__", "").startswith(_OF_NAMESPACES)
    # functions of C have no variables; a bound one may change what it is bound to
    if isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, type | ModuleType | None):
        return True
    module, name = getattr(value, "__module__", None) or cls.__module__, getattr(value, "__name__", "")
    if is_of_library(module, own) and getattr(sys.modules.get(module), name, _GONE) is value:
        return True
    return is_of_library(cls.__module__) and (isinstance(value, Number) or _is_dtype(value))


def is_of_library(module: Any, own: Container[str] = ()) -> bool:
    """Whether a module is part of Python, of xdevice, of a framework or of an installed package."""
    # asked by name: the module need not be imported for it
    root = str(module).partition(".")[0]
    if root in sys.stdlib_module_names or root.startswith("xdevice"):
        return True
    if any(root in backend.modules for backend in registry.list_loaded()):
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    is_installed = file.startswith(_INSTALLED) or "site-packages" in file or "dist-packages" in file
    # the package of the compiled function itself is a program, even where it is installed
    return is_installed and root not in own


def _unseen(name: str, value: Any, more: str = "") -> UnsupportedError:
    return UnsupportedError(
        f"{name} is {shown(value)} of type {type(value).__qualname__}{more}, and a compiled function would not see "
        f"that it changes; pass what is needed of it as an argument, as tensors and numbers"
    )


def _is_tensor(value: Any) -> bool:
    owned = registry.kind_of(type(value))
    return owned is not None and owned.kind != "model" and not owned.backend.is_host_only


def _parts(container: Any) -> list[Any]:
    return [*container, *container.values()] if type(container) is dict else [*container]


def _read_in_class(cls: type) -> list[Any]:
    """The functions and other values that can be read by name in a class and its bases."""
    bases = [base for base in cls.__mro__ if not is_of_library(base.__module__)]
    values = ((name, _unwrapped(value)) for base in bases for name, value in vars(base).items())
    return [value for name, value in values if _is_read(name, value)]


def _unwrapped(value: Any) -> Any:
    """The function in a property, a class method or the like."""
    inner = (getattr(value, name) for name in ("fget", "__func__", "func") if hasattr(value, name))
    return next(inner, value)


def _is_read(name: str, value: Any) -> bool:
    if isinstance(value, FunctionType):
        return name not in _GENERATED and not is_of_library(value.__globals__.get("__name__"))
    return not name.startswith("__") and not hasattr(type(value), "__get__")


def _in_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not assigned yet
        return _GONE


def _names(code: CodeType) -> set[str]:
    """Returns all names that code, and that of functions in it, looks up: of variables, of attributes, of modules."""
    names = set(code.co_names)
    return names.union(*[_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)])


def _is_dtype(value: Any) -> bool:
    if registry.kind_of(type(value)) is not None:
        return False
    try:
        dtype_name(value)
    except DTypeError:
        return False
    return True


def random_states() -> Any:
    """Returns what Python's and NumPy's own generators draw next."""
    # not imported for this
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return random.getstate()
    _, keys, *rest = numpy.random.get_state()
    return random.getstate(), keys.tobytes(), rest
