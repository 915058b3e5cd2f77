"""Apache MXNet 1.9, whose development has ended: 1.9.1 is the last release.

What this adapter must keep:
- Everything is asynchronous, on the CPU too, and the only waits are for one array or for all work.
- 0-d and zero-size arrays exist only under NumPy's shape semantics, which is per thread, and off in threads that only
  move arrays (semantics.py). So whatever makes or reads an array here turns it on and restores it; what makes one for
  the program calls `semantics.creating()` before.
- A `Context` remembers the scope it replaced: one that is shared restores the wrong scope when nested, so each is new.
- `MXNDArrayGetContext` writes into two buffers. They are kept per thread: `x.ctx` makes new ones and takes 4 times as
  long. It is called without releasing the GIL, which it never holds for long.
- Operators silently mix `cpu(0)` and `cpu(1)`, and give the first one's; between CPU and GPU they raise. With virtual
  GPUs, which are `cpu(1)` and on, virtual_gpus.py makes them raise too.
- It makes the memory of an array when it computes it, and without a lock: whoever asks for an address before may be
  given memory that the array does not keep (apache/mxnet#11927). So each address is asked for after a wait.
- A failed computation is reported by the first wait only; reading the array after that gives garbage.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from xdevice.base import devices
from xdevice.base.dtypes import dtype_name
from xdevice.contract import VIRTUAL_GPU, Backend, DeviceInfo, Kind, Memory, nvidia
from xdevice.contract.environment import is_blocking_wanted
from xdevice.contract.loader import importing
from xdevice.errors import DeviceNotFoundError, ShapeError

from .numpy_names import restored

if is_blocking_wanted():
    os.environ.setdefault("MXNET_ENGINE_TYPE", "NaiveEngine")  # MXNet reads it only when it is imported

with importing(), restored("mxnet"):
    import mxnet as mx

from . import (
    models,
    semantics,
    staging,
    virtual_gpus,
)
from .calls import MxnetCalls
from .conversion import MxnetConversion
from .gradients import MxnetGradients
from .layers import MxnetLayers
from .models import MxnetModels
from .operations import MxnetOperations
from .optimizers import MxnetOptimizers
from .parallel import MxnetThreads
from .replicas import MxnetReplicas

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import FrameType, ModuleType

    from xdevice.base.devices import Device
    from xdevice.contract import Transfer

    from .samples import MxnetSamples

_SHARED = ("float16", "float32", "float64", "int32", "int64", "uint8", "int8")
"""What MXNet exports under its own name: bool goes out as uint8 of 1 bit, bfloat16 not at all."""
_CPUS = 16
"""`kMaxDevID` in MXNet's base.h, the "maximal device index". All CPU devices are the same cores and memory."""

_get_context = ctypes.PyDLL(mx.base._LIB._name).MXNDArrayGetContext
_LONG = 2**31
_BUILDS_GRAPHS = mx.gluon.HybridBlock._get_graph.__code__


def _count_gpus() -> int:
    if not mx.runtime.Features().is_enabled("CUDA"):
        return 0
    # MXNet's own count initialises CUDA, which no forked child could use then
    found = nvidia.count()
    return int(mx.context.num_gpus()) if found is None else found


class _Buffers(threading.local):
    """Where `_get_context` writes the type and the index of a device, and both seen as one number."""

    def __init__(self) -> None:
        self.pair = (ctypes.c_int * 2)()
        self.number = ctypes.c_longlong.from_buffer(self.pair)
        self.arguments = ctypes.byref(self.pair), ctypes.byref(self.pair, ctypes.sizeof(ctypes.c_int)), self.number


_buffers = _Buffers()


