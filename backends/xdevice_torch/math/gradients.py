"""Computes gradients with PyTorch's autograd.

Rules for this module:
- It calls `autograd.grad`, because `backward()` would write to the `.grad` of every tensor on
  which the loss depends.
- The function that is differentiated is called with detached aliases of its inputs. If an input is the result of
  recorded operations, or if gradients are nested, the function is called with views instead. Gradients flow through
  these views to the inputs.
- Autograd cannot record operations on tensors that were created in inference mode, so copies of
  such tensors are used.
- Inside a transformation of `torch.func`, `requires_grad_()` does not work, so an error is
  raised there.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.grad_mode import set_multithreading_enabled
from torch.overrides import has_torch_function

from xdevice.math.contract.gradients import Gradients
from xdevice_torch.private import private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from xdevice.math.contract.gradients import Call, Outcome

_ENGINE = private.place("torch.autograd._engine_run_backward")
"""The module and the name of the function that `torch.autograd.grad` calls after its checks. The checks take 8 of the
24 us of `torch.autograd.grad`. Virtual GPUs replace this function, so it is looked up at each call."""
_has_engine = private.has("torch.autograd._engine_run_backward")
_foreach_mul = private.get("torch._foreach_mul")
# returns the innermost transformation of `torch.func` that is active in this thread, or None
_transformation = private["torch._C._functorch.peek_interpreter_stack"]
# a leaf in PyTorch's sense: a tensor that is not the result of a recorded operation
_is_leaf = attrgetter("is_leaf")
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_is_inference, _detach, _require_grad = (
    torch.Tensor.is_inference,
    torch.Tensor.detach,
    torch.Tensor.requires_grad_,
)


class TorchGradients(Gradients):
    """The capability `Gradients` on PyTorch; its methods are documented in `xdevice.math.contract.gradients`."""

    def value_and_grad(self, leaves: list[Any], call: Call, nested: bool) -> Outcome:
        """Calls `call` with inputs that have the values of `leaves`. Returns the loss, the gradient of the loss with
        respect to each leaf, and the list that `call` returns in addition to the loss. A gradient is None if the loss
        does not depend on the leaf. `nested` is True if the caller computes a gradient of this gradient. Raises
        `UnsupportedError` inside a transformation of `torch.func`."""
        if _transformation() is not None:
            raise self.unsupported(
                "computing gradients with autograd inside a torch.func transformation",
                "compute all gradients with torch.func, or nest calls of xdevice.math.grad instead",
            )
        # the contract requires that operations are recorded inside the function, even if the
        # caller has disabled recording. In that case no gradient flows from the results to the
        # caller's tensors, so the leaves are detached, and `nested` is False
        if not torch.is_grad_enabled():
            with torch.inference_mode(False), torch.enable_grad():
                return self.value_and_grad([x.detach() for x in leaves], call, nested=False)
        # autograd refuses tensors that were created in inference mode, but accepts clones of them
        if any(map(_is_inference, leaves)):
            leaves = [x.clone() if x.is_inference() else x for x in leaves]
        # whether gradients flow from the results to the caller's tensors
        flows_on = nested or not all(map(_is_leaf, leaves))
        if flows_on:
            # each input is a new tensor, so that a leaf that occurs twice has two gradients
            inputs = [
                x.view_as(x) if x.requires_grad else x.detach().requires_grad_() for x in leaves
            ]
        else:
            inputs = [*map(_require_grad, map(_detach, leaves))]
        loss, aux_leaves = call(inputs)
        # a loss that was not recorded does not depend on any input, and autograd would raise an error
        gradients = (
            self._gradients(loss, inputs, flows_on)
            if loss.requires_grad
            else [None] * len(inputs)
        )
        if flows_on:
            return loss, gradients, aux_leaves
        # the list is empty unless the user's function also returns auxiliary output
        if aux_leaves:
            aux_leaves = [x.detach() if isinstance(x, torch.Tensor) else x for x in aux_leaves]
        return loss.detach(), gradients, aux_leaves

    def stop_gradient(self, x: Any) -> Any:
        """Returns a tensor in the memory of `x` through which no gradient flows."""
        return x.detach()

    def _gradients(
        self, loss: torch.Tensor, inputs: list[torch.Tensor], flows_on: bool
    ) -> list[Any]:
        """Returns a list with the gradient of the loss with respect to each input. A gradient is None if the loss does
        not depend on the input. If `flows_on` is True, the computation of the gradients is recorded too. Raises
        `UnsupportedError` if one of the operations has no second gradient."""
        try:
            # on a GPU, this thread launches the kernels itself, because waking a thread of the
            # engine would take 0.15 ms of a step on an H100
            with set_multithreading_enabled(False) if loss.is_cuda else nullcontext():
                gradients = _engine_gradients(loss, inputs, flows_on)
        except RuntimeError as error:
            # PyTorch has no separate error class for a missing derivative; any other error
            # comes from the user's code
            if not str(error).startswith("derivative for "):
                raise
            raise self.unsupported(
                f"the gradient of this gradient: {error}",
                "write the function with operations that have second gradients",
            ) from error
        # the gradient of a sparse embedding is sparse, but the contract requires dense gradients
        return [
            g if g is None or g.layout is torch.strided else g.to_dense() for g in gradients
        ]

    def update(
        self, rows: list[tuple[Any, ...]], rule: Callable[..., Any], nested: bool, writes: bool
    ) -> list[Any]:
        """Returns a list with `rule(*row)` for each row of tensors. Records operations for
        gradients only if `nested` is True, which means that there is an outer gradient. If
        `writes` is True, `rule` writes to its arguments, so it is called with copies."""
        was_enabled = torch.is_grad_enabled()
        # an optimization step is recorded only inside an outer gradient
        torch.set_grad_enabled(nested and was_enabled)
        try:
            # the rows are copied inside the block, so that the copies are recorded if the rule is recorded
            return [rule(*row) for row in (_copied(rows) if writes else rows)]
        finally:
            torch.set_grad_enabled(was_enabled)


def _engine_gradients(
    loss: torch.Tensor, inputs: list[torch.Tensor], flows_on: bool
) -> Sequence[torch.Tensor | None]:
    """Returns the result of `torch.autograd.grad` for these arguments. Skips the checks of `torch.autograd.grad` if
    possible."""
    # subclasses with `__torch_function__` may replace `autograd.grad`, so this function must be
    # called for them
    if not _has_engine or has_torch_function((loss, *inputs)):
        return torch.autograd.grad(loss, inputs, create_graph=flows_on, allow_unused=True)
    # outputs, gradients of the outputs, retain_graph, create_graph, inputs, allow_unused
    arguments = (loss,), (torch.ones_like(loss),), flows_on, flows_on, tuple(inputs), True
    gradients: Sequence[torch.Tensor | None] = getattr(*_ENGINE)(
        *arguments, accumulate_grad=False
    )
    return gradients


def _copied(rows: list[tuple[Any, ...]]) -> Iterable[Iterable[Any]]:
    """Returns the rows with each tensor replaced by a copy. The copies are recorded if gradients are enabled. Otherwise
    float tensors on a GPU are copied with one PyTorch call for all rows."""
    tensors = [*chain(*rows)]
    # checking the first tensor is sufficient, because `_foreach_mul` also accepts tensors of
    # several devices or dtypes, but is slower then
    is_quick = (
        tensors[0].is_cuda
        and tensors[0].is_floating_point()
        and _PLAIN.issuperset(map(type, tensors))
    )
    if (
        not is_quick
        or _foreach_mul is None
        or torch.is_grad_enabled()
        or _transformation() is not None
    ):
        return (map(torch.clone, row) for row in rows)
    # multiplies by 1 because `_foreach_clone` is newer than PyTorch 2.11
    copies = iter(_foreach_mul(tensors, 1))
    # `zip` is given the same iterator once for each column, so it returns the copies row by row
    return zip(*[copies] * len(rows[0]), strict=True)
