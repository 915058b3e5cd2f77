"""Reports facts about a PyTorch training step: when a gradient is stored, how often a tensor was written, and the
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
"""The attribute that counts how often a tensor was written; None if this version of PyTorch lacks it."""
# this hook runs only after the gradient has been added to `parameter.grad`
_watch: Final = GradientWatch(
    lambda parameter, report: parameter.register_post_accumulate_grad_hook(lambda _: report())
)


class TorchSteps(Steps):
    """Reports gradients and writes during a PyTorch training step."""

    def watch_gradients(
        self, variables: list[torch.Tensor], ready: Callable[[int, Any], None]
    ) -> Callable[[], None]:
        """From now on, in each backward pass, calls `ready(i, gradient)` when the gradient of
        `variables[i]` has been stored. Returns a function that stops these calls."""
        return _watch.watch(variables, ready)

    def times_written(self, x: torch.Tensor) -> int | None:
        """Returns how often a tensor has been written in place since it was created, or None if
        PyTorch does not count writes."""
        # a tensor that was created in inference mode has no counter, and reading the counter
        # raises an error
        count: int | None = (
            _version.__get__(x) if _version is not None and not x.is_inference() else None
        )
        return count

    def hyperparameters(self, optimizer: Any) -> str:
        """Returns one string with the settings of all parameter groups of an optimizer, or ""
        for a model."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            return ""
        # sorted, because the ranks compare this string, and the order of a dict depends on how it
        # was filled
        groups = [sorted(group.items()) for group in optimizer.param_groups]
        return str(
            [
                {name: _number(value) for name, value in group if name != "params"}
                for group in groups
            ]
        )


def _number(value: Any) -> Any:
    """Returns a setting of an optimizer. A tensor is converted to a Python number."""
    # a learning rate may be a tensor, whose string would differ between devices
    return value.tolist() if isinstance(value, torch.Tensor) else value
