"""The adapter for PyTorch: xdevice's hooks (the methods that its core calls), written with
PyTorch's functions.

The rules that it must keep:

- A copy passes `copy=True`, because `x.to(d)` returns `x` itself if `x` is on the device `d`
  already.
- Nothing is copied with `non_blocking=True`, because the result of a device-to-host copy then
  holds garbage until somebody waits (pytorch/pytorch#140296). The exceptions are tensors that
  nobody can read before the copy has ended (staging.py).
- Counting GPUs starts no CUDA context, because a context takes some 500 MB of a GPU's memory.
"""

from __future__ import annotations

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
    # triton, which PyTorch imports later, would crash next to some versions of TensorFlow;
    # `import_apart` says why
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
# PyTorch 2.9 added the first function. The second also counts torch.export as tracing, and has
# warned since 2.9
_is_fx_tracing = (
    private.get("torch.fx._symbolic_trace.is_fx_symbolic_tracing")
    or (private["torch.fx._symbolic_trace.is_fx_tracing"])
)
# without this name each GPU counts as used, so waiting for all of them makes a context on each
_has_context = private.get("torch._C._cuda_hasPrimaryContext", lambda index: True)
_QUICK = ("cuda", "cpu")
"""The types of devices for which `from_numpy` and `to` were measured to be faster than
`torch.tensor`."""
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
"""The types of tensors whose `is_cpu`, which is read faster than `device`, always agrees with
`device`: a subclass may define its own `device`."""
_NONE: frozenset[str] = frozenset()
# getters in C, which `map` calls faster than lambdas
_device, _is_cuda = attrgetter("device"), attrgetter("is_cuda")


class _Places(dict[torch.device, devices.Device]):
    """A dict from each `torch.device` to its `Device`. `find` returns the `Device` for a key
    that is looked up for the first time; later lookups, which nearly every function of xdevice
    makes, do not call Python code."""

    def __init__(self, find: Callable[[Any], Device | None]) -> None:
        self._find = find

    def __missing__(self, native: torch.device) -> Device:
        """Finds and keeps the `Device` for a key that is not in the dict yet."""
        place = self._find(native)
        # `TorchBackend._place` raises for a device that xdevice does not support, and never
        # returns None
        assert place is not None
        self[native] = place
        return place


_frame_callback = private.get("torch._C._dynamo.eval_frame.get_eval_frame_callback", bool)


def _is_dynamo_active() -> bool:
    """Whether torch.compile traces this code, or would trace the functions that it calls."""
    # after a graph break, Python runs a frame that torch.compile leaves out, in which
    # `is_dynamo_compiling` is False; torch.compile would trace what such a frame calls
    return torch.compiler.is_dynamo_compiling() or bool(_frame_callback())


def _is_exporting() -> bool:
    """Whether torch.export traces the code that runs now."""
    # PyTorch 2.6 lacks `is_exporting`
    return hasattr(torch.compiler, "is_exporting") and torch.compiler.is_exporting()


