"""Copies tensors between the host and GPUs. Large tensors are copied through the ring: buffers of page-locked memory
that xdevice reserves for this purpose (see `xdevice.cuda_driver.ring`). Some tensors are copied in the background.

Nothing may be copied through the ring while a CUDA graph is recorded, because each replay would
copy the data that are in the ring at that time. Memory that is already page-locked is copied
faster without the ring.
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
# without these names a tensor cannot wait for its values, so no copy to the host runs in the background
_can_arrive = private.has("torch.Tensor._make_wrapper_subclass") and (
    private.has("torch._C.DisableTorchFunctionSubclass")
)
MIN_TO_GPU: Final = 24 << 20
"""The smallest size in bytes for which a copy to a GPU through the ring (of page-locked buffers) is faster than
PyTorch's own copy."""
MIN_TO_HOST: Final = 32 << 20
"""The smallest size in bytes for which a copy to the host through the ring (of page-locked buffers) is faster than
PyTorch's own copy. For smaller copies PyTorch is faster, because malloc returns host memory that was used before."""
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
"""The types of tensors that may be copied through the ring. A tensor of a subclass may consist of more than its
memory."""


def moved(x: torch.Tensor, native: torch.device) -> torch.Tensor | None:
    """Copies `x` through the ring, from the host to a GPU or from a GPU to the host, and returns the copy. Gradients
    flow through the copy. Returns None if PyTorch must copy `x` instead."""
    # the quick tests come first, because every move of a tensor calls this function. `_is_plain` repeats two of these
    # tests for `start_copy`. `MIN_TO_GPU` is the smaller of the two sizes
    if (
        torch.compiler.is_compiling()
        or type(x) not in _PLAIN
        or x.numel() * x.element_size() < MIN_TO_GPU
    ):
        return None
    if not (_is_plain(x) and _is_staged(x, native)):
        return None
    if x.requires_grad and torch.is_grad_enabled():
        result: torch.Tensor | None = _Move.apply(x, native)
        return result
    return _through_ring(x.detach(), native)


def _is_plain(x: torch.Tensor) -> bool:
    """Whether the memory of `x` contains exactly its values, and nothing traces, maps or intercepts operations on `x`.
    A wrapper, or a lazily conjugated or negated tensor, has other values in its memory."""
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
    """Whether a dispatch mode, such as FakeTensorMode, is active in this thread. Under such a
    mode, tensors may have no memory. Returns True if this version of PyTorch cannot list the modes."""
    return bool(_dispatch_modes())


