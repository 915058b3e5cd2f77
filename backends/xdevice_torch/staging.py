"""Copies to a GPU that leave the thread free, by way of pinned memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import numpy as np


def tensor(x: torch.Tensor, native: torch.device) -> torch.Tensor:
    if native.type != "cuda" or x.layout is not torch.strided or x.requires_grad:
        return x.to(native, copy=True)
    if x.device.type != "cpu":
        if x.is_cuda:  # else its memory could be given away as soon as its owner drops it
            x.record_stream(torch.cuda.current_stream(x.device))
        return x.to(native, copy=True)
    if not x.is_pinned():
        # the allocator of pinned memory keeps this until the copy is done
        return x.pin_memory().to(native, non_blocking=True)
    moved = x.to(native, non_blocking=True)
    done = torch.cuda.Event(blocking=True)
    done.record(torch.cuda.current_stream(native))
    done.synchronize()  # the memory is the owner's, who may write into it next
    return moved


def array(values: np.ndarray[Any, Any], native: torch.device) -> torch.Tensor:
    """A NumPy array straight into pinned memory, and from there to a GPU."""
    import numpy

    dtype = getattr(torch, values.dtype.name)
    plain = values if values.dtype.isbuiltin == 1 else values.view(f"int{8 * values.dtype.itemsize}")
    # with its device: else inside `with gpu:` it would be there, and nothing there can be pinned
    pinned = torch.empty(plain.shape, dtype=getattr(torch, plain.dtype.name), device="cpu", pin_memory=True)
    numpy.copyto(pinned.numpy(), plain)
    moved = pinned.to(native, non_blocking=True)
    return moved.view(dtype)
