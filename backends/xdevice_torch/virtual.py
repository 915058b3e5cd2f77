"""Virtual GPUs for PyTorch, in pure Python: `torch.device("vgpu", 1)`, a tensor class, and one function for every op.

PyTorch keeps the device type PrivateUse1 free for others, and since 2.13 a Python program may be one. A tensor there is
a `VirtualTensor`: sizes, dtype and device as PyTorch sees them, around a host tensor with the values. Every operation
on one comes to `_run`, which computes on the host tensors and wraps what comes out. Autograd, views and in-place
changes are PyTorch's own, a level above.

What must be kept:

- The device guard for Python tells autograd of one device, so that its engine has no queue for index 1 and fails.
  Without threads of its own it needs no queue: they are off while it runs.
- `torch.tensor` calls some operations below the level at which the fallback is found: those have a kernel by name.
- `Module.to` gives a module new parameters where the kinds of tensor differ, and an optimizer would go on with the old
  ones. On CUDA the parameters stay, so here their contents are swapped first. PyTorch's own switch for that
  (`set_swap_module_params_on_conversion`) breaks lazy modules.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy
from torch.utils import backend_registration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

NAME = "vgpu"

_aten = torch.ops.aten
_FREE = "privateuseone"
_BETWEEN_DEVICES = {_aten._to_copy, _aten.copy_, _aten._foreach_copy_}
_INDEX_PUTS = {_aten.index_put, _aten.index_put_, _aten._index_put_impl_}
_FROM_HOST = {
    **dict.fromkeys((_aten.index, *_INDEX_PUTS), ("indices",)),
    _aten.ctc_loss: ("input_lengths", "target_lengths"),
    _aten._pack_padded_sequence: ("lengths",),
}
"""Arguments that an operation on a GPU takes from the host."""

_libraries: list[torch.library.Library] = []  # what they register ends with them


def why_not() -> str | None:
    """Why this process cannot have virtual GPUs, or None."""
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        return f"torch {torch.__version__} takes no device written in Python, which 2.13 does; use a newer torch"
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in (_FREE, NAME):
        return f"{taken} is torch's one foreign device in this process; do not import what registers it"
    return None


def install(count: int) -> None:
    """Makes `vgpu:0` to `vgpu:{count-1}` devices of PyTorch, until the process ends."""
    if _libraries:
        return
    backend_registration._setup_privateuseone_for_python_backend(NAME, _Module(count))
    _register_kernels()
    # PyTorch would ask the device guard, which cannot be told to wait in Python; there is nothing to wait for
    private: Any = torch._C
    private._accelerator_synchronizeDevice = lambda index: None
    torch.serialization.register_package(0, lambda storage: None, _restored)
    torch.nn.Module._apply = _keeping_parameters(torch.nn.Module._apply)  # type: ignore[method-assign]
    autograd: Any = torch.autograd
    autograd._engine_run_backward = _without_threads(autograd._engine_run_backward)


def _without_threads(run_backward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return run_backward(*args, **kwargs)

    return run


class _Module:
    """`torch.vgpu`: what `torch.cuda` is for CUDA."""

    def __init__(self, count: int) -> None:
        self._count = count
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
        self._thread.index = self._index(device)

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before, self._thread.index = self.current_device(), self._index(device)
        try:
            yield
        finally:
            self._thread.index = before

    def synchronize(self, device: Any = None) -> None:
        """The host computes synchronously."""

    def manual_seed_all(self, seed: int) -> None:
        """The host's generator draws the numbers, and is seeded by itself."""

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def _is_in_bad_fork(self) -> bool:
        return False

    def _index(self, device: Any) -> int:
        """The index of a device that exists; of none, the current one's."""
        index = device if isinstance(device, int) else torch.device(device).index
        if index is None:
            return self.current_device()
        if index >= self._count:
            raise RuntimeError(f"{NAME} error: invalid device ordinal {index}, there are {self._count}")
        return int(index)


# tensors


