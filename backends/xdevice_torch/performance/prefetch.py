"""Copies tensors and arrays to a device for `xdevice.prefetch` and `xdevice.load`. Each function of this module reads
its source completely before it returns, so the caller may then overwrite the source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from xdevice.base.dtypes import BITS_AS
from xdevice.performance.contract.prefetch import Prefetch
from xdevice_torch import staging

if TYPE_CHECKING:
    import numpy as np

    from xdevice.base.devices import Device


def _copied(x: torch.Tensor, native: torch.device) -> torch.Tensor:
    """Returns a copy of a tensor on a device. A copy to a GPU may still be in progress when this function returns, but
    by then a source on the host has been read completely."""
    # only dense tensors without gradients are copied in the background, and only to CUDA
    if native.type != "cuda" or x.layout is not torch.strided or x.requires_grad:
        return x.to(native, copy=True)
    if x.device.type != "cpu":
        # if the owner deletes the tensor, PyTorch must not reuse its memory before this stream
        # has copied it
        if x.is_cuda:
            x.record_stream(torch.cuda.current_stream(x.device))
        return x.to(native, copy=True)
    staged = staging.moved(x, native)
    if staged is not None:
        return staged
    if not x.is_pinned():
        # PyTorch's allocator of pinned memory does not reuse the memory of this temporary copy
        # before the GPU has read it
        return x.pin_memory().to(native, non_blocking=True)
    on_gpu = x.to(native, non_blocking=True)
    # the pinned memory belongs to the owner, who may overwrite it next, so it must be read
    # before this function returns; with `blocking`, the thread sleeps in the meantime
    event = torch.cuda.Event(blocking=True)
    event.record(torch.cuda.current_stream(native))
    event.synchronize()
    return on_gpu


def _pinned_array(values: np.ndarray[Any, Any], native: torch.device) -> torch.Tensor:
    """Copies a NumPy array into new pinned memory, and starts to copy that memory to a GPU.
    Returns the tensor on the GPU, whose values may arrive later."""
    import numpy

    dtype = getattr(torch, values.dtype.name)
    # PyTorch cannot convert tensors of bfloat16 or 8-bit floats to NumPy, so their bits are
    # copied as integers
    plain = values.view(BITS_AS[values.dtype.name]) if values.dtype.name in BITS_AS else values
    # the device is specified, because inside `with gpu:` it would be the GPU, whose memory
    # cannot be pinned
    pinned = torch.empty(
        plain.shape, dtype=getattr(torch, plain.dtype.name), device="cpu", pin_memory=True
    )
    numpy.copyto(pinned.numpy(), plain)
    return pinned.to(native, non_blocking=True).view(dtype)


class TorchPrefetch(Prefetch):
    """The hook that copies batches to a device while the device computes."""

    if TYPE_CHECKING:  # a method of `TorchBackend`, into which this class is mixed

        def _require_new_memory(self, x: torch.Tensor, new: torch.Tensor) -> torch.Tensor: ...

    def stage(self, x: Any, device: Device) -> torch.Tensor:
        """Starts to copy a tensor or a NumPy array to a device, and returns the new tensor. `x` has been read
        completely when this method returns."""
        native = self.to_native(device)
        if isinstance(x, torch.Tensor):
            return self._require_new_memory(x, _copied(x, native))
        if native.type != "cuda":
            tensor: torch.Tensor = self.from_numpy(x, device)
            return tensor
        # large arrays are copied through the ring, and others through PyTorch's pinned memory
        staged = staging.put(x, native)
        return _pinned_array(x, native) if staged is None else staged
