"""One device API for every deep-learning framework: PyTorch, TensorFlow, MXNet, PaddlePaddle, JAX and NumPy.

`XDEVICE_BACKEND=paddle python script.py` is all it takes to run a script on another framework. Importing xdevice
imports no framework and no NumPy; the first call that needs one does.
"""

from __future__ import annotations

from . import native
from .base.devices import Device
from .base.version import __version__ as __version__
from .core.selection import backend, backends, set_backend, use
from .errors import (
    ArgumentError,
    BackendImportError,
    BackendNotFoundError,
    CaptureError,
    ContainerError,
    ContractError,
    DeviceError,
    DeviceMismatchError,
    DeviceNotFoundError,
    DTypeError,
    FileFormatError,
    FilePathError,
    MissingFileError,
    NotATensorError,
    NotBuiltError,
    ParityError,
    RecordingError,
    ScopeError,
    SettingError,
    ShapeError,
    SharingError,
    StateError,
    TimingError,
    TransferError,
    UnsupportedError,
    XDeviceError,
)
from .errors import (
    successor as _successor,
)
from .tensors.creation import item, ones, rand, tensor, to_numpy, zeros
from .tensors.verbs import (
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

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from typing import Any

    from . import nn, random
    from .arithmetic.gradients import grad, update, value_and_grad
    from .arithmetic.namespace import array_namespace
    from .containers.trees import register
    from .execution.blocking import blocking
    from .execution.graphs import Graph, capture
    from .execution.parallel import close_pool, parallel
    from .execution.prefetch import prefetch
    from .execution.streams import Event, Stream
    from .execution.timing import Benchmark, Timer, measure
    from .execution.transfers import TransferWarning, transfers
    from .execution.waiting import sync
    from .parity.comparing import Comparison, assert_parity, compare
    from .parity.recording import record
    from .replicas.launch import local_device
    from .replicas.spread import all_reduce, broadcast, gather, replicate, split_batch
    from .replicas.virtual import virtual_gpus
    from .tensors.conversion import convert
    from .tensors.memory import memory, reset_peak
    from .tracing.traces import Trace, trace
    from .weights.files import load, save
    from .weights.state import State, convert_state, load_state

_LAZY: dict[str, str] = {
    "all_reduce": "replicas.spread",
    "array_namespace": "arithmetic.namespace",
    "broadcast": "replicas.spread",
    "capture": "execution.graphs",
    "close_pool": "execution.parallel",
    "gather": "replicas.spread",
    "grad": "arithmetic.gradients",
    "load": "weights.files",
    "local_device": "replicas.launch",
    "nn": "nn",
    "parallel": "execution.parallel",
    "prefetch": "execution.prefetch",
    "random": "random",
    "replicate": "replicas.spread",
    "save": "weights.files",
    "split_batch": "replicas.spread",
    "update": "arithmetic.gradients",
    "value_and_grad": "arithmetic.gradients",
    "Benchmark": "execution.timing",
    "Comparison": "parity.comparing",
    "Event": "execution.streams",
    "Graph": "execution.graphs",
    "State": "weights.state",
    "Stream": "execution.streams",
    "Timer": "execution.timing",
    "Trace": "tracing.traces",
    "TransferWarning": "execution.transfers",
    "assert_parity": "parity.comparing",
    "blocking": "execution.blocking",
    "compare": "parity.comparing",
    "convert": "tensors.conversion",
    "convert_state": "weights.state",
    "load_state": "weights.state",
    "measure": "execution.timing",
    "memory": "tensors.memory",
    "record": "parity.recording",
    "register": "containers.trees",
    "reset_peak": "tensors.memory",
    "sync": "execution.waiting",
    "trace": "tracing.traces",
    "transfers": "execution.transfers",
    "virtual_gpus": "replicas.virtual",
}
"""Public names whose module is imported on first use, so that `import xdevice` stays light."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        error = _successor(name)
        if error is not None:
            return error
        raise AttributeError(f"module 'xdevice' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"xdevice.{_LAZY[name]}")
    found = globals()[name] = module if _LAZY[name] == name else getattr(module, name)  # this function takes 1 us
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


__all__ = [
    "ArgumentError",
    "BackendImportError",
    "BackendNotFoundError",
    "Benchmark",
    "CaptureError",
    "Comparison",
    "ContainerError",
    "ContractError",
    "DTypeError",
    "Device",
    "DeviceError",
    "DeviceMismatchError",
    "DeviceNotFoundError",
    "Event",
    "FileFormatError",
    "FilePathError",
    "Graph",
    "MissingFileError",
    "NotATensorError",
    "NotBuiltError",
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
    "Trace",
    "TransferError",
    "TransferWarning",
    "UnsupportedError",
    "XDeviceError",
    "all_reduce",
    "array_namespace",
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
    "grad",
    "item",
    "load",
    "load_state",
    "local_device",
    "measure",
    "memory",
    "native",
    "nn",
    "num_gpus",
    "ones",
    "parallel",
    "prefetch",
    "rand",
    "random",
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
    "trace",
    "transfers",
    "try_all_gpus",
    "try_gpu",
    "update",
    "use",
    "value_and_grad",
    "virtual_gpus",
    "zeros",
]
