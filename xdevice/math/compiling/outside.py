"""What a function reads beside its arguments: global variables, those of functions around it, defaults, attributes."""

from __future__ import annotations

import dis
import random
import sys
import sysconfig
from collections import deque, namedtuple
from enum import Enum
from functools import partial
from operator import is_
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
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
    from collections.abc import Callable, Iterable, Mapping

_GONE: Final = object()
_CONSTANT: Final = (
    NoneType, bool, int, float, complex, str, bytes, Enum, Device, BuiltinFunctionType, range, slice, type(...),
    Namespace, frozenset, MemberDescriptorType, GetSetDescriptorType, type(vars(namedtuple("_", "x"))["x"]),
)  # fmt: skip
_OF_NAMESPACES: Final = Namespace.__module__.rpartition(".")[0]
"""The package of the methods that are functions of a namespace, such as `xp.reshape`. They keep nothing that counts."""
_INSTALLED: Final = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


class Outside:
    """The variables that functions read, and their values when this object was made."""

    def __init__(self, functions: Iterable[Any]) -> None:
        self._seen: dict[int, Any] = {}  # the values themselves, so that no `id` is used again
        self._variables: list[tuple[Callable[[], Any], Any, str]] = []
        self._contents: list[tuple[Any, list[Any], str]] = []
        self._modules: dict[int, ModuleType] = {}
        self._attributes: set[str] = set()
        functions = list(functions)
        self._own = {getattr(function, "__module__", "") for function in functions}
        for function in functions:
            self._visit(function, getattr(function, "__qualname__", "the function"))
        self._watch_modules()

    def has_changed(self) -> str:
        """Returns the name of a variable that is another object than before, or has other contents; "" if none is."""
        for read, value, name in self._variables:
            if read() is not value:
                return name
        for container, before, name in self._contents:
            now = list(_parts(container))
            if len(now) != len(before) or not all(map(is_, now, before)):
                return name
        return ""

    def _is_installed(self, module: str) -> bool:
        root = module.partition(".")[0]
        if root == "xdevice" or root.startswith("xdevice_"):
            return True
        if module in self._own or root == "__main__":
            return False
        if root in sys.stdlib_module_names:
            return True
        file = getattr(sys.modules.get(module), "__file__", None) or ""
        return file.startswith(_INSTALLED)

    def _visit(self, value: Any, name: str) -> None:
        if id(value) in self._seen or isinstance(value, _CONSTANT):
            return
        self._seen[id(value)] = value
        if hasattr(type(value), "__wrapped__") or "__wrapped__" in getattr(value, "__dict__", ()):
            self._visit(value.__wrapped__, name)
        elif isinstance(value, FunctionType):
            self._visit_function(value, name)
        elif isinstance(value, MethodType):
            if value.__func__.__module__.startswith(_OF_NAMESPACES):
                return
            self._visit(value.__func__, name)
            self._visit(value.__self__, f"{name}.__self__")
        elif isinstance(value, partial | property):
            for part in _pieces(value):
                self._visit(part, name)
        elif isinstance(value, dict | list | tuple | set | deque):
            self._visit_parts(value, name)
        elif isinstance(value, type):
            if not self._is_installed(value.__module__):
                self._visit_parts(value, name)
        elif isinstance(value, ModuleType):
            if not self._is_installed(value.__name__):
                self._modules[id(value)] = value
        elif not self._is_tensor(value, name) and not _is_dtype(value):
            self._visit_object(value, name)

    def _visit_function(self, function: FunctionType, name: str) -> None:
        if self._is_installed(function.__globals__.get("__name__", "")):
            return  # programs that are installed do not change their variables while they run
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._watch(partial(_read, cell), variable)
        variables, imported = _names(function.__code__, self._attributes)
        for variable in variables & function.__globals__.keys():
            self._watch(partial(function.__globals__.get, variable, _GONE), variable)
        for module in imported & sys.modules.keys():
            self._visit(sys.modules[module], module)
        for part in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._visit(part, f"a default of {name}")

    def _watch_modules(self) -> None:
        """Watches what has, in a module that was met, the name of an attribute that a function reads, of whatever."""
        watched: set[tuple[int, str]] = set()
        before = -1
        while (
            len(watched) > before
        ):  # what is met here may be another module, or a function that reads other attributes
            before = len(watched)
            for module in list(self._modules.values()):
                for name in [x for x in self._attributes & vars(module).keys() if (id(module), x) not in watched]:
                    watched.add((id(module), name))
                    self._watch(partial(vars(module).get, name, _GONE), f"{module.__name__}.{name}")

    def _watch(self, read: Callable[[], Any], name: str) -> None:
        value = read()
        self._variables.append((read, value, name))
        self._visit(value, name)

    def _visit_parts(self, container: Any, name: str) -> None:
        parts = list(_parts(container))
        self._contents.append((container, parts, name))
        for part in parts:
            self._visit(part, name)

    def _is_tensor(self, value: Any, name: str) -> bool:
        found = registry.kind_of(type(value))
        if found is None:
            return False
        if found.kind == "model" or found.backend.is_host_only:
            raise UnsupportedError(
                f"{name} is a {type(value).__qualname__}, and a compiled function would not see that it changes; pass "
                f"its values as an argument, as tensors"
            )
        return True

    def _visit_object(self, value: Any, name: str) -> None:
        if self._is_installed(type(value).__module__) or not hasattr(value, "__dict__"):
            raise UnsupportedError(
                f"{name} is {shown(value)} of type {type(value).__qualname__}, and a compiled function would not see "
                f"that it changes; pass what is needed of it as an argument"
            )
        self._visit_parts(value, name)
        self._visit(type(value), type(value).__qualname__)


def _parts(container: Any) -> Iterable[Any]:
    if isinstance(container, dict):
        return (*container, *container.values())
    if isinstance(container, list | tuple | set | deque):
        return container
    kept: Mapping[str, Any] = vars(container)
    if not isinstance(container, type):
        return kept.values()
    # beside functions, what has such a name is Python's, or a note of a decorator's
    return [x for key, x in kept.items() if isinstance(x, FunctionType) or not key.startswith("__")]


def _pieces(value: Any) -> Iterable[Any]:
    if isinstance(value, property):
        return value.fget, value.fset, value.fdel
    return value.func, *value.args, *value.keywords.values()


def _read(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not assigned yet
        return _GONE


def _names(code: CodeType, attributes: set[str]) -> tuple[set[str], set[str]]:
    """Returns the names of the global variables that code reads and of the modules that it imports, and adds those of
    the attributes, all with those of functions in it."""
    attributes.update(code.co_names)
    variables, imported = set(), set()
    for one in dis.get_instructions(code):
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            variables.add(one.argval)
        elif one.opname == "IMPORT_NAME":
            imported.add(one.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            more, others = _names(constant, attributes)
            variables |= more
            imported |= others
    return variables, imported


def _is_dtype(value: Any) -> bool:
    try:
        dtype_name(value)
    except DTypeError:
        return False
    return True


def random_states() -> Any:
    """Returns what Python's and NumPy's own generators draw next."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return random.getstate()
    _, keys, *rest = numpy.random.get_state()
    return random.getstate(), keys.tobytes(), rest
