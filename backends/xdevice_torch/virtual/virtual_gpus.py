"""Virtual GPUs for PyTorch, in pure Python: `torch.device("vgpu", 1)`, whose memory is the host's.

PyTorch reserves the device type PrivateUse1 for other people's devices, and since 2.13 it can be implemented in Python
(https://github.com/pytorch/pytorch/pull/157859). The operations of virtual GPUs are in virtual_operations.py; this
module has everything else that PyTorch requires of a device:

| replaced in PyTorch | by | because |
|---|---|---|
| `torch.vgpu` | `_Module` | it does for virtual GPUs what `torch.cuda` does for CUDA |
| `_accelerator_getDeviceIndex` and eleven more in `torch._C` | `_accelerator` | they ask the device guard or an \
allocator, and fail or crash |
| `_engine_run_backward` | `_without_threads` | the guard of a device in Python knows index 0 only \
(https://github.com/pytorch/pytorch/issues/156052), so autograd's engine has no queue for index 1; without threads it \
needs none |
| `Tensor.to`, `tensor`, `as_tensor`, `asarray` | `_Indexed` | C++ takes a device without an index for index 0, so the \
index of the current device is added; replaced only once another index than 0 is current |
| `Tensor.new`, `Tensor.new_tensor` | `_New`, `_NewTensor` | likewise: C++ makes the new tensor on index 0 |
| `Tensor.data`, `_has_compatible_shallow_copy_type` | `_set_data`, `_can_have_contents` | `p.data = x`, as \
`Module.to` does, fails if one of the two is on a virtual GPU (https://github.com/pytorch/pytorch/issues/196975); the \
contents of the two tensors are swapped, so that parameters stay the objects that optimizers rely on |
| `UntypedStorage.__new__` | `_making_storages` | the device has no allocator, and PyTorch would crash |
| `accelerator.empty_cache` | nothing is done | likewise |
| `Generator` | `virtual_generators.class_for` | PyTorch makes a foreign device's generators in C++ only |
| `nn.parallel.comm.scatter`, `gather`, `broadcast_coalesced` | `_no_communication` | they are written for CUDA; the \
error names what to use |
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
"""PyTorch's name for the device type that it reserves for other people's devices, until
somebody renames that type."""

_setup = private["torch.utils.backend_registration._setup_privateuseone_for_python_backend"]
_swap_contents = private["torch._C._swap_tensor_impl"]
_hooks = private.field("torch.Tensor._backward_hooks")
_hooks_after = private.field("torch.Tensor._post_accumulate_grad_hooks")
_libraries: list[torch.library.Library] = []
"""The registered kernels of virtual GPUs; empty before `install`. PyTorch removes the kernels
of a library that nothing refers to."""


def why_not() -> str | None:
    """Returns why this process cannot have virtual GPUs; None if it can."""
    if lacking := private.absent("virtual GPUs"):
        return str(private.error("virtual GPUs", lacking))
    # if a package has renamed the reserved type, PyTorch gives its new name
    taken = torch.device(_FREE).type
    if taken not in (_FREE, NAME):
        return (
            f"{taken} already uses torch's only slot for a foreign device type in this process; do not import the "
            f"package that registers it"
        )
    return None


def install(count: int) -> None:
    """Makes `vgpu:0` to `vgpu:{count-1}` devices of PyTorch, until the process ends. Does
    nothing if there are virtual GPUs already: their number is fixed."""
    if _libraries:
        return
    # this may raise, so it comes before anything is changed
    private.require("virtual GPUs")
    module = _Module(count)
    _setup(NAME, module)
    _libraries.extend(operations.register())
    forks.in_child(operations.after_fork)
    # 0 is the first priority. PyTorch's own function for devices of PrivateUse1 has 23, and
    # would ask the device for an allocator, which it does not have. This one is only for
    # loading; for saving it returns None, and the next one acts
    torch.serialization.register_package(0, lambda storage: None, _restored)
    for kind in (torch.Tensor, torch.nn.Parameter):
        # PyTorch's own function would send a handle to the device's memory, which this device
        # does not have
        ForkingPickler.register(kind, _sent)
    native, _ = private.place("torch._C._accelerator_getDeviceIndex")
    for name, function in _accelerator(module).items():
        setattr(native, f"_accelerator_{name}", function)
    for (owner, name), replacement in _REPLACEMENTS.items():
        setattr(owner, name, replacement(getattr(owner, name)))


def _without_threads(run_backward: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the function that runs a backward pass: the pass runs in the calling thread,
    because autograd has no thread for a virtual GPU other than `vgpu:0`."""

    def run(*args: Any, **kwargs: Any) -> Any:
        """Replaces PyTorch's function, and returns its result."""
        with torch.autograd.set_multithreading_enabled(False):
            return run_backward(*args, **kwargs)

    return run


