"""Computes gradients with `jax.value_and_grad`.

Facts about JAX that the code depends on:

- For inputs in a dict, JAX would return the gradients with sorted keys. Therefore the inputs are passed as a list.
- JAX creates a gradient that does not depend on any value on the default device, even if the input is on another
  device. Therefore gradients are moved to the devices of their inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from xdevice.math.contract.gradients import Gradients
from xdevice_jax.private import private

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.math.contract.gradients import Call, Outcome

# the trace to which a tracer belongs; each nested call of `jax.value_and_grad` has its own trace
_trace = private.field("jax.core.Tracer._trace")


class JaxGradients(Gradients):
    """Implements the capability `Gradients` for JAX. `xdevice.math.contract.gradients` documents its methods."""

    def value_and_grad(self, leaves: list[Any], call: Call, nested: bool) -> Outcome:
        """Calls `call` with inputs that have the values of `leaves`. Returns the loss, the gradient of the loss with
        respect to each leaf, and the list that `call` returns in addition to the loss. All gradients are None if the
        loss does not depend on any leaf. `nested` is ignored, because JAX itself detects an outer gradient."""
        depends_on_inputs = False

        def traced(inputs: list[Any]) -> tuple[Any, list[Any]]:
            """Calls `call`, and records in `depends_on_inputs` whether the loss depends on the inputs."""
            nonlocal depends_on_inputs
            loss, aux_leaves = call(inputs)
            # if the loss does not depend on these inputs (because it is a plain array, or a tracer of only an outer
            # gradient), the caller has made a mistake, which JAX would hide by returning zeros
            depends_on_inputs = isinstance(loss, jax.core.Tracer) and _trace(loss) is _trace(
                inputs[0]
            )
            return loss, aux_leaves

        (loss, aux_leaves), gradients = jax.value_and_grad(traced, has_aux=True)(leaves)
        # the contract requires that all gradients are None if the loss does not depend on any leaf
        if not depends_on_inputs:
            return loss, [None] * len(leaves), aux_leaves
        gradients = [_on_device_of(x, g) for x, g in zip(leaves, gradients, strict=True)]
        return loss, gradients, aux_leaves

    def stop_gradient(self, x: Any) -> Any:
        """Returns an array with the values of `x` through which no gradient flows."""
        return jax.lax.stop_gradient(x)

    def update(
        self, rows: list[tuple[Any, ...]], rule: Callable[..., Any], nested: bool, writes: bool
    ) -> list[Any]:
        """Returns a list with `rule(*row)` for each row of arrays. `nested` and `writes` are ignored."""
        # JAX's arrays cannot be changed, so no copies are necessary even for a rule that writes (`writes`). `nested` is
        # not needed, because JAX records only inside its own transformations
        return [rule(*row) for row in rows]


def _on_device_of(x: Any, g: Any) -> Any:
    """Returns `g`, the gradient with respect to the input `x`, on the device of `x`. Returns `g` unchanged if `g` or
    `x` is traced, because traced values have no device."""
    if (
        isinstance(g, jax.core.Tracer)
        or isinstance(x, jax.core.Tracer)
        or g.sharding == x.sharding
    ):
        return g
    return jax.device_put(g, x.sharding)
