"""Copies tensors and arrays to a device for `xdevice.prefetch` and `xdevice.load`. When a
function here returns, it has read its source, so the owner of the source may overwrite it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from xdevice.base.dtypes import BITS_AS
from xdevice.performance.contract.prefetch import Prefetch
from xdevice_torch import staging

if TYPE_CHECKING:
    import numpy as np

    from xdevice.base.devices import Device


def _tensor(x: torch.Tensor, native: torch.device) -> torch.Tensor:
    """Returns a copy of `x` on a device, made on the current stream. If `x` is on the host, it
    has been read when this returns."""
    # pinned memory helps copies to CUDA only; it cannot hold a sparse tensor, and gradients
    # would not flow through it
    if native.type != "cuda" or x.layout is not torch.strided or x.requires_grad:
        return x.to(native, copy=True)
    if x.device.type != "cpu":
        # its owner may drop it, but its memory must not be reused before the copy is done
        if x.is_cuda:
            x.record_stream(torch.cuda.current_stream(x.device))
        return x.to(native, copy=True)
    # None if xdevice's ring of pinned memory does not take the tensor, such as a small one
    staged = staging.moved(x, native)
    if staged is not None:
        return staged
    if not x.is_pinned():
        # PyTorch's allocator keeps the pinned memory until the copy is done
        return x.pin_memory().to(native, non_blocking=True)
    on_gpu = x.to(native, non_blocking=True)
    done = torch.cuda.Event(blocking=True)
    done.record(torch.cuda.current_stream(native))
    # waits for the copy, because the owner of `x` may write into it next
    done.synchronize()
    return on_gpu


def _pinned_array(values: np.ndarray[Any, Any], native: torch.device) -> torch.Tensor:
    """Copies a NumPy array into new pinned memory, starts to copy that to a GPU, and returns
    the tensor on the GPU."""
    import numpy

    dtype = getattr(torch, values.dtype.name)
    # PyTorch has no NumPy array of bfloat16 or float8 to copy into, so their bits are copied as
    # integers
    plain = values.view(BITS_AS[values.dtype.name]) if values.dtype.name in BITS_AS else values
    # with `device="cpu"`, because inside `with gpu:` the default is the GPU, where nothing can
    # be pinned
    pinned = torch.empty(
        plain.shape, dtype=getattr(torch, plain.dtype.name), device="cpu", pin_memory=True
    )
    numpy.copyto(pinned.numpy(), plain)
    return pinned.to(native, non_blocking=True).view(dtype)


class TorchPrefetch(Prefetch):
    if TYPE_CHECKING:

        def _owned(self, x: torch.Tensor, new: torch.Tensor) -> torch.Tensor: ...

    def stage(self, x: Any, device: Device) -> torch.Tensor:
        """Begins to copy a tensor or a NumPy array to a device, and returns the new tensor. A
        copy from the host to CUDA goes through the ring of pinned memory, or through PyTorch's
        own pinned memory."""
        native = self.to_native(device)
        if isinstance(x, torch.Tensor):
            return self._owned(x, _tensor(x, native))
        if native.type != "cuda":
            tensor: torch.Tensor = self.from_numpy(x, device)
            return tensor
        staged = staging.array(x, native)
        return _pinned_array(x, native) if staged is None else staged
