"""`array_namespace`: the functions of the Python Array API standard for a backend. The functions are built once, from
the kernels of the backend's adapter."""

from __future__ import annotations

import inspect
import math
from functools import partial, update_wrapper
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from xdevice.core import selection
from xdevice.errors import ArgumentError, UnsupportedError
from xdevice.math.contract.arithmetic import HOST

from . import (
    casting,
    creation,
    elementwise,
    fast,
    fft,
    linalg,
    manipulation,
    places,
    reducing,
    sets,
)
from .checks import NUMBERS, Checks
from .info import STANDARD, Info
from .lookup import Functions, Lookup
from .scopes import without_scopes

VERSION: Final = "2025.12"
"""The version of the standard that the functions implement."""

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

# the constants of the standard
CONSTANTS: Final = {
    "e": math.e,
    "inf": math.inf,
    "nan": math.nan,
    "newaxis": None,
    "pi": math.pi,
}


class NotOfferedError(UnsupportedError, AttributeError):
    """Raised for a name of the standard that the backend does not offer. It is also an `AttributeError`, so that
    `hasattr` returns False."""


class Namespace:
    """The functions, dtypes and constants of the Python Array API standard on one backend."""

    __array_api_version__ = VERSION

    def __init__(self, checks: Checks) -> None:
        functions: dict[str, Callable[..., Any]] = {}
        for module in (casting, creation, manipulation, places, reducing, sets):
            functions |= _functions(module, checks)
        # the functions of these two modules are created for `checks`, so they need not be bound to it
        closures = elementwise.functions(checks) | fast.functions(checks)
        for name, function in closures.items():
            # Python's error for a wrong keyword contains this name
            function.__name__ = function.__qualname__ = name
        # `sum` is a closure that replaces the function in `reducing`, but tools that inspect it
        # find the signature of the function in `reducing`
        signature = inspect.signature(functions["sum"])
        closures["sum"].__signature__ = signature  # type: ignore[attr-defined]
        functions |= closures
        # open scopes of devices are removed during each call
        functions = {
            name: without_scopes(checks.backend.scopes, function)
            for name, function in functions.items()
        }
        self.__name__ = f"array_namespace of {checks.backend.name}"
        self._backend = checks.backend
        vars(self).update(functions)
        vars(self).update(CONSTANTS)
        # the dtypes, as the framework's own objects
        vars(self).update(
            {
                name: checks.kernels.dtype(name)
                for name in STANDARD
                if name in checks.backend.dtypes
            }
        )
        self.__array_namespace_info__ = partial(Info, checks)
        # for functions that call other functions of the namespace, such as those of `linalg`
        checks.xp = self
        if checks.kernels.linalg is not None:
            # the standard defines these functions both in the namespace and in `linalg`
            shared = {
                name: functions[name]
                for name in ("matmul", "matrix_transpose", "tensordot", "vecdot")
            }
            self.linalg = SimpleNamespace(**_functions(linalg, checks), **shared)
        if checks.kernels.fft is not None:
            self.fft = SimpleNamespace(**_functions(fft, checks))

    def __getattr__(self, name: str) -> Any:
        """Raises `NotOfferedError` for a dtype or an extension that the backend lacks, and `AttributeError` for a
        name that the standard does not define. Python calls this method only for names that are not attributes of the
        namespace."""
        if name in (*STANDARD, "fft", "linalg"):
            backend = self._backend.name
            raise NotOfferedError(
                f"{backend} does not support {name}; convert the tensors to another backend with xdevice.convert(x, "
                f"{HOST!r})"
            )
        raise AttributeError(
            f"{self.__name__} has no attribute {name!r}: version {VERSION} of the array API standard does not define it"
        )

    def __dir__(self) -> list[str]:
        return sorted(name for name in vars(self) if not name.startswith("_"))

    def __repr__(self) -> str:
        return f"<{self.__name__}>"


