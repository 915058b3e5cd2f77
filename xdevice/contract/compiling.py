"""The capability of compiling functions of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.base.devices import Device


class Compiling(Primitives):
    """The capability of compiling functions of tensors. Without it `xdevice.compile` calls the function itself, as it
    does where the framework's compiler was measured to gain nothing."""

    needs: ClassVar[tuple[str, ...]] = ("compile",)

    def compile(self, call: Callable[[list[Any]], list[Any]], device: Device) -> Callable[[list[Any]], list[Any]]:
        """Returns a function that gives what `call` gives, faster. Both take a list of dense tensors and give a list of
        tensors, all on `device`. The function is called with tensors of the same number, shapes and dtypes each time.
        It may call `call` with symbols in their places, as often as it likes: `call` raises what the traced function
        raises, and gives the same each time. Gradients flow through the function as they do through `call`."""
        raise self.unsupported("compiled functions", "call the function itself")
