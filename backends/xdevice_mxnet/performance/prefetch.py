"""Copies arrays to a device for `xdevice.prefetch` and `xdevice.load`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mxnet as mx

from xdevice.contract.replicas import Replicas
from xdevice.performance.contract.prefetch import Prefetch
from xdevice_mxnet import semantics, staging

if TYPE_CHECKING:
    from xdevice.base.devices import Device


class MxnetPrefetch(Replicas, Prefetch):
    """Copies batches to a device while the device computes."""

    def stage(self, x: Any, device: Device) -> Any:
        """Begins to copy an array of MXNet or NumPy to a device, and returns the new array. The data is copied to a
        GPU through the ring of pinned memory, or through MXNet's own pinned memory."""
        # creating an MXNet array from a NumPy array needs NumPy's semantics
        if not isinstance(x, mx.nd.NDArray):
            semantics.enable_for_creation()
        # paused, because MXNet segfaults if it records copies while another thread records too
        with mx.util.np_shape(True), mx.autograd.pause():
            native = self.to_native(device)
            if native.device_type != "gpu":
                return (
                    x.copyto(native)
                    if isinstance(x, mx.nd.NDArray)
                    else self.from_numpy(x, device)
                )
            stage = staging.moved if isinstance(x, mx.nd.NDArray) else staging.put
            # the result is None if the array cannot be copied through xdevice's ring of pinned
            # memory; MXNet then copies it to pinned memory
            staged = stage(x, native, self)
            if staged is not None:
                return staged
            pinned = mx.cpu_pinned(device.index)
            if not isinstance(x, mx.nd.NDArray):
                return mx.np.array(x, dtype=x.dtype, ctx=pinned).copyto(native)
            # an array that is on a GPU already needs no pinned memory. MXNet's engine makes this copy before
            # later writes to `x`
            source = x if x.ctx.device_type == "gpu" else x.copyto(pinned)
            return source.copyto(native)