def _functions(module: ModuleType, checks: Checks) -> dict[str, Callable[..., Any]]:
    """Returns, by name, those public functions of a module that have `checks` as their first argument. In the result,
    this argument is bound to the given `checks`. The functions are `partial`s and not bound methods, because Paddle's
    to_static would treat a bound method as a method of the object that has it as an attribute."""
    return {
        name: _bound(name, function, checks)
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__code__.co_varnames[:1] == ("checks",)
        and not name.startswith("_")
    }


def _bound(name: str, function: Callable[..., Any], checks: Checks) -> Callable[..., Any]:
    """Returns `function` with its first argument bound to `checks`, and with the signature that the standard
    defines."""
    # Python's error for a wrong keyword contains this name
    function.__name__ = function.__qualname__ = name
    bound = update_wrapper(partial(function, checks), function)
    # the signature omits `checks`, and also `**misspelled`, whose only purpose is an error for
    # a wrong keyword
    signature = inspect.signature(function)
    _, *others = signature.parameters.values()
    visible = [parameter for parameter in others if parameter.kind is not parameter.VAR_KEYWORD]
    bound.__signature__ = signature.replace(parameters=visible)  # type: ignore[attr-defined]
    return bound


def array_namespace(*xs: Any) -> Any:
    """Returns the functions of the Python Array API standard (2025.12) for the backend of the given tensors, or for the
    selected backend.

    Names, dtypes and shapes are the same on every backend. `docs/reference/arithmetic.md` lists the functions and their
    rules. Experimental: it may change in a minor version.

    Args:
        xs: tensors of the same backend; Python numbers and None are ignored. If there is no tensor, the result is the
            namespace of the selected backend.

    Raises:
        ArgumentError: the tensors belong to several backends. NotATensorError: `xs` contains any other object.
        UnsupportedError: a third-party adapter has no kernels.

    Costs 0.3 us, and more for the first tensor of each type.

    Example:
        >>> xp = xdevice.array_namespace()
        >>> xdevice.item(xp.sum(xp.asarray([1.0, 2.0]) * 2))
        6.0
    """
    # the usual call: one tensor of a known type, whose backend may be used in this process
    # (`refusal` is None)
    if len(xs) == 1:
        cached = _by_type.get(type(xs[0]))
        if cached is not None and cached.backend.refusal is None:
            if cached.prepare_thread is not None:
                cached.prepare_thread()
            return cached.namespace
    functions: _ArrayFunctions | None = None
    for x in xs:
        if x is None or type(x) in NUMBERS:
            continue
        functions_of_x = _lookup.find(x, "array_namespace")
        if functions is not None and functions_of_x is not functions:
            name = functions.backend.name
            raise ArgumentError(
                f"some tensors belong to {name}, others to {functions_of_x.backend.name}; convert all tensors to one "
                f"backend with xdevice.convert(x, {name!r})"
            )
        functions = functions_of_x
    if functions is None:
        # no tensor among the arguments
        functions = _lookup.of(selection.current())
    if functions.prepare_thread is not None:
        functions.prepare_thread()
    return functions.namespace


def checks_of(x: Any, function: str) -> Checks:
    """Returns the `Checks` of the backend of the tensor `x`. Also prepares this thread to run the backend's kernels.
    Raises `NotATensorError` if `x` is not a tensor. `function` is the function name to show in the error message."""
    functions = _by_type.get(type(x))
    if functions is None or functions.backend.refusal is not None:
        functions = _lookup.find(x, function)
    if functions.prepare_thread is not None:
        functions.prepare_thread()
    return functions.checks


class _ArrayFunctions(Functions):
    """The namespace of a backend, and the backend's `Checks`."""

    def __init__(self, checks: Checks) -> None:
        super().__init__(checks)
        self.namespace = Namespace(checks)


_lookup: Final = Lookup(_ArrayFunctions)
_by_type: Final = _lookup.by_type
"""The `_ArrayFunctions` for each type of tensor with which a function of this module has been called."""
