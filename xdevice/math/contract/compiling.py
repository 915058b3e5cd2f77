"""The capability to compile functions of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.base.devices import Device

    # a function from tensors to a note and tensors; `Compiling.compile` explains the note
    Traced = Callable[[list[Any]], tuple[Any, list[Any]]]
    # such a function, which may also return None; the core then calls the user's function
    Compiled = Callable[[list[Any]], tuple[Any, list[Any]] | None]


class Compiling(Primitives):
    """The capability to compile functions of tensors. Without this capability, `xdevice.compile` calls the function
    itself. An adapter also omits the capability if measurements showed that its framework's compiler does not make
    functions faster."""

    needs: ClassVar[tuple[str, ...]] = ("compile",)

    def compile(self, call: Traced, device: Device) -> Compiled:
        """Returns a function that computes the results of `call` faster. `call` and the returned function each accept
        a list of dense tensors on `device`, and return a note and a list of tensors. The note is a hashable object of
        any type. `call` creates a note for each combination of shapes and dtypes; the returned function returns this
        note with every result for the same combination. The returned function may return None for arguments that it
        does not support; the core then calls the user's function.

        The returned function is called with the same number of tensors each time. It may call `call` any number of
        times, also with symbols in place of tensors; `call` raises the errors of the traced function. Gradients flow
        through the returned function as they do through `call`. The returned function raises `DeviceMismatchError` if
        the tensors are not all on `device`, unless `common_device` detects this case."""
        raise self.unsupported("compiled functions", "call the function directly")

    def common_device(self, tensors: list[Any]) -> Device | None:
        """Returns the common device of one or more dense tensors. Returns None if their types or devices differ; the
        core then examines each tensor. If a compiled function refuses tensors on several devices anyway, this method
        may return the device of the first tensor without comparing the devices."""
        # the types of the tensors, such as those of tensors and of variables
        kinds = set(map(type, tensors))
        devices = self.devices_of(kinds.pop(), tensors) if len(kinds) == 1 else ()
        return next(iter(devices)) if len(devices) == 1 else None
