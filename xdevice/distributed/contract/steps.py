"""Facts about a training step: when a gradient is ready, whether a tensor was written too early, and which
hyperparameters an optimizer has. `World.averaging` and the votes of the ranks need these facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable


class Steps(Primitives):
    """The capability to report gradients and writes during a training step. Without it, gradients are sent after the
    backward pass, and an optimizer step that runs before the gradients are averaged is not detected."""

    needs: ClassVar[tuple[str, ...]] = ("watch_gradients",)

    def watch_gradients(
        self, variables: list[Any], ready: Callable[[int, Any], None]
    ) -> Callable[[], None]:
        """Makes each later backward pass call `ready(i, gradient)` when the gradient of `variables[i]` has been stored.
        The call runs in the thread that computes the gradient. `variables` are tensors that the adapter's method
        `gradients` lists. An error that `ready` raises ends the pass. Returns a function without arguments, which stops
        these calls. If the framework does not report gradients, `ready` is never called."""
        return lambda: None

    def times_written(self, x: Any) -> int | None:
        """Returns how many times the tensor `x` has been written in place since it was created, or None if the
        framework does not count writes."""
        return None

    def hyperparameters(self, optimizer: Any) -> str:
        """Returns a string that lists the numbers, such as the learning rate, that determine an optimizer's step but
        are not among its variables. Returns "" if there are no such numbers, or if the argument is a model."""
        return ""
