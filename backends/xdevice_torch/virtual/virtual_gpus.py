"""Virtual GPUs for PyTorch, in pure Python: `torch.device("vgpu", 1)`, whose memory is the host's.

PyTorch reserves the device type PrivateUse1 for other people's devices. Since 2.13 it can be
implemented in Python (https://github.com/pytorch/pytorch/pull/157859). The operations of
virtual GPUs are in virtual_operations.py. This module has everything else that PyTorch requires
of a device:

| name in PyTorch | replaced by | because |
|---|---|---|
| `torch.vgpu` | `_Module` | it does for virtual GPUs what `torch.cuda` does for CUDA |
| `_accelerator_getDeviceIndex` and its kin in `torch._C` | `_accelerator` | they ask the device guard or an \
allocator, and fail or crash |
| `_engine_run_backward` | `_without_threads` | the guard of a device in Python knows index 0 only \
(https://github.com/pytorch/pytorch/issues/156052), so autograd's engine has no queue for index 1; without threads it \
needs none |
| `Tensor.to`, `tensor`, `as_tensor`, `asarray` | `_Indexed` | C++ takes a device without an index for index 0; the \
index of the current device is added before; only once one other than 0 is current |
| `Tensor.new`, `Tensor.new_tensor` | `_New`, `_NewTensor` | likewise: C++ makes the new tensor on index 0 |
| `Tensor.data`, `_has_compatible_shallow_copy_type` | `_set_data`, `_can_have_contents` | `p.data = x`, as \
`Module.to` does, fails if one of the two is on a virtual GPU (https://github.com/pytorch/pytorch/issues/196975); the \
contents of the two tensors are swapped, so that parameters stay the objects that optimizers rely on |
| `UntypedStorage.__new__` | `_making_storages` | the device has no allocator, and PyTorch would crash |
| `accelerator.empty_cache` | a function that does nothing | likewise |
| `Generator` | `virtual_generators.class_for` | PyTorch makes a foreign device's generators in C++ only |
| `nn.parallel.comm.scatter`, `gather`, `broadcast_coalesced` | `_no_communication` | they are written for CUDA; the \
error names what to use |
| `_TorchCompileInductorWrapper.__call__` | `_leaving_graphs` | Inductor has no code generator for this device, and \
raises a KeyError (https://github.com/pytorch/pytorch/issues/189138) |

For rows without a link, no upstream issue is known.
"""

from __future__ import annotations

import threading
import warnings
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import reduce_tensor

from xdevice.base import devices, forks
from xdevice.errors import UnsupportedError
from xdevice.virtual.contract.limited_gpus import LimitedGpus
from xdevice.virtual.contract.virtual_gpus import VirtualGpus
from xdevice_torch import accelerators
from xdevice_torch.private import private

from . import virtual_generators
from . import virtual_operations as operations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from xdevice.base.devices import Device

NAME = operations.NAME
_FREE = "privateuseone"
"""PyTorch's name for the device type PrivateUse1 as long as nobody has renamed it."""

_setup = private["torch.utils.backend_registration._setup_privateuseone_for_python_backend"]
_swap_contents = private["torch._C._swap_tensor_impl"]
_hooks = private.field("torch.Tensor._backward_hooks")
_hooks_after = private.field("torch.Tensor._post_accumulate_grad_hooks")
_libraries: list[torch.library.Library] = []
"""The registered kernels, which PyTorch removes when these objects are freed. Empty as long as
nothing is installed."""


def why_not() -> str | None:
    """Returns why this process cannot have virtual GPUs; None if it can."""
    if lacking := private.absent("virtual GPUs"):
        return str(private.error("virtual GPUs", lacking))
    # PyTorch returns the name that the type was renamed to
    taken = torch.device(_FREE).type
    if taken not in (_FREE, NAME):
        return f"{taken} is torch's one foreign device in this process; do not import the package that registers it"
    return None


