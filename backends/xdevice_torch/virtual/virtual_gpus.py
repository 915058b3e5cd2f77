"""Virtual GPUs for PyTorch, in pure Python: `torch.device("vgpu", 1)`, whose memory is the host's.

PyTorch reserves the device type PrivateUse1 for devices that other packages define. Since 2.13 such a device can be
implemented in Python (https://github.com/pytorch/pytorch/pull/157859). The operations of virtual GPUs are in
virtual_operations.py; this module contains everything else that PyTorch requires of a device:

| replaced in PyTorch | by | because |
|---|---|---|
| `torch.vgpu` | `_Module` | it has the same functions for virtual GPUs as `torch.cuda` has for CUDA |
| `_accelerator_getDeviceIndex` and eleven more in `torch._C` | `_accelerator` | they need the device guard or \
an allocator, and would fail or crash |
| `_engine_run_backward` | `_without_threads` | the guard of a device in Python supports only index 0 \
(https://github.com/pytorch/pytorch/issues/156052), so autograd's engine has no queue for index 1; without threads it \
needs no queue |
| `Tensor.to`, `tensor`, `as_tensor`, `asarray` | `_Indexed` | C++ treats a device without an index as index 0, so the \
index of the current device is added; replaced only when an index other than 0 first becomes current |
| `Tensor.new`, `Tensor.new_tensor` | `_New`, `_NewTensor` | C++ creates the new tensor on index 0 |
| `Tensor.data`, `_has_compatible_shallow_copy_type` | `_set_data`, `_can_have_contents` | `p.data = x`, which \
`Module.to` uses, fails if only one of the two tensors is on a virtual GPU \
(https://github.com/pytorch/pytorch/issues/196975); their contents are swapped instead, so that parameters remain the \
objects to which optimizers refer |
| `UntypedStorage.__new__` | `_making_storages` | the device has no allocator, and PyTorch would crash |
| `accelerator.empty_cache` | a function that does nothing | the device has no allocator, and PyTorch would crash |
| `Generator` | `virtual_generators.class_for` | PyTorch creates the generators of a foreign device only in C++ |
| `nn.parallel.comm.scatter`, `gather`, `broadcast_coalesced` | `_refuse_communication` | they are written for CUDA; \
the error says what to use instead |
| `_TorchCompileInductorWrapper.__call__` | `_not_compiling` | Inductor has no code generator for this device, and \
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
"""The name of the device type that PyTorch reserves for other packages. A package that uses this device type renames
it."""

_setup = private["torch.utils.backend_registration._setup_privateuseone_for_python_backend"]
_swap_contents = private["torch._C._swap_tensor_impl"]
_hooks = private.field("torch.Tensor._backward_hooks")
_hooks_after = private.field("torch.Tensor._post_accumulate_grad_hooks")
_libraries: list[torch.library.Library] = []
"""The libraries that contain the registered kernels of virtual GPUs; empty before `install`. PyTorch removes the
kernels of a library when nothing refers to the library any more."""


def why_not() -> str | None:
    """Returns why this process cannot have virtual GPUs, or None if it can."""
    if lacking := private.absent_names_for("virtual GPUs"):
        return str(private.error("virtual GPUs", lacking))
    # if a package has renamed the reserved type, PyTorch returns the new name
    taken = torch.device(_FREE).type
    if taken not in (_FREE, NAME):
        return (
            f"torch supports only one additional device type in a process, and {taken} is already registered; do not "
            f"import the package that registers {taken}"
        )
    return None


def install(count: int) -> None:
    """Makes `vgpu:0` to `vgpu:{count-1}` devices of PyTorch, until the process ends. Does
    nothing if virtual GPUs already exist, because their number cannot be changed."""
    if _libraries:
        return
    # this may raise an error, so it comes before anything is changed
    private.require_names_for("virtual GPUs")
    module = _Module(count)
    _setup(NAME, module)
    _libraries.extend(operations.register())
    forks.in_child(operations.after_fork)
    # 0 is the highest priority. PyTorch's own functions for PrivateUse1 have the priority 23,
    # and would ask the device for an allocator, which it does not have. Only loading is
    # replaced here: for saving, the function returns None, so that PyTorch calls the next one
    torch.serialization.register_package(0, lambda storage: None, _restored)
    for kind in (torch.Tensor, torch.nn.Parameter):
        # PyTorch's own function would send a handle of the device's memory, which this device
        # does not have
        ForkingPickler.register(kind, _sent)
    native, _ = private.place("torch._C._accelerator_getDeviceIndex")
    for name, function in _accelerator(module).items():
        setattr(native, f"_accelerator_{name}", function)
    for (owner, name), replacement in _REPLACEMENTS.items():
        setattr(owner, name, replacement(getattr(owner, name)))


def _without_threads(run_backward: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the function that runs a backward pass, so that the pass runs in the calling
    thread. Autograd has no thread for a virtual GPU other than `vgpu:0`."""

    def run(*args: Any, **kwargs: Any) -> Any:
        """Calls PyTorch's function without autograd's threads, and returns the result."""
        with torch.autograd.set_multithreading_enabled(False):
            return run_backward(*args, **kwargs)

    return run


