"""Training steps of PyTorch: when a gradient is stored, how often a tensor was written, and the
hyperparameters of an optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from xdevice.distributed.contract.steps import Steps
from xdevice.distributed.contract.stored import GradientWatch
from xdevice_torch.private import private

if TYPE_CHECKING:
    from collections.abc import Callable

_version: Final = private.get("torch.Tensor._version")
"""The counter of writes into a tensor; None if this version of PyTorch lacks it."""
# the hook runs when the gradient has been added to `parameter.grad`, and not before
_watch: Final = GradientWatch(
    lambda parameter, report: parameter.register_post_accumulate_grad_hook(lambda _: report())
)


class TorchSteps(Steps):
    """Notices what happens in a training step of PyTorch."""

    def watch_gradients(
        self, variables: list[torch.Tensor], ready: Callable[[int, Any], None]
    ) -> Callable[[], None]:
        """Calls `ready(i, gradient)` in each backward pass once the gradient of `variables[i]`
        is stored. Returns the function that ends this."""
        return _watch.watch(variables, ready)

    def times_written(self, x: torch.Tensor) -> int | None:
        """Returns how often a tensor has been written in place since it was made; None if
        PyTorch does not count."""
        # a tensor made in inference mode has no counter, and reading it raises
        count: int | None = (
            _version.__get__(x) if _version is not None and not x.is_inference() else None
        )
        return count

    def hyperparameters(self, optimizer: Any) -> str:
        """Returns the settings of each parameter group of an optimizer as one text; "" for a
        model."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            return ""
        return str(
            [
                {
                    name: _number(value)
                    # sorted, because ranks compare this text, and the order of a dict depends
                    # on how it was made
                    for name, value in sorted(group.items())
                    if name != "params"
                }
                for group in optimizer.param_groups
            ]
        )


def _number(value: Any) -> Any:
    """Returns a setting of an optimizer as Python's own number, or as it is."""
    # a learning rate may be a tensor, whose text would differ between devices
    return value.tolist() if isinstance(value, torch.Tensor) else value
