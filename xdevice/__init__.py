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
    BackendMismatchError,
    BackendNotFoundError,
    CaptureError,
    ContainerError,
    ContractError,
    CountError,
    DepthError,
    DeviceError,
    DeviceMismatchError,
    DeviceNotFoundError,
    DeviceTypeError,
    DTypeError,
    FileFormatError,
    FilePathError,
    LaunchError,
    MissingFileError,
    NotATaskError,
    NotATensorError,
    NotBuiltError,
    NotIterableError,
    OpError,
    ParityError,
    RecordingError,
    ScopeError,
    SettingError,
    ShapeError,
    SharingError,
    StateError,
    TimingError,
    ToleranceError,
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
    to_device,
    try_all_gpus,
    try_gpu,
)
from .version import __version__ as __version__

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from typing import Any

    from .blocking import blocking
    from .conversion import convert
    from .files import load, save
    from .graphs import Graph, capture
    from .launch import local_device
    from .memory import memory, reset_peak
    from .parallel import close_pool, parallel
    from .parity import Comparison, assert_parity, compare
    from .prefetch import prefetch
    from .recording import record
    from .spread import all_reduce, broadcast, gather, replicate, split_batch
    from .state import State, convert_state, load_state
    from .streams import Event, Stream
    from .timing import Benchmark, Timer, measure
    from .transfers import TransferWarning, transfers
    from .trees import register
    from .virtual import virtual_gpus
    from .waiting import sync

_LAZY: dict[str, str] = {
    "all_reduce": "spread",
    "broadcast": "spread",
    "capture": "graphs",
    "close_pool": "parallel",
    "gather": "spread",
    "load": "files",
    "local_device": "launch",
    "parallel": "parallel",
    "prefetch": "prefetch",
    "replicate": "spread",
    "save": "files",
    "split_batch": "spread",
    "Benchmark": "timing",
    "Comparison": "parity",
    "Event": "streams",
    "Graph": "graphs",
    "State": "state",
    "Stream": "streams",
    "Timer": "timing",
    "TransferWarning": "transfers",
    "assert_parity": "parity",
    "blocking": "blocking",
    "compare": "parity",
    "convert": "conversion",
    "convert_state": "state",
    "load_state": "state",
    "measure": "timing",
    "memory": "memory",
    "record": "recording",
    "register": "trees",
    "reset_peak": "memory",
    "sync": "waiting",
    "transfers": "transfers",
    "virtual_gpus": "virtual",
}
"""Public names whose module is imported on first use, so that `import xdevice` stays light."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'xdevice' has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f"xdevice.{_LAZY[name]}"), name)  # this function takes 1 us
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class _Package(type(sys)):  # type: ignore[misc]  # types.ModuleType, without importing types
    """Keeps `xdevice.blocking` the class when its module, of the same name, is imported: Python would replace it."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _LAZY or not isinstance(value, type(sys)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


__all__ = [
    "BackendConflictError",
    "BackendImportError",
    "BackendMismatchError",
    "BackendNotFoundError",
    "Benchmark",
    "CaptureError",
    "Comparison",
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
    "FileFormatError",
    "FilePathError",
    "Graph",
    "LaunchError",
    "MissingFileError",
    "NotATaskError",
    "NotATensorError",
    "NotBuiltError",
    "NotIterableError",
    "OpError",
    "ParityError",
    "RecordingError",
    "ScopeError",
    "SettingError",
    "ShapeError",
    "SharingError",
    "State",
    "StateError",
    "Stream",
    "Timer",
    "TimingError",
    "ToleranceError",
    "TransferError",
    "TransferWarning",
    "UnsupportedError",
    "XDeviceError",
    "all_reduce",
    "assert_parity",
    "backend",
    "backends",
    "blocking",
    "broadcast",
    "capture",
    "check_same_device",
    "close_pool",
    "compare",
    "convert",
    "convert_state",
    "copy_to",
    "cpu",
    "device",
    "device_of",
    "gather",
    "gpu",
    "item",
    "load",
    "load_state",
    "local_device",
    "measure",
    "memory",
    "native",
    "num_gpus",
    "ones",
    "parallel",
    "prefetch",
    "rand",
    "record",
    "register",
    "replicate",
    "reset_peak",
    "same_device",
    "save",
    "set_backend",
    "split_batch",
    "sync",
    "tensor",
    "to_device",
    "to_numpy",
    "transfers",
    "try_all_gpus",
    "try_gpu",
    "use",
    "virtual_gpus",
    "zeros",
]
