"""The adapter for PaddlePaddle: xdevice's hooks (the methods that its core calls), written with
Paddle's functions.

The rules that this adapter must follow, and the facts behind them:
- If TensorFlow is already imported, Paddle's libraries are loaded so that they find their own
  symbols first. Otherwise Paddle segfaults (see `xdevice.contract.loader`).
- Paddle's dygraph (eager) mode has a context manager. If nothing refers to it when the thread that imported Paddle
  ends, Paddle leaves the mode in all threads (measured on 2.6.2 and 3.3.1). So this module keeps a reference to the
  context manager.
- Tensors are copied by the module `copying`, never by `Tensor.to`.
- For a sparse tensor, `_copy_to` raises an error, and `numpy()` crashes the process with a segmentation fault (3.3.1;
  PaddlePaddle/Paddle#46642, closed as not a bug).
- `set_device` affects the whole process (PaddlePaddle/Paddle#77927), so only `scope` calls it. This allows the scopes
  of several threads to overlap. In Paddle 2.6, only the functions of `_C_ops` have an argument for the place on which a
  tensor is created.
- In a build for the CPU, creating a `CUDAPlace` crashes the process, so the adapter first checks
  that the device exists.
- Paddle reads an array of NumPy's uint16 as bfloat16, and returns bfloat16 as uint16.
- A virtual GPU is a device of a plugin without kernels (virtual_gpus.py): Paddle computes each
  operation on the CPU, and copies operands and results. Kernels for strided memory would fail on
  virtual GPUs, so they are switched off. Operations that otherwise return a view then return a
  copy.
- Paddle makes the first virtual GPU its default device, so the adapter makes the CPU the
  default again.
"""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np

from xdevice.base import devices
from xdevice.base.dtypes import BITS_AS, SHORT_FLOATS, dtype_name, host_dtype
from xdevice.contract import VIRTUAL_GPU, Backend, DeviceInfo, Kind
from xdevice.contract.environment import virtual_gpus_wanted
from xdevice.contract.loader import importing
from xdevice.errors import NotBuiltError

from . import virtual_devices

with (
    importing(own_symbols_after="tensorflow"),
    virtual_devices.importing(virtual_gpus_wanted()),
):
    import paddle

    from . import accelerators, conversion, copying, scopes, staging, tracing
    from .blocking import PaddleBlocking
    from .conversion import PaddleConversion
    from .memory import PaddleMemory
    from .models import PaddleModels
    from .replicas import PaddleReplicas
    from .streams import PaddleStreams

from . import driver
from .private import private

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    from xdevice.base.devices import Device


_CPU = devices.CPU
_is_cpu_place = methodcaller("is_cpu_place")
# never read: as long as this reference exists, Paddle stays in dygraph (eager) mode, even after
# the thread that imported Paddle has ended
_dygraph = private.get("paddle.base.framework.global_var._functional_dygraph_context_manager")
# None in a Paddle without this function
_full = private.get("paddle._C_ops.full")


