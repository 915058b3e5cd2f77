"""Copies arrays to a device for `xdevice.prefetch` and `xdevice.load`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from xdevice.performance.contract.prefetch import Prefetch
from xdevice_jax.conversion import require_values

if TYPE_CHECKING:
    from xdevice.base.devices import Device


class JaxPrefetch(Prefetch):
    """Copies batches to a device while the device computes."""

    def stage(self, x: Any, device: Device) -> Any:
        """Starts to copy a JAX or NumPy array to a device, and returns the new array. When this method returns, either
        `x` has been read or `x` is immutable."""
        # `x` is a NumPy array
        if not isinstance(x, jax.Array):
            return self.from_numpy(x, device)
        require_values(x)
        # if the array is already on the device, a move would return an alias, and a step that donates its batch would
        # delete the owner's array
        return (
            self.copy(x, device)
            if x.sharding.device_set == {self.to_native(device)}
            else self.move(x, device)
        )
