"""PaddlePaddle.

What this adapter must keep:
- after TensorFlow, Paddle is imported with its own symbols first, else it segfaults (see `xdevice.loader`);
- Paddle's dygraph mode ends for all threads when the thread that imported it ends, unless a reference to the context
  manager outlives it (measured on 2.6.2 and 3.3.1);
- `Tensor.to` can clear its source when GPU memory is low, and was in-place before 3.0, so tensors go by `_copy_to`;
- `_copy_to` cuts the graph, and a parameter's own one makes another parameter: hence `_Copy`, and `paddle.Tensor`'s;
- it is always blocking: then it is ordered after the work on both GPUs;
- of a sparse tensor `_copy_to` raises, and `numpy()` ends the process with a segmentation fault (3.3.1);
- `set_device` is process-wide, so nothing here but `scope` calls it; on 2.6 only `_C_ops` takes a place to create on;
- `CUDAPlace` ends the process on a CPU build, so a device is required before its place is made;
- NumPy's uint16 means bfloat16, in and out.
"""

from __future__ import annotations

import copy
import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from xdevice import devices, nvidia
from xdevice.contract import Backend, DeviceInfo, Kind, Memory
from xdevice.errors import NotBuiltError
from xdevice.loader import importing

with importing(own_symbols="tensorflow" in sys.modules):
    import paddle
    from paddle.base.framework import global_var

    from . import loading, threads

from . import driver, memory, streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from types import ModuleType

    import numpy as np

    from xdevice.contract import Transfer
    from xdevice.devices import Device

    from .samples import PaddleSamples

_CPU = devices.CPU
_dygraph = getattr(global_var, "_functional_dygraph_context_manager", None)

_FRACTION_BITS = {"float16": 11, "bfloat16": 8}


