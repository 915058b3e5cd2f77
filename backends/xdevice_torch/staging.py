"""Copies tensors between the host and GPUs: large ones through the ring (buffers of page-locked
memory that xdevice keeps for this, `xdevice.cuda_driver.ring`), and some in the background.

Nothing may go through the ring while a CUDA graph is recorded, because each replay would copy
whatever is in the ring at that time. Memory that is page-locked already is copied faster
without the ring.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd.forward_ad import unpack_dual
from torch.overrides import TorchFunctionMode

from .private import private
from .trees import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

_is_wrapped = private["torch._C._functorch.is_functorch_wrapped_tensor"]
_dispatch_modes = private.get(
    "torch.utils._python_dispatch._get_current_dispatch_mode_stack", lambda: [None]
)
_make_wrapper = private["torch.Tensor._make_wrapper_subclass"]
_OwnFunctions = private["torch._C.DisableTorchFunctionSubclass"]
"""A block in which PyTorch does not call the `__torch_function__` of tensor subclasses."""
# without these names no tensor can wait for its values, so no copy to the host goes on in the
# background
_can_arrive = private.has("torch.Tensor._make_wrapper_subclass") and (
    private.has("torch._C.DisableTorchFunctionSubclass")
)
TO_GPU: Final = 24 << 20
"""The size in bytes from which a copy to a GPU through the ring (of page-locked buffers) is
faster than PyTorch's own."""
TO_HOST: Final = 32 << 20
"""The size in bytes from which a copy to the host through the ring (of page-locked buffers) is
faster than PyTorch's own. For smaller tensors, malloc returns host memory that was touched
before."""
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
"""The types of tensors that may go through the ring: a subclass may have more than its
memory."""


def moved(x: torch.Tensor, native: torch.device) -> torch.Tensor | None:
    """Returns a copy of `x` on another device, made through the ring, from the host to a GPU or
    back. Gradients flow through the copy. Returns None if the caller has to let PyTorch copy
    `x`."""
    # the quick tests come first, because every move of a tensor calls this. `_is_plain` repeats
    # two of them for `started`; the size is that for a copy to a GPU, the smaller of the two
    if (
        torch.compiler.is_compiling()
        or type(x) not in _PLAIN
        or x.numel() * x.element_size() < TO_GPU
    ):
        return None
    if not (_is_plain(x) and _is_staged(x, native)):
        return None
    if x.requires_grad and torch.is_grad_enabled():
        result: torch.Tensor | None = _Move.apply(x, native)
        return result
    return _through_ring(x.detach(), native)


def _is_plain(x: torch.Tensor) -> bool:
    """Whether the values of `x` are exactly what is in its memory (no lazy conjugate, no
    wrapper), and nothing traces, maps or watches operations on it."""
    return (
        not torch.compiler.is_compiling()
        and type(x) in _PLAIN
        and x.layout is torch.strided
        and not (x.is_quantized or x.is_conj() or x.is_neg() or _is_wrapped(x))
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        and not has_modes()
        and unpack_dual(x).tangent is None
    )


def has_modes() -> bool:
    """Whether a dispatch mode, such as FakeTensorMode, is active in this thread: the tensors of
    a mode may have no memory. True if this version of PyTorch cannot tell."""
    return bool(_dispatch_modes())


def _is_staged(x: torch.Tensor, native: torch.device) -> bool:
    """Whether a large tensor (of at least `TO_GPU` bytes) is copied to the device `native`
    through the ring."""
    # without CUDA the ring need not be imported
    if not x.is_cuda and native.type != "cuda":
        return False
    from xdevice.cuda_driver import ring

    # between two GPUs PyTorch copies by itself, without the host
    if x.is_cuda and native.type == "cpu":
        return (
            x.numel() * x.element_size() >= TO_HOST
            and ring.is_usable()
            and not _is_recorded(x.device)
        )
    if x.is_cpu and native.type == "cuda":
        return ring.is_usable() and not _is_recorded(native) and not x.is_pinned()
    return False


def _is_recorded(gpu: torch.device) -> bool:
    """Whether a CUDA graph is being recorded on the current stream of a GPU."""
    with torch.cuda.device(gpu):
        return torch.cuda.is_current_stream_capturing()


class _Move(torch.autograd.Function):
    """A copy through the ring through which gradients flow: the backward pass copies the
    gradient back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, native: torch.device) -> torch.Tensor:
        """Returns a copy of `x` on the device `native`, made by PyTorch if the ring refuses the
        copy."""
        ctx.back = x.device
        through = _through_ring(x.detach(), native)
        return x.detach().to(native) if through is None else through

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Returns the gradient of `x`, on the device of `x`, and None as the gradient of
        `native`."""
        (grad,) = grads
        through = moved(grad, ctx.back)
        return grad.to(ctx.back) if through is None else through, None


