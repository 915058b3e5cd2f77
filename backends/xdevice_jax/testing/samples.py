"""Provides arrays, gradients and other samples for the conformance suite, which consists of the tests in
`xdevice.testing` that every adapter must pass. The samples use only JAX, not xdevice.

There are no sample models, because JAX itself has no models: its users store parameters in containers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from xdevice.base import devices
from xdevice.testing.contract.samples import Samples, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.base.devices import Device


class JaxSamples(Samples):
    """JAX's samples. `Samples` describes what the suite expects of each method."""

    def other_device(self) -> Device | None:
        """Returns a second device for the tests, or None if none exists and none can be created."""
        if self.backend.virtual:
            return devices.of("gpu")
        # JAX can create a second CPU device as long as it has not been started
        if self.backend.count("cpu") == 1:
            try:
                jax.config.update("jax_num_cpu_devices", 2)
            except RuntimeError:  # raised if JAX has been started
                return None
        return devices.of("cpu", 1) if self.backend.count("cpu") > 1 else None

    def native_ones(self, *shape: int) -> jax.Array:
        """Returns a tensor of ones with this shape, created by JAX's own function."""
        return jnp.ones(shape)

    def address(self, x: jax.Array) -> int:
        """Waits until an array is computed, and returns the address at which its memory begins."""
        return x.block_until_ready().unsafe_buffer_pointer()

    def gradient(self, function: Callable[[Any], Any], x: jax.Array) -> jax.Array:
        """Returns the gradient of `sum(function(x))` with respect to `x`."""
        gradient: jax.Array = jax.grad(lambda v: function(v).sum())(x)
        return gradient

    def failing_work(self) -> jax.Array:
        """Starts work on the CPU that will fail for lack of memory, and returns the array that is the result of that
        work."""
        size = 20_000_000  # its square does not fit into any memory
        with jax.default_device(jax.devices("cpu")[0]):
            return jnp.ones((size, 1)) @ jnp.ones((1, size))

    def long_work(self, device: Device) -> Work:
        """Starts long-running work on a device. Returns the result of the work, and a function that returns whether the
        work is done."""
        native = self.backend.to_native(device)
        size, steps = (1024, 30) if native.platform == "cpu" else (8192, 100)
        x = jax.device_put(jnp.full((size, size), 1 / size), native)
        # compiled in advance, because the first call of a jitted function waits for the
        # compiler
        work = (
            jax.jit(lambda v: jax.lax.fori_loop(0, steps, lambda _, y: y @ y, v))
            .lower(x)
            .compile()
        )
        # waits here, because the call might otherwise wait until its input is computed
        x.block_until_ready()
        result = work(x)
        return Work(result, result.is_ready)