class PaddleBackend(Backend):
    name = "paddle"
    modules = ("paddle",)
    minimum = (2, 6)
    dtypes = frozenset((
        "bool", "uint8", "int8", "int16", "int32", "int64",
        "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
    ))  # fmt: skip
    kinds = ("cpu", "gpu")

    def __init__(self) -> None:
        self._gpus = _count_gpus()
        self._natives: dict[Device, Any] = {_CPU: paddle.CPUPlace()}

    # the framework

    @property
    def framework(self) -> ModuleType:
        return paddle

    @property
    def version(self) -> str:
        return str(paddle.__version__)

    def classify(self, cls: type) -> Kind | None:
        if issubclass(cls, paddle.Tensor):
            return "tensor"
        return "model" if issubclass(cls, paddle.nn.Layer | paddle.optimizer.Optimizer) else None

    # devices

    def count(self, kind: str) -> int:
        return self._gpus if kind == "gpu" else int(kind == "cpu")

    def describe(self, device: Device) -> DeviceInfo:
        if device.kind != "gpu":
            return DeviceInfo(device.kind, None)
        properties = paddle.device.cuda.get_device_properties(device.index)
        return DeviceInfo(properties.name, properties.total_memory)

    def is_started(self, device: Device) -> bool:
        return device.kind != "gpu" or driver.is_started(device.index)

    def to_native(self, device: Device) -> Any:
        native = self._natives.get(device)
        if native is None:
            self.require(device)
            native = self._natives[device] = paddle.CUDAPlace(device.index)
        return native

    def from_native(self, native: Any) -> Device | None:
        if isinstance(native, paddle.CPUPlace | paddle.CUDAPinnedPlace):
            return _CPU
        if isinstance(native, paddle.CUDAPlace):
            return devices.of("gpu", native.get_device_id())
        if isinstance(native, paddle.CustomPlace):
            return devices.of(native.get_device_type(), native.get_device_id())
        return self._device_at(native) if isinstance(native, paddle.base.core.Place) else None

    @contextmanager
    def scope(self, device: Device) -> Iterator[None]:
        before = paddle.get_device()
        paddle.set_device("cpu" if device is _CPU else str(device))
        try:
            yield
        finally:
            paddle.set_device(before)

    # tensors

    def device_of(self, x: paddle.Tensor) -> Device:
        place = x.place
        return _CPU if place.is_cpu_place() else self._device_at(place)

    def move(self, x: paddle.Tensor, device: Device) -> paddle.Tensor:
        return self.copy(x, device)

    def copy(self, x: paddle.Tensor, device: Device) -> paddle.Tensor:
        if not x.is_dense():
            raise self.unsupported("copy of a sparse tensor", "take x.to_dense(), or copy its indices() and values()")
        return _copied(x, self.to_native(device))

    def synchronize(self, device: Device | None) -> None:
        if device is None:
            waiting = [devices.of("gpu", index) for index in range(self._gpus) if driver.is_started(index)]
        else:
            waiting = [device] if device.kind == "gpu" else []
        for gpu in waiting:
            paddle.device.synchronize(self.to_native(gpu))

    def wait(self, x: paddle.Tensor) -> None:
        self.synchronize(self.device_of(x))

    # values

    def from_numpy(self, array: np.ndarray[Any, Any], device: Device) -> paddle.Tensor:
        bits = array.view("uint16") if array.dtype.name == "bfloat16" else array
        host = paddle.to_tensor(bits, place=self.to_native(_CPU))
        return host if device is _CPU else _plain_copy(host, self.to_native(device))

    def to_numpy(self, x: paddle.Tensor) -> np.ndarray[Any, Any]:
        host: np.ndarray[Any, Any] = (x if x.is_dense() else x.to_dense()).numpy()
        if x.dtype != paddle.bfloat16:
            return host
        import ml_dtypes

        return host.view(ml_dtypes.bfloat16)

    def full(self, shape: tuple[int, ...], value: float, device: Device, dtype: str) -> paddle.Tensor:
        return paddle._C_ops.full(shape, value, getattr(paddle, dtype), self.to_native(device))

    def rand(self, shape: tuple[int, ...], device: Device, dtype: str) -> paddle.Tensor:
        native = self.to_native(device)
        bits = _FRACTION_BITS.get(dtype)
        if bits is None:
            return paddle._C_ops.uniform(shape, getattr(paddle, dtype), 0.0, 1.0, 0, native)
        # rounding float32 to a short type would give 1.0 at times, and 2.6 draws no float16 on the CPU
        draw = paddle._C_ops.uniform(shape, paddle.float32, 0.0, 1.0, 0, native)
        return (paddle.floor(draw * 2.0**bits) / 2.0**bits).astype(dtype)

    # models

    def model_devices(self, model: Any) -> Iterable[tuple[str, Device]]:
        for name, variable in _variables(model):
            yield name, self.device_of(variable)

    def move_model(self, model: Any, device: Device) -> None:
        moving = []
        for name, variable in _variables(model):
            gradient = variable._grad_ivar()
            if gradient is not None and not gradient.is_dense():
                raise self.unsupported(f"move of the sparse gradient of {name}", "call clear_grad() first")
            moving += [variable] if gradient is None else [variable, gradient]
        for x in moving:
            if self.device_of(x) is not device:
                _relocate(x, self.to_native(device))

    def copy_model(self, model: Any, device: Device) -> Any:
        if isinstance(model, paddle.nn.Layer):
            twin = copy.deepcopy(model)
            self.move_model(twin, device)
            return twin
        raise self.unsupported(
            "copy of an optimizer, which belongs to its parameters",
            "copy the model, make an optimizer for the copy, and set_state_dict() the state",
        )

    # streams and events

    def new_stream(self, device: Device) -> Any:
        self._require_gpu(device, "streams")
        return paddle.device.Stream(self.to_native(device))

    def current_stream(self, device: Device) -> Any:
        self._require_gpu(device, "streams")
        return paddle.device.current_stream(self.to_native(device))

    def stream_scope(self, stream: Any) -> AbstractContextManager[Any]:
        return streams.scope(stream)

    def stream_wait(self, stream: Any, event: Any) -> None:
        event.block(stream)

    def new_event(self, device: Device) -> Any:
        self._require_gpu(device, "events")
        if not driver.is_there():
            raise self.unsupported("events on ROCm", "xdevice.Timer waits for the device and reads the host's clock")
        self.current_stream(device)  # the context of the GPU begins here
        return streams.Event(device.index)

    def record(self, event: Any, stream: Any) -> None:
        event.record(stream)

    def wait_event(self, event: Any) -> None:
        event.wait()

    def elapsed(self, start: Any, end: Any) -> float:
        return streams.elapsed(start, end)

    def keep_for(self, x: paddle.Tensor, stream: Any) -> None:
        if not x.place.is_cpu_place():
            streams.keep(x, stream)

    # threads

    stream_reach = "process"

    def thread_state(self) -> Callable[[], AbstractContextManager[Any]]:
        return threads.thread_state()

    # copying in the background

    def stage(self, x: Any, device: Device) -> paddle.Tensor:
        if isinstance(x, paddle.Tensor):
            if device is _CPU or self.device_of(x) is not _CPU or not x.is_dense() or not x.stop_gradient:
                return self.copy(x, device)
            pinned = _plain_copy(x, paddle.CUDAPinnedPlace())
        else:
            if device is _CPU:
                return self.from_numpy(x, device)
            bits = x.view("uint16") if x.dtype.name == "bfloat16" else x
            pinned = paddle.to_tensor(bits, place=paddle.CUDAPinnedPlace())
        # not blocking: Paddle keeps the pinned memory until the copy is done
        return paddle.Tensor._copy_to(pinned, self.to_native(device), False)

    def iterate(self, source: Any) -> Iterator[Any]:
        return loading.iterate(source) if isinstance(source, paddle.io.DataLoader) else iter(source)

    # seeing asynchrony

    def blocking(self) -> AbstractContextManager[Any]:
        if not self._gpus:
            return nullcontext()  # the CPU computes synchronously, and the flag prints a line at each product
        from . import transfers

        return transfers.blocking()

    def watch(self, report: Callable[[Transfer], None]) -> AbstractContextManager[Any]:
        from . import transfers

        return transfers.watch(self, report)

    # memory

    def memory(self, device: Device) -> Memory:
        return memory.of(device)

    def reset_peak(self, device: Device) -> None:
        if not memory.reset_peak(device):
            super().reset_peak(device)

    # what people ask

    def why_no_gpu(self) -> str:
        if not paddle.is_compiled_with_cuda() and not paddle.is_compiled_with_rocm():
            return f"paddle {self.version} is a build without CUDA and ROCm"
        return "paddle sees no GPU: no driver, or CUDA_VISIBLE_DEVICES hides them"

    # the process

    def samples(self) -> PaddleSamples:
        from .samples import PaddleSamples

        return PaddleSamples()

    def _require_gpu(self, device: Device, what: str) -> None:
        """Paddle's CPU build ends with a segmentation fault when it is asked for a stream (3.3.1)."""
        if device.kind != "gpu":
            how = "xdevice.Timer waits and reads the host's clock, and xdevice.parallel() runs tasks side by side"
            raise self.unsupported(f"{what} on {device}", how)

    def _device_at(self, place: Any) -> Device:
        if place.is_gpu_place():
            return devices.of("gpu", place.gpu_device_id())
        if place.is_cpu_place() or place.is_cuda_pinned_place():
            return _CPU
        if place.is_custom_place():
            return devices.of(place.custom_device_type(), place.custom_device_id())
        if "undefined" in str(place):
            raise NotBuiltError(
                "a Paddle parameter has no memory yet; call its initialize(), or build it without LazyGuard"
            )
        raise self.unsupported(f"adapter for {place}", "xdevice runs Paddle on CPUs and CUDA or ROCm GPUs")


