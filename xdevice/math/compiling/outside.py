"""The variables that a compiled function reads in addition to its arguments: global variables, variables of enclosing
functions, and defaults. `OutsideVariables` *watches* these variables: it stores their values, and notices when a
variable has a new value.

A function may read only the kinds of values in this table. For any other value, the error names the variable:

| value | what happens if it changes |
|---|---|
| numbers, strings, tensors, dtypes, devices | noticed, because the variable has a new value |
| dicts, lists, sets and tuples of values in this table | noticed, because the parts are compared at each call |
| plain functions, methods, `partial`s | noticed: code, defaults, attributes, and the values that they read |
| classes of the program, enumerations | noticed: all of their attributes, and all attributes of their bases |
| named objects of a framework, an installed package or a module of `_STATELESS` | ignored |
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

CODE_TYPES: Final = (FunctionType, MethodType, partial, type, Enum)
"""If an argument has one of these types, the variables that the argument reads are also watched."""
_MISSING: Final = object()
"""A marker that replaces the value of a variable that does not exist or has no value yet."""
_OF_NAMESPACES: Final = Namespace.__module__.rpartition(".")[0]
"""The name of the package that defines both the class `Namespace` and the classes of the objects to which the
functions of namespaces are bound."""
# types whose objects never change; the last one, which has no public name, is the type of the
# fields of a named tuple
_CONSTANT_TYPES: Final = frozenset((
    NoneType, NotImplementedType, bool, str, bytes, range, slice, EllipsisType, Device, CodeType, GetSetDescriptorType,
    MemberDescriptorType, WrapperDescriptorType, type(vars(namedtuple("_Pair", "x"))["x"]),
))  # fmt: skip
_CONTAINER_TYPES: Final = frozenset((dict, list, set, tuple, frozenset))
# the parts of functions, methods, `partial`s and properties that can be replaced, which changes
# what these objects do
_PARTS_OF_A_FUNCTION: Final = attrgetter("__code__", "__defaults__", "__kwdefaults__")
_PARTS_OF_A_METHOD: Final = attrgetter("__func__", "__self__")
_PARTS_OF_A_PARTIAL: Final = attrgetter("func", "args", "keywords")
_PARTS_OF_A_PROPERTY: Final = attrgetter("fget", "fset", "fdel")
_LOOKUPS_BY_NAME: Final = (globals, eval, exec, __import__, open, input, builtins)
"""Python functions, and a module, that look up variables by names in strings, or read files or input. A function that
uses one of these is rejected, because the values that it reads cannot be watched."""
_PATHS_TO_OTHER_CODE: Final = frozenset(
    ("__globals__", "__builtins__", "__closure__", "__subclasses__", "f_globals", "f_locals")
)
"""Attributes through which a function can reach variables of other code, which cannot be watched."""
_SET_BY_PYTHON: Final = frozenset((
    "__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__",
    "__dataclass_fields__", "__dataclass_params__", "__orig_bases__", "__parameters__", "__slotnames__", "_abc_impl",
))  # fmt: skip
"""Attributes of classes that Python itself sets, some of them only when they are first read."""
_STATELESS: Final = frozenset((
    "abc", "builtins", "cmath", "collections", "contextlib", "copy", "dataclasses", "decimal", "enum", "fractions",
    "functools", "itertools", "math", "numbers", "operator", "random", "re", "reprlib", "statistics", "string", "types",
    "typing", "warnings",
))  # fmt: skip
"""Python modules whose functions always return the same result for the same arguments. `random` is included, because
`random_states` shows whether numbers were drawn."""


class OutsideVariables:
    """The variables that `functions` read, and the values that these variables had when this object was created.
    `functions` may also contain classes. Raises `UnsupportedError` for a variable whose changes could not be
    noticed."""

    def __init__(self, functions: Iterable[Any]) -> None:
        # the visited values by `id`. The values are stored, so that no other object gets the
        # same `id`
        self._visited: dict[int, Any] = {}
        self._watched: list[tuple[Callable[[], Iterable[Any]], list[Any], Sequence[str]]] = []
        """Tuples of three items: a function that reads the values of some variables, the values that it returned
        first, and the names of the variables."""
        functions = list(functions)
        # the packages of these functions, which are treated as parts of the program even if
        # they are installed
        self._program_packages = {
            str(getattr(function, "__module__", "")).partition(".")[0] for function in functions
        }
        for function in functions:
            self._visit(function, getattr(function, "__qualname__", "the function"))

    def changed_variable(self) -> str:
        """Returns the name of the first variable that has changed: its value is a different object than before, or has
        different parts. Returns "" if no variable has changed."""
        for read, before, names in self._watched:
            now = [*read()]
            if len(now) != len(before) or not all(map(is_, now, before)):
                # if no pair differs, the number of values has changed; in that case all values,
                # such as the items of a list, have the same name, `names[0]`
                changed = (
                    name for name, x, y in zip(names, now, before, strict=False) if x is not y
                )
                return next(changed, names[0])
        return ""

    def _visit(self, value: Any, name: str) -> None:
        """Watches the parts of `value`, and the parts of all values that can be reached from `value`. Raises
        `UnsupportedError`, with the variable's `name`, for a value that is not in the table above."""
        # objects may refer to each other in circles, so each object is visited only once
        if value is _MISSING or id(value) in self._visited:
            return
        self._visited[id(value)] = value
        if any(value is refused for refused in _LOOKUPS_BY_NAME):
            raise _unnoticed(name, value)
        cls = type(value)
        # nothing in the value can change
        if is_constant(value, self._program_packages):
            return
        if cls in _CONTAINER_TYPES:
            self._watch(partial(_parts, value), name)
        elif cls is FunctionType:
            self._visit_function(value, name)
        elif cls is MethodType:
            self._watch(lambda: _PARTS_OF_A_METHOD(value), name)
        elif cls is partial:
            self._watch(lambda: (*_PARTS_OF_A_PARTIAL(value), *_attributes(value)), name)
        # a class whose metaclass is not part of the program: the metaclass is `type`, or
        # belongs to a library
        elif isinstance(value, type) and is_of_library(cls.__module__):
            self._watch(lambda: value.__mro__, name)
            self._watch(partial(_parts_of_a_class, value), name)
        # a member of an enumeration may have attributes
        elif isinstance(value, Enum):
            self._watch(lambda: (cls, *vars(value).values()), name)
        elif not _is_tensor(value):
            raise _unnoticed(name, value)

    def _visit_function(self, function: FunctionType, name: str) -> None:
        """Watches the values that `function` reads: its defaults, its attributes, its cells (the variables of
        enclosing functions), and the global variables whose names occur in its code. Raises `UnsupportedError` if the
        function may also read values that cannot be found in this way."""
        variables = function.__globals__
        module = variables.get("__name__", "")
        if module.partition(".")[0] == "xdevice":
            # the variables of xdevice are ignored, but this function may wrap a function of the
            # program, which may change
            self._visit(vars(function).get("__wrapped__", _MISSING), name)
            return
        self._watch(partial(_PARTS_OF_A_FUNCTION, function), f"a default of {name}")
        self._watch(partial(_attributes, function), f"an attribute of {name}")
        # variables of enclosing functions
        if cells := function.__closure__:
            self._watch(lambda: map(_cell_value, cells), *function.__code__.co_freevars)
        # global variables of a library are ignored. If a library's function wraps functions of
        # the program, they are in its cells, which are watched above
        if is_of_library(module, self._program_packages):
            return
        codes = _nested_codes(function.__code__)
        # sorted, because the order of a set differs between processes
        names = sorted({used for code in codes for used in code.co_names})
        # these attributes lead to variables that cannot be watched, so a function that uses one
        # of them is refused
        for attribute in _PATHS_TO_OTHER_CODE.intersection(names):
            raise UnsupportedError(
                f"{name} uses {attribute}, which may lead to variables that a compiled function cannot check for "
                "changes; pass the tensors and numbers that it needs as arguments"
            )
        # an import inside the function reads a module, which must be a library
        for imported in _imports(function.__code__, names):
            if not is_of_library(imported, self._program_packages):
                raise _unnoticed(imported, sys.modules.get(imported))
        # without the names of attributes, which `co_names` also contains: a global of the same name is not read
        names = sorted({used for code in codes for used in _variables_in(code)})
        # the names are looked up as Python does: first in the globals, then in the builtins
        builtin_variables = vars(builtins)
        self._watch(
            lambda: [
                variables[x] if x in variables else builtin_variables.get(x, _MISSING)
                for x in names
            ],
            *names,
        )

    def _watch(self, read: Callable[[], Iterable[Any]], *names: str) -> None:
        """Stores the values that `read` returns now, and visits these values. `names` contains a name for each value,
        or a single name for all values."""
        values = [*read()]
        # a single name for all values is repeated. It is stored even if there is no value,
        # because `changed_variable` returns it
        if len(names) != len(values):
            names *= max(len(values), 1)
        self._watched.append((read, values, names))
        for value, name in zip(values, names, strict=False):
            self._visit(value, name)


