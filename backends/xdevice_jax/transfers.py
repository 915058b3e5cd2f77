"""Sees JAX's transfers (arrays read by the host, and copies between devices) by replacing methods of its private class
of arrays, and `jax.device_put`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jax

from xdevice.contract.hooks import Hooks
from xdevice.contract.transfers import Transfers

try:
    from jax._src.array import ArrayImpl
except ImportError:  # the module is private, and may be elsewhere in another version
    ArrayImpl = None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdevice.base.devices import Device
    from xdevice.contract import Transfer


READS = (
    "item", "tolist", "tobytes", "__array__", "__float__", "__int__", "__bool__", "__index__", "__complex__",
    "__hex__", "__oct__", "__repr__", "__str__", "__format__", "__reduce__",
)  # fmt: skip


class JaxTransfers(Transfers):
    @contextmanager
    def watch(self, report: Callable[[Transfer], None]) -> Iterator[None]:
        if ArrayImpl is None:
            raise self.unsupported(
                "class of arrays that xdevice knows, so its transfers cannot be watched",
                'use jax.transfer_guard("disallow"), which sees those of a GPU',
            )

        def place(x: Any) -> Device | None:
            # an array may be spread over several devices: the first one stands for them
            native = min(x.sharding.device_set, key=lambda native: native.id)
            return self.from_native(native)

        def target(x: Any, device: Any = None, *args: Any, **kwargs: Any) -> Device | None:
            if isinstance(device, jax.sharding.Sharding):
                if not isinstance(x, jax.Array):
                    return None  # `x` is data of the host, which is no transfer from a device
                others = device.device_set - x.sharding.device_set
                device = min(others or device.device_set, key=lambda native: native.id)
            return self.from_native(device)

        with Hooks(self, report, lambda x: int(x.nbytes), place) as hooks:
            hooks.verbs()
            hooks.numpy_reads()
            hooks.reads(ArrayImpl, *READS)
            hooks.reads(ArrayImpl, "_value", how="value")
            hooks.moves(ArrayImpl, "to_device", target)
            hooks.moves(jax, "device_put", target)
            yield
