"""Virtual GPUs for Paddle. The module `custom_device` makes them, with machine code that `machine_code` writes:
programs without virtual GPUs load neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import paddle

from xdevice.base import devices
from xdevice.base.dtypes import dtype_name
from xdevice.virtual.contract.ledger import out_of_memory
from xdevice.virtual.contract.limited_gpus import LimitedGpus
from xdevice.virtual.contract.virtual_gpus import VirtualGpus
from xdevice_paddle import virtual_devices
from xdevice_paddle.private import private

if TYPE_CHECKING:
    from xdevice.base.devices import Device


class PaddleVirtualGpus(LimitedGpus, VirtualGpus):
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
        # they are made by Tensor.view, which has no kernel without strides
        self.short_floats = frozenset()
        virtual_operations.refuse_mixed_devices()

    def limit(self) -> None:
        from . import virtual_operations

        if any(self.characters):
            virtual_operations.check_results(self._check)

    def lack_error(self, text: str) -> Exception:
        return RuntimeError(f"(NotFound) {text}")

    def memory_error(self, text: str) -> Exception:
        return MemoryError(f"ResourceExhaustedError: {text}")

    def _check(self, x: Any, index: int) -> None:
        """Raises Paddle's error if a virtual GPU lacks the dtype of a tensor, or the memory for it."""
        self.refuse_lacking(index, [dtype_name(x.dtype)])
        usage = self.memory(devices.of("gpu", index))
        if usage.free is not None and usage.free < 0:
            more = x.size * x.element_size()
            raise self.memory_error(
                out_of_memory(index, more, usage.total or 0, (usage.allocated or 0) - more)
            )

    def _settled(self, x: paddle.Tensor, device: Device) -> paddle.Tensor:
        settled: paddle.Tensor = super()._settled(x, device)  # type: ignore[misc]
        if device.kind == "gpu" and any(self.characters):
            self._check(settled, device.index)
        return settled
