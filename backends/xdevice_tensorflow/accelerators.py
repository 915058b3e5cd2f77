"""Finds the type of device that `gpu:i` means in TensorFlow, and waits for devices that
TensorFlow's own wait skips.

`tf.test.experimental.sync_devices` waits only for GPUs of CUDA or ROCm, in a build for them.
For all pluggable devices, including Metal's "GPU" and Intel's "XPU", its kernel is empty.
Reading a value, in contrast, waits for the value on every device.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Final

import tensorflow as tf

from xdevice.base import devices
from xdevice.contract.accelerators import choose

_NO_GPU: Final = {"CPU", "XLA_CPU", "XLA_GPU", "TPU", "TPU_SYSTEM", "COMPOSITE"}
"""TensorFlow's own device types that are no accelerators of the kind `gpu`; every other type
is."""
IS_NVIDIA_OR_AMD: Final = tf.test.is_built_with_cuda() or tf.test.is_built_with_rocm()
"""Whether this build of TensorFlow supports CUDA or ROCm, so that "GPU" is not a plugin's
device."""


@cache
def kind() -> str:
    """Returns TensorFlow's name for the device type of `gpu:i`: "GPU" if there is no
    accelerator. From the first call on, users may write the name of another type, such as
    "xpu", as a device."""
    names = sorted(
        {device.device_type for device in tf.config.list_physical_devices()} - _NO_GPU
    )
    # on a machine with several types TensorFlow itself computes on "GPU", so that is the
    # default
    device_type = choose("tensorflow", names, _words, "GPU") or "GPU"
    # "gpu" is a kind of device already, and not a word for one vendor's hardware
    if device_type != "GPU":
        devices.HARDWARE.add(device_type.lower())
    return device_type


def words() -> frozenset[str]:
    """Returns the words with which a user may name the hardware of `gpu:i` in TensorFlow, such
    as "cuda"."""
    return _words(kind())


def _words(name: str) -> frozenset[str]:
    """Returns the words with which a user may name the hardware of a TensorFlow device type,
    such as "cuda" for "GPU"."""
    if name != "GPU":
        return frozenset((name.lower(),))
    # on macOS only Apple's plugin has GPUs
    if sys.platform == "darwin":
        return frozenset(("mps",))
    return frozenset(("rocm", "hip") if tf.test.is_built_with_rocm() else ("cuda",))


def wait_for_others() -> None:
    """Waits for all devices that TensorFlow's own `sync_devices` does not wait for, by reading
    a value on each."""
    for device in tf.config.list_logical_devices():
        if device.device_type == "CPU" or (device.device_type == "GPU" and IS_NVIDIA_OR_AMD):
            continue
        with tf.device(device.name):
            # the sum is computed on the device, after its earlier work
            (tf.constant(0.0) + 1).numpy()