def is_constant(value: Any, program_packages: Container[str] = ()) -> bool:
    """Whether `value` and all its parts are constant. This is the case for a number, a string, a dtype, a library's
    module and a C function. It is also the case for a class or function that a library defines, if the library's module
    contains it under its own name. Packages in `program_packages` are not treated as libraries."""
    cls = type(value)
    # objects of the types in `_CONSTANT_TYPES`, fields of dataclasses, namespaces of xdevice, and the
    # objects to which the functions of namespaces are bound
    if (
        cls in _CONSTANT_TYPES
        or cls.__module__ == "dataclasses"
        or cls.__module__.startswith(_OF_NAMESPACES)
    ):
        return True
    if isinstance(value, ModuleType):
        return is_of_library(value.__name__, program_packages)
    # functions that are written in C do not read variables, but a function that is bound to an
    # object may change that object
    if isinstance(value, BuiltinFunctionType):
        owner = value.__self__
        return (
            owner is None
            or isinstance(owner, type)
            or (isinstance(owner, ModuleType) and is_constant(owner, program_packages))
        )
    module = getattr(value, "__module__", None) or cls.__module__
    name = getattr(value, "__name__", "")
    # a class or function that its module contains under the object's own name
    if (
        is_of_library(module, program_packages)
        and getattr(sys.modules.get(module), name, _MISSING) is value
    ):
        return True
    # `program_packages` is not passed here, because these objects do not change even if the
    # program's own package defines their class
    return is_of_library(cls.__module__) and (
        isinstance(value, Number | Enum) or _is_dtype(value)
    )


