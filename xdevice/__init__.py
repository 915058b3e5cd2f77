"""One device API for every deep-learning framework: PyTorch, TensorFlow, MXNet, PaddlePaddle, JAX and NumPy.

`XDEVICE_BACKEND=paddle python script.py` is all it takes to run a script on another framework. Importing xdevice
imports no framework and no NumPy; the first call that needs one does.
"""

from __future__ import annotations

import os as _os

from .base.version import __version__ as __version__

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from . import native, nn, random
    from .arithmetic.gradients import grad, update, value_and_grad
    from .arithmetic.namespace import array_namespace
    from .base.devices import Device
    from .containers.trees import register
    from .core.selection import backend, backends, set_backend, use
    from .distributed.world import World, processes, world
    from .errors import (
        ArgumentError,
        BackendImportError,
        BackendNotFoundError,
        CaptureError,
        CollectiveMismatchError,
        ContainerError,
        ContractError,
        DeviceError,
        DeviceMismatchError,
        DeviceNotFoundError,
        DTypeError,
        FileFormatError,
        FilePathError,
        LaunchError,
        MissingFileError,
        NotATensorError,
        NotBuiltError,
        ParityError,
        PeerError,
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
    from .porting.optimizers import compare_optimizers, convert_optimizer
    from .porting.state import State, convert_state, load_state
    from .replicas.launch import local_device
    from .replicas.spread import all_reduce, broadcast, gather, replicate, split_batch
    from .replicas.virtual import virtual_gpus
    from .tensors.conversion import convert
    from .tensors.creation import item, ones, rand, tensor, to_numpy, zeros
    from .tensors.memory import free_pinned, memory, reset_peak
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
    from .tracing.traces import Trace, trace
    from .weights.files import load, save

_LAZY: dict[str, str] = {
    "all_reduce": "replicas.spread",
    "array_namespace": "arithmetic.namespace",
    "assert_parity": "parity.comparing",
    "backend": "core.selection",
    "backends": "core.selection",
    "blocking": "execution.blocking",
    "broadcast": "replicas.spread",
    "capture": "execution.graphs",
    "check_same_device": "tensors.verbs",
    "close_pool": "execution.parallel",
    "compare": "parity.comparing",
    "compare_optimizers": "porting.optimizers",
    "convert": "tensors.conversion",
    "convert_optimizer": "porting.optimizers",
    "convert_state": "porting.state",
    "copy_to": "tensors.verbs",
    "cpu": "tensors.verbs",
    "device": "tensors.verbs",
    "device_of": "tensors.verbs",
    "errors": "errors",
    "free_pinned": "tensors.memory",
    "gather": "replicas.spread",
    "gpu": "tensors.verbs",
    "grad": "arithmetic.gradients",
    "item": "tensors.creation",
    "load": "weights.files",
    "load_state": "porting.state",
    "local_device": "replicas.launch",
    "measure": "execution.timing",
    "memory": "tensors.memory",
    "native": "native",
    "nn": "nn",
    "num_gpus": "tensors.verbs",
    "ones": "tensors.creation",
    "parallel": "execution.parallel",
    "prefetch": "execution.prefetch",
    "processes": "distributed.world",
    "rand": "tensors.creation",
    "random": "random",
    "record": "parity.recording",
    "register": "containers.trees",
    "replicate": "replicas.spread",
    "reset_peak": "tensors.memory",
    "same_device": "tensors.verbs",
    "save": "weights.files",
    "set_backend": "core.selection",
    "split_batch": "replicas.spread",
    "sync": "execution.waiting",
    "tensor": "tensors.creation",
    "to_device": "tensors.verbs",
    "to_numpy": "tensors.creation",
    "trace": "tracing.traces",
    "transfers": "execution.transfers",
    "try_all_gpus": "tensors.verbs",
    "try_gpu": "tensors.verbs",
    "update": "arithmetic.gradients",
    "use": "core.selection",
    "value_and_grad": "arithmetic.gradients",
    "virtual_gpus": "replicas.virtual",
    "world": "distributed.world",
    "zeros": "tensors.creation",
    "ArgumentError": "errors",
    "BackendImportError": "errors",
    "BackendNotFoundError": "errors",
    "Benchmark": "execution.timing",
    "CaptureError": "errors",
    "CollectiveMismatchError": "errors",
    "Comparison": "parity.comparing",
    "ContainerError": "errors",
    "ContractError": "errors",
    "DTypeError": "errors",
    "Device": "tensors.verbs",  # which also brings what `with device:` does
    "DeviceError": "errors",
    "DeviceMismatchError": "errors",
    "DeviceNotFoundError": "errors",
    "Event": "execution.streams",
    "FileFormatError": "errors",
    "FilePathError": "errors",
    "LaunchError": "errors",
    "Graph": "execution.graphs",
    "MissingFileError": "errors",
    "NotATensorError": "errors",
    "NotBuiltError": "errors",
    "ParityError": "errors",
    "PeerError": "errors",
    "RecordingError": "errors",
    "ScopeError": "errors",
    "SettingError": "errors",
    "ShapeError": "errors",
    "SharingError": "errors",
    "State": "porting.state",
    "StateError": "errors",
    "Stream": "execution.streams",
    "Timer": "execution.timing",
    "TimingError": "errors",
    "Trace": "tracing.traces",
    "TransferError": "errors",
    "TransferWarning": "execution.transfers",
    "UnsupportedError": "errors",
    "World": "distributed.world",
    "XDeviceError": "errors",
}
"""Where each public name is: its module is imported when it is first used."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        from .errors import successor

        error = successor(name)
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
    "CollectiveMismatchError",
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
    "LaunchError",
    "MissingFileError",
    "NotATensorError",
    "NotBuiltError",
    "ParityError",
    "PeerError",
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
    "World",
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
    "compare_optimizers",
    "convert",
    "convert_optimizer",
    "convert_state",
    "copy_to",
    "cpu",
    "device",
    "device_of",
    "free_pinned",
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
    "processes",
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
    "world",
    "zeros",
]

if _os.environ.get("XDEVICE_FLOATS"):
    from .base import floats as _floats

    if _floats.is_float64():  # a framework's own default has to change before the program makes its layers
        __getattr__("backend")()
