"""Finds the device type that `gpu:i` means in TensorFlow, and waits for devices that TensorFlow's own `sync_devices`
ignores.

`tf.test.experimental.sync_devices` waits only for CUDA and ROCm GPUs, in a build of TensorFlow for these GPUs. For all
pluggable devices, including Metal's "GPU" and Intel's "XPU", its kernel is empty. In contrast, reading a value waits
for the value on any device."""

from __future__ import annotations

import sys
from functools import cache
from typing import Final

import tensorflow as tf

from xdevice.base import devices
from xdevice.contract.accelerators import choose

_NO_GPU: Final = {"CPU", "XLA_CPU", "XLA_GPU", "TPU", "TPU_SYSTEM", "COMPOSITE"}
"""TensorFlow's own device types that are not accelerators of the kind `gpu`. All other device types are of this
kind."""
IS_NVIDIA_OR_AMD: Final = tf.test.is_built_with_cuda() or tf.test.is_built_with_rocm()
"""Whether this build of TensorFlow supports CUDA or ROCm. If so, the device type "GPU" does not
belong to a plugin."""


@cache
def kind() -> str:
    """Returns TensorFlow's name for the device type that `gpu:i` means, or "GPU" if there is no accelerator. If the
    name is not "GPU", users may write its lower-case form, such as "xpu", instead of "gpu" after the first call."""
    names = sorted(
        {device.device_type for device in tf.config.list_physical_devices()} - _NO_GPU
    )
    # on a machine with several types, TensorFlow itself computes on "GPU", so that type is the
    # default
    device_type = choose("tensorflow", names, _words, default="GPU") or "GPU"
    # "gpu" is already a kind of device, and not a word for the hardware of a vendor
    if device_type != "GPU":
        devices.HARDWARE.add(device_type.lower())
    return device_type


def hardware_names() -> frozenset[str]:
    """Returns the words that users may write instead of "gpu" in TensorFlow, such as "cuda"."""
    return _words(kind())


def _words(name: str) -> frozenset[str]:
    """Returns the words that users may write for the hardware of a TensorFlow device type, such
    as "cuda" for "GPU"."""
    if name != "GPU":
        return frozenset((name.lower(),))
    # on macOS, only Apple's plugin supports GPUs
    if sys.platform == "darwin":
        return frozenset(("mps",))
    return frozenset(("rocm", "hip") if tf.test.is_built_with_rocm() else ("cuda",))


def wait_for_other_devices() -> None:
    """Waits for each device that TensorFlow's own `sync_devices` ignores, by reading a value from the device."""
    for device in tf.config.list_logical_devices():
        if device.device_type == "CPU" or (device.device_type == "GPU" and IS_NVIDIA_OR_AMD):
            continue
        with tf.device(device.name):
            # the sum is computed on the device, after its earlier work
            (tf.constant(0.0) + 1).numpy()