def _is_staged(x: torch.Tensor, native: torch.device) -> bool:
    """Whether `x`, a large tensor (of at least `MIN_TO_GPU` bytes), is copied to the device
    `native` through the ring."""
    # without CUDA there is no need to import the ring
    if not x.is_cuda and native.type != "cuda":
        return False
    from xdevice.cuda_driver import ring

    # PyTorch copies between two GPUs by itself, without the host
    if x.is_cuda and native.type == "cpu":
        return (
            x.numel() * x.element_size() >= MIN_TO_HOST
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
    """A copy through the ring that autograd records: the backward pass copies the gradient back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, native: torch.device) -> torch.Tensor:
        """Returns a copy of `x` on the device `native`. PyTorch makes the copy if the ring refuses it."""
        ctx.source_device = x.device
        staged = _through_ring(x.detach(), native)
        return x.detach().to(native) if staged is None else staged

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Returns the gradient of `x`, on the device of `x`, and None as the gradient of `native`."""
        (grad,) = grads
        staged = moved(grad, ctx.source_device)
        return grad.to(ctx.source_device) if staged is None else staged, None


def _through_ring(source: torch.Tensor, native: torch.device) -> torch.Tensor | None:
    """Copies `source`, a tensor without a gradient, to the device `native` through the ring,
    and returns the copy. Returns None if the ring refuses."""
    # dense, with the same strides as the result of `to`
    copy = torch.empty_like(source, device=native)
    # the ring copies one block of bytes, so the source must have the same strides as the copy
    if source.stride() != copy.stride():
        source = torch.empty_like(source).copy_(source)
    is_done = (
        _to_host(source, copy) if source.is_cuda else _to_gpu(source, source.data_ptr(), copy)
    )
    return copy if is_done else None


def _to_host(source: torch.Tensor, target: torch.Tensor) -> bool:
    """Copies the memory of `source`, a tensor on a GPU, to `target`, a tensor on the host,
    after the work that is already queued on the GPU's current stream. Returns True if the ring has made the copy, and
    False if it cannot."""
    from xdevice.cuda_driver import ring

    stream = torch.cuda.current_stream(source.device).cuda_stream
    return ring.to_host(
        source, source.data_ptr(), target, target.data_ptr(), target.nbytes, stream
    )


def _to_gpu(owner: Any, address: int, target: torch.Tensor) -> bool:
    """Copies bytes from the host to `target`, a tensor on a GPU, on the GPU's current stream.
    `address` is the address of the first byte, and `owner`, a tensor or an array, keeps the
    bytes alive. Returns True if the ring has made the copy, and False if it cannot."""
    from xdevice.cuda_driver import ring

    stream = torch.cuda.current_stream(target.device).cuda_stream
    return ring.to_gpu(owner, address, target, target.data_ptr(), target.nbytes, stream)


def put(values: np.ndarray[Any, Any], native: torch.device) -> torch.Tensor | None:
    """Returns a tensor on a GPU with the values of a NumPy array, copied through the ring.
    Returns None if the array is small or not C-contiguous, if `native` is not a CUDA GPU, or if
    the ring cannot be used; then the caller must copy the array."""
    if native.type != "cuda" or values.nbytes < MIN_TO_GPU or not values.flags.c_contiguous:
        return None
    from xdevice.cuda_driver import ring

    if not ring.is_usable() or has_modes() or _is_recorded(native):
        return None
    tensor = torch.empty(values.shape, dtype=getattr(torch, values.dtype.name), device=native)
    return tensor if _to_gpu(values, values.ctypes.data, tensor) else None


def moving_modules(model: torch.nn.Module, native: torch.device) -> AbstractContextManager[Any]:
    """Returns a context manager for the call `model.to(native)`. In its block, large tensors are copied through the
    ring. Without a CUDA device, the context manager does nothing, because its function mode costs time: PyTorch calls
    the mode for each attribute of each tensor."""
    variables = (*model.parameters(), *model.buffers())
    is_for_cuda = native.type == "cuda" or any(x.is_cuda for x in variables)
    return _OfModules() if is_for_cuda else nullcontext()


class _OfModules(TorchFunctionMode):
    """A function mode for the block around `Module.to`: large tensors that the module moves are
    copied through the ring."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls `func`, or copies a large tensor through the ring if `func` moves it."""
        staged = None
        # handles only `x.to(device, None, False)`, which is how `Module.to` calls it; with a
        # dtype or a memory format PyTorch must do more
        if (
            func is torch.Tensor.to
            and not kwargs
            and isinstance(args[1], torch.device)
            and not any(args[2:])
        ):
            # the two arguments are the tensor and the device
            staged = moved(*args[:2])
        return func(*args, **(kwargs or {})) if staged is None else staged


# many tensors

_SMALL: Final = 1 << 20
"""The largest size in bytes of a tensor that is sent in a group. Up to this size, a single wait for the group was
faster in measurements."""


def copied_together(
    tensors: Sequence[torch.Tensor],
    gpu: torch.device,
    move: Callable[[torch.Tensor], torch.Tensor],
) -> list[torch.Tensor]:
    """Copies tensors to a CUDA device with a single wait for all copies, and returns the copies. `x.to(gpu)` would wait
    for each tensor: sending 100 tensors of 16 bytes to an H200 took 1.39 ms with 100 waits, and 0.89 ms with one wait.

    `move` is called for tensors that are large, not dense or not on the host. When this function returns, all tensors
    have been read, so the caller may overwrite page-locked tensors."""
    *earlier, last = tensors
    try:
        copies = [x.cuda(gpu, non_blocking=True) if _is_small(x) else move(x) for x in earlier]
        if _is_small(last):
            # the last copy waits for all copies, which takes half as long as stream.synchronize()
            return [*copies, last.cuda(gpu)]
        copies.append(move(last))
    except BaseException:
        # waits because the caller may write to tensors that are still being read
        torch.cuda.current_stream(gpu).synchronize()
        raise
    torch.cuda.current_stream(gpu).synchronize()
    return copies


def _is_small(x: torch.Tensor) -> bool:
    """Whether a tensor is on the host, dense, and small enough to be sent in a group of tensors, with a single wait for
    the group."""
    return x.is_cpu and x.layout is torch.strided and x.nbytes <= _SMALL


# copies in the background


def start_copy(x: torch.Tensor, native: torch.device) -> torch.Tensor | None:
    """Starts to copy `x` to another device, and returns the copy, whose values may arrive later. Work that is queued
    later on a GPU starts after the copy. A copy on the host waits for its values before it can be read. Returns None if
    `x` cannot be copied in the background; then the caller must copy `x` and wait."""
    if not (_can_arrive and _is_plain(x)):
        return None
    # while CUDA copies from memory that is not page-locked, the host waits
    if x.is_cpu and native.type == "cuda":
        return x.to(native, non_blocking=True) if x.is_pinned() else None
    # an `Arriving` records nothing for gradients, and it is impossible to wait for a graph that
    # is being recorded
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
    """Returns an `Arriving` that replaces `values`, a tensor that is still being filled. The
    `Arriving` has the same shape, strides, dtype and device, and calls `wait` before it is
    read. `wait` must not return before `values` is complete."""
    wrapper: torch.Tensor = _make_wrapper(
        _arriving_type(),
        values.shape,
        strides=values.stride(),
        dtype=values.dtype,
        device=values.device,
    )
    vars(wrapper)[_COMING] = values, wait
    return wrapper


def wait_for_values(x: torch.Tensor) -> torch.Tensor:
    """Returns `x` as an ordinary tensor. If `x` is an `Arriving`, waits until its values have
    arrived, and makes `x` itself an ordinary tensor if PyTorch allows this."""
    # holds the lock, so that another thread finds either an `Arriving` or the finished tensor
    with _arrival:
        if type(x) is not Arriving:
            return x
        values: torch.Tensor
        values, wait = vars(x)[_COMING]
        wait()
        try:
            # `x` becomes the tensor with the values, wherever the program refers to `x`
            torch.utils.swap_tensors(x, values)
        except RuntimeError:  # raised if there is a weak reference to `x`
            return values
        return x


_COMING: Final = "xdevice_coming"
"""The name of an attribute of an `Arriving`. The attribute contains the tensor that is being filled, and the function
that waits for the values of this tensor."""
_arrival: Final = threading.RLock()


class Arriving(torch.Tensor):
    """A tensor on the host whose values are still being copied. `arriving` creates it. Each
    operation on the tensor first waits for the values. Only the attributes in `_ABOUT`, such as
    the shape, can be read at once.

    The tensor has no memory of its own, so C++ code that bypasses this class fails instead of
    reading too early.
    """

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Waits for the values before `func` reads them, unless `func` reads an attribute in `_ABOUT`."""
        if func in _ABOUT:
            # otherwise `func` would call this method again and again
            with _OwnFunctions():
                return func(*args, **(kwargs or {}))
        args, kwargs = replaced(Arriving, wait_for_values, (args, kwargs or {}))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Waits for the values in functions that bypass `__torch_function__`, such as
        `torch.tensor` and `torch.as_tensor`."""
        args, kwargs = replaced(Arriving, wait_for_values, (args, kwargs or {}))
        return func(*args, **kwargs)


@cache
def _arriving_type() -> type[Arriving]:
    """Returns the class `Arriving`, marked so that torch.compile does not compile its
    `__torch_function__`. The class is marked only at its first use, because marking imports
    torch._dynamo, which takes as long as importing PyTorch."""
    untouched = torch.compiler.disable(Arriving.__torch_function__.__func__)  # type: ignore[attr-defined]
    Arriving.__torch_function__ = classmethod(untouched)  # type: ignore[assignment]
    return Arriving


_ABOUT: Final = frozenset(
    getattr(torch.Tensor, name).__get__
    for name in ("device", "dtype", "shape", "layout", "requires_grad", "is_meta")
)
"""The getters of the tensor attributes that can be read without waiting for the values."""
