"""Computes gradients with PyTorch's autograd.

Rules for this module:
- It calls `autograd.grad`, because `backward()` would write into the `.grad` of every tensor that the loss depends on.
- The function to be differentiated is called on detached aliases of its inputs. If an input is itself a result of
  recorded operations, or if gradients are nested, it is called on views instead, through which gradients flow on.
- Autograd cannot record tensors that were made in inference mode, so copies of them are used.
- Inside a transformation of `torch.func`, `requires_grad_()` does not work, so gradients are refused there.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from xdevice.contract.gradients import Gradients

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


@contextmanager
def _recording() -> Iterator[None]:
    with torch.inference_mode(False), torch.enable_grad():
        yield


def _input(x: torch.Tensor, goes_on: bool) -> torch.Tensor:
    if goes_on and x.requires_grad:
        return x.view_as(x)
    return (x.clone() if x.is_inference() else x).detach().requires_grad_()


class TorchGradients(Gradients):
    def value_and_grad(
        self, leaves: list[Any], call: Callable[[list[Any]], tuple[Any, list[Any]]], nested: bool
    ) -> tuple[Any, list[Any], list[Any]]:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise self.unsupported(
                "gradients by autograd inside of torch.func's transformations",
                "take all of them by torch.func, or nest xdevice.grad",
            )
        was_on = torch.is_grad_enabled()
        goes_on = was_on and (nested or any(x.grad_fn is not None for x in leaves))
        with nullcontext() if was_on else _recording():
            inputs = [_input(x, goes_on) for x in leaves]
            loss, rest = call(inputs)
            gradients: list[Any] = [None] * len(inputs)
            if loss.requires_grad:
                found = self._gradients(loss, inputs, goes_on)
                gradients = [g if g is None or g.layout is torch.strided else g.to_dense() for g in found]
        if goes_on:
            return loss, gradients, rest
        return loss.detach(), gradients, [x.detach() if isinstance(x, torch.Tensor) else x for x in rest]

    def stop_gradient(self, x: Any) -> Any:
        return x.detach()

    def _gradients(self, loss: torch.Tensor, inputs: list[torch.Tensor], goes_on: bool) -> Sequence[Any]:
        try:
            return torch.autograd.grad(loss, inputs, create_graph=goes_on, allow_unused=True)
        except RuntimeError as error:
            if not str(error).startswith("derivative for "):
                raise
            raise self.unsupported(
                f"the gradient of this gradient: {error}", "write the function in operations that have one"
            ) from error

    def update(self, rows: list[tuple[Any, ...]], rule: Callable[..., Any], nested: bool, writes: bool) -> list[Any]:
        with torch.set_grad_enabled(nested and torch.is_grad_enabled()):
            return [rule(*map(torch.clone, row)) if writes else rule(*row) for row in rows]
