"""Reads how many bytes of memory are used, as Paddle and the CUDA driver count them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import paddle

from xdevice.contract import Memory
from xdevice.contract.primitives import Primitives

from . import driver, virtual_devices
from .private import private

if TYPE_CHECKING:
    from xdevice.base.devices import Device

_KIND = "Allocated"


_allocated = private["paddle.base.core.host_memory_stat_current_value"]
_peak = private["paddle.base.core.host_memory_stat_peak_value"]
_reset_peak = private["paddle.base.core.host_memory_stat_reset_peak_value"]
_IS_2 = paddle.__version__.startswith("2.")
_COUNTS_PLUGINS = hasattr(paddle.device, "memory_allocated")


class PaddleMemory(Primitives):
    _gpu: str
    """Paddle's own name for the kind of device that xdevice calls `gpu`."""

    def memory(self, device: Device) -> Memory:
        if device.kind != "gpu":
            return Memory(None, None, _allocated(_KIND, 0), _peak(_KIND, 0))
        if self._gpu not in ("gpu", virtual_devices.KIND):
            return Memory()  # Paddle counts the memory of GPUs only
        index = device.index
        if virtual_devices.registered():
            if not _COUNTS_PLUGINS:
                return Memory()
            name = virtual_devices.name_of(device)
            return Memory(
                None,
                None,
                paddle.device.memory_allocated(name),
                paddle.device.max_memory_allocated(name),
            )
        if driver.is_there():
            free, total = driver.free_and_total(index)
        else:
            free, total = None, paddle.device.cuda.get_device_properties(index).total_memory
        return Memory(
            total,
            free,
            paddle.device.cuda.memory_allocated(index),
            paddle.device.cuda.max_memory_allocated(index),
        )

    def empty_cache(self, device: Device) -> None:
        if self._gpu != "gpu":
            super().empty_cache(device)
        paddle.device.cuda.empty_cache()

    def reset_peak(self, device: Device) -> None:
        if _IS_2:
            super().reset_peak(device)
        elif device.kind != "gpu":
            _reset_peak(_KIND, 0)
        elif virtual_devices.registered():
            paddle.device.reset_max_memory_allocated(virtual_devices.name_of(device))
        else:
            paddle.device.cuda.reset_max_memory_allocated(device.index)