def _not_compiling(compile_graph: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps PyTorch's function that compiles a graph. A graph with tensors on a virtual GPU is returned uncompiled,
    with a warning, because PyTorch's compiler would raise a KeyError for a device that is implemented in Python."""

    def run(compiler: Any, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        """Returns a function that does the work of `graph`: a compiled function, or `graph` itself."""
        # even a graph without tensors among its inputs may create tensors on a virtual GPU
        values = [*inputs, *(node.meta.get("example_value") for node in graph.graph.nodes)]
        if all(x.device.type != NAME for x in values if isinstance(x, torch.Tensor)):
            return compile_graph(compiler, graph, inputs)
        warnings.warn(
            "torch.compile does not compile for virtual GPUs, so the graph runs uncompiled",
            stacklevel=2,
        )
        return graph

    return run


# devices


class _Module:
    """The class of `torch.vgpu`, which has the same functions for virtual GPUs as `torch.cuda`
    has for CUDA."""

    def __init__(self, count: int) -> None:
        self._count = count
        # its `index` is the index of a thread's current device
        self._thread = threading.local()

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return self._count

    def current_device(self) -> int:
        """Returns the index of this thread's current device."""
        return int(getattr(self._thread, "index", 0))

    def set_device(self, device: Any) -> None:
        """Makes a device this thread's current device. Raises RuntimeError if the device does not exist."""
        index = self._index(device)
        # for index 0 PyTorch's functions are right, so programs with one GPU are not slowed
        # down by the replacements
        if index:
            _add_indices()
        self._thread.index = index

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        """A block in which a device is this thread's current device."""
        previous = self.current_device()
        self.set_device(device)
        try:
            yield
        finally:
            self._thread.index = previous

    def synchronize(self, device: Any = None) -> None:
        """Only checks the device, because the host computes synchronously. Raises RuntimeError
        if the device does not exist."""
        self._index(device)

    def manual_seed_all(self, seed: int) -> None:
        """Does nothing. `torch.manual_seed` calls this method, but it also seeds the host's generator, which draws the
        numbers of virtual GPUs."""

    manual_seed = manual_seed_all

    def is_bf16_supported(self) -> bool:
        return True

    # the host's generator draws for all virtual GPUs, so its state is also the state of each virtual GPU
    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Returns the dtypes in which autocast may compute on a virtual GPU."""
        # `torch.autocast("vgpu")` calls this method
        return [torch.float16, torch.bfloat16]

    def _is_in_bad_fork(self) -> bool:
        """Whether virtual GPUs are unusable, because the process was forked."""
        # `torch.manual_seed` calls this method before it calls `manual_seed_all`
        return operations.is_in_bad_fork()

    def _index(self, device: Any) -> int:
        """Returns the index of `device`, which is an index, a `torch.device` or its name. If
        `device` is None or has no index, returns the index of this thread's current device.
        Raises RuntimeError if no virtual GPU has this index."""
        index = (
            device if device is None or isinstance(device, int) else torch.device(device).index
        )
        if index is None:
            return self.current_device()
        if not 0 <= index < self._count:
            raise RuntimeError(
                f"{NAME} error: invalid device ordinal {index}, expected 0 to {self._count - 1}"
            )
        return int(index)


def _accelerator(module: _Module) -> dict[str, Callable[..., Any]]:
    """Returns replacements for the private functions that `torch.accelerator` calls. The replacements use `module`. The
    keys of the dict are the functions' names without the prefix "_accelerator_". PyTorch's own functions need the
    device guard or an allocator of the device, and would fail or crash."""

    def exchange(index: int) -> int:
        """Makes a device this thread's current device, and returns the index of the previous one."""
        previous = module.current_device()
        # -1 means no device, so nothing is changed
        if index >= 0:
            module.set_device(index)
        return previous

    return {
        "getDeviceIndex": module.current_device,
        "setDeviceIndex": exchange,
        "exchangeDevice": exchange,
        "maybeExchangeDevice": exchange,
        "synchronizeDevice": module.synchronize,
        # PyTorch's functions that report memory call this function first
        "isAllocatorInitialized": lambda: True,
        "getDeviceStats": _statistics,
        "resetPeakStats": lambda index: operations.limits.ledger.reset_peak(index),
        # the ledger contains no accumulated numbers
        "resetAccumulatedStats": lambda index: None,
        "getMemoryInfo": _memory_info,
        "emptyHostCache": lambda: None,
        "setStream": _refuse_stream,
    }


def _statistics(index: int) -> dict[str, Any]:
    """Returns the statistics of a virtual GPU's memory that are available, in the form of
    `torch.accelerator.memory_stats`."""
    usage = operations.limits.ledger.memory(index)
    # there is no caching allocator, so the reserved and the allocated bytes are the same
    counted = {"all": {"current": usage.allocated, "peak": usage.peak}}
    return {"allocated_bytes": counted, "reserved_bytes": counted, "requested_bytes": counted}


def _memory_info(index: int) -> tuple[int, int]:
    """Returns the sizes of a virtual GPU's free and total memory, in bytes. Raises
    `UnsupportedError` if the memory has no limit."""
    usage = operations.limits.ledger.memory(index)
    if usage.total is None:
        raise UnsupportedError(
            "this virtual GPU has no memory limit, because it uses the host's memory; set a limit: "
            "XDEVICE_VIRTUAL_GPUS=2:memory=8GB"
        )
    return usage.free, usage.total


def _refuse_stream(*args: Any) -> Any:
    """Replaces PyTorch's function that sets the current stream. Always raises `UnsupportedError`, because virtual GPUs
    have no streams."""
    raise UnsupportedError(
        "torch's virtual GPUs do not have streams, because they work synchronously; remove the call of "
        "torch.accelerator.set_stream"
    )


def _refuse_communication(*args: Any) -> Any:
    """Replaces a collective of `torch.nn.parallel`. Always raises `UnsupportedError`, because these collectives are
    written for CUDA."""
    raise UnsupportedError(
        "torch.nn.DataParallel and torch.nn.parallel do not support virtual GPUs; "
        "use xdevice.parallel.replicate, xdevice.split_batch, xdevice.parallel.run and xdevice.parallel.all_reduce"
    )


class _Indexed:
    """Replaces a function of PyTorch. Adds the index of the current virtual GPU to a device that is given as "vgpu",
    and then calls the replaced function. The object compares equal to the function that it replaces."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    # as an attribute of `Tensor`, the object becomes a method of each tensor, like a function
    def __get__(self, x: Any, owner: Any = None) -> Any:
        return self if x is None else MethodType(self, x)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the replaced function with the current index in its arguments."""
        # any of the arguments of `to` may be the device
        args = tuple([_with_index(value) for value in args])
        if "device" in kwargs:
            kwargs["device"] = _with_index(kwargs["device"])
        return self._function(*args, **kwargs)

    # tensor subclasses look up PyTorch's functions in dicts, where this object must be equal to
    # the function that it replaces
    def __eq__(self, other: object) -> bool:
        return other is self or other == self._function

    def __hash__(self) -> int:
        return hash(self._function)


def _with_index(device: Any) -> Any:
    """Returns the current virtual GPU for "vgpu" and `torch.device("vgpu")`. Returns any other value unchanged."""
    # compares the types first, because the arguments of `_Indexed` may be tensors, whose `==`
    # does not return a bool
    if (type(device) is str and device == NAME) or (
        type(device) is torch.device and device == torch.device(NAME)
    ):
        return torch.device(NAME, getattr(torch, NAME).current_device())
    return device


class _NewTensor(_Indexed):
    """Replaces `x.new_tensor`: creates the tensor on the device of `x` unless another device is
    given. PyTorch would use the index from the device guard, which is always 0."""

    def __call__(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is None:
            kwargs["device"] = x.device
        return super().__call__(x, *args, **kwargs)


class _New(_Indexed):
    """Replaces `x.new`: creates the tensor on the device of `x` unless another device is given.
    PyTorch would use the index from the device guard, which is always 0."""

    def __call__(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Calls the replaced function. A tensor for a virtual GPU is created on the host first,
        and then moved."""
        # `x.new(tensor)` returns an alias of the tensor, on the device of that tensor
        takes_device = not any(isinstance(value, torch.Tensor) for value in args)
        device = _with_index(kwargs.get("device") or x.device)
        if torch.device(device).type != NAME or not takes_device:
            return self._function(x, *args, **kwargs)
        # calls `new` of an empty tensor on the host with the same dtype, and then moves the result
        return self._function(torch.empty(0, dtype=x.dtype, device="cpu"), *args).to(device)


def _add_indices() -> None:
    """Replaces the functions of PyTorch that would treat a device without an index as index 0:
    `_Indexed` adds the current index. Called by each `set_device` with an index other than 0,
    but only the first call changes anything."""
    for owner, name in (
        (torch.Tensor, "to"),
        *((torch, name) for name in ("tensor", "as_tensor", "asarray")),
    ):
        function = getattr(owner, name)
        if not isinstance(function, _Indexed):
            setattr(owner, name, _Indexed(function))


# the contents of tensors: in C++, a tensor's memory, shape, dtype and device are separate from
# the Python object


_get_data = torch.Tensor.data.__get__  # type: ignore[attr-defined]


def _set_data(x: torch.Tensor, new: torch.Tensor) -> None:
    """Sets `x.data = new`. PyTorch refuses this assignment if only one of the two tensors is on a virtual GPU. In this
    case `x` remains the same object, but swaps its contents with a new tensor in the memory of `new`."""
    if (x.device.type == NAME) == (new.device.type == NAME):
        operations.set_data(x, new)
        return
    # the swap would remove the hooks and the flag `requires_grad` from `x`, so they are also
    # set on the new contents
    contents = new.detach()
    contents.requires_grad = x.requires_grad
    _hooks.set(contents, _hooks(x))
    if _hooks_after(x) is not None:
        _hooks_after.set(contents, _hooks_after(x))
    grad, x.grad = x.grad, None
    _swap_contents(x, contents)
    # the gradient moves too, because PyTorch refuses a gradient on another device or of another
    # dtype
    if grad is not None:
        x.grad = grad.to(x.device, x.dtype)


_is_compatible = private["torch._has_compatible_shallow_copy_type"]


# *tensors instead of two parameters, because torch.compile checks the signature
def _can_have_contents(*tensors: torch.Tensor) -> bool:
    """Whether `a.data = b` works for two tensors `a` and `b`. `Module.to` calls this function
    before it moves a parameter with such an assignment."""
    return _is_compatible(*tensors) or NAME in {x.device.type for x in tensors}


def _sent(x: torch.Tensor) -> Any:
    """Returns a function and its arguments. In another process, pickle calls the function with these arguments to
    rebuild the tensor `x`. A tensor on a virtual GPU is sent as a copy in the host's shared memory."""
    # PyTorch's own function is right for tensors on the host, and raises an error for tensors
    # that cannot be sent
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
    """Returns the tensor that `_sent` has sent, on its device in this process. The arguments are the tensor's values on
    the host, its device, its flag `requires_grad`, and whether it is a parameter."""
    moved = values.to(device)
    return (
        torch.nn.Parameter(moved, requires_grad)
        if is_parameter
        else moved.requires_grad_(requires_grad)
    )


# storages


def _making_storages(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `make`, the `__new__` of `UntypedStorage`. The wrapper creates a storage on a virtual GPU from a storage on
    the host, because `make` would ask the device for an allocator and crash."""

    def new(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        """Creates a storage of the class `cls`, on the device `device` if it is not None."""
        if device is None or torch.device(device).type != NAME:
            return make(cls, *args, device=device, **kwargs)
        index = getattr(torch, NAME)._index(device)
        return operations.new_storage(
            make(cls, *args, device="cpu", **kwargs), torch.device(NAME, index)
        )

    return new


def _restored(storage: Any, location: str) -> Any:
    """Moves a storage that `torch.load` has read to the virtual GPU with the name `location`, and returns the moved
    storage. Returns None if `location` names another device."""
    if not location.startswith(NAME):
        return None
    index = getattr(torch, NAME)._index(location)
    return operations.new_storage(storage, torch.device(NAME, index))


# the replacements


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
    private.place("torch.nn.parallel.comm.scatter"): lambda own: _refuse_communication,
    private.place("torch.nn.parallel.comm.gather"): lambda own: _refuse_communication,
    private.place("torch.nn.parallel.comm.broadcast_coalesced"): lambda own: (
        _refuse_communication
    ),
    private.place("torch._TorchCompileInductorWrapper.__call__"): _not_compiling,
    private.place("torch.autograd._engine_run_backward"): _without_threads,
}
"""The attributes of PyTorch that are replaced. The keys are pairs of an owner and the name of its attribute. Each value
is a function that is called with PyTorch's own value and returns the replacement."""


class TorchVirtualGpus(LimitedGpus, VirtualGpus):
    """The hooks for virtual GPUs of PyTorch. Their memory and dtypes are limited if the user sets limits."""

    # attributes of `TorchBackend` that change when virtual GPUs replace the real GPUs
    _gpu: str
    _gpus: int
    _places: dict[torch.device, Device]
    _natives: dict[Device, torch.device]
    _synchronize: Callable[[int], None] | None

    def why_no_virtual_gpus(self) -> str | None:
        """Returns why this process cannot have virtual GPUs, or None if it can."""
        return why_not()

    def make_virtual_gpus(self, n: int) -> None:
        """Creates `n` virtual GPUs, which are `gpu:0` to `gpu:{n-1}` from then on."""
        install(n)
        self._gpu, self._gpus = NAME, n
        self._synchronize = accelerators.waiter(NAME)
        # these caches still contain the real GPUs as `gpu:i`
        self._places.clear()
        self._natives.clear()
        # "vgpu" and "vgpu:1" become spellings of devices, like "cuda"
        devices.register_spelling(NAME, devices.of("gpu"))
        for index in range(n):
            devices.register_spelling(f"{NAME}:{index}", devices.of("gpu", index))

    def limit(self) -> None:
        """Makes the virtual GPUs refuse the dtypes that they lack, and count the memory that is used."""
        # the memory is always counted, because `torch.accelerator` also reports the memory of
        # GPUs without a limit
        self.count_memory()
        operations.limits = self

    def memory_error(self, text: str) -> Exception:
        """Returns the error to raise if a virtual GPU has too little memory."""
        return torch.OutOfMemoryError(text)

    def take_for_cuda(
        self, device: Device, has_default: Callable[[FrameType], bool] | None = None
    ) -> bool:
        """Makes "cuda" mean the virtual GPU `device`, for the option `--xd-cuda`. `has_default`
        is called with the frame of a caller, and returns whether the default device that a
        program sets applies to this caller. If `has_default` is None, the default device
        applies to all callers. Returns True, because PyTorch supports this."""
        from . import virtual_cuda

        virtual_cuda.take_for_cuda(torch.device(NAME, device.index), has_default)
        return True