def is_of_library(module: Any, program_packages: Container[str] = ()) -> bool:
    """Whether the module with the name `module` is part of xdevice, of a framework or of an installed package, or is
    in `_STATELESS`. Installed packages in `program_packages` are not treated as libraries."""
    root = str(module).partition(".")[0]
    if root in sys.stdlib_module_names:
        # `_collections` belongs to `collections`
        return root.lstrip("_") in _STATELESS
    # a framework may be installed anywhere, and may have several top-level modules
    if root.startswith("xdevice") or any(
        root in backend.modules for backend in registry.list_loaded()
    ):
        return True
    # the package of the compiled function itself is treated as the program, even if it is
    # installed
    return root not in program_packages and _is_installed(
        getattr(sys.modules.get(root), "__file__", None) or ""
    )


@cache
def _is_installed(file: str) -> bool:
    """Whether `file` belongs to an installed package. `file` is the `__init__` file of a package, or a module that
    consists of a single file. A folder in which pip installs packages contains `*.dist-info` folders; Debian's folder
    is called "dist-packages"."""
    path = Path(file)
    folder = path.parent.parent if path.stem == "__init__" else path.parent
    return "dist-packages" in file or any(folder.glob("*.dist-info"))


def _unnoticed(name: str, value: Any) -> UnsupportedError:
    """Returns the error for the variable `name`, whose changes cannot be noticed."""
    return UnsupportedError(
        f"{name} is {shown(value)} of type {type(value).__qualname__}, but a compiled function would not notice if "
        "this value changed; pass the tensors and numbers that the function needs from this value as arguments"
    )


