"""The capability of compiling functions of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.base.devices import Device

    Traced = Callable[[list[Any]], tuple[Any, list[Any]]]
    Compiled = Callable[[list[Any]], tuple[Any, list[Any]] | None]


class Compiling(Primitives):
    """The capability of compiling functions of tensors. Without it `xdevice.compile` calls the function itself, as it
    does where the framework's compiler was measured to gain nothing."""

    needs: ClassVar[tuple[str, ...]] = ("compile",)

    def compile(self, call: Traced, device: Device) -> Compiled:
        """Returns a function that gives the results of `call` faster, or None if it cannot: then the core calls the
        user's function. Both take a list of dense tensors on `device`, and return a note and a list of tensors. The
        note is a hashable object of any type: `call` makes one for each combination of shapes and dtypes, and the
        function returns it with all results for that combination.

        The function is called with the same number of tensors each time. It may call `call` with symbols in their
        places, as often as it likes: `call` raises what the traced function raises. Gradients flow through the function
        as they do through `call`. It raises `DeviceMismatchError` if the tensors are not all on `device`, unless
        `common_device` notices that."""
        raise self.unsupported("compiled functions", "call the function itself")

    def common_device(self, tensors: list[Any]) -> Device | None:
        """Returns the device that one or more dense tensors are on; None if that takes a closer look. Of tensors that
        a compiled function refuses, it may return the device of the first."""
        kinds = set(map(type, tensors))
        here = self.devices_of(kinds.pop(), tensors) if len(kinds) == 1 else ()
        return next(iter(here)) if len(here) == 1 else None
