"""Reads how many bytes of memory are used, as Paddle and the CUDA driver count them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import paddle
from paddle.base import core

from xdevice.contract import Memory
from xdevice.contract.primitives import Primitives

from . import driver, virtual_gpus

if TYPE_CHECKING:
    from xdevice.base.devices import Device

_KIND = "Allocated"


@cache
def _counts_virtual() -> bool:
    """Whether this Paddle counts the memory of virtual GPUs. Paddle 2.6 does not, and always says 0."""
    held = paddle.to_tensor([0.0], place=paddle.CustomPlace(virtual_gpus.KIND, 0))
    return core.device_memory_stat_current_value(_KIND, held.place.custom_device_id()) > 0


class PaddleMemory(Primitives):
    _gpu: str
    """Paddle's own name for the kind of device that xdevice calls `gpu`."""

    def memory(self, device: Device) -> Memory:
        if device.kind != "gpu":
            allocated = core.host_memory_stat_current_value(_KIND, 0)
            return Memory(None, None, allocated, core.host_memory_stat_peak_value(_KIND, 0))
        if self._gpu not in ("gpu", virtual_gpus.KIND):
            return Memory(None, None, None, None)  # Paddle counts the memory of GPUs only
        index = device.index
        if virtual_gpus.registered():
            if not _counts_virtual():
                return Memory(None, None, None, None)
            allocated = core.device_memory_stat_current_value(_KIND, index)
            return Memory(None, None, allocated, core.device_memory_stat_peak_value(_KIND, index))
        if driver.is_there():
            free, total = driver.free_and_total(index)
        else:
            free, total = None, paddle.device.cuda.get_device_properties(index).total_memory
        return Memory(
            total, free, paddle.device.cuda.memory_allocated(index), paddle.device.cuda.max_memory_allocated(index)
        )

    def reset_peak(self, device: Device) -> None:
        where = "device" if device.kind == "gpu" else "host"
        reset = getattr(core, f"{where}_memory_stat_reset_peak_value", None)
        if reset is None:  # before Paddle 3.0
            super().reset_peak(device)
        else:
            reset(_KIND, device.index)