def _through_ring(source: torch.Tensor, native: torch.device) -> torch.Tensor | None:
    """Returns a copy of `source`, a tensor without a gradient, on the device `native`, made
    through the ring; None if the ring refuses."""
    copy = torch.empty_like(source, device=native)  # dense, with the strides that `to` gives
    # the ring copies one block of bytes, so the source must be laid out as the copy
    if source.stride() != copy.stride():
        source = torch.empty_like(source).copy_(source)
    is_done = (
        _to_host(source, copy) if source.is_cuda else _to_gpu(source, source.data_ptr(), copy)
    )
    return copy if is_done else None


def _to_host(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Copies the memory of `source`, a tensor on a GPU, into `target`, a tensor on the host,
    after the earlier work of the GPU's current stream. Returns whether the ring has made the
    copy."""
    from xdevice.cuda_driver import ring

    stream = torch.cuda.current_stream(source.device).cuda_stream
    return ring.to_host(
        source, source.data_ptr(), target, target.data_ptr(), target.nbytes, stream
    )


def _to_gpu(owner: Any, address: int, target: torch.Tensor) -> bool:
    """Fills `target`, a tensor on a GPU, with the bytes from `address` on the host, on the
    GPU's current stream. `owner`, a tensor or an array, keeps the bytes alive. Returns whether
    the ring has made the copy."""
    from xdevice.cuda_driver import ring

    stream = torch.cuda.current_stream(target.device).cuda_stream
    return ring.to_gpu(owner, address, target, target.data_ptr(), target.nbytes, stream)


def array(values: np.ndarray[Any, Any], native: torch.device) -> torch.Tensor | None:
    """Returns a tensor on a GPU with the values of a NumPy array, copied through the ring.
    Returns None if the array is small, not C-contiguous, or not bound for a CUDA GPU, or if the
    ring cannot be used: the caller copies it then."""
    if native.type != "cuda" or values.nbytes < TO_GPU or not values.flags.c_contiguous:
        return None
    from xdevice.cuda_driver import ring

    if not ring.is_usable() or has_modes() or _is_recorded(native):
        return None
    tensor = torch.empty(values.shape, dtype=getattr(torch, values.dtype.name), device=native)
    return tensor if _to_gpu(values, values.ctypes.data, tensor) else None


def of_modules(model: torch.nn.Module, native: torch.device) -> AbstractContextManager[Any]:
    """Returns a context manager for the call `model.to(native)`, in which large tensors go
    through the ring. It does nothing unless a CUDA device takes part, because the mode costs
    time: PyTorch calls it for each attribute of each tensor."""
    variables = (*model.parameters(), *model.buffers())
    is_for_cuda = native.type == "cuda" or any(x.is_cuda for x in variables)
    return _OfModules() if is_for_cuda else nullcontext()


class _OfModules(TorchFunctionMode):
    """A function mode for the block around `Module.to`: large tensors that the module moves go
    through the ring."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls `func`, or copies a large tensor through the ring if `func` moves it."""
        through = None
        # only `x.to(device, None, False)`, as `Module.to` calls it; with a dtype or a memory
        # format PyTorch has more to do
        if (
            func is torch.Tensor.to
            and not kwargs
            and isinstance(args[1], torch.device)
            and not any(args[2:])
        ):
            # the tensor and the device
            through = moved(*args[:2])
        return func(*args, **(kwargs or {})) if through is None else through


# many tensors

_SMALL: Final = 1 << 20
"""The size in bytes up to which tensors are sent with one wait for all, which was measured to
be faster."""


def sent(
    tensors: Sequence[torch.Tensor],
    gpu: torch.device,
    move: Callable[[torch.Tensor], torch.Tensor],
) -> list[torch.Tensor]:
    """Copies tensors to a CUDA device with one wait for all, and returns the copies.
    `x.to(gpu)` would wait for each: sending 100 tensors of 16 bytes to an H200 took 1.39 ms
    with 100 waits, and 0.89 ms with one.

    Tensors that are large, not dense or not on the host are moved by `move`. When this returns,
    all tensors have been read, so the caller may overwrite page-locked tensors."""
    *first, last = tensors
    try:
        copies = [x.cuda(gpu, non_blocking=True) if _is_small(x) else move(x) for x in first]
        if _is_small(last):
            # the last copy waits for all copies, in half the time of stream.synchronize()
            return [*copies, last.cuda(gpu)]
        copies.append(move(last))
    except BaseException:
        # the caller may write into the tensors that are still being read
        torch.cuda.current_stream(gpu).synchronize()
        raise
    torch.cuda.current_stream(gpu).synchronize()
    return copies


def _is_small(x: torch.Tensor) -> bool:
    """Whether a tensor is on the host, dense, and small enough to be sent with one wait for
    all."""
    return x.is_cpu and x.layout is torch.strided and x.nbytes <= _SMALL


# copies in the background


def started(x: torch.Tensor, native: torch.device) -> torch.Tensor | None:
    """Starts to copy `x` to another device, and returns the copy, whose values may arrive
    later. Later work on a GPU is ordered after the copy; a copy on the host waits for its
    values before anybody reads them. Returns None if `x` cannot be copied in the background:
    the caller has to copy it, and wait."""
    if not (_can_arrive and _is_plain(x)):
        return None
    # from memory that is not page-locked, CUDA copies while the host waits
    if x.is_cpu and native.type == "cuda":
        return x.to(native, non_blocking=True) if x.is_pinned() else None
    # an `Arriving` records no gradients, and a graph that is recorded cannot be waited for
    if (
        not x.is_cuda
        or native.type != "cpu"
        or (x.requires_grad and torch.is_grad_enabled())
        or _is_recorded(x.device)
    ):
        return None
    copy = x.to(native, non_blocking=True)  # in page-locked memory
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(x.device))
    return arriving(copy, event.synchronize)