class TorchBackend(TorchConversion, TorchModels, TorchReplicas, TorchStreams, Backend):
    """PyTorch as a backend. `xdevice.contract` says more about each hook."""

    name = "torch"
    modules = ("torch",)
    minimum = (2, 6)
    private_names = private
    dtypes = frozenset(DTYPES)
    short_floats = frozenset(name for name in SHORT_FLOATS if hasattr(torch, name))
    kinds = ("cpu", "gpu", "meta")
    moves_by = "to"
    is_compiling = staticmethod(_is_dynamo_active)
    most_virtual_gpus = 128  # PyTorch keeps the index of a device in 8 bits

    def __init__(self) -> None:
        # PyTorch's name for the device type of `gpu:i`, such as "cuda", and the number of these
        # devices
        self._gpu, self._gpus = accelerators.detect()
        self._synchronize = accelerators.waiter(self._gpu)
        self._places = _Places(self._place)
        self._natives: dict[Device, torch.device] = {}
        # whether CUDA itself computes synchronously: XDEVICE_BLOCKING sets
        # CUDA_LAUNCH_BLOCKING, which has no effect once CUDA has been started
        self._blocks = (
            is_blocking_wanted() and self._gpu == "cuda" and not torch.cuda.is_initialized()
        )

    # the framework

    @property
    def framework(self) -> ModuleType:
        return torch

    def classify(self, cls: type) -> Kind | None:
        """Returns "tensor" for a class of tensors, "model" for a class of modules or
        optimizers, and None for any other class."""
        if issubclass(cls, torch.Tensor):
            return "tensor"
        return "model" if issubclass(cls, torch.nn.Module | torch.optim.Optimizer) else None

    # devices

    def count(self, kind: str) -> int:
        """Returns how many devices of a kind there are: the number of accelerators for "gpu", 1
        for "cpu" and "meta", and 0 for a kind that PyTorch lacks."""
        return self._gpus if kind == "gpu" else int(kind in self.kinds)

    def describe(self, device: Device) -> DeviceInfo:
        """Returns the name of a device and its memory in bytes. The memory is None for the CPU,
        for meta and for virtual GPUs, and if the vendor's module does not report it."""
        if device.kind != "gpu":
            return DeviceInfo(device.kind, None)
        if self.virtual:
            return VIRTUAL_GPU
        # `torch.mps` has no functions that name its one device
        if self._gpu == "mps":
            return DeviceInfo("Apple MPS", torch.mps.recommended_max_memory())
        module = self._module()
        # the plugins of some vendors report a name only, or nothing
        if not hasattr(module, "get_device_properties"):
            return DeviceInfo(
                getattr(module, "get_device_name", lambda index: self._gpu)(device.index), None
            )
        properties = module.get_device_properties(device.index)
        return DeviceInfo(properties.name, getattr(properties, "total_memory", None))

    def hardware(self) -> frozenset[str]:
        """Returns the words that users may write for `gpu:i` here, such as "cuda"; without a
        GPU, the words for CUDA."""
        return accelerators.words(self._gpu)

    def lacks(self, device: Device) -> frozenset[str]:
        """Returns the names of the dtypes that no tensor on this device can have."""
        if device.kind != "gpu" or self.virtual:
            return _NONE
        return accelerators.lacks(self._gpu, device.index)

    def is_started(self, device: Device) -> bool:
        """Whether this process has already started a GPU, so that reading more about the GPU
        creates no context; True for other devices."""
        return device.kind != "gpu" or self._is_started(device.index)

    def to_native(self, device: Device) -> torch.device:
        """Returns the `torch.device` of a `Device`, such as `torch.device("cuda", 1)` for
        `gpu:1`."""
        native = self._natives.get(device)
        if native is None:
            # as in the `device` of a tensor, where only GPUs have an index
            name = self._gpu if device.kind == "gpu" else device.kind
            native = (
                torch.device(name, device.index) if device.kind == "gpu" else torch.device(name)
            )
            self._natives[device] = native
        return native

    def describe_missing(self, device: Device) -> torch.device:
        """Returns the `torch.device` of a device that this machine lacks. PyTorch does not
        check whether the device exists."""
        return self.to_native(device)

    def from_native(self, native: Any) -> Device | None:
        """Returns the `Device` of a `torch.device`; None if `native` is not a `torch.device`.
        Raises `UnsupportedError` for a type of device that xdevice does not know, and for a
        real GPU while the GPUs are virtual."""
        if not isinstance(native, torch.device):
            return None
        # the types of HARDWARE are words for GPUs, such as "cuda"; others are "cpu", "meta" or
        # unsupported
        if native.type == self._gpu or native.type not in devices.HARDWARE:
            return self._place(native)
        # a real GPU would be taken for the virtual GPU of the same index
        if self.virtual:
            raise self.unsupported(
                f"{native} while its GPUs are virtual", "use xdevice.gpu(i).native"
            )
        # a GPU of a vendor whose hardware this machine lacks: its name is valid, and using it
        # raises an error
        return devices.named(native.type, native.index or 0)

    def _place(self, native: torch.device) -> Device:
        """Returns the `Device` for a `torch.device`. A GPU without an index means this thread's
        current GPU. Raises `UnsupportedError` for a device whose type is not "cpu", "meta" or
        the type of `gpu:i`."""
        if native.type == self._gpu:
            return devices.of("gpu", self._current() if native.index is None else native.index)
        # a device of another vendor, for whose work xdevice cannot wait
        if native.type not in self.kinds:
            raise self.unsupported(
                f"devices of the type {native.type!r}",
                "copy the tensor to a supported device: x.cpu()",
            )
        return devices.of(native.type, native.index or 0)

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """Returns a context manager in which PyTorch makes new tensors on a device."""
        # no block is needed for the CPU if PyTorch makes tensors there anyway: no mode, such as
        # a scope of another device, is active, and a tensor made now is on the CPU, so that is
        # the default device. A block would cost a microsecond for each call and attribute
        # inside it
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
        """Returns the device of a tensor. Raises `UnsupportedError` for a device that xdevice
        does not know."""
        return self._places[x.device]

    def probe(self, cls: type) -> Callable[[Any], Device]:
        """Returns the fastest function that gives the device of a tensor of exactly the type
        `cls`. `is_cpu`, `is_cuda` and `get_device()` are read faster than `device`, but a
        subclass may override `device` alone."""
        if cls not in _PLAIN:
            return self.device_of
        device_of = self.device_of
        # the attribute that is true for most tensors of a program is read first
        if self._gpu != "cuda" or not self._gpus:
            return lambda x: _CPU if x.is_cpu else device_of(x)
        if self._gpus == 1:
            return lambda x: _GPU if x.is_cuda else device_of(x)
        gpus = [devices.of("gpu", index) for index in range(self._gpus)]

        def place(x: torch.Tensor) -> Device:
            index = x.get_device()  # -1 on the host and on meta
            # tensors on another vendor's devices have indices from 0 on, too
            return gpus[index] if index >= 0 and x.is_cuda else device_of(x)

        return place

    def devices_of(self, cls: type, tensors: Sequence[torch.Tensor]) -> set[Device]:
        """Returns the set of devices of one or more tensors of exactly the type `cls`. If all
        are on the host or all on one CUDA GPU, does not read the tensors' `device`, which would
        take longer."""
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
            # None if PyTorch has to make the copy
            staged = staging.moved(x, native)
            return x.to(native) if staged is None else staged
        # PyTorch raises this error for a layout that it has no code to copy, and for a tensor
        # that is to leave meta
        except NotImplementedError as error:
            raise self._no_copy(x) from error

    def move_all(self, tensors: Sequence[torch.Tensor], device: Device) -> list[torch.Tensor]:
        """Returns copies of the tensors on `device`; none of the tensors may be there already.
        Small tensors are sent from the host to a CUDA GPU with one wait for all; other tensors
        are moved one by one."""
        native = self.to_native(device)
        try:
            # nothing goes through page-locked memory here, so the checks of `move` are skipped
            if device.kind == "meta" or self.virtual:
                return [x.to(native) for x in tensors]
            # `sent` calls `x.cuda()`, which a subclass may have overridden
            if (
                device.kind == "gpu"
                and self._gpu == "cuda"
                and _PLAIN.issuperset(map(type, tensors))
            ):
                return staging.sent(tensors, native, lambda x: self.move(x, device))
        except NotImplementedError:
            pass  # `move` below fails for the same tensor, with an error that names it
        return super().move_all(tensors, device)

    def start_move(self, x: torch.Tensor, device: Device) -> torch.Tensor:
        """Returns a copy of `x` on another device, possibly before the values have arrived
        there."""
        # only builds for CUDA copy in the background
        started = (
            staging.started(x, self.to_native(device))
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
            # None if PyTorch has to make the copy
            staged = staging.moved(x, native)
            new = x.to(native, copy=True) if staged is None else staged
        except NotImplementedError as error:
            raise self._no_copy(x) from error
        return self._owned(x, new)

    def synchronize(self, device: Device | None) -> None:
        """Waits for all work on a device, or, if `device` is None, on all GPUs that this
        process has used. Raises `UnsupportedError` if PyTorch has no function that waits for
        the GPU, and for None also if a lazy device has been started."""
        if device is not None and device.kind != "gpu":
            return  # cpu and meta compute synchronously, and there are no other kinds
        # xdevice never names a lazy device, so only a wait for all work concerns it
        if device is None:
            self._refuse_lazy()
        for index in range(self._gpus) if device is None else (device.index,):
            if self._is_started(index):
                self._wait(index)

    def wait(self, x: torch.Tensor) -> None:
        """Waits until `x` is computed. If `x` is being copied to the host, waits until its
        values have arrived."""
        # a tensor on the host may still be waiting for its values, which no device's queue
        # shows
        staging.arrive(x)
        self.synchronize(self.device_of(x))

    def blocking(self) -> AbstractContextManager[Any]:
        """Returns a context manager in which each operation returns only when its result is
        computed."""
        self._refuse_lazy()
        # if there are no real GPUs (`virtual` is the number of virtual ones), or CUDA obeys
        # CUDA_LAUNCH_BLOCKING, PyTorch computes synchronously anyway
        if self._gpus == self.virtual or self._blocks:
            return nullcontext()
        from .blocking import blocking

        return blocking(self)

    # values

    def from_numpy(self, array: np.ndarray[Any, Any], device: Device) -> torch.Tensor:
        """Returns a new tensor on a device with the dtype and values of an array."""
        # torch.tensor refuses negative strides (pytorch/pytorch#92680)
        contiguous = array if array.flags.c_contiguous else array.copy()
        native, name = self.to_native(device), name_of(array.dtype)
        # a large array goes to a GPU through page-locked memory, which is faster; None if
        # PyTorch has to copy the array
        staged = staging.array(contiguous, native)
        if staged is not None:
            return staged
        # PyTorch reads no array of bfloat16 or of 8-bit floats, so it gets the bits of the
        # numbers as integers of the same size, whose dtype is in `BITS_AS`
        if name in BITS_AS:
            return self._from_plain(contiguous.view(BITS_AS[name]), native).view(
                getattr(torch, name)
            )
        return self._from_plain(contiguous, native)

    def _from_plain(self, array: np.ndarray[Any, Any], native: torch.device) -> torch.Tensor:
        """Returns a tensor on a device with a copy of a C-contiguous array, whose dtype NumPy
        itself has."""
        # `from_numpy` warns of arrays that are read-only
        if array.flags.writeable and native.type in _QUICK and not staging.has_modes():
            return torch.from_numpy(array).to(native, copy=True)
        return torch.tensor(array, device=native)

    def to_numpy(self, x: torch.Tensor) -> np.ndarray[Any, Any]:
        """Returns the values of a tensor as an array, which may share the tensor's memory.
        Raises `UnsupportedError` for a tensor that NumPy cannot hold, with what to read
        instead."""
        self._require_values(x)
        try:
            return self._read(x)
        # whether NumPy can hold the tensor is checked only now, because the checks take longer
        # than reading
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
        """Returns the values of `x`, made dense, as an array, which shares the memory of `x` if
        possible. Raises RuntimeError or TypeError, from PyTorch, for a tensor that NumPy cannot
        hold."""
        dense = x.detach() if x.requires_grad else x
        if dense.layout is not torch.strided:
            dense = dense.to_dense()
        # None if PyTorch has to make the copy
        staged = None if dense.is_cpu else staging.moved(dense, _HOST)
        # NumPy reads the plain memory, in which a lazy conjugate or negative is not yet
        # computed
        host = (dense.cpu() if staged is None else staged).resolve_conj().resolve_neg()
        # NumPy lacks the dtypes in `BITS_AS`, so it gets their bits as integers. They have at
        # most 2 bytes; for wider dtypes the name is not looked up, which takes longer than all
        # other steps
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
        """Returns the name of the PyTorch tracer that runs this code, such as
        "torch.jit.trace"; None if nothing traces. torch.compile does not count, because it runs
        this code at each call, outside its graphs."""
        # `is_compiling` is a quick test, which is also true while torch.export traces, and
        # saves the second test at nearly every call
        if torch.compiler.is_compiling() and _is_exporting():
            return "torch.export"
        if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            return "torch.jit.trace"
        return "torch.fx" if _is_fx_tracing() else None

    def eagerly(self, function: Callable[[], Any]) -> Any:
        """Calls `function`, outside torch.compile if torch.compile is tracing, and returns its
        result."""
        # `disable` imports torch._dynamo, which takes long, so it is called only where
        # torch.compile traces
        return torch.compiler.disable(function)() if _is_dynamo_active() else function()

    # what a tensor is made of

    def is_dense(self, x: torch.Tensor) -> bool:
        """Whether `x` is one block of numbers in memory: not sparse, not nested, and not made
        of other tensors."""
        if x.layout is not torch.strided or x.is_nested:
            return False
        # a tensor on its way to the host is a wrapper without memory until it has arrived
        return type(x) in _PLAIN or conversion.is_plain(type(staging.arrive(x)))

    # memory

    def memory(self, device: Device) -> Memory:
        """Returns what PyTorch reports about a GPU's memory, in bytes. A number that PyTorch
        does not report is None; for the host, meta and virtual GPUs all numbers are None."""
        if device.kind != "gpu" or self.virtual:
            return Memory()
        if self._gpu == "mps":
            # total, free, allocated and peak
            return Memory(
                torch.mps.recommended_max_memory(),
                None,
                torch.mps.current_allocated_memory(),
                None,
            )
        # some vendors lack some of these functions: their numbers are None
        names = ("mem_get_info", "memory_allocated", "max_memory_allocated")
        free_and_total, allocated, peak = [
            getattr(self._module(), name, lambda index: None)(device.index) for name in names
        ]
        free, total = free_and_total or (None, None)
        return Memory(total, free, allocated, peak)

    def empty_cache(self, device: Device) -> None:
        """Makes PyTorch give unused GPU memory, which it keeps for later tensors, back to the
        driver. `device` is ignored."""
        self._module().empty_cache()

    def reset_peak(self, device: Device) -> None:
        """Resets the peak of a GPU's allocated memory. Raises `UnsupportedError` for other
        devices, and if the vendor has no function for it."""
        reset = getattr(self._module(), "reset_peak_memory_stats", None)
        if device.kind != "gpu" or reset is None:
            super().reset_peak(device)  # raises `UnsupportedError`
            return
        reset(device.index)

    # floats of a parity run

    def default_to_float64(self) -> None:
        """Makes PyTorch create float64 tensors where no dtype is named, for a run of the parity
        check."""
        torch.set_default_dtype(torch.float64)

    # what people ask

    def why_no_gpu(self) -> str:
        """Returns why PyTorch finds no GPU, for an error message."""
        if torch.version.cuda is None and torch.version.hip is None:
            return f"torch {self.version} is a build without CUDA or ROCm"
        return "torch finds no GPU: there is no driver, or CUDA_VISIBLE_DEVICES hides the GPUs"

    # the process

    def after_fork(self) -> None:
        """Limits PyTorch to one CPU thread. Called in a forked child before the child uses
        PyTorch."""
        # OpenMP's threads do not survive a fork, and the first parallel loop in the child would
        # wait for them for ever (pytorch/pytorch#41197)
        torch.set_num_threads(1)

    def _owned(self, x: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Returns `new`, which was made as a copy of `x`. Raises `UnsupportedError` if `new`
        shares memory with `x`: the `clone` of a tensor subclass may return the tensor
        itself."""
        if type(x) not in _PLAIN and conversion.is_alias(new, x):
            raise self.unsupported(
                f"copying a tensor of type {type(x).__name__}, whose copies share its memory",
                "copy x.as_subclass(torch.Tensor)",
            )
        return new

    def _no_copy(self, x: torch.Tensor) -> UnsupportedError:
        """Returns the error for a tensor that PyTorch has refused to copy to another device.
        Raises the error of `_require_values` instead if `x` has no values."""
        self._require_values(x)
        return self.unsupported(
            f"copying this {_described(x)} to the device", "move its parts, or make it dense"
        )

    def _require_values(self, x: torch.Tensor) -> None:
        """Raises `UnsupportedError` if `x` is on meta or is a symbol of a traced function, and
        `NotBuiltError` if `x` is a parameter without a shape: such tensors have no values."""
        if x.is_meta:
            raise self.unsupported(
                "reading a tensor on the meta device",
                "make a tensor that has values: torch.empty_like(x, device=...)",
            )
        conversion.require_values(x)

    def _wait(self, index: int) -> None:
        """Waits for all work on the GPU with this index. Raises `UnsupportedError` if PyTorch
        has no function that does."""
        if self._synchronize is None:
            raise self.unsupported(
                f"waiting for {self._gpu}:{index}, because neither torch.{self._gpu} nor torch.accelerator can wait",
                "read a value of the result, which waits for the work: x.cpu()",
            )
        self._synchronize(index)

    def _refuse_lazy(self) -> None:
        """Raises `UnsupportedError` if a lazy device, such as XLA's, has been started. A lazy
        device computes only when a result is read, so nobody can wait for all of its work."""
        lazy_type = accelerators.lazy()
        if lazy_type is not None:
            raise self.unsupported(
                f"waiting for all work while the lazy device {lazy_type!r} is in use, which computes only when read",
                "read its results with x.cpu(), and wait for each other tensor or device with xdevice.sync(x)",
            )

    def _module(self) -> Any:
        """Returns the vendor's counterpart of `torch.cuda`, such as `torch.xpu`; None if the
        vendor has none."""
        return getattr(torch, self._gpu, None)

    def _current(self) -> int:
        """Returns the index of this thread's current GPU; 0 if there is no GPU."""
        # MPS has one device, and without a GPU PyTorch's functions would raise
        if self._gpu == "mps" or not self._gpus:
            return 0
        # a vendor's module may lack the function
        current = (
            getattr(self._module(), "current_device", None)
            or torch.accelerator.current_device_index
        )
        return int(current())

    def _is_started(self, index: int) -> bool:
        """Whether this process has a context on this GPU. Waiting for a GPU without a context
        would create one, which takes some 500 MB."""
        # MPS has no context that a wait could create
        if self._gpu == "mps":
            return True
        if not getattr(self._module(), "is_initialized", lambda: True)():
            return False
        # CUDA may be in use on other GPUs only; other vendors' modules cannot tell which of
        # their GPUs are in use
        return self._gpu != "cuda" or _has_context(index)


def _described(x: torch.Tensor) -> str:
    """Returns a tensor's kind, type, layout and dtype for an error, such as "nested Tensor
    (strided, float32)"."""
    kind = "nested " * x.is_nested + "quantized " * x.is_quantized
    return f"{kind}{type(x).__name__} ({x.layout}, {x.dtype})".replace("torch.", "")
