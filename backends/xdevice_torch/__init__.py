"""The adapter for PyTorch: xdevice's hooks (the methods that its core calls), written with PyTorch's functions.

The rules that it must keep:

- A copy passes `copy=True`, because `x.to(d)` returns `x` itself if `x` is on the device `d` already.
- Nothing is copied with `non_blocking=True`, because the result of a device-to-host copy then holds garbage until
  somebody waits (pytorch/pytorch#140296). The exceptions are tensors that nobody can read before the copy has ended
  (staging.py).
- Counting GPUs starts no CUDA context.
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
# before 2.9 there is one function for all tracers; since then it warns, and the other one leaves torch.export out
_is_fx_tracing = (
    private.get("torch.fx._symbolic_trace.is_fx_symbolic_tracing")
    or (private["torch.fx._symbolic_trace.is_fx_tracing"])
)
_has_context = private.get("torch._C._cuda_hasPrimaryContext", lambda index: True)
_QUICK = ("cuda", "cpu")
"""The types of devices for which `from_numpy` and `to` were measured to be faster than `torch.tensor`."""
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
"""The types of tensors whose `is_cpu`, which is read faster than `device`, always agrees with `device`: a subclass may
define its own `device`."""
_NONE: frozenset[str] = frozenset()
_device, _is_cuda = attrgetter("device"), attrgetter("is_cuda")


class _Places(dict[torch.device, devices.Device]):
    """A dict from each `torch.device` to its `Device`, filled as devices are looked up."""

    def __init__(self, find: Callable[[Any], Device | None]) -> None:
        self._find = find

    def __missing__(self, native: torch.device) -> Device:
        place = self._find(native)
        assert place is not None
        self[native] = place
        return place


def _is_exporting() -> bool:
    # not in 2.6
    return hasattr(torch.compiler, "is_exporting") and torch.compiler.is_exporting()


class TorchBackend(TorchConversion, TorchModels, TorchReplicas, TorchStreams, Backend):
    name = "torch"
    modules = ("torch",)
    minimum = (2, 6)
    private_names = private
    dtypes = frozenset(DTYPES)
    short_floats = frozenset(name for name in SHORT_FLOATS if hasattr(torch, name))
    kinds = ("cpu", "gpu", "meta")
    moves_by = "to"
    is_compiling = staticmethod(torch.compiler.is_dynamo_compiling)
    most_virtual_gpus = 128  # PyTorch keeps the index of a device in 8 bits

    def __init__(self) -> None:
        self._gpu, self._gpus = accelerators.detect()
        self._synchronize = accelerators.waiter(self._gpu)
        self._places = _Places(self._place)
        self._natives: dict[Device, torch.device] = {}
        # the driver reads CUDA_LAUNCH_BLOCKING when it starts
        self._blocks = (
            is_blocking_wanted() and self._gpu == "cuda" and not torch.cuda.is_initialized()
        )

    # the framework

    @property
    def framework(self) -> ModuleType:
        return torch

    def classify(self, cls: type) -> Kind | None:
        if issubclass(cls, torch.Tensor):
            return "tensor"
        return "model" if issubclass(cls, torch.nn.Module | torch.optim.Optimizer) else None

    # devices

    def count(self, kind: str) -> int:
        return self._gpus if kind == "gpu" else int(kind in self.kinds)

    def describe(self, device: Device) -> DeviceInfo:
        if device.kind != "gpu":
            return DeviceInfo(device.kind, None)
        if self.virtual:
            return VIRTUAL_GPU
        if self._gpu == "mps":
            return DeviceInfo("Apple MPS", torch.mps.recommended_max_memory())
        module = self._module()
        if not hasattr(module, "get_device_properties"):
            return DeviceInfo(
                getattr(module, "get_device_name", lambda index: self._gpu)(device.index), None
            )
        properties = module.get_device_properties(device.index)
        return DeviceInfo(properties.name, getattr(properties, "total_memory", None))

    def hardware(self) -> frozenset[str]:
        return accelerators.words(self._gpu)

    def lacks(self, device: Device) -> frozenset[str]:
        if device.kind != "gpu" or self.virtual:
            return _NONE
        return accelerators.lacks(self._gpu, device.index)

    def is_started(self, device: Device) -> bool:
        return device.kind != "gpu" or self._is_started(device.index)

    def to_native(self, device: Device) -> torch.device:
        native = self._natives.get(device)
        if native is None:
            name = self._gpu if device.kind == "gpu" else device.kind
            native = (
                torch.device(name, device.index) if device.kind == "gpu" else torch.device(name)
            )
            self._natives[device] = native
        return native

    def describe_missing(self, device: Device) -> torch.device:
        return self.to_native(device)

    def from_native(self, native: Any) -> Device | None:
        if not isinstance(native, torch.device):
            return None
        if native.type == self._gpu or native.type not in devices.HARDWARE:
            return self._place(native)
        if self.virtual:
            raise self.unsupported(
                f"{native} while its GPUs are virtual", "use xdevice.gpu(i).native"
            )
        # a GPU of a different vendor than this machine has: it can be named, and using it raises an error
        return devices.named(native.type, native.index or 0)

    def _place(self, native: torch.device) -> Device:
        """Returns the `Device` for the `torch.device` of a tensor."""
        if native.type == self._gpu:
            return devices.of("gpu", self._current() if native.index is None else native.index)
        # a device of another vendor, for whose work xdevice cannot wait
        if native.type not in self.kinds:
            raise self.unsupported(
                f"devices of the type {native.type!r}",
                "copy the tensor to a known device: x.cpu()",
            )
        return devices.of(native.type, native.index or 0)

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        if (
            device is _CPU
            and function_modes is not None
            and not function_modes()
            and torch.empty(0).is_cpu
        ):
            return nullcontext()  # it is the default, and a mode would take a microsecond of each call and attribute
        return scopes.scope(self.to_native(device))

    # tensors

    def device_of(self, x: torch.Tensor) -> Device:
        return self._places[x.device]

    def probe(self, cls: type) -> Callable[[Any], Device]:
        if cls not in _PLAIN:
            return self.device_of
        other = self.device_of
        if self._gpu != "cuda" or not self._gpus:
            return lambda x: _CPU if x.is_cpu else other(x)
        if self._gpus == 1:
            return lambda x: _GPU if x.is_cuda else other(x)
        gpus = [devices.of("gpu", index) for index in range(self._gpus)]

        def place(x: torch.Tensor) -> Device:
            # in less time than `device`; below 0 on the host and on meta
            index = x.get_device()
            return gpus[index] if index >= 0 and x.is_cuda else other(x)

        return place

    def devices_of(self, cls: type, tensors: Sequence[torch.Tensor]) -> set[Device]:
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
        native = self.to_native(device)
        try:
            staged = staging.moved(x, native)
            return x.to(native) if staged is None else staged
        except NotImplementedError as error:
            raise self._no_copy(x) from error

    def move_all(self, tensors: Sequence[torch.Tensor], device: Device) -> list[torch.Tensor]:
        native = self.to_native(device)
        try:
            if device.kind == "meta" or self.virtual:
                return [x.to(native) for x in tensors]
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
        started = (
            staging.started(x, self.to_native(device))
            if torch.version.cuda is not None
            else None
        )
        return self.move(x, device) if started is None else started

    def copy(self, x: torch.Tensor, device: Device) -> torch.Tensor:
        conversion.require_shape(x)
        native = self.to_native(device)
        try:
            staged = staging.moved(x, native)
            new = x.to(native, copy=True) if staged is None else staged
        except NotImplementedError as error:
            raise self._no_copy(x) from error
        return self._owned(x, new)

    def synchronize(self, device: Device | None) -> None:
        if device is not None and device.kind != "gpu":
            return  # cpu and meta compute synchronously, and there are no other kinds
        if device is None:
            self._refuse_lazy()
        for index in range(self._gpus) if device is None else (device.index,):
            if self._is_started(index):
                self._wait(index)

    def wait(self, x: torch.Tensor) -> None:
        staging.arrive(x)
        self.synchronize(self.device_of(x))

    def blocking(self) -> AbstractContextManager[Any]:
        self._refuse_lazy()
        # the CPU, and CUDA with CUDA_LAUNCH_BLOCKING, compute synchronously
        if self._gpus == self.virtual or self._blocks:
            return nullcontext()
        from .blocking import blocking

        return blocking(self)

    # values

    def from_numpy(self, array: np.ndarray[Any, Any], device: Device) -> torch.Tensor:
        # torch.tensor refuses negative strides (pytorch/pytorch#92680)
        straight = array if array.flags.c_contiguous else array.copy()
        native, name = self.to_native(device), name_of(array.dtype)
        staged = staging.array(straight, native)
        if staged is not None:
            return staged
        if name in BITS_AS:
            return self._from_plain(straight.view(BITS_AS[name]), native).view(
                getattr(torch, name)
            )
        return self._from_plain(straight, native)

    def _from_plain(self, array: np.ndarray[Any, Any], native: torch.device) -> torch.Tensor:
        if array.flags.writeable and native.type in _QUICK and not staging.has_modes():
            return torch.from_numpy(array).to(native, copy=True)
        return torch.tensor(array, device=native)

    def to_numpy(self, x: torch.Tensor) -> np.ndarray[Any, Any]:
        self._require_values(x)
        try:
            return self._read(x)
        except (
            RuntimeError,
            TypeError,
        ) as error:  # why is asked only now, because asking takes longer than reading
            instead = conversion.why_not_numpy(x)
            if instead is None:
                raise
            raise self.unsupported(
                f"reading a {_described(x)} as a NumPy array", instead
            ) from error

    def _read(self, x: torch.Tensor) -> np.ndarray[Any, Any]:
        dense = x.detach() if x.requires_grad else x
        if dense.layout is not torch.strided:
            dense = dense.to_dense()
        staged = None if dense.is_cpu else staging.moved(dense, _HOST)
        host = (dense.cpu() if staged is None else staged).resolve_conj().resolve_neg()
        # only short dtypes may need a view, and finding the name takes longer than the rest
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
        return torch.full(
            shape, value, dtype=getattr(torch, dtype), device=self.to_native(device)
        )

    def tracing(self) -> str | None:
        # torch.compile calls this code each time, outside graphs
        if torch.compiler.is_compiling() and _is_exporting():
            return "torch.export"
        if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            return "torch.jit.trace"
        return "torch.fx" if _is_fx_tracing() else None

    def eagerly(self, function: Callable[[], Any]) -> Any:
        return (
            torch.compiler.disable(function)()
            if torch.compiler.is_dynamo_compiling()
            else function()
        )

    # several devices

    def is_dense(self, x: torch.Tensor) -> bool:
        if x.layout is not torch.strided or x.is_nested:
            return False
        return type(x) in _PLAIN or conversion.is_plain(type(staging.arrive(x)))

    # memory

    def memory(self, device: Device) -> Memory:
        if device.kind != "gpu" or self.virtual:
            return Memory()
        if self._gpu == "mps":
            return Memory(
                torch.mps.recommended_max_memory(),
                None,
                torch.mps.current_allocated_memory(),
                None,
            )
        names = ("mem_get_info", "memory_allocated", "max_memory_allocated")
        both, now, most = [
            getattr(self._module(), name, lambda index: None)(device.index) for name in names
        ]
        free, total = both or (None, None)
        return Memory(total, free, now, most)

    def empty_cache(self, device: Device) -> None:
        self._module().empty_cache()

    def reset_peak(self, device: Device) -> None:
        reset = getattr(self._module(), "reset_peak_memory_stats", None)
        if device.kind != "gpu" or reset is None:
            super().reset_peak(device)
            return
        reset(device.index)

    # floats of a parity run

    def default_to_float64(self) -> None:
        torch.set_default_dtype(torch.float64)

    # what people ask

    def why_no_gpu(self) -> str:
        if torch.version.cuda is None and torch.version.hip is None:
            return f"torch {self.version} is a build without CUDA or ROCm"
        return "torch sees no GPU: no driver, or CUDA_VISIBLE_DEVICES hides them"

    # the process

    def after_fork(self) -> None:
        # OpenMP's threads do not survive a fork, and the first parallel loop in the child would wait for them
        # (pytorch/pytorch#41197)
        torch.set_num_threads(1)

    def _owned(self, x: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Returns `new`, which was made as a copy of `x`. Raises `UnsupportedError` if both share memory: the `clone`
        of a tensor subclass may return the tensor itself."""
        if type(x) not in _PLAIN and conversion.is_alias(new, x):
            raise self.unsupported(
                f"copying a {type(x).__name__}, whose copies share its memory",
                "copy x.as_subclass(torch.Tensor)",
            )
        return new

    def _no_copy(self, x: torch.Tensor) -> UnsupportedError:
        self._require_values(x)
        return self.unsupported(
            f"copying a {_described(x)} there", "move its parts, or make it dense first"
        )

    def _require_values(self, x: torch.Tensor) -> None:
        if x.is_meta:
            raise self.unsupported(
                "reading a tensor on meta",
                "make one that has values: torch.empty_like(x, device=...)",
            )
        conversion.require_values(x)

    def _wait(self, index: int) -> None:
        if self._synchronize is None:
            raise self.unsupported(
                f"waiting for {self._gpu}:{index}, because neither torch.{self._gpu} nor torch.accelerator does",
                "read a value of the result, which waits for it: x.cpu()",
            )
        self._synchronize(index)

    def _refuse_lazy(self) -> None:
        started = accelerators.lazy()
        if started is not None:
            raise self.unsupported(
                f"waiting for all work where a device of the type {started!r} has been started, which computes later",
                "read the results there, x.cpu(), and wait for tensors or devices by name: xdevice.sync(x)",
            )

    def _module(self) -> Any:
        """Returns the vendor's counterpart of `torch.cuda`, such as `torch.xpu`; None if the vendor has none."""
        return getattr(torch, self._gpu, None)

    def _current(self) -> int:
        if self._gpu == "mps" or not self._gpus:
            return 0
        current = (
            getattr(self._module(), "current_device", None)
            or torch.accelerator.current_device_index
        )
        return int(current())

    def _is_started(self, index: int) -> bool:
        """Whether this process has a context on this GPU. Waiting for a GPU without a context would create one, which
        takes some 500 MB."""
        if self._gpu == "mps":
            return True
        if not getattr(self._module(), "is_initialized", lambda: True)():
            return False
        return self._gpu != "cuda" or _has_context(index)


def _described(x: torch.Tensor) -> str:
    kind = "nested " * x.is_nested + "quantized " * x.is_quantized
    return f"{kind}{type(x).__name__} ({x.layout}, {x.dtype})".replace("torch.", "")
