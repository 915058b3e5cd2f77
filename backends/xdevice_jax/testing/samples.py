"""Arrays, gradients and other samples, written with JAX alone, for the conformance suite: the
tests in `xdevice.testing` that every adapter must pass.

There are no models among them, because JAX has none: its users keep parameters in containers.
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
    """JAX's samples. `Samples` says what the suite expects of each method."""

    def other_device(self) -> Device | None:
        """Returns a second device for the tests, made if possible; None if there is none."""
        if self.backend.virtual:
            return devices.of("gpu")
        # JAX can make a second CPU device, as long as it is not started
        if self.backend.count("cpu") == 1:
            try:
                jax.config.update("jax_num_cpu_devices", 2)
            except RuntimeError:  # raised if JAX has been started
                return None
        return devices.of("cpu", 1) if self.backend.count("cpu") > 1 else None

    def native_ones(self, *shape: int) -> jax.Array:
        """Returns a tensor of ones with this shape, made by JAX's own function."""
        return jnp.ones(shape)

    def address(self, x: jax.Array) -> int:
        """Returns the address at which the memory of an array begins, once the array is
        computed."""
        return x.block_until_ready().unsafe_buffer_pointer()

    def gradient(self, function: Callable[[Any], Any], x: jax.Array) -> jax.Array:
        """Returns the gradient of `sum(function(x))` with respect to `x`."""
        gradient: jax.Array = jax.grad(lambda v: function(v).sum())(x)
        return gradient

    def failing_work(self) -> jax.Array:
        """Starts work on the CPU that will fail for lack of memory, and returns the result of
        that work."""
        size = 20_000_000  # its square does not fit into any memory
        with jax.default_device(jax.devices("cpu")[0]):
            return jnp.ones((size, 1)) @ jnp.ones((1, size))

    def long_work(self, device: Device) -> Work:
        """Starts long-running work on a device. Returns the result of the work, and a function
        that tells whether the work is done."""
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
        # otherwise the call might wait until its input is computed
        x.block_until_ready()
        result = work(x)
        return Work(result, result.is_ready)
