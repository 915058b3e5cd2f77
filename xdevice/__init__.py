"""One device API for every deep-learning framework: PyTorch, TensorFlow, MXNet, PaddlePaddle, JAX and NumPy.

`XDEVICE_BACKEND=paddle python script.py` is all it takes to run a script on another framework. Importing xdevice
imports no framework and no NumPy; the first call that needs one does.
"""

from __future__ import annotations

import sys

from . import native
from .creation import item, ones, rand, tensor, to_numpy, zeros
from .devices import Device
from .errors import (
    BackendConflictError,
    BackendImportError,
    BackendNotFoundError,
    ContainerError,
    ContractError,
    CountError,
    DepthError,
    DeviceError,
    DeviceMismatchError,
    DeviceNotFoundError,
    DeviceTypeError,
    DTypeError,
    NotATaskError,
    NotATensorError,
    NotBuiltError,
    NotIterableError,
    ShapeError,
    TimingError,
    TransferError,
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

    from .blocking import blocking
    from .memory import memory, reset_peak
    from .parallel import close_pool, parallel
    from .prefetch import prefetch
    from .streams import Event, Stream
    from .timing import Benchmark, Timer, measure
    from .transfers import TransferWarning, transfers

__version__ = "0.1.0"

_LAZY: dict[str, str] = {
    "close_pool": "parallel",
    "parallel": "parallel",
    "prefetch": "prefetch",
    "Benchmark": "timing",
    "Event": "streams",
    "Stream": "streams",
    "Timer": "timing",
    "TransferWarning": "transfers",
    "blocking": "blocking",
    "measure": "timing",
    "memory": "memory",
    "reset_peak": "memory",
    "transfers": "transfers",
}
"""Public names whose module is imported on first use, so that `import xdevice` stays light."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'xdevice' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"xdevice.{_LAZY[name]}"), name)


class _Package(type(sys)):  # type: ignore[misc]  # types.ModuleType, without importing types
    """Keeps `xdevice.blocking` the class when its module, of the same name, is imported: Python would replace it."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _LAZY or not isinstance(value, type(sys)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


__all__ = [
    "BackendConflictError",
    "BackendImportError",
    "BackendNotFoundError",
    "Benchmark",
    "ContainerError",
    "ContractError",
    "CountError",
    "DTypeError",
    "DepthError",
    "Device",
    "DeviceError",
    "DeviceMismatchError",
    "DeviceNotFoundError",
    "DeviceTypeError",
    "Event",
    "NotATaskError",
    "NotATensorError",
    "NotBuiltError",
    "NotIterableError",
    "ShapeError",
    "Stream",
    "Timer",
    "TimingError",
    "TransferError",
    "TransferWarning",
    "UnsupportedError",
    "XDeviceError",
    "backend",
    "backends",
    "blocking",
    "check_same_device",
    "close_pool",
    "copy_to",
    "cpu",
    "device",
    "device_of",
    "gpu",
    "item",
    "measure",
    "memory",
    "native",
    "num_gpus",
    "ones",
    "parallel",
    "prefetch",
    "rand",
    "reset_peak",
    "same_device",
    "set_backend",
    "sync",
    "tensor",
    "to_device",
    "to_numpy",
    "transfers",
    "try_all_gpus",
    "try_gpu",
    "use",
    "zeros",
]
