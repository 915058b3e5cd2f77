"""The facts about a training step that `World.averaging` and the votes of the ranks need: when
a gradient is ready, whether a tensor was written too early, and which numbers determine an
optimizer's step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable


class Steps(Primitives):
    """The capability of noticing gradients and writes in a training step. Without it, gradients
    are sent after the backward pass, and a step of the optimizer that is taken too early is not
    noticed."""

    needs: ClassVar[tuple[str, ...]] = ("watch_gradients",)

    def watch_gradients(
        self, variables: list[Any], ready: Callable[[int, Any], None]
    ) -> Callable[[], None]:
        """Has `ready(i, gradient)` called in each backward pass when the gradient of `variables[i]` has been stored,
        in the thread that computes it. `variables` are tensors that the adapter's method `gradients` lists. An error
        that `ready` raises ends the pass. Returns a function without arguments that ends the watching. If the
        framework does not report gradients, `ready` is never called."""
        return lambda: None

    def times_written(self, x: Any) -> int | None:
        """Returns how many times a tensor has been written in place since it was created, or None if the framework
        does not count writes."""
        return None

    def hyperparameters(self, optimizer: Any) -> str:
        """Returns a text with the numbers, such as the learning rate, that determine an optimizer's step and are not
        among its variables. Returns "" if there are no such numbers, and for a model."""
        return ""
