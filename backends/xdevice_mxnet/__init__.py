"""The adapter for Apache MXNet 1.9: xdevice's hooks (the methods that its core calls), written
with MXNet's functions. MXNet's development has ended; 1.9.1 is the last release.

Facts about MXNet that the code depends on, and the resulting rules:
- All work is asynchronous, even on the CPU. MXNet can wait only for one array, or for all work.
- 0-d arrays and arrays without elements exist only with NumPy's shape semantics. This
  is a separate setting of each thread, and it is disabled in threads that only move arrays
  (semantics.py). Every function here that creates or reads an array therefore enables the setting,
  and restores it afterwards. A function that creates an array for the program first calls
  `semantics.enable_for_creation()`, which may enable the setting permanently.
- A `Context` remembers the scope that it replaced. If nested scopes shared a `Context`, it would
  restore the wrong scope, so each scope gets a new `Context`.
- `MXNDArrayGetContext` writes into two buffers, which are created once for each thread. `x.ctx`
  creates new buffers each time, and takes 4 times as long. The function is called without releasing
  the GIL, because it returns at once.
- MXNet's operators silently accept arrays of `cpu(0)` and `cpu(1)` together, and compute on the device of the first
  array. They refuse arrays on a CPU and a GPU. Virtual GPUs are `cpu(1)`, `cpu(2)` and so on, so virtual_gpus.py makes
  the operators refuse mixed CPU devices too.
- MXNet allocates the memory of an array only when it computes the array, and uses no lock. An address that is read
  before that may change (apache/mxnet#11927). Each address is therefore read after a wait.
- Only the first wait reports a failed computation. Reading the array afterwards returns garbage.
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
    # `NaiveEngine` runs each operation synchronously. MXNet reads the variable only when it is
    # imported
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
"""The number of CPU devices: `kMaxDevID` in MXNet's base.h, the "maximal device index". All CPU devices share the
same cores and memory."""

_get_context = at_once.MXNDArrayGetContext
_LONG = 2**31
"""The smallest size that does not fit into a signed 32-bit integer, the type that MXNet's wheels use for sizes."""


def _count_gpus() -> int:
    """Returns the number of GPUs that MXNet can use, which is 0 in a build without CUDA."""
    if not mx.runtime.Features().is_enabled("CUDA"):
        return 0
    # MXNet's own function for the number initialises CUDA, after which forked child processes
    # cannot use CUDA. It is therefore called only if NVIDIA's library cannot count the GPUs
    # (None)
    count = nvidia.count()
    return int(mx.context.num_gpus()) if count is None else count


class _Buffers(threading.local):
    """Memory into which `_get_context` writes a device; each thread has its own. `pair` consists of two 32-bit
    integers, the type and the index of the device. `number` is the same memory read as one 64-bit integer, which is
    the key for `_places`."""

    def __init__(self) -> None:
        self.pair = (ctypes.c_int * 2)()
        self.number = ctypes.c_longlong.from_buffer(self.pair)
        # the two pointers to the halves of `pair` that are passed to `_get_context`, and
        # `number`, which contains its result. They are created once for each thread, and stored
        # in one tuple, so that `device_of` reads only one attribute of this object instead of
        # three
        self.pointers_and_number = (
            ctypes.byref(self.pair),
            ctypes.byref(self.pair, ctypes.sizeof(ctypes.c_int)),
            self.number,
        )


_buffers = _Buffers()


