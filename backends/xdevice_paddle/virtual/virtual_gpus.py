"""The hooks for Paddle's virtual GPUs. The module `custom_device` creates the virtual GPUs, with
machine code from `machine_code`. Programs without virtual GPUs load neither of these modules."""

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
    """Paddle's virtual GPUs: the devices of the plugin that `custom_device` has registered."""

    _gpu: str
    _gpus: int
    _natives: dict[Device, Any]

    def why_no_virtual_gpus(self) -> str | None:
        """Returns the reason why Paddle has no virtual GPUs in this process, or None if it has them."""
        listed = paddle.device.get_all_custom_device_type() or ()
        # the plugin was passed to Paddle, but Paddle has not accepted it
        if virtual_devices.registered_count() and virtual_devices.KIND not in listed:
            return "Paddle does not list the virtual GPUs; set GLOG_v=3 to make Paddle print the reason"
        return virtual_devices.why_not()

    def make_virtual_gpus(self, n: int) -> None:
        """Prepares Paddle for `n` virtual GPUs, which were created when Paddle was imported. From then on, Paddle's
        operations refuse tensors on two different virtual GPUs."""
        from . import virtual_operations

        private.require_names_for("virtual GPUs")
        # with kernels for strided memory, Paddle calls the plugin's kernel `contiguous` for views,
        # and raises a RuntimeError because the plugin has none; for this kernel, Paddle does not
        # fall back to the CPU (3.3.1)
        paddle.set_flags({"FLAGS_use_stride_kernel": False})
        # Paddle makes the first device of a plugin its default
        paddle.set_device("cpu")
        # removes Paddle's objects for real GPUs, which are hidden from now on
        self._natives = {devices.CPU: self._natives[devices.CPU]}
        self._gpu, self._gpus = virtual_devices.KIND, n
        # xdevice accepts the names that `paddle.get_device()` returns
        for index in range(n):
            devices.register_spelling(
                f"{virtual_devices.KIND}:{index}", devices.of("gpu", index)
            )
        # xdevice creates tensors of 8-bit floats with Tensor.view, which has no kernel while the
        # kernels for strided memory are switched off
        self.short_floats = frozenset()
        virtual_operations.refuse_mixed_devices()

    def limit(self) -> None:
        """From now on, checks each new tensor against the limits of its virtual GPU. Paddle itself
        counts the memory in use."""
        from . import virtual_operations

        if any(self.characters):
            virtual_operations.check_results(self._check)

    def lack_error(self, text: str) -> Exception:
        """Returns the error to raise if a virtual GPU lacks a dtype."""
        return RuntimeError(f"(NotFound) {text}")

    def memory_error(self, text: str) -> Exception:
        """Returns the error to raise if a virtual GPU has too little memory."""
        return MemoryError(f"ResourceExhaustedError: {text}")

    def _check(self, x: Any, index: int) -> None:
        """Raises Paddle's error if the virtual GPU with this index lacks the dtype of a new
        tensor, or the memory for it."""
        self.refuse_lacking(index, [dtype_name(x.dtype)])
        usage = self.memory(devices.of("gpu", index))
        # negative if too many bytes are allocated, because Paddle has already counted the new
        # tensor
        if usage.free is not None and usage.free < 0:
            size = x.size * x.element_size()
            raise self.memory_error(
                out_of_memory(index, size, usage.total or 0, (usage.allocated or 0) - size)
            )

    def _moved_if_elsewhere(self, x: paddle.Tensor, device: Device) -> paddle.Tensor:
        """Moves a tensor that was created for `device` to `device` if it is elsewhere. Checks it against the limits of
        a virtual GPU, and returns it. Raises the same errors as `_check`."""
        moved: paddle.Tensor = super()._moved_if_elsewhere(x, device)  # type: ignore[misc]
        if device.kind == "gpu" and any(self.characters):
            self._check(moved, device.index)
        return moved
