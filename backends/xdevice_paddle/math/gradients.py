"""Computes gradients with `paddle.grad`.

Rules for this module, and the reasons for them:
- `backward()` is not used, because it would write into the `.grad` of every tensor with
  `stop_gradient=False` on which the loss depends.
- The function to be differentiated is called with a detached alias of each input. There are two exceptions: an input
  that is itself a result of recorded operations, and nested gradients. The function is then called with the result of
  `clone`, so that gradients flow on to the input.
- Only one thread calls `paddle.grad` at a time. `paddle.grad` uses state that the whole process shares, and other
  threads can run during a call. Two calls at once crash the process with a segmentation fault (3.3.1).
- Many operations have no second gradient. Paddle's RuntimeError for such an operation is
  converted into an `UnsupportedError`.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from inspect import signature
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any

import paddle

from xdevice.base import forks
from xdevice.math.contract.gradients import Gradients
from xdevice_paddle.private import private

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.math.contract.gradients import Call, Outcome

# the module and the name of the function. The function is looked up at each call, because
# `parallel.run` replaces it
_partial_grad = private.place("paddle.base.core.eager.run_partial_grad")
_null_context = nullcontext()
_is_leaf = attrgetter("is_leaf")
_clone = methodcaller("clone")
# a forked process gets a new lock
_one_at_a_time = forks.unlocked_in_child(threading.RLock())
_PARAMETERS_OF_GRAD = (
    "outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "only_inputs", "allow_unused", "no_grad_vars",
    "dump_backward_graph_path",
)  # fmt: skip
_HAS_PARTIAL_GRAD = (
    private.has("paddle.base.core.eager.run_partial_grad")
    and tuple(signature(paddle.grad).parameters) == _PARAMETERS_OF_GRAD
)
"""Whether Paddle has `run_partial_grad`, and `paddle.grad` has the expected parameters. It passes them on to
`run_partial_grad`. With fewer arguments, `run_partial_grad` crashes the process."""


def _new_inputs(leaves: list[Any], flows_on: bool) -> list[Any]:
    """Returns a new tensor that requires a gradient for each leaf. With `flows_on`, gradients flow
    through the new tensor to the leaf."""
    # new tensors, so that the flags of the program's tensors are not changed
    inputs = [x.clone() if flows_on and not x.stop_gradient else x.detach() for x in leaves]
    for x in inputs:
        x.stop_gradient = False
    return inputs


def _gradients(loss: Any, inputs: list[Any], flows_on: bool, backend: Gradients) -> list[Any]:
    """Returns the gradient of the loss for each input, or None for an input on which the loss does
    not depend. If `flows_on` is True, the computation of the gradients is recorded too. Raises
    `UnsupportedError` if one of the operations has no second gradient; `backend` creates the
    error."""
    try:
        with _one_at_a_time:
            if not _HAS_PARTIAL_GRAD:
                return paddle.grad(loss, inputs, create_graph=flows_on, allow_unused=True)
            # called directly, because the checks of `paddle.grad`, which calls this function, take
            # a twentieth of the time of a small step. The arguments after `inputs` are those of
            # `paddle.grad`: grad_outputs, retain_graph, create_graph, only_inputs, allow_unused,
            # no_grad_vars, and the folder for a dump of the graph
            return getattr(*_partial_grad)(
                [loss], inputs, [], flows_on, flows_on, True, True, [], None
            )
    except RuntimeError as error:
        # Paddle has no class of errors for a missing gradient; any other error comes from the
        # user's code
        if "doesn't have any grad op" not in str(error):
            raise
        raise backend.unsupported(
            "the gradient of this gradient: "
            # Paddle's message is "... (Unavailable) The Op ... doesn't have any grad op. ...";
            # the sentence after "(Unavailable)" is quoted
            + str(error).partition("(Unavailable) ")[2].partition(".")[0],
            "write the function with operations that have second gradients (x * x instead of x ** 2)",
        ) from error


class PaddleGradients(Gradients):
    """Implements the capability `Gradients` for Paddle. `xdevice.math.contract.gradients` documents its methods."""

    def value_and_grad(self, leaves: list[Any], call: Call, nested: bool) -> Outcome:
        """Calls `call` with inputs that have the values of `leaves`. Returns the loss, the gradient of the loss for
        each leaf, and the list that `call` returns in addition to the loss. A gradient is None if the loss does not
        depend on the leaf. `nested` is True if the caller computes a gradient of this gradient. Raises
        `UnsupportedError` in a traced function."""
        if not paddle.in_dynamic_mode():
            raise self.unsupported(
                "computing gradients inside a function that paddle.jit.to_static traces",
                "compute the gradients outside that function, or trace only the function whose gradients you compute",
            )
        was_on = paddle.is_grad_enabled()
        # whether gradients flow on from the results to the caller's tensors: a leaf of `leaves` is a
        # leaf of Paddle's graph too, unless it is the result of recorded operations
        flows_on = was_on and (nested or not all(map(_is_leaf, leaves)))
        with _null_context if was_on else paddle.enable_grad():
            inputs = _new_inputs(leaves, flows_on)
            loss, aux_leaves = call(inputs)
            gradients: list[Any] = [None] * len(inputs)
            # `paddle.grad` raises an error for a loss that does not depend on any of the inputs
            if not loss.stop_gradient:
                gradients = _gradients(loss, inputs, flows_on, self)
        if flows_on:
            return loss, gradients, aux_leaves
        aux_leaves = [x.detach() if isinstance(x, paddle.Tensor) else x for x in aux_leaves]
        return loss.detach(), gradients, aux_leaves

    def stop_gradient(self, x: Any) -> Any:
        """Returns a tensor that shares the memory of `x`, and through which no gradient flows to
        `x`."""
        return x.detach()

    def update(
        self, rows: list[tuple[Any, ...]], rule: Callable[..., Any], nested: bool, writes: bool
    ) -> list[Any]:
        """Returns a list with `rule(*row)` for each row of tensors. Operations are recorded for
        gradients only if `nested` is True, inside an outer gradient. If `writes` is True, `rule`
        writes into its arguments, so copies are passed to it."""
        # otherwise not recorded, because the new parameters would keep the graphs of all earlier
        # steps alive
        with paddle.set_grad_enabled(nested and paddle.is_grad_enabled()):
            return [rule(*map(_clone, row)) if writes else rule(*row) for row in rows]