def _count_gpus() -> int:
    if not paddle.is_compiled_with_cuda():
        return 0
    # Paddle's own count initialises CUDA, which no forked child could use then
    found = None if paddle.is_compiled_with_rocm() else nvidia.count()
    return int(paddle.device.cuda.device_count()) if found is None else found


class _Copy(paddle.autograd.PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: paddle.Tensor, place: Any) -> paddle.Tensor:
        ctx.source = x.place
        return _plain_copy(x, place)

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> paddle.Tensor:
        return _copied(gradient, ctx.source)


def _copied(x: paddle.Tensor, place: Any) -> paddle.Tensor:
    if x.stop_gradient or not paddle.is_grad_enabled():
        return _plain_copy(x, place)
    if x.is_floating_point() or x.is_complex():
        return _Copy.apply(x, place)
    result = _plain_copy(x, place)
    result.stop_gradient = False
    return result


def _plain_copy(x: paddle.Tensor, place: Any) -> paddle.Tensor:
    return paddle.Tensor._copy_to(x, place, True)


def _relocate(x: paddle.Tensor, place: Any) -> None:
    """Puts the memory of `x` elsewhere and keeps the object, so that optimizers and shared layers see it move."""
    there = _plain_copy(x, place)  # by name: get_tensor() keeps nothing alive, and would be read after it is freed
    x.value().get_tensor()._share_data_with(there.value().get_tensor())


def _variables(model: Any) -> Iterable[tuple[str, paddle.Tensor]]:
    if isinstance(model, paddle.nn.Layer):
        yield from model.named_parameters()
        # an LSTM has a buffer without memory, which is nowhere
        yield from (found for found in model.named_buffers() if found[1]._is_initialized())
        return
    for kind, state in {**model._accumulators, "master_weight": model._master_weights}.items():
        for name, value in state.items():
            # Adam keeps the powers of its betas on the host, wherever the parameter is
            if not ("_pow" in kind and value.place.is_cpu_place()):
                yield f"{kind}[{name!r}]", value