class MxnetBackend(
    MxnetConversion,
    MxnetGradients,
    MxnetModels,
    MxnetLayers,
    MxnetOperations,
    MxnetCalls,
    MxnetOptimizers,
    MxnetReplicas,
    MxnetThreads,
    Backend,
):
    name = "mxnet"
    modules = ("mxnet",)
    minimum = (1, 9)
    dtypes = frozenset(["bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64"])
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

    @property
    def version(self) -> str:
        return str(mx.__version__)

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
        # CPUs of higher numbers than the virtual GPUs do not count as devices
        return super().describe_missing(device) if self.virtual else self.to_native(device)

    def from_native(self, native: Any) -> Device | None:
        if not isinstance(native, mx.Context):
            return None
        if self.virtual:
            return self._from_virtual(native)
        if native.device_type in ("cpu", "gpu"):
            return devices.of(native.device_type, native.device_id)
        return self._on_host(native)

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        return self.to_native(device)

    # tensors

    def device_of(self, x: Any) -> Device:
        kind, index, number = _buffers.arguments
        if _get_context(x.handle, kind, index):
            raise mx.MXNetError(f"MXNet does not tell where an array of type {type(x).__qualname__} is")
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
        # all CPU devices share one pool of workers, and no wait for one device exists
        mx.nd.waitall()

    def wait(self, x: Any) -> None:
        x.wait_to_read()

    # values

    def from_numpy(self, array: np.ndarray[Any, Any], device: Device) -> Any:
        _refuse_long(array.shape)
        semantics.creating()
        context = self.to_native(device)
        with mx.util.np_shape(True):
            staged = staging.put(array, context, self)
            return mx.np.array(array, dtype=array.dtype, ctx=context) if staged is None else staged

    def from_buffer(self, array: np.ndarray[Any, Any]) -> Any:
        if array.dtype == "int8":  # from_numpy knows no int8
            return self.from_numpy(array, devices.CPU)
        semantics.creating()
        return mx.nd.from_numpy(array, zero_copy=True).as_np_ndarray()

    def to_numpy(self, x: Any) -> np.ndarray[Any, Any]:
        with mx.util.np_shape(True):
            staged = staging.read(x, self)
            host = x.asnumpy() if staged is None else staged
        if host.dtype.names != ("bfloat16",):
            return host
        import ml_dtypes

        return host.view(ml_dtypes.bfloat16)

    def gives_away(self, x: Any) -> bool:
        return True

    def peek(self, x: Any) -> np.ndarray[Any, Any]:
        with mx.util.np_shape(True):
            is_shared = dtype_name(x.dtype) in _SHARED and x.stype == "default" and x.ndim and x.size
            if not is_shared or x.ctx.device_type == "gpu":
                return self.to_numpy(x)
            from xdevice.contract.dlpack import Lent

            return Lent(mx.nd.to_dlpack_for_read(x.as_nd_ndarray())).seen_by_numpy()

    def full(self, shape: tuple[int, ...], value: float, device: Device, dtype: str) -> Any:
        _refuse_long(shape)
        if abs(value) > 2**53:  # mx.np.full goes by way of float64
            return self.from_numpy(np.full(shape, value, dtype), device)
        semantics.creating()
        with mx.util.np_shape(True):
            return mx.np.full(shape, value, dtype=dtype, ctx=self.to_native(device))

    def rand(self, shape: tuple[int, ...], device: Device, dtype: str) -> Any:
        _refuse_long(shape)
        semantics.creating()
        with mx.util.np_shape(True):
            # MXNet draws 1.0 too: once in 4,000 in float16, once in ten million in float32
            return mx.np.random.uniform(size=shape, dtype=dtype, ctx=self.to_native(device)) % 1

    def tracing(self) -> str | None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not _BUILDS_GRAPHS:  # MXNet does not tell it in any other way
            frame = frame.f_back
        return None if frame is None else "a hybridized Gluon block"

    # arithmetic

    def namespace(self) -> ModuleType:
        from . import arithmetic

        return arithmetic

    def nn(self) -> ModuleType:
        from . import nn

        return nn

    # several devices

    def is_dense(self, x: Any) -> bool:
        return type(x) is mx.np.ndarray or bool(x.stype == "default")  # NumPy's are never sparse

    # graphs

    compiler = "net.hybridize()"

    # several processes

    def why_no_engine(self) -> str:
        return (
            "its key-value store sends float64 through float32, overwrites what it is given, and its server aborts on "
            "integers while the workers wait for ever"
        )

    # threads

    threads = "one"

    # copying in the background

    def stage(self, x: Any, device: Device) -> Any:
        if not isinstance(x, mx.nd.NDArray):
            semantics.creating()
        # a thread that records beside another one segfaults
        with mx.util.np_shape(True), mx.autograd.pause():
            context = self.to_native(device)
            if context.device_type != "gpu":
                return x.copyto(context) if isinstance(x, mx.nd.NDArray) else self.from_numpy(x, device)
            stage = staging.moved if isinstance(x, mx.nd.NDArray) else staging.put
            staged = stage(x, context, self)
            if staged is not None:
                return staged
            pinned = mx.cpu_pinned(device.index)
            if not isinstance(x, mx.nd.NDArray):
                return mx.np.array(x, dtype=x.dtype, ctx=pinned).copyto(context)
            # the engine orders this before anything that is written into `x` later
            return (x if x.ctx.device_type == "gpu" else x.copyto(pinned)).copyto(context)

    # seeing asynchrony

    def blocking(self) -> AbstractContextManager[Any]:
        from . import blocking

        return blocking.blocking()

    def watch(self, report: Callable[[Transfer], None]) -> AbstractContextManager[Any]:
        from . import transfers

        return transfers.watch(self, report)

    # memory

    def memory(self, device: Device) -> Memory:
        if device.kind != "gpu" or self.virtual:
            return Memory(None, None, None, None)
        free, total = mx.context.gpu_memory_info(device.index)
        return Memory(int(total), int(free), None, None)

    # virtual GPUs

    def why_no_virtual_gpus(self) -> None:
        """None: MXNet has several CPU devices from the start."""

    def make_virtual_gpus(self, n: int) -> None:
        self._cpus, self._gpus = 1, n
        self._places.clear()
        virtual_gpus.refuse_mixed_devices()

    # floats of a parity run

    def default_to_float64(self) -> None:
        """MXNet 1.9 has no default to change: its functions and layers use float32, until net.cast("float64")."""

    # the process

    def on_choice(self) -> None:
        semantics.chosen()

    def samples(self) -> MxnetSamples:
        from .samples import MxnetSamples

        return MxnetSamples(self)

    def _copied(self, x: Any, device: Device, stage: Callable[[Any, Any, Backend], Any | None]) -> Any:
        if isinstance(x, mx.sym.Symbol):
            raise self.unsupported(
                "moves inside a hybridized block, whose graph runs on one device", "move its inputs before it is called"
            )
        context = self.to_native(device)
        with mx.util.np_shape(True):
            staged = stage(x, context, self)
            new = x.copyto(context) if staged is None else staged
            # while recording, the copy is part of the graph; else it is a variable in its own right, as its source is
            if x.grad is not None and not mx.autograd.is_recording():
                new.attach_grad()
                x.grad.copyto(new.grad)
        return new

    def _from_virtual(self, native: Any) -> Device:
        if native.device_type == "gpu":
            raise self.unsupported(f"{native} while its GPUs are virtual", "use xdevice.gpu(i).native")
        is_gpu = native.device_type == "cpu" and native.device_id > 0
        if is_gpu and native.device_id > self.virtual:
            raise DeviceNotFoundError(
                f"{native} does not exist on mxnet beside {self.virtual} virtual GPUs, which are cpu(1) to "
                f"cpu({self.virtual}); use xdevice.gpu(i).native"
            )
        return devices.of("gpu", native.device_id - 1) if is_gpu else self._on_host(native)

    def _on_host(self, native: Any) -> Device:
        """The CPU, for pinned and shared memory too, whose index is that of the GPU or worker it is meant for."""
        if native.device_type not in ("cpu", "cpu_pinned", "cpu_shared"):
            raise self.unsupported(f"contexts of the type {native.device_type!r}", "use mx.cpu() or mx.gpu(i)")
        return devices.CPU


def _refuse_long(shape: tuple[int, ...]) -> None:
    """A build with 32-bit sizes, as MXNet's wheels are, takes a size that does not fit for 0, sometimes silently."""
    long = max([*shape, math.prod(shape)]) >= _LONG
    if long and not mx.runtime.Features().is_enabled("INT64_TENSOR_SIZE"):
        raise ShapeError(
            f"this build of MXNet has sizes up to 2**31 - 1, too small for the shape {shape}; use another backend"
        )