def _not_compiling(compile_graph: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the function with which PyTorch compiles a graph: a graph with tensors on a virtual
    GPU is returned uncompiled, with a warning. PyTorch's compiler would raise a KeyError for a
    device written in Python."""

    def run(compiler: Any, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        """Returns a function that does the work of `graph`: compiled, or `graph` itself."""
        # a graph without tensors as inputs may still make some on a virtual GPU
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
    """The object that serves as `torch.vgpu` in PyTorch. It does for virtual GPUs what
    `torch.cuda` does for CUDA."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._thread = threading.local()  # its `index` is the current device of a thread

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
        """Makes a device the current one of this thread. Raises RuntimeError if it does not
        exist."""
        index = self._index(device)
        # index 0 is right without help, so programs with one GPU do not pay for the replaced
        # functions
        if index:
            _add_indices()
        self._thread.index = index

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        """A block in which a device is the current one of this thread."""
        before = self.current_device()
        self.set_device(device)
        try:
            yield
        finally:
            self._thread.index = before

    def synchronize(self, device: Any = None) -> None:
        """Only checks the device, because the host computes synchronously. Raises RuntimeError
        if it does not exist."""
        self._index(device)

    def manual_seed_all(self, seed: int) -> None:
        """Does nothing: the host's generator draws the numbers of virtual GPUs, and
        `torch.manual_seed`, which calls this, seeds that generator itself."""

    manual_seed = manual_seed_all

    def is_bf16_supported(self) -> bool:
        return True

    # the host's generator draws for all virtual GPUs, so its state is theirs
    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Returns the dtypes in which autocast may compute on a virtual GPU."""
        # `torch.autocast("vgpu")` asks for this
        return [torch.float16, torch.bfloat16]

    def _is_in_bad_fork(self) -> bool:
        """Whether virtual GPUs are unusable, because the process was forked."""
        # `torch.manual_seed` asks for this before it calls `manual_seed_all`
        return operations.is_in_bad_fork()

    def _index(self, device: Any) -> int:
        """Returns the index of `device`, which is an index, a `torch.device` or its name. For
        None or a device without an index, returns the index of this thread's current device.
        Raises RuntimeError if no virtual GPU has the index."""
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
    """Returns replacements for the private functions that `torch.accelerator` calls, for which `module` does the work.
    The keys are the functions' names without the prefix "_accelerator_". PyTorch's own functions would ask the device
    guard or an allocator of the device, and fail or crash."""

    def exchange(index: int) -> int:
        """Makes a device the current one of this thread, and returns the index of the one
        before."""
        before = module.current_device()
        # -1 means no device, and changes nothing
        if index >= 0:
            module.set_device(index)
        return before

    return {
        "getDeviceIndex": module.current_device,
        "setDeviceIndex": exchange,
        "exchangeDevice": exchange,
        "maybeExchangeDevice": exchange,
        "synchronizeDevice": module.synchronize,
        # PyTorch's functions that report memory call this first
        "isAllocatorInitialized": lambda: True,
        "getDeviceStats": _statistics,
        "resetPeakStats": lambda index: operations.limits.ledger.reset_peak(index),
        "resetAccumulatedStats": lambda index: None,  # the ledger has no accumulated numbers
        "getMemoryInfo": _memory_info,
        "emptyHostCache": lambda: None,
        "setStream": _no_stream,
    }


def _statistics(index: int) -> dict[str, Any]:
    """Returns those statistics of a virtual GPU's memory that are counted, in the form of
    `torch.accelerator.memory_stats`."""
    usage = operations.limits.ledger.memory(index)
    # there is no caching allocator, so the reserved and the allocated bytes are the same
    counted = {"all": {"current": usage.allocated, "peak": usage.peak}}
    return {"allocated_bytes": counted, "reserved_bytes": counted, "requested_bytes": counted}


def _memory_info(index: int) -> tuple[int, int]:
    """Returns the free and the total bytes of a virtual GPU. Raises `UnsupportedError` if its
    memory has no limit."""
    usage = operations.limits.ledger.memory(index)
    if usage.total is None:
        raise UnsupportedError(
            "a virtual GPU uses the host's memory without a limit of its own; set a limit: "
            "XDEVICE_VIRTUAL_GPUS=2:memory=8GB"
        )
    return usage.free, usage.total


def _no_stream(*args: Any) -> Any:
    """Refuses a stream, for PyTorch's function that sets one."""
    raise UnsupportedError(
        "torch's virtual GPUs do not have streams, because they work synchronously; leave out the stream"
    )


def _no_communication(*args: Any) -> Any:
    """Refuses a collective of `torch.nn.parallel`, which is written for CUDA."""
    raise UnsupportedError(
        "torch.nn.DataParallel and torch.nn.parallel do not support virtual GPUs; "
        "use xdevice.parallel.replicate, xdevice.split_batch, xdevice.parallel.run and xdevice.parallel.all_reduce"
    )


class _Indexed:
    """Replaces a function of PyTorch, and calls it with the index of the current virtual GPU
    added to a device that is given as "vgpu". It is equal to the function that it replaces."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    # as an attribute of `Tensor` it becomes a method of each tensor, as a function would
    def __get__(self, x: Any, owner: Any = None) -> Any:
        return self if x is None else MethodType(self, x)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the replaced function with the current index in its arguments."""
        # `to` takes the device as any of its arguments
        args = tuple([_with_index(value) for value in args])
        if "device" in kwargs:
            kwargs["device"] = _with_index(kwargs["device"])
        return self._function(*args, **kwargs)

    # tensor subclasses look up PyTorch's functions in dicts, where this has to count as the one
    # it replaces
    def __eq__(self, other: object) -> bool:
        return other is self or other == self._function

    def __hash__(self) -> int:
        return hash(self._function)


def _with_index(device: Any) -> Any:
    """Returns the current virtual GPU for "vgpu" and `torch.device("vgpu")`, and any other
    value as it is."""
    # the types are compared first, because the arguments of `_Indexed` may be tensors, whose
    # `==` is no bool
    if (type(device) is str and device == NAME) or (
        type(device) is torch.device and device == torch.device(NAME)
    ):
        return torch.device(NAME, getattr(torch, NAME).current_device())
    return device


class _NewTensor(_Indexed):
    """Replaces `x.new_tensor`: makes the tensor on the device of `x` unless another one is
    given. PyTorch would take the index from the device guard, which is always 0."""

    def __call__(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is None:
            kwargs["device"] = x.device
        return super().__call__(x, *args, **kwargs)


class _New(_Indexed):
    """Replaces `x.new`: makes the tensor on the device of `x` unless another one is given.
    PyTorch would take the index from the device guard, which is always 0."""

    def __call__(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Calls the replaced function, or makes the tensor by way of the host if it is to be on
        a virtual GPU."""
        # `x.new(tensor)` makes an alias of the tensor, on its device
        takes_device = not any(isinstance(value, torch.Tensor) for value in args)
        device = _with_index(kwargs.get("device") or x.device)
        if torch.device(device).type != NAME or not takes_device:
            return self._function(x, *args, **kwargs)
        # made on the host by an empty tensor of the same dtype, and then moved
        return self._function(torch.empty(0, dtype=x.dtype, device="cpu"), *args).to(device)


def _add_indices() -> None:
    """Replaces the functions of PyTorch that would take a device without an index for index 0:
    `_Indexed` adds the current index. Called for each `set_device` of another index than 0;
    only the first call changes anything."""
    for owner, name in (
        (torch.Tensor, "to"),
        *((torch, name) for name in ("tensor", "as_tensor", "asarray")),
    ):
        function = getattr(owner, name)
        if not isinstance(function, _Indexed):
            setattr(owner, name, _Indexed(function))


# the contents of tensors: C++ keeps a tensor's memory, shape, dtype and device apart from the
# Python object


_get_data = torch.Tensor.data.__get__  # type: ignore[attr-defined]


def _set_data(x: torch.Tensor, new: torch.Tensor) -> None:
    """Sets `x.data = new`. If only one of the two is on a virtual GPU, PyTorch refuses that. So
    `x` swaps its contents with a new tensor that has those of `new`, and remains the same
    object."""
    if (x.device.type == NAME) == (new.device.type == NAME):
        operations.set_data(x, new)
        return
    # the swap would take the hooks and the flag `requires_grad` away from `x`, so the new
    # contents get them too
    contents = new.detach()
    contents.requires_grad = x.requires_grad
    _hooks.set(contents, _hooks(x))
    if _hooks_after(x) is not None:
        _hooks_after.set(contents, _hooks_after(x))
    grad, x.grad = x.grad, None
    _swap_contents(x, contents)
    # the gradient moves too, because PyTorch refuses one on another device
    if grad is not None:
        x.grad = grad.to(x.device, x.dtype)


_is_compatible = private["torch._has_compatible_shallow_copy_type"]


# with *tensors instead of two arguments, because torch.compile checks the signature
def _can_have_contents(*tensors: torch.Tensor) -> bool:
    """Whether `a.data = b` works for two tensors, which `Module.to` asks before it moves a
    parameter that way."""
    return _is_compatible(*tensors) or NAME in {x.device.type for x in tensors}


def _sent(x: torch.Tensor) -> Any:
    """Returns a function and its arguments, with which pickle rebuilds the tensor `x` in
    another process. A tensor on a virtual GPU is sent as a copy in the host's shared memory."""
    # PyTorch's own function is right for the host, and refuses tensors that other processes
    # cannot have
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
    """Returns the tensor that `_sent` has sent, on its device in this process. The arguments are its values on the
    host, its device, its flag `requires_grad`, and whether it is a parameter."""
    moved = values.to(device)
    return (
        torch.nn.Parameter(moved, requires_grad)
        if is_parameter
        else moved.requires_grad_(requires_grad)
    )


# storages


def _making_storages(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `make`, the `__new__` of `UntypedStorage`: a storage on a virtual GPU is made from one on the host,
    because PyTorch would ask the device for an allocator and crash."""

    def new(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        """Makes a storage of the class `cls`, on the device `device` if that is given."""
        if device is None or torch.device(device).type != NAME:
            return make(cls, *args, device=device, **kwargs)
        index = getattr(torch, NAME)._index(device)
        return operations.new_storage(
            make(cls, *args, device="cpu", **kwargs), torch.device(NAME, index)
        )

    return new


def _restored(storage: Any, location: str) -> Any:
    """Returns a storage that `torch.load` has read, on the virtual GPU that `location` names;
    None if `location` names another device."""
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
    private.place("torch.nn.parallel.comm.scatter"): lambda own: _no_communication,
    private.place("torch.nn.parallel.comm.gather"): lambda own: _no_communication,
    private.place("torch.nn.parallel.comm.broadcast_coalesced"): lambda own: _no_communication,
    private.place("torch._TorchCompileInductorWrapper.__call__"): _not_compiling,
    private.place("torch.autograd._engine_run_backward"): _without_threads,
}
"""Maps each replaced place in PyTorch, an owner and the name of its attribute, to a function
that takes PyTorch's own value and returns the replacement."""


class TorchVirtualGpus(LimitedGpus, VirtualGpus):
    """Virtual GPUs of PyTorch, with limits to their memory and dtypes if the user sets some."""

    # attributes of `TorchBackend` that change with the GPUs
    _gpu: str
    _gpus: int
    _places: dict[torch.device, Device]
    _natives: dict[Device, torch.device]
    _synchronize: Callable[[int], None] | None

    def why_no_virtual_gpus(self) -> str | None:
        """Returns why this process cannot have virtual GPUs; None if it can."""
        return why_not()

    def make_virtual_gpus(self, n: int) -> None:
        """Makes `n` virtual GPUs, which are `gpu:0` to `gpu:{n-1}` from then on."""
        install(n)
        self._gpu, self._gpus = NAME, n
        self._synchronize = accelerators.waiter(NAME)
        # these caches still have the real GPUs as `gpu:i`
        self._places.clear()
        self._natives.clear()
        # "vgpu" and "vgpu:1" become spellings of a device, as "cuda" is
        devices.spell(NAME, devices.of("gpu"))
        for index in range(n):
            devices.spell(f"{NAME}:{index}", devices.of("gpu", index))

    def limit(self) -> None:
        """Makes the virtual GPUs refuse the dtypes that they lack, and count their memory."""
        # always counted, because `torch.accelerator` reports the memory of GPUs without a
        # limit, too
        self.count_memory()
        operations.limits = self

    def memory_error(self, text: str) -> Exception:
        """Returns the error to raise if a virtual GPU has too little memory."""
        return torch.OutOfMemoryError(text)

    def take_for_cuda(
        self, device: Device, has_default: Callable[[FrameType], bool] | None = None
    ) -> bool:
        """Makes "cuda" mean the virtual GPU `device`, for the option `--xd-cuda`. `has_default`
        takes the frame of a caller, and returns whether the default device that a program sets
        applies to this caller; if it is None, the default device applies to all callers.
        Returns True, because PyTorch can do that."""
        from . import virtual_cuda

        virtual_cuda.take_for_cuda(torch.device(NAME, device.index), has_default)
        return True
