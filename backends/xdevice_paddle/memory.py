"""Reads the number of bytes in use from the counts of Paddle and the CUDA driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import paddle

from xdevice.contract import Memory
from xdevice.contract.primitives import Primitives

from . import driver, virtual_devices
from .private import private

if TYPE_CHECKING:
    from xdevice.base.devices import Device

_ALLOCATED = "Allocated"
"""Paddle's name for the count of the bytes in use, as opposed to "Reserved"."""

_allocated = private["paddle.base.core.host_memory_stat_current_value"]
_peak = private["paddle.base.core.host_memory_stat_peak_value"]
_reset_peak = private["paddle.base.core.host_memory_stat_reset_peak_value"]
_IS_2 = paddle.__version__.startswith("2.")
_COUNTS_PLUGINS = hasattr(paddle.device, "memory_allocated")
"""Whether this version of Paddle counts the memory of the devices of plugins, which include virtual
GPUs."""


class PaddleMemory(Primitives):
    """The hooks that report and release memory, for Paddle."""

    _gpu: str
    """Paddle's own name for the kind of device that xdevice calls `gpu`."""

    def memory(self, device: Device) -> Memory:
        """Returns the numbers of bytes that Paddle and the CUDA driver report for a device's memory. GPUs of CUDA have
        all four numbers; GPUs of ROCm have `total`, `allocated` and `peak`; the CPU and virtual GPUs have `allocated`
        and `peak`. Other accelerators have none."""
        if device.kind != "gpu":
            allocated = _allocated(_ALLOCATED, 0)  # 0: the index of the CPU
            # Paddle 2 subtracts memory that it has not counted, such as that taken over from NumPy
            return Memory(
                allocated=allocated if allocated >= 0 else None, peak=_peak(_ALLOCATED, 0)
            )
        if not self._is_counted():
            return Memory()
        index = device.index
        if virtual_devices.registered_count():
            if not _COUNTS_PLUGINS:
                return Memory()
            name = virtual_devices.name_of(device)
            return Memory(
                allocated=paddle.device.memory_allocated(name),
                peak=paddle.device.max_memory_allocated(name),
            )
        if driver.is_there():
            free, total = driver.free_and_total(index)
        else:
            # on ROCm, Paddle reports the total memory, but nothing reports the free memory
            free, total = None, paddle.device.cuda.get_device_properties(index).total_memory
        return Memory(
            total,
            free,
            allocated=paddle.device.cuda.memory_allocated(index),
            peak=paddle.device.cuda.max_memory_allocated(index),
        )

    def empty_cache(self, device: Device) -> None:
        """Releases the memory on all GPUs that Paddle has reserved but does not use. Raises `UnsupportedError` for
        other accelerators and for virtual GPUs."""
        if self._gpu != "gpu":
            super().empty_cache(device)  # raises `UnsupportedError`
        paddle.device.cuda.empty_cache()

    def reset_peak(self, device: Device) -> None:
        """Resets the peak of a device's allocated memory. Raises `UnsupportedError` in Paddle 2.6, which cannot reset
        the peak. Also raises this error for accelerators other than GPUs, because Paddle does not count their
        memory."""
        if _IS_2 or (device.kind == "gpu" and not self._is_counted()):
            super().reset_peak(device)  # raises `UnsupportedError`
        elif device.kind != "gpu":
            _reset_peak(_ALLOCATED, 0)  # 0: the index of the CPU
        elif virtual_devices.registered_count():
            paddle.device.reset_max_memory_allocated(virtual_devices.name_of(device))
        else:
            paddle.device.cuda.reset_max_memory_allocated(device.index)

    def _is_counted(self) -> bool:
        """Whether Paddle counts the memory of `gpu:i`, which it does only for real and virtual GPUs."""
        return self._gpu in ("gpu", virtual_devices.KIND)
