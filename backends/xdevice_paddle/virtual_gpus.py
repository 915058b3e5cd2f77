"""Virtual GPUs for Paddle. The module `plugin` makes them; it makes machine code, so only a program that wants virtual
GPUs loads it.

Paddle lists its devices at its import, so importing this module must not import Paddle.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from xdevice.base import devices
from xdevice.contract.virtual_gpus import VirtualGpus

from .private import private

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdevice.base.devices import Device

KIND: Final = "vgpu"
"""Paddle's name for the kind of virtual GPUs: the first is "vgpu:0"."""

_TOO_LATE: Final = (
    "Paddle is imported already, and it lists its devices at its import; move `import xdevice`, with "
    "XDEVICE_VIRTUAL_GPUS set, or xdevice.virtual_gpus(n) above `import paddle`"
)
_registered = 0
_why_not: str | None = _TOO_LATE


def registered() -> int:
    """Returns how many virtual GPUs Paddle was given."""
    return _registered


def name_of(device: Device) -> str:
    """Returns Paddle's name for a device: "cpu", "gpu:1", or "vgpu:1" for a virtual GPU."""
    if device.kind == "cpu":
        return "cpu"
    return f"{KIND}:{device.index}" if device.kind == "gpu" and _registered else str(device)


@contextmanager
def importing(n: int) -> Iterator[None]:
    """A block around `import paddle`, which gives Paddle `n` virtual GPUs. With 0 it changes nothing."""
    global _registered, _why_not
    if not n or "paddle" in sys.modules:
        yield
        return
    from . import plugin

    with plugin.environment():
        _why_not = plugin.register(n, KIND)
        _registered = 0 if _why_not else n
        yield


class PaddleVirtualGpus(VirtualGpus):
    _gpu: str
    _gpus: int
    _natives: dict[Device, Any]

    def why_no_virtual_gpus(self) -> str | None:
        import paddle

        if registered() and KIND not in (paddle.device.get_all_custom_device_type() or ()):
            return "Paddle does not list them; GLOG_v=3 makes it print why"
        return _why_not

    def make_virtual_gpus(self, n: int) -> None:
        import paddle

        from . import virtual_operations

        private.require("virtual GPUs")
        paddle.set_flags({"FLAGS_use_stride_kernel": False})
        paddle.set_device("cpu")
        self._natives = {devices.CPU: self._natives[devices.CPU]}
        self._gpu, self._gpus = KIND, n
        for index in range(n):  # so that xdevice takes the names that paddle.get_device() gives
            devices.spell(f"{KIND}:{index}", devices.of("gpu", index))
        self.short_floats = frozenset()  # they are made by Tensor.view, which has no kernel without strides
        virtual_operations.refuse_mixed_devices()

    def default_to_float64(self) -> None:
        import paddle

        paddle.set_default_dtype("float64")
