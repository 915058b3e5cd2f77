"""Training steps, as `World.averaging` and the votes of the ranks see them: when a gradient is ready, whether a tensor
was written too early, and which numbers determine an optimizer's step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable


class Steps(Primitives):
    """The capability of noticing what happens in a training step. Without it gradients travel after the backward pass,
    and a step that is taken too early is not noticed."""

    needs: ClassVar[tuple[str, ...]] = ("watch_gradients",)

    def watch_gradients(
        self, variables: list[Any], ready: Callable[[int, Any], None]
    ) -> Callable[[], None]:
        """Calls `ready(i, gradient)` in each backward pass when the gradient of `variables[i]`, a tensor of
        `gradients`, has been stored, in the thread that computes it; an error of `ready` ends the pass. Goes on until
        the returned function is called. If the framework does not report gradients, `ready` is never called."""
        return lambda: None

    def times_written(self, x: Any) -> int | None:
        """Returns how often a tensor has been written in place since it was made; None if the framework does not
        count."""
        return None

    def hyperparameters(self, optimizer: Any) -> str:
        """Returns the numbers that determine an optimizer's step and are not among its variables, such as its rate, in
        one text; "" for a model, and if there are none."""
        return ""