def install(count: int) -> None:
    """Makes `vgpu:0` to `vgpu:{count-1}` devices of PyTorch, until the process ends. A second
    call changes nothing."""
    if _libraries:
        return
    private.require("virtual GPUs")
    module = _Module(count)
    # renames PrivateUse1, and makes the module `torch.vgpu`
    _setup(NAME, module)
    _libraries.extend(operations.register())
    forks.in_child(operations.after_fork)
    # for `torch.load`. The priority 0 comes before PyTorch's own function for such devices
    # (23), which would make a storage on the device, and the device has no allocator
    torch.serialization.register_package(0, lambda storage: None, _restored)
    for kind in (torch.Tensor, torch.nn.Parameter):
        # PyTorch's own function would send another process a handle of the device's memory
        ForkingPickler.register(kind, _sent)
    native, _ = private.place("torch._C._accelerator_getDeviceIndex")
    for name, answer in _accelerator(module).items():
        setattr(native, f"_accelerator_{name}", answer)
    for (owner, name), replacement in _REPLACEMENTS.items():
        setattr(owner, name, replacement(getattr(owner, name)))


def _without_threads(run_backward: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the function that runs a backward pass: the pass runs in the calling thread,
    because autograd has no thread for a virtual GPU with an index other than 0."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return run_backward(*args, **kwargs)

    return run


def _leaving_graphs(compile_graph: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the function with which PyTorch compiles a graph: a graph with tensors on a virtual GPU is returned
    uncompiled, with a warning. PyTorch's compiler would raise a KeyError for a device written in Python."""

    def run(compiler: Any, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        # the tensors inside the graph count too: it may make one on a virtual GPU from none
        values = [*inputs, *(node.meta.get("example_value") for node in graph.graph.nodes)]
        if all(x.device.type != NAME for x in values if isinstance(x, torch.Tensor)):
            return compile_graph(compiler, graph, inputs)
        warnings.warn(
            "torch.compile does not compile for virtual GPUs: the graph runs as it is",
            stacklevel=2,
        )
        return graph

    return run


# the module `torch.vgpu`, and the current device


class _Module:
    """The object that PyTorch uses as the module `torch.vgpu`. It does for virtual GPUs what
    `torch.cuda` does for CUDA. `count` is their number."""

    def __init__(self, count: int) -> None:
        self._count = count
        # each thread has its own current device, as with CUDA
        self._thread = threading.local()

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return self._count

    def current_device(self) -> int:
        return int(getattr(self._thread, "index", 0))

    def set_device(self, device: Any) -> None:
        index = self._index(device)
        # PyTorch itself takes "vgpu" for index 0, so programs with one GPU do not pay for the
        # replaced functions
        if index:
            _add_indices()
        self._thread.index = index

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        """A block in which `device`, which may be an index, is the current device of this
        thread."""
        before = self.current_device()
        self.set_device(device)
        try:
            yield
        finally:
            self._thread.index = before

    def synchronize(self, device: Any = None) -> None:
        """Only checks that the device exists, because the host computes synchronously."""
        self._index(device)

    def manual_seed_all(self, seed: int) -> None:
        """Does nothing, because `torch.manual_seed` also seeds the host's generator, which
        draws the numbers."""

    manual_seed = manual_seed_all

    def is_bf16_supported(self) -> bool:
        return True

    # virtual GPUs draw from the host's default generator, and so have its state

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        # `torch.autocast("vgpu")` calls this
        return [torch.float16, torch.bfloat16]

    # `torch.manual_seed` calls this, by the name that it has in `torch.cuda`
    def _is_in_bad_fork(self) -> bool:
        return operations.is_in_bad_fork()

    def _index(self, device: Any) -> int:
        """Returns the index of a device, which may itself be an int, or that of the current
        device for None and for "vgpu". Raises PyTorch's RuntimeError if no virtual GPU has that
        index."""
        index = (
            device if device is None or isinstance(device, int) else torch.device(device).index
        )
        if index is None:
            return self.current_device()
        if not 0 <= index < self._count:
            raise RuntimeError(
                f"{NAME} error: invalid device ordinal {index}, there are {self._count}"
            )
        return int(index)


def _accelerator(module: _Module) -> dict[str, Callable[..., Any]]:
    """Returns replacements for the private functions that `torch.accelerator` calls, by their
    names without the prefix `_accelerator_`. PyTorch's own functions would ask the device guard
    or an allocator of the device, and fail or crash."""

    def exchange(index: int) -> int:
        """Makes `index` current, and returns the index that was current before."""
        before = module.current_device()
        # -1 stands for no device, and changes nothing
        if index >= 0:
            module.set_device(index)
        return before

    return {
        "getDeviceIndex": module.current_device,
        "setDeviceIndex": exchange,
        "exchangeDevice": exchange,
        "maybeExchangeDevice": exchange,
        "synchronizeDevice": module.synchronize,
        # PyTorch's functions for memory report nothing if this is False
        "isAllocatorInitialized": lambda: True,
        "getDeviceStats": _statistics,
        "resetPeakStats": lambda index: operations.limits.ledger.reset_peak(index),
        # the ledger counts no sums over time
        "resetAccumulatedStats": lambda index: None,
        "getMemoryInfo": _memory_info,
        "emptyHostCache": lambda: None,
        "setStream": _no_stream,
    }


def _statistics(index: int) -> dict[str, Any]:
    """Returns the allocated bytes of a virtual GPU and their peak, in the form of
    `torch.accelerator.memory_stats`."""
    usage = operations.limits.ledger.memory(index)
    # there is no caching allocator, so the reserved bytes are the allocated ones
    counted = {"all": {"current": usage.allocated, "peak": usage.peak}}
    return {"allocated_bytes": counted, "reserved_bytes": counted, "requested_bytes": counted}


def _memory_info(index: int) -> tuple[int, int]:
    """Returns the free and the total bytes of a virtual GPU. Raises `UnsupportedError` if its
    memory is not limited."""
    usage = operations.limits.ledger.memory(index)
    if usage.total is None:
        raise UnsupportedError(
            "the memory of a virtual GPU is the host's, without a limit of its own; give it one: "
            "XDEVICE_VIRTUAL_GPUS=2:memory=8GB"
        )
    return usage.free, usage.total


def _no_stream(*args: Any) -> Any:
    """Raises `UnsupportedError`, in the place of the function that makes a stream current."""
    raise UnsupportedError(
        "virtual GPUs of torch do not have streams: they work synchronously; leave the stream out"
    )


def _no_communication(*args: Any) -> Any:
    """Raises `UnsupportedError`, in the place of the functions by which `DataParallel` scatters
    and gathers."""
    raise UnsupportedError(
        "torch.nn.DataParallel and torch.nn.parallel do not support virtual GPUs; "
        "use xdevice.parallel.replicate, xdevice.split_batch, xdevice.parallel.run and xdevice.parallel.all_reduce"
    )


class _Indexed:
    """Replaces a function or method of PyTorch, and calls it with "vgpu:1" for a device "vgpu"
    if 1 is the index of the current virtual GPU. It is equal to the function that it
    replaces."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    # binds a replaced method to its tensor, as Python's own functions do
    def __get__(self, x: Any, owner: Any = None) -> Any:
        return self if x is None else MethodType(self, x)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args = tuple([_with_index(value) for value in args])
        if "device" in kwargs:
            kwargs["device"] = _with_index(kwargs["device"])
        return self._function(*args, **kwargs)

    # tensor subclasses look up PyTorch's functions in tables, and must find this one as well
    def __eq__(self, other: object) -> bool:
        return other is self or other == self._function

    def __hash__(self) -> int:
        return hash(self._function)


def _with_index(device: Any) -> Any:
    """Returns the current virtual GPU for an argument "vgpu" or `torch.device("vgpu")`, and any
    other unchanged."""
    if (type(device) is str and device == NAME) or (
        type(device) is torch.device and device == torch.device(NAME)
    ):
        return torch.device(NAME, getattr(torch, NAME).current_device())
    return device


class _NewTensor(_Indexed):
    """Replaces `Tensor.new_tensor`, and makes the new tensor on the device of `x` unless
    another is given. PyTorch would take the index from the device guard, where it is always
    0."""

    def __call__(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is None:
            kwargs["device"] = x.device
        return super().__call__(x, *args, **kwargs)


class _New(_Indexed):
    """Replaces `Tensor.new`, and makes the new tensor on the device of `x` unless another is
    given. PyTorch would take the index from the device guard, where it is always 0."""

    def __call__(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # `x.new(tensor)` returns an alias of that tensor
        takes_device = not any(isinstance(value, torch.Tensor) for value in args)
        device = _with_index(kwargs.get("device") or x.device)
        if torch.device(device).type != NAME or not takes_device:
            return self._function(x, *args, **kwargs)
        # made on the host and moved, because `new` takes no device with an index other than 0
        return self._function(torch.empty(0, dtype=x.dtype, device="cpu"), *args).to(device)


def _add_indices() -> None:
    """Replaces the functions of PyTorch that take "vgpu" for "vgpu:0", so that they take it for
    the current virtual GPU. A second call changes nothing."""
    for owner, name in (
        (torch.Tensor, "to"),
        *((torch, name) for name in ("tensor", "as_tensor", "asarray")),
    ):
        function = getattr(owner, name)
        if not isinstance(function, _Indexed):
            setattr(owner, name, _Indexed(function))


# values of tensors


_get_data = torch.Tensor.data.__get__  # type: ignore[attr-defined]


def _set_data(x: torch.Tensor, new: torch.Tensor) -> None:
    """Sets `x.data = new`. PyTorch refuses that if exactly one of the two is on a virtual GPU,
    so `x` then swaps its contents with an alias of `new`, and remains the same object."""
    if (x.device.type == NAME) == (new.device.type == NAME):
        operations.set_data(x, new)
        return
    # `x.data = new` changes the values only: the alias gets what else belongs to `x`, its hooks
    # and its gradient too
    contents = new.detach()
    contents.requires_grad = x.requires_grad
    _hooks.set(contents, _hooks(x))
    if _hooks_after(x) is not None:
        _hooks_after.set(contents, _hooks_after(x))
    grad, x.grad = x.grad, None
    _swap_contents(x, contents)
    # the gradient moves too, because a tensor refuses one on another device
    if grad is not None:
        x.grad = grad.to(x.device, x.dtype)


_is_compatible = private["torch._has_compatible_shallow_copy_type"]


# with `*tensors`, because `torch.compile` checks the signature
def _can_have_contents(*tensors: torch.Tensor) -> bool:
    """Whether the first of two tensors may get the values of the second by `x.data = y`, which
    `Module.to` asks. With a virtual GPU it may, because `_set_data` handles that."""
    return _is_compatible(*tensors) or NAME in {x.device.type for x in tensors}


def _sent(x: torch.Tensor) -> Any:
    """Returns a function and its arguments, by which pickle rebuilds a tensor in another
    process. A tensor on a virtual GPU is sent as a copy in the host's shared memory."""
    # PyTorch sends sparse tensors by their parts, and raises an error for a tensor in an
    # autograd graph
    if (
        x.device.type != NAME
        or x.layout is not torch.strided
        or (x.requires_grad and not x.is_leaf)
    ):
        return reduce_tensor(x)
    values = x.detach().cpu()
    return _received, (
        values,
        str(x.device),
        x.requires_grad,
        isinstance(x, torch.nn.Parameter),
    )


def _received(
    values: torch.Tensor, device: str, requires_grad: bool, is_parameter: bool
) -> torch.Tensor:
    """Rebuilds a tensor that another process has sent: moves its values to the virtual GPU that
    it was on."""
    moved = values.to(device)
    return (
        torch.nn.Parameter(moved, requires_grad)
        if is_parameter
        else moved.requires_grad_(requires_grad)
    )


# storages, which PyTorch would ask an allocator for


def _making_storages(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `UntypedStorage.__new__`: a storage on a virtual GPU is made from one on the host, because PyTorch would
    ask the device for an allocator and crash."""

    def new(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None or torch.device(device).type != NAME:
            return make(cls, *args, device=device, **kwargs)
        index = getattr(torch, NAME)._index(device)
        return operations.new_storage(
            make(cls, *args, device="cpu", **kwargs), torch.device(NAME, index)
        )

    return new


def _restored(storage: Any, location: str) -> Any:
    """Returns a storage that `torch.load` has read into the host's memory as a storage of the
    virtual GPU that `location` names. Returns None if `location`, such as "cpu", is another
    device: PyTorch then tries the next function."""
    if not location.startswith(NAME):
        return None
    index = getattr(torch, NAME)._index(location)
    return operations.new_storage(storage, torch.device(NAME, index))


# the replaced names


_REPLACEMENTS: dict[tuple[Any, str], Callable[[Any], Any]] = {
    private.place("torch.Tensor.data"): lambda own: property(_get_data, _set_data),
    private.place("torch.Tensor.new"): _New,
    private.place("torch.Tensor.new_tensor"): _NewTensor,
    private.place("torch._has_compatible_shallow_copy_type"): lambda own: _can_have_contents,
    private.place("torch.UntypedStorage.__new__"): lambda own: staticmethod(
        _making_storages(own)
    ),
    private.place("torch.accelerator.empty_cache"): lambda own: lambda: None,
    private.place("torch.Generator"): lambda own: virtual_generators.class_for(own, NAME),
    private.place("torch.nn.parallel.comm.scatter"): lambda own: _no_communication,
    private.place("torch.nn.parallel.comm.gather"): lambda own: _no_communication,
    private.place("torch.nn.parallel.comm.broadcast_coalesced"): lambda own: _no_communication,
    private.place("torch._TorchCompileInductorWrapper.__call__"): _leaving_graphs,
    private.place("torch.autograd._engine_run_backward"): _without_threads,
}
"""The names that are replaced in PyTorch, each with a function that takes PyTorch's own object
and returns the replacement. The table above gives the reasons."""


class TorchVirtualGpus(LimitedGpus, VirtualGpus):
    """PyTorch's virtual GPUs, `torch.device("vgpu", i)`."""

    _gpu: str
    _gpus: int
    _places: dict[torch.device, Device]
    _natives: dict[Device, torch.device]
    _synchronize: Callable[[int], None] | None

    def why_no_virtual_gpus(self) -> str | None:
        return why_not()

    def make_virtual_gpus(self, n: int) -> None:
        install(n)
        self._gpu, self._gpus = NAME, n
        self._synchronize = accelerators.waiter(NAME)
        # the caches of the devices as they were before
        self._places.clear()
        self._natives.clear()
        # xdevice accepts "vgpu", a `device.type`, as a name for gpu:0, as it accepts "cuda"
        devices.spell(NAME, devices.of("gpu"))
        for index in range(n):
            devices.spell(f"{NAME}:{index}", devices.of("gpu", index))

    def limit(self) -> None:
        # even without limits, because `torch.accelerator` reports the memory that is allocated
        self.count_memory()
        operations.limits = self

    def memory_error(self, text: str) -> Exception:
        return torch.OutOfMemoryError(text)

    def take_for_cuda(
        self, device: Device, has_default: Callable[[FrameType], bool] | None = None
    ) -> bool:
        # here, because only the pytest option --xd-cuda needs it
        from . import virtual_cuda

        virtual_cuda.take_for_cuda(torch.device(NAME, device.index), has_default)
        return True
