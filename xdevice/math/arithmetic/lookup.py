"""`Lookup`: finds a backend's functions by the type of a tensor, for `array_namespace` and
`xdevice.nn`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from xdevice.core import registry
from xdevice.errors import NotATensorError, shown
from xdevice.math.contract.arithmetic import COMPOSED

from . import composed
from .checks import Checks

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.contract import Backend


class Functions:
    """The functions of one backend. This class has two subclasses: one for the functions of an array namespace, and one
    for the functions of `xdevice.nn`."""

    def __init__(self, checks: Checks) -> None:
        self.checks = checks
        self.backend = checks.backend
        self.prepare_thread: Callable[[], None] | None = checks.kernels.enter
        """A function that every thread must call before it computes, because the framework has a separate setting for
        each thread; None if there is no such function."""
        self.scopes = checks.backend.scopes
        """The functions that remove this thread's open `with device:` scopes while xdevice computes, and restore them
        afterwards. They are needed if the framework runs code of each scope at every operation; None if it does
        not."""


F = TypeVar("F", bound=Functions)

_all_checks: dict[str, Checks] = {}
"""The `Checks` of each backend, by its name."""


class Lookup(Generic[F]):
    """A table with one `Functions` object for each backend. The function `make` creates these objects. There are two
    such tables: one for `array_namespace`, and one for `xdevice.nn`."""

    def __init__(self, make: Callable[[Checks], F]) -> None:
        self._make = make
        self._made: dict[str, F] = {}
        self.by_type: dict[type, F] = {}
        """The `Functions` for each type of tensor that has been looked up so far. An entry is valid only while the
        `refusal` of its backend is None."""

    def of(self, backend: Backend) -> F:
        """Returns the `Functions` of a backend, which are created at the first call."""
        functions = self._made.get(backend.name)
        # another backend may have been registered under this name
        if functions is None or functions.backend is not backend:
            # `eagerly`, because a compiler would trace this set-up
            functions = self._made[backend.name] = backend.eagerly(
                lambda: self._make(_checks(backend))
            )
        return functions

    def find(self, x: Any, function: str) -> F:
        """Returns the `Functions` of the backend of `x`. Raises `NotATensorError` if `x` is neither a tensor nor a
        variable. `function` is the function name to show in the error message."""
        owned = registry.owner_and_kind(type(registry.as_array(x)))
        if owned is None or (owned.kind == "model" and owned.backend.tensor_of(x) is None):
            raise NotATensorError(
                f"{function} expects tensors, not {shown(x)} of type {type(x).__qualname__}; for numbers and "
                "lists, call xdevice.tensor first"
            )
        functions = self.of(owned.backend)
        # a type of kind "model" is not stored, because only some of its objects are variables,
        # so each object must be examined
        if owned.kind != "model":
            self.by_type[type(x)] = functions
        return functions


def _checks(backend: Backend) -> Checks:
    """Returns the `Checks` of a backend, which its array namespace and its functions of `xdevice.nn` share. If the
    adapter lacks a kernel of `COMPOSED`, that kernel is built from the adapter's other kernels."""
    checks = _all_checks.get(backend.name)
    if checks is None or checks.backend is not backend:
        checks = _all_checks[backend.name] = Checks(backend)
        for name in COMPOSED:
            if not hasattr(checks.kernels, name):
                setattr(checks.kernels, name, partial(getattr(composed, name), checks))
    return checks