class VirtualTensor(torch.Tensor):
    """A tensor on a virtual GPU; `host` has its values."""

    host: torch.Tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, host: torch.Tensor, device: torch.device) -> VirtualTensor:
        tensor: VirtualTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            layout=host.layout,
            device=device,
        )
        tensor.host = host
        return tensor

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(op, args, kwargs or {})

    @property
    def data(self) -> torch.Tensor:
        return VirtualTensor(self.host.detach(), self.device)  # unlike detach(), autograd does not see its changes

    @data.setter
    def data(self, new: Any) -> None:
        _set_data(self, new)
        self.host = new.host

    def new_tensor(self, data: Any, *, device: Any = None, **kwargs: Any) -> torch.Tensor:  # type: ignore[override]
        return super().new_tensor(data, device=self.device if device is None else device, **kwargs)

    def new(self, *args: Any, **kwargs: Any) -> Any:
        takes_device = not any(isinstance(x, torch.Tensor) for x in args)  # of a tensor it makes an alias
        if takes_device and kwargs.get("device") is None:
            kwargs["device"] = self.device
        with getattr(torch, NAME).device(kwargs.get("device", self.device)):  # PyTorch asks the one or the other
            return super().new(*args, **kwargs)

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    def tolist(self) -> Any:
        return self.host.tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            f"memory first."
        )

    __array__ = numpy

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        about = f", device='{self.device}'"
        if self.grad_fn is not None:
            about += f", grad_fn=<{type(self.grad_fn).__name__}>"
        elif self.requires_grad:
            about += ", requires_grad=True"
        prefix = "Parameter containing:\n" if isinstance(self, torch.nn.Parameter) else ""
        return f"{prefix}{repr(self.host)[:-1]}{about})"

    def __format__(self, spec: str) -> str:
        return format(self.host.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            if not self.is_leaf:
                raise RuntimeError("only tensors created explicitly by the user support the deepcopy protocol")
            copied = memo[id(self)] = self._like_this(VirtualTensor(self.host.clone(), self.device))
            if self.grad is not None:
                copied.grad = self.grad.clone()
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        if isinstance(self, torch.nn.Parameter):
            return torch._utils._rebuild_parameter, (self.detach(), self.requires_grad, OrderedDict())
        # as XLA's tensors, so that `torch.load` knows the function, and `map_location` holds
        state = self.host, self.dtype, str(self.device), self.requires_grad
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, state

    def _like_this(self, new: torch.Tensor) -> Any:
        is_parameter = isinstance(self, torch.nn.Parameter)
        return torch.nn.Parameter(new, self.requires_grad) if is_parameter else new.requires_grad_(self.requires_grad)


class _Lazy(VirtualTensor):
    """What has no shape before the first call of its lazy module."""

    @staticmethod
    def __new__(cls, requires_grad: bool, device: torch.device, dtype: torch.dtype) -> Any:
        tensor: Any = VirtualTensor.__new__(cls, torch.empty(0, dtype=dtype, device="cpu"), device)
        tensor.requires_grad = requires_grad
        # by which a tensor of any class is a parameter or a buffer
        tensor._is_param = issubclass(cls, UninitializedParameter)
        tensor._is_buffer = tensor.persistent = not tensor._is_param
        return tensor

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = type(self)(self.requires_grad, self.device, self.dtype)
        return memo[id(self)]


_refuse_use: Any = vars(UninitializedParameter.__mro__[1])["__torch_function__"]
"""What lazy tensors say to whoever uses them."""


class LazyVirtualParameter(_Lazy, UninitializedParameter):  # pyright: ignore[reportIncompatibleVariableOverride]
    cls_to_become = VirtualTensor
    __torch_function__ = _refuse_use


class LazyVirtualBuffer(_Lazy, UninitializedBuffer):  # pyright: ignore[reportIncompatibleVariableOverride]
    cls_to_become = VirtualTensor
    __torch_function__ = _refuse_use


_set_data = torch._C.TensorBase.data.__set__  # type: ignore[attr-defined]


# operations


def _run(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation, computed on the host."""
    if op.overloadpacket is _aten.to:  # comes here in inference mode only; it decides whether to copy
        return op.decompose(*args, **kwargs)
    if op.overloadpacket in _INDEX_PUTS and not args[2].dim():  # a number may come from any device, as on CUDA
        args = *args[:2], _aten._to_copy.default(args[2], device=args[0].device), *args[3:]
    tensors = [*_tensors(args), *_tensors(kwargs.values())]
    ours = [x for x in tensors if isinstance(x, VirtualTensor)]
    if ours and op.overloadpacket not in _BETWEEN_DEVICES:
        _check_devices(op, ours, _misplaced(op, args, kwargs) if len(ours) < len(tensors) else [])
    place = _place(op, args, kwargs, ours)
    result = op(*_on_host(args), **_host_keywords(kwargs))
    if op._schema.is_mutable:
        for x in ours:
            _follow_shape(x)
    if op.overloadpacket is _aten.copy_:
        return args[0]
    if op.overloadpacket is _aten._pack_padded_sequence and place is not None:
        return VirtualTensor(result[0], place), result[1]  # the lengths stay on the host
    return result if place is None else _wrapped(result, place, {id(x.host): x for x in ours})


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _check_devices(op: Any, ours: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> None:
    found = {str(x.device) for x in (*ours, *others)}
    if len(found) > 1:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(sorted(found))}! (when calling {op._schema.name})"
        )


def _misplaced(op: Any, args: Any, kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors on the host that an operation on a GPU does not take."""
    from_host = _FROM_HOST.get(op.overloadpacket, ())
    arguments = op._schema.arguments
    given = dict(zip((argument.name for argument in arguments), args, strict=False)) | kwargs
    for argument in arguments:
        if argument.name in from_host:
            continue
        written = argument.alias_info is not None and argument.alias_info.is_write
        for x in _tensors([given.get(argument.name)]):
            if x.device.type != NAME and (x.dim() or written):  # a number that is only read goes along, as on CUDA
                yield x


def _place(op: Any, args: Any, kwargs: dict[str, Any], ours: list[VirtualTensor]) -> torch.device | None:
    """Where the result is; None for the host."""
    wanted = kwargs.get("device")
    if wanted is not None:
        wanted = torch.device(wanted)
        return torch.device(NAME, getattr(torch, NAME)._index(wanted)) if wanted.type == NAME else None
    return ours[0].device if ours else None


def _on_host(value: Any) -> Any:
    if isinstance(value, VirtualTensor):
        return value.host
    if type(value) in (list, tuple):
        return type(value)(map(_on_host, value))
    return value


def _host_keywords(kwargs: dict[str, Any]) -> dict[str, Any]:
    found = {name: _on_host(value) for name, value in kwargs.items()}
    wanted = found.get("device")
    if wanted is not None and torch.device(wanted).type == NAME:
        found["device"] = torch.device("cpu")
    if found.get("pin_memory"):
        found["pin_memory"] = False
    return found


def _wrapped(result: Any, place: torch.device, known: dict[int, VirtualTensor]) -> Any:
    """The result on its device; what was changed in place, or filled as `out=`, stays the tensor that it was."""
    if isinstance(result, torch.Tensor):
        return known[id(result)] if id(result) in known else VirtualTensor(result, place)
    if type(result) in (list, tuple):
        return type(result)(_wrapped(one, place, known) for one in result)
    return result


def _follow_shape(x: VirtualTensor) -> None:
    """`unsqueeze_`, `resize_`, `set_` and `out=` change more than values."""
    host = x.host
    if x.shape != host.shape or x.stride() != host.stride() or x.storage_offset() != host.storage_offset():
        _set_data(x, VirtualTensor(host, x.device))


# modules


def _keeping_parameters(apply: Callable[..., Any]) -> Callable[..., Any]:
    def _apply(self: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
        for x in (*self._parameters.values(), *self._buffers.values()):
            if x is not None and (isinstance(x, torch.nn.Parameter) or is_lazy(x)):
                _cross(x, fn)
        module: torch.nn.Module = apply(self, fn, recurse)
        return module

    return _apply


def _cross(x: torch.Tensor, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Takes a parameter to the device that `fn` takes tensors to, if just one of the two is virtual."""
    with torch.no_grad():
        there = fn(torch.empty(0, dtype=x.dtype, device=x.device))
        virtual = [device.type == NAME for device in (x.device, there.device)]
        if is_lazy(x) and any(virtual):
            _swap(x, _lazy(x, there))
        elif not is_lazy(x) and any(virtual) and not all(virtual):
            grad, x.grad = x.grad, None
            torch.utils.swap_tensors(x, torch.nn.Parameter(fn(x), x.requires_grad))
            if grad is not None:
                x.grad = fn(grad)


def _lazy(x: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """A parameter or buffer without a shape, as `x` is one, on the device of `there`."""
    kinds: tuple[Any, Any] = (LazyVirtualParameter, LazyVirtualBuffer)
    if there.device.type != NAME:
        kinds = UninitializedParameter, UninitializedBuffer
    kind = kinds[0] if isinstance(x, UninitializedParameter) else kinds[1]
    lazy: torch.Tensor = kind(x.requires_grad, there.device, there.dtype)
    return lazy


def _swap(x: torch.Tensor, other: torch.Tensor) -> None:
    """As `torch.utils.swap_tensors`, which asks things of tensors that lazy ones refuse."""
    x.__class__, other.__class__ = other.__class__, x.__class__
    x.__dict__, other.__dict__ = other.__dict__, x.__dict__
    torch._C._swap_tensor_impl(x, other)


# registration


def _register_kernels() -> None:
    from torch._decomp import decompositions
    from torch.fx.experimental import proxy_tensor

    everything, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    _libraries.extend([everything, aten])
    everything.fallback(lambda op, *args, **kwargs: _run(op, args, kwargs), "PrivateUse1")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    aten.impl("lift_fresh", lambda x: x, "PrivateUse1")
    # forward-mode derivatives' zero, which has no memory that the host's kernels could read
    aten.impl("_efficientzerotensor", _kernel(_aten.zeros.default), "PrivateUse1")
    # the host's memory is the device's, so there is nothing to pin; PyTorch would ask the device for an allocator
    aten.impl("_pin_memory", lambda x, device=None: x.clone(), "CPU")
    aten.impl("is_pinned", lambda x, device=None: False, "CPU")
    for op in (_aten.detach.default, _aten._to_copy.default):
        aten.impl(op.name().removeprefix("aten::"), _kernel(op), "PrivateUse1")
    # else these pick the fused kernels of a GPU
    aten.impl("lstm.input", decompositions.lstm_impl, "AutogradPrivateUse1")
    aten.impl("lstm.data", decompositions.lstm_data_impl, "AutogradPrivateUse1")
    aten.impl("gru.input", decompositions.gru_impl, "AutogradPrivateUse1")
    aten.impl("gru.data", decompositions.gru_impl_data, "AutogradPrivateUse1")
    aten.impl("ctc_loss.Tensor", _ctc_loss, "AutogradPrivateUse1")
    # else `make_fx`, and so `torch.func.linearize`, take a tensor's host for a constant
    tracing: Any = proxy_tensor
    tracing.HANDLED_TYPES += (VirtualTensor,)


def _ctc_loss(scores: Any, targets: Any, lengths: torch.Tensor, target_lengths: torch.Tensor, *settings: Any) -> Any:
    """With lengths as numbers, as on CUDA; of a tensor class PyTorch would divide the loss by tensors on the host."""
    return _aten.ctc_loss.IntList(scores, targets, lengths.tolist(), target_lengths.tolist(), *settings)


def _kernel(op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: _run(op, args, kwargs)


class _Placed(torch.UntypedStorage):
    """Storage on the host that a tensor of a virtual GPU is rebuilt on, by `torch.load(map_location="vgpu:1")`."""

    place: torch.device

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.place


def _restored(storage: Any, location: str) -> Any:
    if not location.startswith(NAME):
        return None
    storage.__class__ = _Placed
    storage.place = torch.device(location)
    return storage