class PaddleBackend(
    PaddleConversion,
    PaddleModels,
    PaddleReplicas,
    PaddleStreams,
    PaddleBlocking,
    PaddleMemory,
    Backend,
):
    """Paddle as a backend. `xdevice.contract` describes each hook in more detail."""

    name = "paddle"
    modules = ("paddle",)
    minimum = (2, 6)
    dtypes = frozenset((
        "bool", "uint8", "int8", "int16", "int32", "int64",
        "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
    ))  # fmt: skip
    short_floats = frozenset(name for name in SHORT_FLOATS if hasattr(paddle, name))
    kinds = ("cpu", "gpu")
    moves_by = "to"
    most_axes = 9  # Paddle itself refuses tensors with more axes
    releases_under_lock = True
    private_names = private

    def __init__(self) -> None:
        # Paddle's name for the device type of `gpu:i`, such as "gpu", and the number of these
        # devices
        self._gpu, self._gpus = accelerators.detect()
        self._natives: dict[Device, Any] = {_CPU: paddle.CPUPlace()}
        tracing.exclude_xdevice()

    # the framework

    @property
    def framework(self) -> ModuleType:
        """The module `paddle`."""
        return paddle

    def classify(self, cls: type) -> Kind | None:
        """Returns "tensor" for a class of tensors, "symbol" for a class of tensors in a traced
        program, "model" for a class of layers or optimizers, and None for any other class."""
        if issubclass(cls, paddle.Tensor):
            return "tensor"
        if issubclass(cls, tracing.SYMBOLS):
            return "symbol"
        return (
            "model" if issubclass(cls, paddle.nn.Layer | paddle.optimizer.Optimizer) else None
        )

    # devices

    def count(self, kind: str) -> int:
        """Returns the number of devices of a kind, without starting any of them."""
        return self._gpus if kind == "gpu" else int(kind == "cpu")

    def describe(self, device: Device) -> DeviceInfo:
        """Returns the name of a device and its memory in bytes. The memory is None for the CPU,
        for virtual GPUs, and for devices of plugins and XPUs."""
        if device.kind != "gpu":
            return DeviceInfo(device.kind, memory=None)
        if self.virtual:
            return VIRTUAL_GPU
        # Paddle reports no properties of XPUs and of plugins' devices
        if self._gpu != "gpu":
            return DeviceInfo(self._gpu, memory=None)
        properties = paddle.device.cuda.get_device_properties(device.index)
        return DeviceInfo(properties.name, properties.total_memory)

    def hardware(self) -> frozenset[str]:
        """Returns the words that users may write in place of `gpu` on this machine, such as "cuda"."""
        return accelerators.hardware_names(self._gpu)

    def is_started(self, device: Device) -> bool:
        """Whether this process has a context on a CUDA GPU. Returns True for any other device, and if there is no CUDA
        driver or the driver reports an error."""
        return device.kind != "gpu" or self._gpu != "gpu" or driver.is_started(device.index)

    def to_native(self, device: Device) -> Any:
        """Returns the place of a device, such as `CUDAPlace(1)` for `gpu:1`. Raises
        `DeviceNotFoundError` if the device does not exist."""
        native = self._natives.get(device)
        if native is None:
            # in a build for the CPU, creating a `CUDAPlace` crashes the process
            self.require(device)
            native = self._natives[device] = accelerators.place(self._gpu, device.index)
        return native

    def from_native(self, native: Any) -> Device | None:
        """Returns the `Device` of a place of any of Paddle's classes, or None if `native` is not a place. Raises
        `NotBuiltError` for the place of a parameter without memory. Raises `UnsupportedError` for any device except the
        host and the devices that `gpu:i` refers to."""
        if isinstance(native, paddle.CPUPlace | paddle.CUDAPinnedPlace):
            return _CPU
        if isinstance(native, paddle.CUDAPlace):
            return self._real_gpu(native.get_device_id())
        if isinstance(native, paddle.CustomPlace):
            return self._gpu_of_plugin(native.get_device_type(), native.get_device_id())
        # the place of a tensor is of another class than the places that programs create
        return self._device_at(native) if hasattr(native, "is_cpu_place") else None

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """Returns a context manager in which Paddle creates new tensors on a device."""
        return scopes.scope(f"{self._gpu}:{device.index}" if device.kind == "gpu" else "cpu")

    # tensors

    def device_of(self, x: paddle.Tensor) -> Device:
        """Returns the device of a tensor's memory; the device of page-locked memory is the CPU. Raises `NotBuiltError`
        for a parameter without memory. Raises `UnsupportedError` for any device except the host and the devices that
        `gpu:i` refers to."""
        try:
            place = x.place
        # Paddle 2 raises this for the copy of a tensor without memory
        except RuntimeError:
            raise _no_memory() from None
        return _CPU if _is_cpu_place(place) else self._device_at(place)

    def devices_of(self, cls: type, tensors: Sequence[paddle.Tensor]) -> set[Device]:
        """Returns the set of devices on which the tensors are. Raises the same errors as
        `device_of`."""
        # usually all tensors are on the host; then this loop is faster than building a set
        try:
            for x in tensors:
                if not _is_cpu_place(x.place):
                    break
            else:
                return {_CPU}
        except RuntimeError:  # as in `device_of`
            raise _no_memory() from None
        return {*map(self.device_of, tensors)}

    def move(self, x: paddle.Tensor, device: Device) -> paddle.Tensor:
        """Returns a copy of `x` on another device. Gradients flow through the copy."""
        # a move to another device is always a copy
        return self.copy(x, device)

    def copy(self, x: paddle.Tensor, device: Device) -> paddle.Tensor:
        """Returns a copy of `x` in new storage on a device, which may be the device of `x`.
        Gradients flow through the copy. Raises `UnsupportedError` for a sparse or distributed
        tensor, and for a symbol if `device` is not the device of its program."""
        # not `isinstance`, which returns True for any tensor and Paddle's class of symbols
        if issubclass(type(x), tracing.SYMBOLS):
            return tracing.copied(x, device, self)
        if not x.is_dense():
            raise self.unsupported(
                f"copying {conversion.described(x)}",
                "copy x.to_dense(), or paddle.distributed.unshard_dtensor(x)",
            )
        return copying.copied(x, self.to_native(device))

    def synchronize(self, device: Device | None) -> None:
        """Waits for all work on a device. If `device` is None, waits for all work on all GPUs
        that this process has used."""
        if self.virtual:
            return  # virtual GPUs compute synchronously, as the CPU does
        if device is None:
            waiting = [
                gpu for gpu in self.devices() if gpu.kind == "gpu" and self.is_started(gpu)
            ]
        else:
            waiting = [device] if device.kind == "gpu" else []  # the CPU computes synchronously
        for gpu in waiting:
            paddle.device.synchronize(self.to_native(gpu))

    def wait(self, x: paddle.Tensor) -> None:
        """Waits for all work on the device of `x`, because Paddle cannot wait for a single
        tensor."""
        self.synchronize(self.device_of(x))

    # values

    def from_numpy(self, array: np.ndarray[Any, Any], device: Device) -> paddle.Tensor:
        """Returns a new tensor on a device, with the dtype and values of an array."""
        native = self.to_native(device)
        # a large array is copied to a GPU through page-locked memory, which is faster; the
        # result is None if Paddle has to copy the array
        staged = staging.put(array, native, self.dtypes)
        # `put` returns before its copy has ended, so this waits for the copy
        if staged is not None:
            staging.wait(native)
            return staged
        # Paddle cannot read arrays of 8-bit floats, so it receives their bytes as uint8
        if array.dtype.name in self.short_floats:
            host = paddle.to_tensor(array.view("uint8"), place=self.to_native(_CPU)).view(
                array.dtype.name
            )
        else:
            # Paddle reads uint16 as bfloat16
            bits = array.view("uint16") if array.dtype.name == "bfloat16" else array
            host = paddle.to_tensor(bits, place=self.to_native(_CPU))
        return (
            host
            if device is _CPU
            else copying.copied_without_gradient(host, self.to_native(device))
        )

    def to_numpy(self, x: paddle.Tensor) -> np.ndarray[Any, Any]:
        """Returns the values of `x` as a dense array. Raises `UnsupportedError` for a tensor
        that is spread over processes."""
        # a large tensor on a GPU is read through page-locked memory, which is faster; the
        # result is None if Paddle has to read the tensor
        staged = staging.read(x)
        if staged is not None:
            return staged
        host: np.ndarray[Any, Any] = (x if x.is_dense() else self._to_dense(x)).numpy()
        # the dtypes in BITS_AS, which Paddle returns as integers, have at most 2 bytes. Checked
        # first, because finding the name of the dtype takes longer than the other steps
        if host.itemsize > 2:
            return host
        name = dtype_name(x.dtype)
        return host.view(host_dtype(name)) if name in BITS_AS else host

    def full(
        self, shape: tuple[int, ...], value: float, device: Device, dtype: str
    ) -> paddle.Tensor:
        """Returns a tensor with the given shape and dtype on a device, filled with `value`."""
        if _full is None:
            return self.from_numpy(np.full(shape, value, host_dtype(dtype)), device)
        return self._moved_if_elsewhere(
            _full(shape, value, getattr(paddle, dtype), self.to_native(device)), device
        )

    def tracing(self) -> str | None:
        """Returns "paddle.jit.to_static" while Paddle traces a function; otherwise None."""
        return None if paddle.in_dynamic_mode() else "paddle.jit.to_static"

    # the structure of a tensor

    def is_dense(self, x: paddle.Tensor) -> bool:
        """Whether `x` is dense: neither sparse nor spread over processes. Returns True for a symbol."""
        # a symbol, which a function receives while to_static traces it, has no method is_dense
        return not isinstance(x, paddle.Tensor) or bool(x.is_dense())

    # floats of a parity run

    def default_to_float64(self) -> None:
        """Makes float64 Paddle's default dtype, for a run of the parity check."""
        paddle.set_default_dtype("float64")

    # questions that users ask

    def why_no_gpu(self) -> str:
        """Returns why Paddle finds no GPU, for an error message."""
        if not paddle.is_compiled_with_cuda() and not paddle.is_compiled_with_rocm():
            return f"paddle {self.version} is a build without CUDA or ROCm"
        return "paddle finds no GPU: there is no driver, or CUDA_VISIBLE_DEVICES hides the GPUs"

    def _device_at(self, place: Any) -> Device:
        """Returns the `Device` of the place of a tensor. Raises `NotBuiltError` for the place of a parameter without
        memory. Raises `UnsupportedError` for any device except the host and the devices that `gpu:i` refers to."""
        if place.is_gpu_place():
            return self._real_gpu(place.gpu_device_id())
        if place.is_custom_place():
            return self._gpu_of_plugin(place.custom_device_type(), place.custom_device_id())
        if place.is_cpu_place() or place.is_cuda_pinned_place():
            return _CPU
        # no method of a place reports this, but its string is "Place(undefined:0)"
        if "undefined" in str(place):
            raise _no_memory()
        if place.is_xpu_place() and self._gpu == "xpu":
            return devices.of("gpu", place.xpu_device_id())
        raise self.unsupported(
            f"tensors on {place} here, because xdevice's gpu:0 is Paddle's {self._gpu}:0",
            "copy the tensor to the host: x.cpu()",
        )

    def _to_dense(self, x: paddle.Tensor) -> paddle.Tensor:
        """Returns a dense copy of a sparse tensor. Raises `UnsupportedError` for a tensor that
        is spread over processes."""
        if x.is_dist():
            raise self.unsupported(
                f"reading {conversion.described(x)} as a NumPy array",
                "read paddle.distributed.unshard_dtensor(x) instead",
            )
        return x.to_dense()

    def _gpu_of_plugin(self, kind: str, index: int) -> Device:
        """Returns `gpu:index` for a device of the plugin `kind`. Raises `UnsupportedError` if
        `gpu:i` refers to devices of another kind here."""
        if kind != self._gpu:
            raise self.unsupported(
                f"devices of the plugin {kind!r} here, because xdevice's gpu:0 is Paddle's {self._gpu}:0",
                "copy the tensor to the host: x.cpu()",
            )
        return devices.of("gpu", index)

    def _moved_if_elsewhere(self, x: paddle.Tensor, device: Device) -> paddle.Tensor:
        """Returns `x`, the result of an operation on `device`. If `x` is on another device, moves it to `device` first:
        Paddle leaves an empty result on the CPU if the device's plugin has no kernel for the operation."""
        return (
            self.move(x, device)
            if self._gpu != "gpu" and self.device_of(x) is not device
            else x
        )

    def _real_gpu(self, index: int) -> Device:
        """Returns `gpu:index` for a GPU of CUDA or ROCm. Raises `UnsupportedError` if `gpu:i`
        refers to other devices here."""
        # otherwise a real GPU would be mistaken for the virtual GPU with the same index
        if self.virtual:
            raise self.unsupported(
                "a real GPU while its GPUs are virtual", "use xdevice.gpu(i).native"
            )
        if self._gpu != "gpu":
            raise self.unsupported(
                f"GPUs of CUDA or ROCm here, because xdevice's gpu:0 is Paddle's {self._gpu}:0",
                "use xdevice.gpu(i).native",
            )
        return devices.of("gpu", index)


def _no_memory() -> NotBuiltError:
    """Returns the error for a parameter without memory."""
    return NotBuiltError(
        "a Paddle parameter has no memory yet; call the parameter's initialize(), or build the model without LazyGuard"
    )
