"""Computes gradients with `jax.value_and_grad`.

Facts about JAX that the code depends on:

- The inputs are passed as a list and not as a dict, because JAX would return the gradients with
  sorted keys.
- A gradient that does not depend on values is made on the default device, wherever its input
  is. So gradients are moved to the devices of their inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from xdevice.math.contract.gradients import Gradients
from xdevice_jax.private import private

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.math.contract.gradients import Call, Outcome

# the trace that a tracer belongs to: each nested call of `jax.value_and_grad` has one of its
# own
_trace = private.field("jax.core.Tracer._trace")


class JaxGradients(Gradients):
    """The capability `Gradients` on JAX; its methods are documented in
    `xdevice.math.contract.gradients`."""

    def value_and_grad(self, leaves: list[Any], call: Call, nested: bool) -> Outcome:
        """Calls `call` with inputs that have the values of `leaves`. Returns the loss, the gradient of the loss for
        each leaf, and the list that `call` returns besides the loss. All gradients are None if the loss depends on no
        leaf. `nested` is ignored, because JAX notices an outer gradient itself."""
        depends_on_inputs = False

        def traced(inputs: list[Any]) -> tuple[Any, list[Any]]:
            """Calls `call`, and notes whether its loss depends on the inputs."""
            nonlocal depends_on_inputs
            loss, rest = call(inputs)
            # a loss that does not depend on these inputs (a plain array, or a tracer of an
            # outer gradient only) is the caller's mistake: JAX would return zeros, which hides
            # it
            depends_on_inputs = isinstance(loss, jax.core.Tracer) and _trace(loss) is _trace(
                inputs[0]
            )
            return loss, rest

        (loss, rest), gradients = jax.value_and_grad(traced, has_aux=True)(leaves)
        # the contract: all gradients are None if the loss depends on no leaf
        if not depends_on_inputs:
            return loss, [None] * len(leaves), rest
        return loss, [_on_device_of(x, g) for x, g in zip(leaves, gradients, strict=True)], rest

    def stop_gradient(self, x: Any) -> Any:
        """Returns an array with the values of `x` through which no gradient flows."""
        return jax.lax.stop_gradient(x)

    def update(
        self, rows: list[tuple[Any, ...]], rule: Callable[..., Any], nested: bool, writes: bool
    ) -> list[Any]:
        """Returns a list of `rule(*row)` for each row of arrays. `nested` and `writes` are
        ignored."""
        # JAX's arrays cannot be changed, so a rule that writes (`writes`) needs no copies; nor
        # is `nested` needed, because JAX records only inside its own transformations
        return [rule(*row) for row in rows]


def _on_device_of(x: Any, g: Any) -> Any:
    """Returns `g`, the gradient for the input `x`, on the device of `x`; unchanged if `g` or
    `x` is traced, and so has no device."""
    if (
        isinstance(g, jax.core.Tracer)
        or isinstance(x, jax.core.Tracer)
        or g.sharding == x.sharding
    ):
        return g
    return jax.device_put(g, x.sharding)