def arriving(values: torch.Tensor, wait: Callable[[], None]) -> torch.Tensor:
    """Returns an `Arriving` in place of `values`, a tensor that is still being filled. The
    `Arriving` has the same shape, strides, dtype and device, and calls `wait` before anybody
    reads it. `wait` must not return before `values` is complete."""
    wrapper: torch.Tensor = _make_wrapper(
        _arriving_type(),
        values.shape,
        strides=values.stride(),
        dtype=values.dtype,
        device=values.device,
    )
    vars(wrapper)[_COMING] = values, wait
    return wrapper


def arrive(x: torch.Tensor) -> torch.Tensor:
    """Returns `x` as an ordinary tensor. If it is an `Arriving`, waits until its values have
    arrived, and turns `x` itself into an ordinary tensor if PyTorch allows that."""
    # under the lock, so that a second thread finds either an `Arriving` or the finished tensor
    with _arrival:
        if type(x) is not Arriving:
            return x
        values: torch.Tensor
        values, wait = vars(x)[_COMING]
        wait()
        try:
            # `x` becomes the tensor with the values, and everyone who holds `x` has them
            torch.utils.swap_tensors(x, values)
        except RuntimeError:  # raised if somebody has a weak reference to it
            return values
        return x


_COMING: Final = "xdevice_coming"
"""The attribute of an `Arriving` with the tensor that is being filled, and the function that
waits for its values."""
_arrival: Final = threading.RLock()


class Arriving(torch.Tensor):
    """A tensor on the host whose values are still being copied. `arriving` makes it. Each
    operation on it waits for the values first; only the attributes in `_ABOUT`, such as its
    shape, can be read at once.

    The tensor has no memory of its own, so C++ code that does not know this class fails instead
    of reading too early.
    """

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Waits for the values before `func` reads them, unless `func` reads an attribute in
        `_ABOUT`."""
        if func in _ABOUT:
            # otherwise `func` would call this method again, without end
            with _OwnFunctions():
                return func(*args, **(kwargs or {}))
        args, kwargs = replaced(Arriving, arrive, (args, kwargs or {}))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Waits for the values in functions that bypass `__torch_function__`: `torch.tensor`,
        `torch.as_tensor`."""
        args, kwargs = replaced(Arriving, arrive, (args, kwargs or {}))
        return func(*args, **kwargs)


@cache
def _arriving_type() -> type[Arriving]:
    """Returns the class `Arriving`, marked so that torch.compile does not compile its
    `__torch_function__`. It is marked at the first use, because marking imports torch._dynamo,
    which takes as long as importing PyTorch."""
    untouched = torch.compiler.disable(Arriving.__torch_function__.__func__)  # type: ignore[attr-defined]
    Arriving.__torch_function__ = classmethod(untouched)  # type: ignore[assignment]
    return Arriving


_ABOUT: Final = frozenset(
    getattr(torch.Tensor, name).__get__
    for name in ("device", "dtype", "shape", "layout", "requires_grad", "is_meta")
)
"""The getters of the attributes of a tensor that can be read without waiting for the tensor's
values."""
