"""Virtual GPUs for Paddle. The module `custom_device` makes them, with machine code that `machine_code` writes:
programs without virtual GPUs load neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import paddle

from xdevice.base import devices
from xdevice.virtual.contract.virtual_gpus import VirtualGpus
from xdevice_paddle import virtual_devices
from xdevice_paddle.private import private

if TYPE_CHECKING:
    from xdevice.base.devices import Device


class PaddleVirtualGpus(VirtualGpus):
    _gpu: str
    _gpus: int
    _natives: dict[Device, Any]

    def why_no_virtual_gpus(self) -> str | None:
        listed = paddle.device.get_all_custom_device_type() or ()
        if virtual_devices.registered() and virtual_devices.KIND not in listed:
            return "Paddle does not list them; GLOG_v=3 makes it print why"
        return virtual_devices.why_not()

    def make_virtual_gpus(self, n: int) -> None:
        from . import virtual_operations

        private.require("virtual GPUs")
        paddle.set_flags({"FLAGS_use_stride_kernel": False})
        # Paddle makes the first device of a plugin its default
        paddle.set_device("cpu")
        self._natives = {devices.CPU: self._natives[devices.CPU]}
        self._gpu, self._gpus = virtual_devices.KIND, n
        for index in range(n):  # so that xdevice takes the names that paddle.get_device() gives
            devices.spell(f"{virtual_devices.KIND}:{index}", devices.of("gpu", index))
        self.short_floats = frozenset()  # they are made by Tensor.view, which has no kernel without strides
        virtual_operations.refuse_mixed_devices()
