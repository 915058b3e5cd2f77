"""The adapter for PyTorch: implements xdevice's hooks (the methods that the core calls) with PyTorch's functions.

The adapter must follow these rules:

- A copy passes `copy=True`, because `x.to(d)` returns `x` itself if `x` is already on the device `d`.
- Nothing is copied with `non_blocking=True`, because the result of a device-to-host copy would
  then contain garbage until the program waits (pytorch/pytorch#140296). The exceptions are
  tensors that no code can read before the copy has ended (staging.py).
- Counting GPUs must not create a CUDA context, because a context takes about 500 MB of a GPU's
memory.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from xdevice.base import devices
from xdevice.base.dtypes import BITS_AS, DTYPES, SHORT_FLOATS, host_dtype, name_of
from xdevice.contract import VIRTUAL_GPU, Backend, DeviceInfo, Kind, Memory
from xdevice.contract.environment import is_blocking_wanted
from xdevice.contract.loader import import_apart, importing
from xdevice.errors import UnsupportedError

with importing():
    # triton, which PyTorch imports later, would crash next to some versions of TensorFlow; see `import_apart`
    import_apart("triton._C.libtriton", beside="tensorflow")
    import torch

    from . import accelerators, conversion, scopes, staging
    from .conversion import TorchConversion
    from .models import TorchModels
    from .modes import function_modes
    from .private import private
    from .replicas import TorchReplicas
    from .streams import TorchStreams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    import numpy as np

    from xdevice.base.devices import Device


_CPU = devices.CPU
_GPU = devices.of("gpu", 0)
_HOST = torch.device("cpu")
# PyTorch 2.9 added the first function. The second function also reports torch.export as
# tracing, and has raised a warning since 2.9
_is_fx_tracing = (
    private.get("torch.fx._symbolic_trace.is_fx_symbolic_tracing")
    or (private["torch.fx._symbolic_trace.is_fx_tracing"])
)
# without this name each GPU is assumed to be in use, so waiting for all GPUs creates a context
# on each of them
_has_context = private.get("torch._C._cuda_hasPrimaryContext", lambda index: True)
_QUICK = ("cuda", "cpu")
"""The types of devices for which `from_numpy` and `to` are faster than `torch.tensor`,
according to measurements."""
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
"""The types of tensors for which `is_cpu` always agrees with `device`. `is_cpu` is faster to read. A subclass may
define its own `device`."""
_NONE: frozenset[str] = frozenset()
# getters written in C, which `map` calls faster than lambdas
_device, _is_cuda = attrgetter("device"), attrgetter("is_cuda")


class _Places(dict[torch.device, devices.Device]):
    """A dict that maps each `torch.device` to its `Device`. The first lookup of a key calls `find`, which returns the
    `Device`. Later lookups run no Python code, which matters because nearly every function of xdevice looks up a
    device."""

    def __init__(self, find: Callable[[Any], Device | None]) -> None:
        self._find = find

    def __missing__(self, native: torch.device) -> Device:
        """Finds and stores the `Device` for a key that is not in the dict yet."""
        place = self._find(native)
        # `TorchBackend._place` never returns None: it raises an error for a device that xdevice
        # does not support
        assert place is not None
        self[native] = place
        return place


_frame_callback = private.get("torch._C._dynamo.eval_frame.get_eval_frame_callback", bool)


def _is_dynamo_active() -> bool:
    """Whether torch.compile is tracing the calling code, or would trace the functions that this code calls."""
    # after a graph break, Python runs a frame that torch.compile does not compile, in which `is_dynamo_compiling` is
    # False; but torch.compile would trace the functions that such a frame calls
    return torch.compiler.is_dynamo_compiling() or bool(_frame_callback())


def _is_exporting() -> bool:
    """Whether torch.export is tracing the calling code."""
    # PyTorch 2.6 lacks `is_exporting`
    return hasattr(torch.compiler, "is_exporting") and torch.compiler.is_exporting()


class TorchBackend(TorchConversion, TorchModels, TorchReplicas, TorchStreams, Backend):
    """PyTorch as a backend. `xdevice.contract` describes each hook in detail."""

    name = "torch"
    modules = ("torch",)
    minimum = (2, 6)
    private_names = private
    dtypes = frozenset(DTYPES)
    short_floats = frozenset(name for name in SHORT_FLOATS if hasattr(torch, name))
    kinds = ("cpu", "gpu", "meta")
    moves_by = "to"
    is_compiling = staticmethod(_is_dynamo_active)
    most_virtual_gpus = 128  # PyTorch stores the index of a device in 8 bits

    def __init__(self) -> None:
        # PyTorch's name for the device type of `gpu:i`, such as "cuda", and the number of
        # devices of this type
        self._gpu, self._gpus = accelerators.detect()
        # the value of CUDA_VISIBLE_DEVICES with which the GPUs were counted
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._synchronize = accelerators.waiter(self._gpu)
        self._places = _Places(self._place)
        self._natives: dict[Device, torch.device] = {}
        # whether CUDA itself computes synchronously: XDEVICE_BLOCKING sets
        # CUDA_LAUNCH_BLOCKING, which has no effect if CUDA was already started
        self._blocks = (
            is_blocking_wanted() and self._gpu == "cuda" and not torch.cuda.is_initialized()
        )

    # the framework

    @property
    def framework(self) -> ModuleType:
        return torch

    def classify(self, cls: type) -> Kind | None:
        """Returns "tensor" if `cls` is a class of tensors, "model" if it is a class of modules
        or optimizers, and None otherwise."""
        if issubclass(cls, torch.Tensor):
            return "tensor"
        return "model" if issubclass(cls, torch.nn.Module | torch.optim.Optimizer) else None

    # devices

    def count(self, kind: str) -> int:
        """Returns the number of devices of a kind: the number of accelerators for "gpu", 1 for
        "cpu" and "meta", and 0 for a kind that PyTorch lacks."""
        if kind != "gpu":
            return int(kind in self.kinds)
        # a program may set CUDA_VISIBLE_DEVICES until CUDA starts, which reads it once
        if self._gpus and self._gpu == "cuda" and not torch.cuda.is_initialized():
            self._hide_gpus()
        return self._gpus

    def _hide_gpus(self) -> None:
        """Counts the GPUs again if CUDA_VISIBLE_DEVICES has changed. The number never grows, because functions that
        `probe` has returned depend on it."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible != self._visible:
            self._visible = visible
            self._gpus = min(self._gpus, accelerators.count(self._gpu))

    def describe(self, device: Device) -> DeviceInfo:
        """Returns the name of a device and the size of its memory in bytes. The size is None for the CPU, meta and
        virtual GPUs, and for a GPU if its vendor's module does not report the size."""
        if device.kind != "gpu":
            return DeviceInfo(device.kind, memory=None)
        if self.virtual:
            return VIRTUAL_GPU
        # `torch.mps` has no function that returns the name of its only device
        if self._gpu == "mps":
            return DeviceInfo("Apple MPS", torch.mps.recommended_max_memory())
        module = self._module()
        # the plugins of some vendors report only a name, or nothing
        if not hasattr(module, "get_device_properties"):
            return DeviceInfo(
                getattr(module, "get_device_name", lambda index: self._gpu)(device.index), None
            )
        properties = module.get_device_properties(device.index)
        return DeviceInfo(properties.name, getattr(properties, "total_memory", None))

    def hardware(self) -> frozenset[str]:
        """Returns the words that users may write for `gpu:i` on this machine, such as "cuda".
        Without a GPU, returns the words for CUDA."""
        return accelerators.hardware_names(self._gpu)

    def lacks(self, device: Device) -> frozenset[str]:
        """Returns the names of the dtypes that tensors on this device cannot have."""
        if device.kind != "gpu" or self.virtual:
            return _NONE
        return accelerators.lacks(self._gpu, device.index)

    def is_started(self, device: Device) -> bool:
        """Whether this process has already started the GPU `device`. If so, reading further properties of the GPU
        creates no CUDA context. Returns True for a device that is not a GPU."""
        return device.kind != "gpu" or self._is_started(device.index)

    def to_native(self, device: Device) -> torch.device:
        """Returns the `torch.device` of a `Device`, such as `torch.device("cuda", 1)` for `gpu:1`."""
        native = self._natives.get(device)
        if native is None:
            # only GPUs have an index, as in the `device` of a tensor
            name = self._gpu if device.kind == "gpu" else device.kind
            native = (
                torch.device(name, device.index) if device.kind == "gpu" else torch.device(name)
            )
            self._natives[device] = native
        return native

    def describe_missing(self, device: Device) -> torch.device:
        """Returns the `torch.device` of a device that does not exist on this machine. This is possible because PyTorch
        does not check whether a device exists."""
        return self.to_native(device)

    def from_native(self, native: Any) -> Device | None:
        """Returns the `Device` of a `torch.device`, or None if `native` is not a
        `torch.device`. Raises `UnsupportedError` for a type of device that xdevice does not
        support, or for a real GPU while the GPUs are virtual."""
        if not isinstance(native, torch.device):
            return None
        # the words in HARDWARE, such as "cuda", are types of GPUs; any other type is "cpu",
        # "meta" or unsupported
        if native.type == self._gpu or native.type not in devices.HARDWARE:
            return self._place(native)
        # the real GPU would be mistaken for the virtual GPU with the same index
        if self.virtual:
            raise self.unsupported(
                f"the real device {native} while its GPUs are virtual",
                "use xdevice.gpu(i).native",
            )
        # a GPU of a vendor whose hardware this machine lacks: its name is valid, but using the
        # GPU raises an error
        return devices.named(native.type, native.index or 0)

    def _place(self, native: torch.device) -> Device:
        """Returns the `Device` for a `torch.device`. A GPU without an index is this thread's current GPU. Raises
        `UnsupportedError` if the device type is not "cpu", "meta" or the type of the GPUs that xdevice calls
        `gpu:i`."""
        if native.type == self._gpu:
            return devices.of(
                "gpu", self._current_index() if native.index is None else native.index
            )
        # a device of another vendor: xdevice cannot wait for its work
        if native.type not in self.kinds:
            raise self.unsupported(
                f"devices of the type {native.type!r}",
                "copy the tensor to a supported device: x.cpu()",
            )
        return devices.of(native.type, native.index or 0)

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """Returns a context manager in which PyTorch creates new tensors on a device."""
        # for the CPU no block is needed if PyTorch creates tensors there anyway, that is, if no
        # mode (such as a scope of another device) is active, and a new tensor is on the CPU. A
        # block would cost a microsecond for each call and each attribute inside it
        if (
            device is _CPU
            and function_modes is not None
            and not function_modes()
            and torch.empty(0).is_cpu
        ):
            return nullcontext()
        return scopes.scope(self.to_native(device))

    # tensors

    def device_of(self, x: torch.Tensor) -> Device:
        """Returns the device of a tensor. Raises `UnsupportedError` if xdevice does not support the device."""
        return self._places[x.device]

    def probe(self, cls: type) -> Callable[[Any], Device]:
        """Returns the fastest function for reading the device of a tensor of exactly the type `cls`. `is_cpu`,
        `is_cuda` and `get_device()` are faster than `device`, but a subclass may override only `device`."""
        if cls not in _PLAIN:
            return self.device_of
        device_of = self.device_of
        # reads the attribute that is true for most tensors of a program first
        if self._gpu != "cuda" or not self._gpus:
            return lambda x: _CPU if x.is_cpu else device_of(x)
        if self._gpus == 1:
            return lambda x: _GPU if x.is_cuda else device_of(x)
        gpus = [devices.of("gpu", index) for index in range(self._gpus)]

        def place(x: torch.Tensor) -> Device:
            index = x.get_device()  # -1 on the host and on meta
            # a tensor on another vendor's device may have the same index, so `is_cuda` is read too
            return gpus[index] if index >= 0 and x.is_cuda else device_of(x)

        return place

    def devices_of(self, cls: type, tensors: Sequence[torch.Tensor]) -> set[Device]:
        """Returns the set of the devices of one or more tensors of exactly the type `cls`. If all tensors are on the
        host or on the same CUDA GPU, uses faster checks than reading each tensor's `device`."""
        if cls in _PLAIN:
            for x in tensors:  # faster than all(map(...))
                if not x.is_cpu:
                    break
            else:
                return {_CPU}
            indices = {*map(torch.Tensor.get_device, tensors)}
            if len(indices) == 1 and self._gpu == "cuda" and all(map(_is_cuda, tensors)):
                return {devices.of("gpu", indices.pop())}
        return {self._places[native] for native in {*map(_device, tensors)}}

    def move(self, x: torch.Tensor, device: Device) -> torch.Tensor:
        """Returns a copy of `x` on another device, made through page-locked memory if that is
        faster. Gradients flow through the copy."""
        native = self.to_native(device)
        try:
            # None if PyTorch must make the copy
            staged = staging.moved(x, native)
            return x.to(native) if staged is None else staged
        # PyTorch raises this error for a layout that it cannot copy, and for a tensor on meta,
        # which has no values
        except NotImplementedError as error:
            raise self._no_copy(x) from error

    def move_all(self, tensors: Sequence[torch.Tensor], device: Device) -> list[torch.Tensor]:
        """Returns copies of the tensors on `device`. No tensor may already be on `device`. Small tensors on the host
        are sent to a CUDA GPU as a group, with a single wait for the whole group. Other tensors are moved one by
        one."""
        native = self.to_native(device)
        try:
            # copies to these devices do not use page-locked memory, so the checks of `move` are skipped
            if device.kind == "meta" or self.virtual:
                return [x.to(native) for x in tensors]
            # not for subclasses, because `sent` calls `x.cuda()`, which a subclass may override
            if (
                device.kind == "gpu"
                and self._gpu == "cuda"
                and _PLAIN.issuperset(map(type, tensors))
            ):
                return staging.copied_together(tensors, native, lambda x: self.move(x, device))
        except NotImplementedError:
            pass  # below, `move` fails for the same tensor, and raises a more informative error
        return super().move_all(tensors, device)

    def start_move(self, x: torch.Tensor, device: Device) -> torch.Tensor:
        """Returns a copy of `x` on another device, possibly before the values of the copy have arrived."""
        # only builds for CUDA can copy in the background
        started = (
            staging.start_copy(x, self.to_native(device))
            if torch.version.cuda is not None
            else None
        )
        return self.move(x, device) if started is None else started

    def copy(self, x: torch.Tensor, device: Device) -> torch.Tensor:
        """Returns a copy of `x` in new storage on a device, which may be the device of `x`.
        Gradients flow through the copy."""
        conversion.require_shape(x)
        native = self.to_native(device)
        try:
            # None if PyTorch must make the copy
            staged = staging.moved(x, native)
            new = x.to(native, copy=True) if staged is None else staged
        except NotImplementedError as error:
            raise self._no_copy(x) from error
        return self._require_new_memory(x, new)

    def synchronize(self, device: Device | None) -> None:
        """Waits for all work on a device, or, if `device` is None, on all GPUs that this process has used. Raises
        `UnsupportedError` if PyTorch has no function that waits for the GPU, or if `device` is None and a lazy device,
        such as XLA's, has been started."""
        if device is not None and device.kind != "gpu":
            return  # the only other kinds are cpu and meta, which compute synchronously
        # no `Device` represents a lazy device, so only a wait for all work can concern it
        if device is None:
            self._refuse_lazy()
        for index in range(self._gpus) if device is None else (device.index,):
            if self._is_started(index):
                self._wait(index)

    def wait(self, x: torch.Tensor) -> None:
        """Waits until `x` has been computed. If `x` is being copied to the host, waits until
        its values have arrived."""
        # a tensor on the host may still be waiting for its values, which waiting for a device
        # does not reveal
        staging.wait_for_values(x)
        self.synchronize(self.device_of(x))

    def blocking(self) -> AbstractContextManager[Any]:
        """Returns a context manager in which each operation returns only after its result has been computed."""
        self._refuse_lazy()
        # PyTorch already computes synchronously if there are no real GPUs (`virtual` is the
        # number of virtual GPUs), or if CUDA_LAUNCH_BLOCKING is in effect
        if self._gpus == self.virtual or self._blocks:
            return nullcontext()
        from .blocking import blocking

        return blocking(self)

    # values

    def from_numpy(self, array: np.ndarray[Any, Any], device: Device) -> torch.Tensor:
        """Returns a new tensor on a device, with the dtype and values of a NumPy array."""
        # torch.tensor does not accept negative strides (pytorch/pytorch#92680)
        contiguous = array if array.flags.c_contiguous else array.copy()
        native, name = self.to_native(device), name_of(array.dtype)
        # a large array is copied to a GPU through page-locked memory, which is faster; None if
        # PyTorch must copy the array
        staged = staging.put(contiguous, native)
        if staged is not None:
            return staged
        # PyTorch cannot read arrays of bfloat16 or of 8-bit floats. So it is given the bits of
        # the numbers as integers of the same size; `BITS_AS` contains their dtype
        if name in BITS_AS:
            return self._from_plain(contiguous.view(BITS_AS[name]), native).view(
                getattr(torch, name)
            )
        return self._from_plain(contiguous, native)

    def _from_plain(self, array: np.ndarray[Any, Any], native: torch.device) -> torch.Tensor:
        """Copies `array` to a new tensor on the device `native`. `array` is C-contiguous, and its dtype is one of
        NumPy's own."""
        # `from_numpy` raises a warning for a read-only array
        if array.flags.writeable and native.type in _QUICK and not staging.has_modes():
            return torch.from_numpy(array).to(native, copy=True)
        return torch.tensor(array, device=native)

    def to_numpy(self, x: torch.Tensor) -> np.ndarray[Any, Any]:
        """Returns the values of a tensor as an array, which may share the tensor's memory. If NumPy cannot represent
        the tensor, raises `UnsupportedError`, and the message suggests a tensor that NumPy can represent."""
        self._require_values(x)
        try:
            return self._read(x)
        # checks only now whether NumPy can represent the tensor, because the checks take longer than reading
        except (
            RuntimeError,
            TypeError,
        ) as error:
            instead = conversion.why_not_numpy(x)
            if instead is None:
                raise
            raise self.unsupported(
                f"reading this {_described(x)} as a NumPy array", instead
            ) from error

    def _read(self, x: torch.Tensor) -> np.ndarray[Any, Any]:
        """Converts `x` to the dense layout, and returns the values as an array. The array shares the memory of `x` if
        possible. PyTorch raises RuntimeError or TypeError if NumPy cannot represent the tensor."""
        dense = x.detach() if x.requires_grad else x
        if dense.layout is not torch.strided:
            dense = dense.to_dense()
        # None if PyTorch must make the copy
        staged = None if dense.is_cpu else staging.moved(dense, _HOST)
        # NumPy reads the memory as it is, where a lazy conjugate or negative has not been computed yet
        host = (dense.cpu() if staged is None else staged).resolve_conj().resolve_neg()
        # NumPy lacks the dtypes in `BITS_AS`, so it is given their bits as integers. These
        # dtypes have at most 2 bytes. For wider dtypes the name is not looked up, because that
        # takes longer than all other steps
        if host.itemsize > 2:
            return host.numpy()
        name = str(host.dtype).rpartition(".")[2]
        if name not in BITS_AS:
            return host.numpy()
        return (
            host.contiguous().view(getattr(torch, BITS_AS[name])).numpy().view(host_dtype(name))
        )

    def full(
        self, shape: tuple[int, ...], value: float, device: Device, dtype: str
    ) -> torch.Tensor:
        """Returns a tensor of this shape and dtype on a device, filled with `value`."""
        return torch.full(
            shape, value, dtype=getattr(torch, dtype), device=self.to_native(device)
        )

    def tracing(self) -> str | None:
        """Returns the name of the PyTorch tracer that is tracing the calling code, such as "torch.jit.trace", or None
        if nothing is tracing. torch.compile is not treated as tracing here, because this code runs at each call,
        outside the compiled graphs."""
        # `is_compiling` is quick, and it is also true while torch.export traces, so at nearly
        # every call the second test is not needed
        if torch.compiler.is_compiling() and _is_exporting():
            return "torch.export"
        if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            return "torch.jit.trace"
        return "torch.fx" if _is_fx_tracing() else None

    def eagerly(self, function: Callable[[], Any]) -> Any:
        """Calls `function`, and returns its result. If torch.compile is tracing, the call is not traced."""
        # `disable` imports torch._dynamo, which takes long, so it is called only while
        # torch.compile is tracing
        return torch.compiler.disable(function)() if _is_dynamo_active() else function()

    # the structure of a tensor

    def is_dense(self, x: torch.Tensor) -> bool:
        """Whether `x` is a single block of numbers in memory: not sparse, not nested, and not
        composed of other tensors."""
        if x.layout is not torch.strided or x.is_nested:
            return False
        # a tensor that is being copied to the host is a wrapper without memory until its values have arrived
        return type(x) in _PLAIN or conversion.is_plain(type(staging.wait_for_values(x)))

    # memory

    def memory(self, device: Device) -> Memory:
        """Returns the numbers that PyTorch reports about a GPU's memory, in bytes. A number that PyTorch does not
        report is None. For the host, meta and virtual GPUs, all numbers are None."""
        if device.kind != "gpu" or self.virtual:
            return Memory()
        if self._gpu == "mps":
            return Memory(
                total=torch.mps.recommended_max_memory(),
                allocated=torch.mps.current_allocated_memory(),
            )
        # the modules of some vendors lack some of these functions; the corresponding numbers are None
        names = ("mem_get_info", "memory_allocated", "max_memory_allocated")
        free_and_total, allocated, peak = [
            getattr(self._module(), name, lambda index: None)(device.index) for name in names
        ]
        free, total = free_and_total or (None, None)
        return Memory(total, free, allocated, peak)

    def empty_cache(self, device: Device) -> None:
        """Makes PyTorch return unused GPU memory to the driver. By default PyTorch keeps this memory for later tensors.
        `device` is ignored."""
        self._module().empty_cache()

    def reset_peak(self, device: Device) -> None:
        """Resets the recorded peak of a GPU's allocated memory. Raises `UnsupportedError` for
        other devices, or if the vendor's module has no function for this."""
        reset = getattr(self._module(), "reset_peak_memory_stats", None)
        if device.kind != "gpu" or reset is None:
            super().reset_peak(device)  # raises `UnsupportedError`
            return
        reset(device.index)

    # floats of a parity run

    def default_to_float64(self) -> None:
        """Makes float64 PyTorch's default dtype, for a run of the parity check."""
        torch.set_default_dtype(torch.float64)

    # explanations for users

    def why_no_gpu(self) -> str:
        """Returns why PyTorch finds no GPU, for an error message."""
        if torch.version.cuda is None and torch.version.hip is None:
            return f"torch {self.version} is a build without CUDA or ROCm"
        return "torch finds no GPU: there is no driver, or CUDA_VISIBLE_DEVICES hides the GPUs"

    # the process

    def after_fork(self) -> None:
        """Limits PyTorch to one CPU thread. This is called in a forked child before the child uses PyTorch."""
        # OpenMP's threads do not survive a fork, so the first parallel loop in the child would
        # wait for ever for these threads (pytorch/pytorch#41197)
        torch.set_num_threads(1)

    def _require_new_memory(self, x: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Returns `new`, the result of copying `x`. Raises `UnsupportedError` if `new` shares memory with `x`. This can
        happen because the `clone` of a tensor subclass may return the tensor itself."""
        if type(x) not in _PLAIN and conversion.is_alias(new, x):
            raise self.unsupported(
                f"copying a tensor of type {type(x).__name__}, because a copy would share its memory",
                "copy x.as_subclass(torch.Tensor)",
            )
        return new

    def _no_copy(self, x: torch.Tensor) -> UnsupportedError:
        """Returns the error for a tensor that PyTorch has refused to copy to another device. If
        `x` has no values, raises the error of `_require_values` instead."""
        self._require_values(x)
        return self.unsupported(
            f"copying this {_described(x)} to the device",
            "move the components of the tensor separately, or make the tensor dense",
        )

    def _require_values(self, x: torch.Tensor) -> None:
        """Raises an error if `x` has no values. The error is `UnsupportedError` if `x` is on meta or is a symbol of a
        traced function, and `NotBuiltError` if `x` is a parameter without a shape."""
        if x.is_meta:
            raise self.unsupported(
                "reading a tensor on the meta device",
                "make a tensor that has values: torch.empty_like(x, device=...)",
            )
        conversion.require_values(x)

    def _wait(self, index: int) -> None:
        """Waits for all work on the GPU with this index. Raises `UnsupportedError` if PyTorch
        has no function that waits for the GPU."""
        if self._synchronize is None:
            raise self.unsupported(
                f"waiting for {self._gpu}:{index}, because neither torch.{self._gpu} nor torch.accelerator can wait",
                "read a value of the result, which waits for the work: x.cpu()",
            )
        self._synchronize(index)

    def _refuse_lazy(self) -> None:
        """Raises `UnsupportedError` if a lazy device, such as XLA's, has been started. A lazy device computes only when
        a result is read, so it is impossible to wait for all of its work."""
        lazy_type = accelerators.started_lazy_type()
        if lazy_type is not None:
            raise self.unsupported(
                f"waiting for all work while the lazy device {lazy_type!r} is in use, because it computes a result "
                f"only when the result is read",
                "read its results with x.cpu(), and wait for every other tensor or device with xdevice.sync(x)",
            )

    def _module(self) -> Any:
        """Returns the vendor's counterpart of `torch.cuda`, such as `torch.xpu`, or None if
        there is none."""
        return getattr(torch, self._gpu, None)

    def _current_index(self) -> int:
        """Returns the index of this thread's current GPU, or 0 if there is no GPU."""
        # MPS has only one device, and without a GPU PyTorch's functions would raise an error
        if self._gpu == "mps" or not self._gpus:
            return 0
        # a vendor's module may lack this function
        current = (
            getattr(self._module(), "current_device", None)
            or torch.accelerator.current_device_index
        )
        return int(current())

    def _is_started(self, index: int) -> bool:
        """Whether this process has a context on the GPU with this index. Waiting for a GPU
        without a context would create a context, which takes about 500 MB."""
        # MPS has no context that a wait could create
        if self._gpu == "mps":
            return True
        if not getattr(self._module(), "is_initialized", lambda: True)():
            return False
        # CUDA may be in use only on other GPUs; the modules of other vendors cannot tell which
        # of their GPUs are in use
        return self._gpu != "cuda" or _has_context(index)


def _described(x: torch.Tensor) -> str:
    """Returns a description of a tensor for an error: its kind, type, layout and dtype, such as
    "nested Tensor (strided, float32)"."""
    kind = "nested " * x.is_nested + "quantized " * x.is_quantized
    return f"{kind}{type(x).__name__} ({x.layout}, {x.dtype})".replace("torch.", "")