class MxnetBackend(MxnetConversion, MxnetModels, MxnetReplicas, MxnetBlocking, Backend):
    """MXNet as a backend. `xdevice.contract` describes each hook in more detail."""

    name = "mxnet"
    modules = ("mxnet",)
    private_names = private
    minimum = (1, 9)
    dtypes = frozenset(
        ["bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64"]
    )
    moves_by = "as_in_ctx"
    longest_axis = 2**31 - 1
    most_virtual_gpus = _CPUS - 1  # cpu(0) remains the CPU

    def __init__(self) -> None:
        self._cpus = _CPUS
        # None until the number is requested for the first time
        self._gpus: int | None = None
        # maps the `number` of `_Buffers` for a device to the `Device`
        self._places: dict[int, Device] = {}

    # the framework

    @property
    def framework(self) -> ModuleType:
        """The module `mxnet`."""
        return mx

    def classify(self, cls: type) -> Kind | None:
        """Returns "tensor" for a class of arrays, "symbol" for a class of symbols in a graph,
        "model" for a class of blocks, parameters or Trainers, and None for any other class."""
        if issubclass(cls, mx.nd.NDArray):
            return "tensor"
        if issubclass(cls, mx.sym.Symbol):
            return "symbol"
        return "model" if issubclass(cls, models.TYPES) else None

    # devices

    def count(self, kind: str) -> int:
        """Returns the number of devices of a kind, without initialising any device."""
        if kind != "gpu":
            return self._cpus if kind == "cpu" else 0
        if self._gpus is None:
            self._gpus = _count_gpus()
        return self._gpus

    def describe(self, device: Device) -> DeviceInfo:
        """Returns the kind of a device in place of its name, which MXNet does not report, and for a GPU its memory in
        bytes."""
        if device.kind != "gpu":
            return DeviceInfo("cpu", memory=None)
        if self.virtual:
            return VIRTUAL_GPU
        _, total = mx.context.gpu_memory_info(device.index)
        return DeviceInfo("gpu", int(total))

    def to_native(self, device: Device) -> Any:
        """Returns a new `Context` for a device, such as `cpu(2)` for `gpu:1` if that is a virtual GPU. The `Context`
        is always new, because a `Context` remembers the scope that it replaced, so nested scopes cannot share it."""
        if self.virtual and device.kind == "gpu":
            return mx.Context("cpu", device.index + 1)
        return mx.Context(device.kind, device.index)

    def describe_missing(self, device: Device) -> Any:
        """Returns the `Context` of a device that this machine does not have. This is possible because MXNet does not
        check whether the device exists. Raises `UnsupportedError` if the GPUs are virtual."""
        # a virtual GPU that does not exist would be a CPU device that xdevice does not use
        return super().describe_missing(device) if self.virtual else self.to_native(device)

    def from_native(self, native: Any) -> Device | None:
        """Returns the `Device` of a `Context`, or None for any other object. Raises `UnsupportedError` for a context
        that is neither a device nor host memory."""
        if not isinstance(native, mx.Context):
            return None
        if self.virtual:
            gpu = self._virtual_gpu(native)
            return self._on_host(native) if gpu is None else gpu
        if native.device_type in ("cpu", "gpu"):
            return devices.of(native.device_type, native.device_id)
        return self._on_host(native)

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """Returns a context manager. In its block, MXNet creates new arrays on the given device."""
        return self.to_native(device)

    # tensors

    def device_of(self, x: Any) -> Device:
        """Returns the device of an array. Raises MXNetError if MXNet does not report the
        device."""
        kind, index, number = _buffers.pointers_and_number
        # the C function is called directly, because `x.ctx` takes 4 times as long. It returns 0
        # if it succeeds, and writes into the memory of `number` through the pointers `kind` and
        # `index`
        if _get_context(x.handle, kind, index):
            raise mx.MXNetError(
                f"MXNet does not report the device of an array of type {type(x).__qualname__}"
            )
        try:
            return self._places[number.value]
        except KeyError:
            device = self.from_native(x.ctx)
            # `from_native` returns None only for an object that is not a context
            assert device is not None
            self._places[number.value] = device
            return device

    def move(self, x: Any, device: Device) -> Any:
        """Returns a copy of `x` on another device. The copy passes through page-locked memory if that is faster.
        Gradients flow through the copy."""
        return self._copied(x, device, staging.moved)

    def start_move(self, x: Any, device: Device) -> Any:
        """Returns a copy of `x` on another device, possibly before the values have arrived on that device."""
        # the ring is not used, because it waits; MXNet's own copy returns at once
        return self._copied(x, device, lambda *_: None)

    def copy(self, x: Any, device: Device) -> Any:
        """Returns a copy of `x` in new storage on a device, which may be the device of `x`.
        Gradients flow through the copy."""
        return self._copied(x, device, staging.moved)

    def synchronize(self, device: Device | None) -> None:
        """Waits for all work on all devices. `device` is ignored, because MXNet cannot wait for one device. If work has
        failed, raises its error."""
        # MXNet cannot wait for one device
        mx.nd.waitall()

    def wait(self, x: Any) -> None:
        """Waits until `x` is computed. If its computation has failed, raises the error."""
        x.wait_to_read()

    # values

    def from_numpy(self, array: np.ndarray[Any, Any], device: Device) -> Any:
        """Returns a new `mx.np` array on a device with the dtype and values of a NumPy array.
        Raises `ShapeError` if the array is too large for this build of MXNet."""
        _refuse_long(array.shape)
        semantics.enable_for_creation()
        native = self.to_native(device)
        with mx.util.np_shape(True):
            # a large array is copied to a GPU through page-locked memory, which is faster. The
            # result is None if MXNet must copy the array
            staged = staging.put(array, native, self)
            return (
                mx.np.array(array, dtype=array.dtype, ctx=native) if staged is None else staged
            )

    def to_numpy(self, x: Any) -> np.ndarray[Any, Any]:
        """Returns the values of `x` as a new NumPy array, which shares no memory with `x`."""
        with mx.util.np_shape(True):
            # a large array on a GPU is read through page-locked memory, which is faster. The
            # result is None if MXNet must read the array
            staged = staging.read(x, self)
            host = x.asnumpy() if staged is None else staged
        # MXNet returns bfloat16 as records with one field of this name
        if host.dtype.names != ("bfloat16",):
            return host
        import ml_dtypes

        return host.view(ml_dtypes.bfloat16)

    def full(self, shape: tuple[int, ...], value: float, device: Device, dtype: str) -> Any:
        """Returns an `mx.np` array of this shape and dtype on a device, filled with `value`.
        Raises `ShapeError` if the array is too large for this build of MXNet."""
        _refuse_long(shape)
        # mx.np.full converts the number to float64, which cannot represent all integers of more
        # than 53 bits
        if abs(value) > 2**53:
            return self.from_numpy(np.full(shape, value, dtype), device)
        semantics.enable_for_creation()
        with mx.util.np_shape(True):
            return mx.np.full(shape, value, dtype=dtype, ctx=self.to_native(device))

    def tracing(self) -> str | None:
        """Returns "a hybridized Gluon block" while MXNet builds the graph of a block by calling its `hybrid_forward`
        with symbols; otherwise None."""
        frame: FrameType | None = sys._getframe(1)
        # the callers are searched, because nothing else shows that MXNet is tracing
        while frame is not None and not _builds_graph(frame):
            frame = frame.f_back
        return None if frame is None else "a hybridized Gluon block"

    # how a tensor is stored

    def is_dense(self, x: Any) -> bool:
        """Whether `x` is dense, not sparse: it stores all its elements in one block of memory."""
        # an mx.np array is never sparse, so `stype`, which calls MXNet's library, is not read
        return type(x) is mx.np.ndarray or bool(x.stype == "default")

    # memory

    def memory(self, device: Device) -> Memory:
        """Returns the total and the free memory of a real GPU in bytes. MXNet reports no other figures."""
        if device.kind != "gpu" or self.virtual:
            return Memory()
        free, total = mx.context.gpu_memory_info(device.index)
        return Memory(total=int(total), free=int(free))

    def empty_cache(self, device: Device) -> None:
        """Frees the unused memory that MXNet has reserved on a device."""
        self.to_native(device).empty_cache()

    # floats of a parity run

    def default_to_float64(self) -> None:
        """Does nothing, because MXNet 1.9 has no default dtype that could be changed. Its functions and layers use
        float32 until the program calls net.cast("float64")."""

    # the process

    def on_choice(self) -> None:
        """Enables NumPy's semantics in this thread, except in a legacy program. A legacy program has created `mx.nd`
        arrays, symbols or Gluon blocks without these semantics."""
        semantics.enable_on_choice()

    def _copied(
        self, x: Any, device: Device, stage: Callable[[Any, Any, Backend], Any | None]
    ) -> Any:
        """Returns a copy of `x` on a device, with a copy of its gradient if it has a gradient.
        `stage(x, native, self)` returns the copy, or None if MXNet must make the copy. Raises `UnsupportedError` for
        a symbol."""
        if isinstance(x, mx.sym.Symbol):
            raise self.unsupported(
                "moving tensors inside a hybridized block, whose graph runs on one device",
                "move the inputs before calling the block",
            )
        native = self.to_native(device)
        with mx.util.np_shape(True):
            staged = stage(x, native, self)
            new = x.copyto(native) if staged is None else staged
            # while MXNet is recording, the copy is the result of an operation, through which
            # gradients flow; otherwise it is a variable with its own gradient, like `x`
            if x.grad is not None and not mx.autograd.is_recording():
                new.attach_grad()
                x.grad.copyto(new.grad)
        return new

    def _on_host(self, native: Any) -> Device:
        """Returns cpu:0 for any context of the host. The context's index is ignored: it is the index of a GPU for
        pinned memory, and the index of a worker for shared memory. Raises `UnsupportedError` for any other context."""
        if native.device_type not in ("cpu", "cpu_pinned", "cpu_shared"):
            raise self.unsupported(
                f"contexts of the type {native.device_type!r}", "use mx.cpu() or mx.gpu(i)"
            )
        return devices.CPU


def _builds_graph(frame: FrameType) -> bool:
    """Whether a frame runs a block's `hybrid_forward` that was called to build a graph. In such a frame, an argument
    is a symbol, or the argument F is the module `mx.sym`."""
    if frame.f_code.co_name != "hybrid_forward":
        return False
    # locals that are lists, such as the states of a recurrent cell, are searched too
    arguments = (
        value if isinstance(value, list | tuple) else (value,)
        for value in frame.f_locals.values()
    )
    return any(
        x is mx.sym or isinstance(x, mx.sym.Symbol) for values in arguments for x in values
    )


def _refuse_long(shape: tuple[int, ...]) -> None:
    """Raises `ShapeError` for a size above 2**31 - 1 if this build of MXNet has 32-bit sizes, as MXNet's wheels do.
    Such a build would treat the size as 0, sometimes silently."""
    # neither a length nor the number of elements may be this large
    long = max([*shape, prod(shape)]) >= _LONG
    if long and not mx.runtime.Features().is_enabled("INT64_TENSOR_SIZE"):
        raise ShapeError(
            f"this build of MXNet supports sizes up to 2**31 - 1, but the shape {shape} is larger; use another backend"
        )
