"""Detects JAX's transfers, which are reads of arrays by the host, and copies between devices. For this purpose,
replaces `jax.device_put`, `jax.device_get`, and methods of JAX's private array class."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jax

from xdevice.performance.contract.hooks import Hooks
from xdevice.performance.contract.transfers import Transfers
from xdevice_jax.private import READS, private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdevice.base.devices import Device
    from xdevice.performance.contract.transfers import Transfer


_Array = private["jax._src.array.ArrayImpl"]


class JaxTransfers(Transfers):
    """Reports reads by the host, and copies between devices."""

    @contextmanager
    def watch(self, report: Callable[[Transfer], None]) -> Iterator[None]:
        """Opens a block in which `report` is called for each transfer of this thread."""
        private.require_names_for("transfers")

        def source_of(x: Any) -> Device | None:
            """Returns the device from which the host reads the array `x`."""
            # a report names only one device; for an array that is spread over several devices, that is the first device
            native = min(x.sharding.device_set, key=lambda native: native.id)
            return self.from_native(native)

        def target_of(x: Any, device: Any = None, *args: Any, **kwargs: Any) -> Device | None:
            """Returns the device to which `x.to_device(device)` or `jax.device_put(x, device)` copies `x`, or None if
            the copy is not to be reported. The other arguments of these functions do not matter here."""
            if isinstance(device, jax.sharding.Sharding):
                # `x` is on the host, and a copy from the host to a device is not reported
                if not isinstance(x, jax.Array):
                    return None
                # the first of the devices to which something is copied
                new_natives = device.device_set - x.sharding.device_set
                device = min(new_natives or device.device_set, key=lambda native: native.id)
            # None for None, with which JAX leaves an array where it is
            return self.from_native(device)

        # `device_get` accepts a container of arrays, which are read in a single transfer
        def describe_get(args: Any, kwargs: Any) -> Transfer | None:
            """Returns the record for a call of `jax.device_get`, or None if the call reads no array."""
            arrays = [x for x in jax.tree.leaves(args) if isinstance(x, jax.Array)]
            # `hooks` is set below, before any call
            first = hooks.read("device_get", arrays[0], explicit=True) if arrays else None
            if first is None:
                return None
            # the record of the first array, with the bytes of all arrays
            return first._replace(nbytes=sum(int(x.nbytes) for x in arrays))

        with Hooks(self, report, lambda x: int(x.nbytes), source_of) as hooks:
            # records transfers by xdevice's own functions under the names that the program calls
            hooks.verbs()
            hooks.numpy_reads()
            hooks.reads(_Array, *READS)
            # the property through which JAX's own functions read an array
            hooks.reads(_Array, "_value", how="value")
            hooks.moves(_Array, "to_device", target_of)
            hooks.moves(jax, "device_put", target_of)
            hooks.calls(jax, "device_get", describe_get)
            yield
