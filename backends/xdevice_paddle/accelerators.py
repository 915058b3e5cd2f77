"""Finds the devices that `gpu:i` refers to in Paddle. They are the GPUs of CUDA or ROCm or, if there are none, the
XPUs. If there are no XPUs either, they are the devices of the only plugin that has devices."""

from __future__ import annotations

from typing import Any

import paddle

from xdevice.base import devices
from xdevice.contract.accelerators import choose
from xdevice.contract.environment import virtual_gpus_wanted
from xdevice.cuda_driver import nvidia

from . import virtual_devices


def detect() -> tuple[str, int]:
    """Returns Paddle's name for the device type of `gpu:i`, and the number of such devices, or ("gpu", 0) if there is
    no accelerator. After this call, users may also use this name as the name of a device. Raises `UnsupportedError` if
    two plugins have devices and XDEVICE_ACCELERATOR does not name one of them."""
    counts = {"gpu": _count_gpus()}
    if paddle.is_compiled_with_xpu():
        counts["xpu"] = len(paddle.static.xpu_places())
    for name in paddle.device.get_all_custom_device_type() or ():
        # if the program wants virtual GPUs, they are skipped here, because `make_virtual_gpus`
        # later makes them `gpu:i`
        if name != virtual_devices.KIND or not virtual_gpus_wanted():
            available = paddle.device.get_available_custom_device() or ()
            counts[name] = sum(
                device_name.partition(":")[0] == name for device_name in available
            )
    names = [name for name, count in counts.items() if count]
    # Paddle's own types of devices take precedence over those of plugins
    default = next((name for name in names if name in ("gpu", "xpu")), None)
    # None if there are no devices
    name = choose("paddle", names, hardware_names, default) or "gpu"
    # "gpu" is already a kind of device, and not a vendor-specific word
    if name != "gpu":
        devices.HARDWARE.add(name)
    return name, counts[name]


def hardware_names(name: str) -> frozenset[str]:
    """Returns the words that a user may write for the hardware of a Paddle device type, such as
    "cuda" for "gpu"."""
    if name != "gpu":
        return frozenset((name,))
    return frozenset(("rocm", "hip") if paddle.is_compiled_with_rocm() else ("cuda",))


def place(name: str, index: int) -> Any:
    """Returns Paddle's place for the device with the given type and index. In a build without this
    type, Paddle may crash the process."""
    if name == "gpu":
        return paddle.CUDAPlace(index)
    return paddle.XPUPlace(index) if name == "xpu" else paddle.CustomPlace(name, index)


def _count_gpus() -> int:
    """Returns the number of GPUs of CUDA or ROCm that Paddle can use."""
    # the function also returns True in a build for ROCm
    if not paddle.is_compiled_with_cuda():
        return 0
    # Paddle's own function initialises CUDA, which a forked child could then no longer use
    count = None if paddle.is_compiled_with_rocm() else nvidia.count()
    return int(paddle.device.cuda.device_count()) if count is None else count
