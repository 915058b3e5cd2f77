"""The adapter for Apache MXNet 1.9: xdevice's hooks (the methods that its core calls), written with MXNet's functions.
MXNet's development has ended; 1.9.1 is the last release.

The rules that it must keep, and the facts behind them:
- Everything is asynchronous, on the CPU too. MXNet can wait only for one array, or for all work.
- Arrays without dimensions (0-d) or without elements exist only with NumPy's shape semantics. These are a setting of
  each thread, and off in threads that only move arrays (semantics.py). So every function here that makes or reads an
  array switches them on and restores them. A function that makes an array for the program first calls
  `semantics.creating()`, which may switch them on for good.
- A `Context` remembers the scope that it replaced. If nested scopes shared a `Context`, it would restore the wrong one,
  so each scope gets a new one.
- `MXNDArrayGetContext` writes into two buffers. Each thread keeps its own, because `x.ctx` makes new ones each time,
  and takes 4 times as long. It is called without releasing the GIL, because it returns at once.
- MXNet's operators silently take arrays of `cpu(0)` and `cpu(1)` together, and compute on the device of the first; they
  refuse arrays of a CPU and a GPU. Virtual GPUs are `cpu(1)` and the following, so virtual_gpus.py makes the operators
  refuse mixed CPU devices too.
- MXNet allocates the memory of an array when it computes the array, and without a lock: an address that is read before
  that may change (apache/mxnet#11927). So each address is read after a wait.
- Only the first wait reports a failed computation. Reading the array afterwards gives garbage.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from xdevice.base import devices
from xdevice.contract import VIRTUAL_GPU, Backend, DeviceInfo, Kind, Memory
from xdevice.contract.environment import is_blocking_wanted
from xdevice.contract.loader import importing
from xdevice.cuda_driver import nvidia
from xdevice.errors import ShapeError

from .numpy_names import restored

if is_blocking_wanted():
    # MXNet reads it only when it is imported
    os.environ.setdefault("MXNET_ENGINE_TYPE", "NaiveEngine")

with importing(), restored("mxnet"):
    import mxnet as mx

from . import models, semantics, staging
from .blocking import MxnetBlocking
from .conversion import MxnetConversion
from .library import at_once
from .models import MxnetModels
from .private import private
from .replicas import MxnetReplicas

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import FrameType, ModuleType

    from xdevice.base.devices import Device


_CPUS = 16
"""How many CPU devices there are: `kMaxDevID` in MXNet's base.h, the "maximal device index". All of them are the same
cores and memory."""

_get_context = at_once.MXNDArrayGetContext
_LONG = 2**31


def _count_gpus() -> int:
    if not mx.runtime.Features().is_enabled("CUDA"):
        return 0
    # MXNet's own count initialises CUDA, which no forked child could use then
    count = nvidia.count()
    return int(mx.context.num_gpus()) if count is None else count


class _Buffers(threading.local):
    """Each thread's own memory into which `_get_context` writes the type and the index of a device. `number` reads both
    as one integer."""

    def __init__(self) -> None:
        self.pair = (ctypes.c_int * 2)()
        self.number = ctypes.c_longlong.from_buffer(self.pair)
        self.arguments = (
            ctypes.byref(self.pair),
            ctypes.byref(self.pair, ctypes.sizeof(ctypes.c_int)),
            self.number,
        )


_buffers = _Buffers()


class MxnetBackend(MxnetConversion, MxnetModels, MxnetReplicas, MxnetBlocking, Backend):
    name = "mxnet"
    modules = ("mxnet",)
    private_names = private
    minimum = (1, 9)
    dtypes = frozenset(
        ["bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64"]
    )
    moves_by = "as_in_ctx"
    longest_axis = 2**31 - 1
    most_virtual_gpus = _CPUS - 1

    def __init__(self) -> None:
        self._cpus = _CPUS
        self._gpus: int | None = None
        self._places: dict[int, Device] = {}

    # the framework

    @property
    def framework(self) -> ModuleType:
        return mx

    def classify(self, cls: type) -> Kind | None:
        if issubclass(cls, mx.nd.NDArray):
            return "tensor"
        if issubclass(cls, mx.sym.Symbol):
            return "symbol"
        return "model" if issubclass(cls, models.TYPES) else None

    # devices

    def count(self, kind: str) -> int:
        if kind != "gpu":
            return self._cpus if kind == "cpu" else 0
        if self._gpus is None:
            self._gpus = _count_gpus()
        return self._gpus

    def describe(self, device: Device) -> DeviceInfo:
        if device.kind != "gpu":
            return DeviceInfo("cpu", None)
        if self.virtual:
            return VIRTUAL_GPU
        _, total = mx.context.gpu_memory_info(device.index)
        return DeviceInfo("gpu", int(total))

    def to_native(self, device: Device) -> Any:
        if self.virtual and device.kind == "gpu":
            return mx.Context("cpu", device.index + 1)
        return mx.Context(device.kind, device.index)

    def describe_missing(self, device: Device) -> Any:
        # with virtual GPUs, cpu(i) beyond them is not a device
        return super().describe_missing(device) if self.virtual else self.to_native(device)

    def from_native(self, native: Any) -> Device | None:
        if not isinstance(native, mx.Context):
            return None
        if self.virtual:
            gpu = self._virtual_gpu(native)
            return self._on_host(native) if gpu is None else gpu
        if native.device_type in ("cpu", "gpu"):
            return devices.of(native.device_type, native.device_id)
        return self._on_host(native)

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        return self.to_native(device)

    # tensors

    def device_of(self, x: Any) -> Device:
        kind, index, number = _buffers.arguments
        if _get_context(x.handle, kind, index):
            raise mx.MXNetError(
                f"MXNet does not report where an array of type {type(x).__qualname__} is"
            )
        try:
            return self._places[number.value]
        except KeyError:
            place = self.from_native(x.ctx)
            assert place is not None
            self._places[number.value] = place
            return place

    def move(self, x: Any, device: Device) -> Any:
        return self._copied(x, device, staging.moved)

    def start_move(self, x: Any, device: Device) -> Any:
        return self._copied(x, device, lambda *_: None)

    def copy(self, x: Any, device: Device) -> Any:
        return self._copied(x, device, staging.moved)

    def synchronize(self, device: Device | None) -> None:
        # MXNet cannot wait for one device
        mx.nd.waitall()

    def wait(self, x: Any) -> None:
        x.wait_to_read()

    # values

    def from_numpy(self, array: np.ndarray[Any, Any], device: Device) -> Any:
        _refuse_long(array.shape)
        semantics.creating()
        native = self.to_native(device)
        with mx.util.np_shape(True):
            staged = staging.put(array, native, self)
            return (
                mx.np.array(array, dtype=array.dtype, ctx=native) if staged is None else staged
            )

    def to_numpy(self, x: Any) -> np.ndarray[Any, Any]:
        with mx.util.np_shape(True):
            staged = staging.read(x, self)
            host = x.asnumpy() if staged is None else staged
        if host.dtype.names != ("bfloat16",):
            return host
        import ml_dtypes

        return host.view(ml_dtypes.bfloat16)

    def full(self, shape: tuple[int, ...], value: float, device: Device, dtype: str) -> Any:
        _refuse_long(shape)
        if abs(value) > 2**53:  # mx.np.full would convert it to float64
            return self.from_numpy(np.full(shape, value, dtype), device)
        semantics.creating()
        with mx.util.np_shape(True):
            return mx.np.full(shape, value, dtype=dtype, ctx=self.to_native(device))

    def tracing(self) -> str | None:
        frame: FrameType | None = sys._getframe(1)
        # nothing else shows that MXNet traces
        while frame is not None and not _builds_graph(frame):
            frame = frame.f_back
        return None if frame is None else "a hybridized Gluon block"

    # several devices

    def is_dense(self, x: Any) -> bool:
        # an mxnet.np array is never sparse
        return type(x) is mx.np.ndarray or bool(x.stype == "default")

    # memory

    def memory(self, device: Device) -> Memory:
        if device.kind != "gpu" or self.virtual:
            return Memory()
        free, total = mx.context.gpu_memory_info(device.index)
        return Memory(int(total), int(free), None, None)

    def empty_cache(self, device: Device) -> None:
        self.to_native(device).empty_cache()

    # floats of a parity run

    def default_to_float64(self) -> None:
        """Does nothing, because MXNet 1.9 has no default dtype to change: its functions and layers use float32, until
        net.cast("float64")."""

    # the process

    def on_choice(self) -> None:
        semantics.chosen()

    def _copied(
        self, x: Any, device: Device, stage: Callable[[Any, Any, Backend], Any | None]
    ) -> Any:
        if isinstance(x, mx.sym.Symbol):
            raise self.unsupported(
                "moving tensors inside a hybridized block, whose graph runs on one device",
                "move the block's inputs before calling it",
            )
        native = self.to_native(device)
        with mx.util.np_shape(True):
            staged = stage(x, native, self)
            new = x.copyto(native) if staged is None else staged
            # while MXNet records, the copy is part of the graph; otherwise it is a variable, as `x` is
            if x.grad is not None and not mx.autograd.is_recording():
                new.attach_grad()
                x.grad.copyto(new.grad)
        return new

    def _on_host(self, native: Any) -> Device:
        """Returns cpu:0 for a context of the host, whatever its index is: a context for pinned memory has the index of
        a GPU, and one for shared memory that of a worker. Raises `UnsupportedError` for any other context."""
        if native.device_type not in ("cpu", "cpu_pinned", "cpu_shared"):
            raise self.unsupported(
                f"contexts of the type {native.device_type!r}", "use mx.cpu() or mx.gpu(i)"
            )
        return devices.CPU


def _builds_graph(frame: FrameType) -> bool:
    """Whether a frame is a block's `hybrid_forward` with symbols and `mx.sym`, its F, for arguments."""
    if frame.f_code.co_name != "hybrid_forward":
        return False
    arguments = (
        value if isinstance(value, list | tuple) else (value,)
        for value in frame.f_locals.values()
    )
    return any(
        x is mx.sym or isinstance(x, mx.sym.Symbol) for values in arguments for x in values
    )


def _refuse_long(shape: tuple[int, ...]) -> None:
    """Raises `ShapeError` for a size above 2**31 - 1 if this build of MXNet has 32-bit sizes, as MXNet's wheels have.
    Such a build would treat the size as 0, sometimes silently."""
    long = max([*shape, prod(shape)]) >= _LONG
    if long and not mx.runtime.Features().is_enabled("INT64_TENSOR_SIZE"):
        raise ShapeError(
            f"this build of MXNet supports sizes up to 2**31 - 1, but the shape {shape} is larger; use another backend"
        )
