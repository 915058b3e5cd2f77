"""Finds the type of device that `gpu:i` means in TensorFlow, and waits for devices that TensorFlow's own wait skips.

`tf.test.experimental.sync_devices` waits only for GPUs of CUDA or ROCm, in a build for them. For all pluggable devices,
including Metal's "GPU" and Intel's "XPU", its kernel is empty. Reading a value waits on every device.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Final

import tensorflow as tf

from xdevice.base import devices
from xdevice.contract.accelerators import choose

_NO_GPU: Final = {"CPU", "XLA_CPU", "XLA_GPU", "TPU", "TPU_SYSTEM", "COMPOSITE"}
IS_NVIDIA_OR_AMD: Final = tf.test.is_built_with_cuda() or tf.test.is_built_with_rocm()


@cache
def kind() -> str:
    """Returns TensorFlow's name for the device type of `gpu:i`: "GPU" if there is no accelerator."""
    names = sorted({one.device_type for one in tf.config.list_physical_devices()} - _NO_GPU)
    device_type = choose("tensorflow", names, _words, "GPU") or "GPU"
    devices.HARDWARE.update(word for word in [device_type.lower()] if word != "gpu")
    return device_type


def words() -> frozenset[str]:
    return _words(kind())


def _words(name: str) -> frozenset[str]:
    if name != "GPU":
        return frozenset((name.lower(),))
    if sys.platform == "darwin":
        return frozenset(("mps",))
    return frozenset(("rocm", "hip") if tf.test.is_built_with_rocm() else ("cuda",))


def wait_for_others() -> None:
    """Waits for all devices that TensorFlow's own `sync_devices` does not wait for, by reading a value on each."""
    for device in tf.config.list_logical_devices():
        if device.device_type == "CPU" or (device.device_type == "GPU" and IS_NVIDIA_OR_AMD):
            continue
        with tf.device(device.name):
            (tf.constant(0.0) + 1).numpy()
