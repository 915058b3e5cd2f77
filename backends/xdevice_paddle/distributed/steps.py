"""Observes training steps of Paddle: reports when a gradient is stored, how many times a tensor was written to, and the
hyperparameters of an optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import paddle

from xdevice.distributed.contract.steps import Steps
from xdevice.distributed.contract.stored import GradientWatch
from xdevice_paddle.private import private

if TYPE_CHECKING:
    from collections.abc import Callable

_register_backward_hook = private.field("paddle.Tensor._register_backward_hook")
# the class and the name of the method in which each optimizer of Paddle updates its parameters
_apply = private.place("paddle.optimizer.Optimizer._apply_optimize")
_watch: Final = GradientWatch(lambda parameter, hook: _register_backward_hook(parameter)(hook))


class PaddleSteps(Steps):
    """Supports training steps over several processes, for Paddle."""

    _steps = 0
    """The number of steps that optimizers have taken in blocks of `averaging`."""

    def watch_gradients(
        self, variables: list[Any], ready: Callable[[int, Any], None]
    ) -> Callable[[], None]:
        """Watches these variables: as soon as a backward pass has stored a gradient, `ready` is called with the index
        of the variable and the gradient. Also counts the steps of optimizers. Returns a function that stops both."""
        # `times_written` needs the number of steps, because Paddle does not count the steps of its
        # optimizers as writes (3.3.1; no upstream issue known)
        stop_watching = _watch.watch(variables, ready)
        original = getattr(*_apply)

        def step(*args: Any, **kwargs: Any) -> Any:
            """Counts the step, and calls Paddle's own method, which makes the step."""
            self._steps += 1
            return original(*args, **kwargs)

        def stop() -> None:
            """Stops counting steps and watching gradients."""
            setattr(*_apply, original)
            stop_watching()

        setattr(*_apply, step)
        return stop

    def times_written(self, x: paddle.Tensor) -> int | None:
        """Returns a number that grows with each write into `x`, and with each step of any
        optimizer."""
        return int(x.inplace_version) + self._steps

    def hyperparameters(self, optimizer: Any) -> str:
        """Returns the learning rate of an optimizer as a string that ranks can compare, or "" for any other object."""
        return (
            f"rate {optimizer.get_lr()}"
            if isinstance(optimizer, paddle.optimizer.Optimizer)
            else ""
        )