def _is_tensor(value: Any) -> bool:
    """Whether `value` is a tensor or symbol that may be part of a compiled program. This is not the case for a model,
    or for a tensor on which the user's program has set attributes."""
    owned = registry.owner_and_kind(type(value))
    # a NumPy array would be a constant of the program, and writing into it would not be noticed
    if owned is None or owned.kind == "model" or owned.backend.is_host_only:
        return False
    return not getattr(value, "__dict__", None)


def _parts(container: Any) -> list[Any]:
    """Returns a list of the items of a container, or of the keys and values of a dict."""
    return [*container, *container.values()] if isinstance(container, dict) else [*container]


def _attributes(function: FunctionType | partial[Any]) -> list[Any]:
    """Returns a list of the names and values of a function's attributes. `__signature__` is omitted, because it
    follows from the code."""
    return [
        name_or_value
        for item in vars(function).items()
        if item[0] != "__signature__"
        for name_or_value in item
    ]


def _parts_of_a_class(cls: type) -> list[Any]:
    """Returns a list of the names and values in a class. A property, a class method, a static method or a cached
    property is replaced by the functions that it wraps."""
    parts: list[Any] = []
    for name, value in vars(cls).items():
        # Python itself may set these attributes at any time
        if name not in _SET_BY_PYTHON:
            parts += name, *_wrapped_functions(value)
    return parts


def _wrapped_functions(value: Any) -> tuple[Any, ...]:
    """Returns a tuple of the functions that are wrapped in a property, a class method, a static method or a cached
    property. For any other value, the tuple contains the value itself."""
    if isinstance(value, property | DynamicClassAttribute):
        return tuple(_PARTS_OF_A_PROPERTY(value))
    if isinstance(value, cached_property):
        return (value.func,)
    return (value.__func__,) if isinstance(value, staticmethod | classmethod) else (value,)


def _cell_value(cell: Any) -> Any:
    """Returns the value in `cell`, which contains a variable of an enclosing function. Returns `_MISSING` if the
    variable has no value yet."""
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not assigned yet
        return _MISSING


def _nested_codes(code: CodeType) -> list[CodeType]:
    """Returns a list of the code object `code`, and the code objects of all functions that are defined in it, at any
    depth."""
    codes = [code]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            codes += _nested_codes(constant)
    return codes


def _variables_in(code: CodeType) -> set[str]:
    """Returns the names in a code object, except names that its source uses only for attributes. If there is no source,
    as after `exec`, returns all names."""
    try:
        tree = ast.parse(dedent(inspect.getsource(code)))
    except (OSError, SyntaxError):
        return set(code.co_names)
    nodes = [*ast.walk(tree)]
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    variables = {node.id for node in nodes if isinstance(node, ast.Name)}
    return set(code.co_names) - (attributes - variables)


def _imports(code: CodeType, names: Iterable[str]) -> set[str]:
    """Returns the names of the modules that the function with this `code` imports, according to its source. `names`
    contains the names in the code. If there is no source, as after `exec`, returns all names in `names` that could be
    imported. The name of a relative import begins with dots."""
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
            # the name of a relative import begins with its dots
            imported.add("." * node.level + (node.module or ""))
    return imported


def _is_importable(name: str) -> bool:
    """Whether there is a top-level module with this name. This function does not import the module."""
    return name in sys.modules or find_spec(name) is not None


def _is_dtype(value: Any) -> bool:
    """Whether a value is a dtype of any framework, such as `torch.float32`."""
    # a tensor has a dtype but is not a dtype, although `dtype_name` would accept it
    if registry.owner_and_kind(type(value)) is not None:
        return False
    try:
        dtype_name(value)
    except DTypeError:
        return False
    return True


def random_states() -> Any:
    """Returns the states of the random generators of Python and NumPy. Two results are equal if no numbers were drawn
    between the two calls."""
    # if the program has not imported NumPy, it cannot have drawn numbers with NumPy
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return random.getstate()
    # converted to bytes, because comparing arrays does not return a single bool
    _, keys, *position = numpy.random.get_state()
    return random.getstate(), keys.tobytes(), position
