"""The variables that a compiled function reads besides its arguments: global variables, variables of enclosing
functions, defaults. They are *watched*: `OutsideVariables` keeps their values, and notices when a variable has another
value.

A function may read only the values in this table; the error for any other value names its
variable:

| value | its changes |
|---|---|
| numbers, texts, tensors, dtypes, devices | are noticed: the variable has another value |
| dicts, lists, sets and tuples of values in this table | are noticed: the parts are compared at each call |
| plain functions, methods, `partial`s | are noticed: code, defaults, attributes, and the values that they read |
| classes of the program, enumerations | are noticed: all of their attributes and those of their bases |
| named objects of a framework, an installed package or a module of `_STATELESS` | do not count |
"""

from __future__ import annotations

import ast
import builtins
import inspect
import random
import sys
from collections import namedtuple
from enum import Enum
from functools import cache, cached_property, partial
from importlib.util import find_spec
from numbers import Number
from operator import attrgetter, is_
from pathlib import Path
from textwrap import dedent
from types import (
    BuiltinFunctionType,
    CodeType,
    DynamicClassAttribute,
    EllipsisType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
    NotImplementedType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any, Final

from xdevice.base.devices import Device
from xdevice.base.dtypes import dtype_name
from xdevice.core import registry
from xdevice.errors import DTypeError, UnsupportedError, shown
from xdevice.math.arithmetic.namespace import Namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

CODE: Final = (FunctionType, MethodType, partial, type, Enum)
"""The types of arguments whose own variables are watched, too."""
_MISSING: Final = object()
"""Used in place of the value of a variable that does not exist, or has no value yet."""
_OF_NAMESPACES: Final = Namespace.__module__.rpartition(".")[0]
"""The name of the package that defines the class of namespaces, and the classes of the objects
to which their functions are bound."""
# types whose objects never change; the last one is the type of the fields of a named tuple,
# which has no public name
_CONSTANT: Final = frozenset((
    NoneType, NotImplementedType, bool, str, bytes, range, slice, EllipsisType, Device, CodeType, GetSetDescriptorType,
    MemberDescriptorType, WrapperDescriptorType, type(vars(namedtuple("_Pair", "x"))["x"]),
))  # fmt: skip
_CONTAINERS: Final = frozenset((dict, list, set, tuple, frozenset))
# the parts of a function, a method and the like that can be replaced, and so change what it
# does
_PARTS_OF_A_FUNCTION: Final = attrgetter("__code__", "__defaults__", "__kwdefaults__")
_PARTS_OF_A_METHOD: Final = attrgetter("__func__", "__self__")
_PARTS_OF_A_PARTIAL: Final = attrgetter("func", "args", "keywords")
_PARTS_OF_A_PROPERTY: Final = attrgetter("fget", "fset", "fdel")
_LOOKUPS_BY_NAME: Final = (globals, eval, exec, __import__, open, input, builtins)
"""Functions and a module of Python that find variables by names in strings, or read files or input. A program that
uses one of them is refused, because what it reads cannot be watched."""
_PATHS_TO_OTHER_CODE: Final = frozenset(
    ("__globals__", "__builtins__", "__closure__", "__subclasses__", "f_globals", "f_locals")
)
"""Attributes that lead to variables of other code, which cannot be watched."""
_SET_BY_PYTHON: Final = frozenset((
    "__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__",
    "__dataclass_fields__", "__dataclass_params__", "__orig_bases__", "__parameters__", "__slotnames__", "_abc_impl",
))  # fmt: skip
"""Attributes of classes that Python itself sets, some of them only when they are first used."""
_STATELESS: Final = frozenset((
    "abc", "builtins", "cmath", "collections", "contextlib", "copy", "dataclasses", "decimal", "enum", "fractions",
    "functools", "itertools", "math", "numbers", "operator", "random", "re", "reprlib", "statistics", "string", "types",
    "typing", "warnings",
))  # fmt: skip
"""Python's modules whose functions give the same result at each call. `random` is one of them,
because `random_states` shows whether numbers were drawn."""


class OutsideVariables:
    """The variables that `functions` read, and the values that these variables had when this object was made.
    `functions` may also contain classes. Raises `UnsupportedError` for a variable whose changes could not be
    noticed."""

    def __init__(self, functions: Iterable[Any]) -> None:
        # the visited values by `id`; they are kept, so that no other object gets the same `id`
        self._visited: dict[int, Any] = {}
        self._watched: list[tuple[Callable[[], Iterable[Any]], list[Any], Sequence[str]]] = []
        """Tuples of three: a function that reads the values of some variables, the values that
        it returned at first, and the names of the variables."""
        functions = list(functions)
        # the packages of these functions, which count as parts of the program even if they are
        # installed
        self._program_packages = {
            str(getattr(function, "__module__", "")).partition(".")[0] for function in functions
        }
        for function in functions:
            self._visit(function, getattr(function, "__qualname__", "the function"))

    def changed_variable(self) -> str:
        """Returns the name of the first variable that has another object as its value, or whose
        value has other parts than before; "" if there is none."""
        for read, before, names in self._watched:
            now = [*read()]
            if len(now) != len(before) or not all(map(is_, now, before)):
                # if no pair differs, the number of values does; then all values, such as the
                # items of a list, have one name, `names[0]`
                changed = (
                    name for name, x, y in zip(names, now, before, strict=False) if x is not y
                )
                return next(changed, names[0])
        return ""

    def _visit(self, value: Any, name: str) -> None:
        """Watches the parts of a value, and those of all values that can be reached from it. Raises
        `UnsupportedError`, with the variable's `name`, for a value that is not in the table above."""
        # objects may refer to each other in circles, so each is visited once
        if value is _MISSING or id(value) in self._visited:
            return
        self._visited[id(value)] = value
        if any(value is refused for refused in _LOOKUPS_BY_NAME):
            raise _unnoticed(name, value)
        cls = type(value)
        # nothing in it can change
        if is_constant(value, self._program_packages):
            return
        if cls in _CONTAINERS:
            self._watch(partial(_parts, value), name)
        elif cls is FunctionType:
            self._visit_function(value, name)
        elif cls is MethodType:
            self._watch(lambda: _PARTS_OF_A_METHOD(value), name)
        elif cls is partial:
            self._watch(lambda: (*_PARTS_OF_A_PARTIAL(value), *_attributes(value)), name)
        # a class whose metaclass is not code of the program: `type`, or one of a library
        elif isinstance(value, type) and is_of_library(cls.__module__):
            self._watch(lambda: value.__mro__, name)
            self._watch(partial(_parts_of_a_class, value), name)
        # a member of an enumeration may have attributes
        elif isinstance(value, Enum):
            self._watch(lambda: (cls, *vars(value).values()), name)
        elif not _is_tensor(value):
            raise _unnoticed(name, value)

    def _visit_function(self, function: FunctionType, name: str) -> None:
        """Watches the values that a function reads: its defaults, attributes, cells (the
        variables of enclosing functions), and the globals that its code names. Raises
        `UnsupportedError` if the function may read other values."""
        variables = function.__globals__
        module = variables.get("__name__", "")
        if module.partition(".")[0] == "xdevice":
            # the variables of xdevice do not count, but the function of the program that this
            # one wraps may change
            self._visit(vars(function).get("__wrapped__", _MISSING), name)
            return
        self._watch(partial(_PARTS_OF_A_FUNCTION, function), f"a default of {name}")
        self._watch(partial(_attributes, function), f"an attribute of {name}")
        # variables of enclosing functions
        if cells := function.__closure__:
            self._watch(lambda: map(_cell_value, cells), *function.__code__.co_freevars)
        # globals of a library do not count; functions of the program that a library's function
        # wraps are in its cells, which are watched above
        if is_of_library(module, self._program_packages):
            return
        codes = _nested_codes(function.__code__)
        # sorted, because a set has another order in each process
        names = sorted({used for code in codes for used in code.co_names})
        # each of these attributes leads to variables that cannot be watched; one is refused
        for attribute in _PATHS_TO_OTHER_CODE.intersection(names):
            raise UnsupportedError(
                f"{name} reads {attribute}, which leads to variables that a compiled function cannot watch; pass the "
                "tensors and numbers that the function needs from them as arguments"
            )
        # an import inside the function reads a module, which must be a library
        for imported in _imports(function.__code__, names):
            if not is_of_library(imported, self._program_packages):
                raise _unnoticed(imported, sys.modules.get(imported))
        # as Python looks them up: first the globals, then the builtins. `co_names` also has
        # names of attributes, which are mostly found in neither
        builtin_variables = vars(builtins)
        self._watch(
            lambda: [
                variables[x] if x in variables else builtin_variables.get(x, _MISSING)
                for x in names
            ],
            *names,
        )

    def _watch(self, read: Callable[[], Iterable[Any]], *names: str) -> None:
        """Keeps the values that `read` returns now, and visits them. `names` has a name for
        each value, or one name for all values."""
        values = [*read()]
        # one name for all values: repeated, and kept even if there is no value, because
        # `changed_variable` returns it
        if len(names) != len(values):
            names *= max(len(values), 1)
        self._watched.append((read, values, names))
        for value, name in zip(values, names, strict=False):
            self._visit(value, name)


def is_constant(value: Any, program_packages: Container[str] = ()) -> bool:
    """Whether nothing in a value can change: a number, a text, a dtype, a module, a C function,
    or a class or function that a library's module has under the object's own name. Packages in
    `program_packages` do not count as libraries."""
    cls = type(value)
    # one of the types that never change, a field of a dataclass, or a namespace of xdevice or
    # one of the objects that its functions are bound to
    if (
        cls in _CONSTANT
        or cls.__module__ == "dataclasses"
        or cls.__module__.startswith(_OF_NAMESPACES)
    ):
        return True
    if isinstance(value, ModuleType):
        return is_of_library(value.__name__, program_packages)
    # functions written in C read no variables; but one that is bound to an object may change
    # that object
    if isinstance(value, BuiltinFunctionType):
        owner = value.__self__
        return (
            owner is None
            or isinstance(owner, type)
            or (isinstance(owner, ModuleType) and is_constant(owner, program_packages))
        )
    module, name = (
        getattr(value, "__module__", None) or cls.__module__,
        getattr(value, "__name__", ""),
    )
    # a class or function that is found in its module under its own name
    if (
        is_of_library(module, program_packages)
        and getattr(sys.modules.get(module), name, _MISSING) is value
    ):
        return True
    # without `program_packages`: these objects do not change, even if the program's own package
    # defines their class
    return is_of_library(cls.__module__) and (
        isinstance(value, Number | Enum) or _is_dtype(value)
    )


def is_of_library(module: Any, program_packages: Container[str] = ()) -> bool:
    """Whether the module with this name is part of xdevice, of a framework or of an installed
    package, or is in `_STATELESS`. Packages in `program_packages` do not count."""
    root = str(module).partition(".")[0]
    if root in sys.stdlib_module_names:
        # `_collections` belongs to `collections`
        return root.lstrip("_") in _STATELESS
    # a framework may be installed anywhere, and may have several top-level modules
    if root.startswith("xdevice") or any(
        root in backend.modules for backend in registry.list_loaded()
    ):
        return True
    # the package of the compiled function itself is the program, even if it is installed
    return root not in program_packages and _is_installed(
        getattr(sys.modules.get(root), "__file__", None) or ""
    )


@cache
def _is_installed(file: str) -> bool:
    """Whether `file`, the `__init__` of a package or a module that is a single file, is in a
    folder into which pip installs. Such a folder contains `*.dist-info` folders; Debian's is
    called "dist-packages"."""
    path = Path(file)
    folder = path.parent.parent if path.stem == "__init__" else path.parent
    return "dist-packages" in file or any(folder.glob("*.dist-info"))


def _unnoticed(name: str, value: Any) -> UnsupportedError:
    """Returns the error for the variable `name`, whose changes cannot be noticed."""
    return UnsupportedError(
        f"{name} is {shown(value)} of type {type(value).__qualname__}, but a compiled function would not notice if it "
        "changed; pass the tensors and numbers that the function needs from it as arguments"
    )


def _is_tensor(value: Any) -> bool:
    """Whether `value` is a tensor or symbol that may be part of a program: not a model, and
    without attributes that the program has set."""
    owned = registry.kind_of(type(value))
    # a NumPy array would be a constant of the program, and writing into it would not be noticed
    if owned is None or owned.kind == "model" or owned.backend.is_host_only:
        return False
    return not getattr(value, "__dict__", None)


def _parts(container: Any) -> list[Any]:
    """Returns the items of a container; the keys and values of a dict."""
    return [*container, *container.values()] if isinstance(container, dict) else [*container]


def _attributes(function: FunctionType | partial[Any]) -> list[Any]:
    """Returns the names and values of a function's attributes, in one list. `__signature__` is
    left out, because it follows from the code."""
    return [
        part for item in vars(function).items() if item[0] != "__signature__" for part in item
    ]


def _parts_of_a_class(cls: type) -> list[Any]:
    """Returns the names and values in a class, in one list. In place of a property, a class
    method, a static method or a cached property, the list has the functions that it wraps."""
    parts: list[Any] = []
    for name, value in vars(cls).items():
        # Python sets these itself, at any time
        if name not in _SET_BY_PYTHON:
            parts += name, *_wrapped_functions(value)
    return parts


def _wrapped_functions(value: Any) -> tuple[Any, ...]:
    """Returns the functions that are wrapped in a property, a class method, a static method or
    a cached property; for any other value, the value itself."""
    if isinstance(value, property | DynamicClassAttribute):
        return tuple(_PARTS_OF_A_PROPERTY(value))
    if isinstance(value, cached_property):
        return (value.func,)
    return (value.__func__,) if isinstance(value, staticmethod | classmethod) else (value,)


def _cell_value(cell: Any) -> Any:
    """Returns the value of a variable of an enclosing function, which is in `cell`, or `_MISSING`
    if it has none yet."""
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not assigned yet
        return _MISSING


def _nested_codes(code: CodeType) -> list[CodeType]:
    """Returns a list of the code object `code` and the code objects of all functions defined in
    it, at any depth."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return [code, *(nested for part in inner for nested in _nested_codes(part))]


def _imports(code: CodeType, names: Iterable[str]) -> set[str]:
    """Returns the names of the modules that the function with this `code` imports, as its
    source shows. Without a source, as after `exec`, returns those of `names`, the names in the
    code, that could be imported. A relative import begins with dots."""
    if code.co_name == "<lambda>":  # which cannot import
        return set()
    try:
        tree = ast.parse(dedent(inspect.getsource(code)))
    except (OSError, SyntaxError):
        return {name for name in names if _is_importable(name.partition(".")[0])}
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # the dots of a relative import
            imported.add("." * node.level + (node.module or ""))
    return imported


def _is_importable(name: str) -> bool:
    """Whether there is a top-level module with this name. The module is not imported."""
    return name in sys.modules or find_spec(name) is not None


def _is_dtype(value: Any) -> bool:
    """Whether a value is a dtype of any framework, such as `torch.float32`."""
    # a tensor has a dtype, but is not one; `dtype_name` would accept it
    if registry.kind_of(type(value)) is not None:
        return False
    try:
        dtype_name(value)
    except DTypeError:
        return False
    return True


def random_states() -> Any:
    """Returns the states of the random generators of Python and NumPy. Two results are equal if
    nothing was drawn in between."""
    # if the program has not imported NumPy, it cannot have drawn from it
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return random.getstate()
    # bytes, because arrays have no comparison that gives one bool
    _, keys, *rest = numpy.random.get_state()
    return random.getstate(), keys.tobytes(), rest
