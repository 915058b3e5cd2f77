"""Copies arrays to a device for `xdevice.prefetch` and `xdevice.load`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from xdevice.performance.contract.prefetch import Prefetch
from xdevice_jax.conversion import require_values

if TYPE_CHECKING:
    from xdevice.base.devices import Device


class JaxPrefetch(Prefetch):
    """Batches that are copied to a device while it computes."""

    def stage(self, x: Any, device: Device) -> Any:
        """Starts to copy an array of JAX or NumPy to a device, and returns the new array. `x`
        has been read when this returns, or cannot change."""
        # a NumPy array
        if not isinstance(x, jax.Array):
            return self.from_numpy(x, device)
        require_values(x)
        # a move of an array that is on the device already would return an alias, and a step
        # that donates its batch would delete the owner's array
        return (
            self.copy(x, device)
            if x.sharding.device_set == {self.to_native(device)}
            else self.move(x, device)
        )
