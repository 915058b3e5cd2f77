"""One device API for every deep-learning framework: PyTorch, TensorFlow, MXNet, PaddlePaddle, JAX and NumPy.

`XDEVICE_BACKEND=paddle python script.py` is all it takes to run a script on another framework. Importing xdevice
imports no framework and no NumPy; the first call that needs one does.
"""

from __future__ import annotations

from . import native
from .creation import item, ones, rand, tensor, to_numpy, zeros
from .devices import Device
from .errors import (
    BackendConflictError,
    BackendImportError,
    BackendNotFoundError,
    ContainerError,
    ContractError,
    DeviceError,
    DeviceMismatchError,
    DeviceNotFoundError,
    DeviceTypeError,
    DTypeError,
    NotATensorError,
    NotBuiltError,
    UnsupportedError,
    XDeviceError,
)
from .selection import backend, backends, set_backend, use
from .verbs import (
    check_same_device,
    copy_to,
    cpu,
    device,
    device_of,
    gpu,
    num_gpus,
    same_device,
    sync,
    to_device,
    try_all_gpus,
    try_gpu,
)

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

_LAZY: dict[str, str] = {}
"""Public names whose module is imported on first use, so that `import xdevice` stays light."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'xdevice' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"xdevice.{_LAZY[name]}"), name)


__all__ = [
    "BackendConflictError",
    "BackendImportError",
    "BackendNotFoundError",
    "ContainerError",
    "ContractError",
    "DTypeError",
    "Device",
    "DeviceError",
    "DeviceMismatchError",
    "DeviceNotFoundError",
    "DeviceTypeError",
    "NotATensorError",
    "NotBuiltError",
    "UnsupportedError",
    "XDeviceError",
    "backend",
    "backends",
    "check_same_device",
    "copy_to",
    "cpu",
    "device",
    "device_of",
    "gpu",
    "item",
    "native",
    "num_gpus",
    "ones",
    "rand",
    "same_device",
    "set_backend",
    "sync",
    "tensor",
    "to_device",
    "to_numpy",
    "try_all_gpus",
    "try_gpu",
    "use",
    "zeros",
]
