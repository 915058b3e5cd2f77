"""What torch keeps per thread, and copies to a GPU that leave the thread free."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    import numpy as np


def thread_state(accelerator: str) -> Callable[[], AbstractContextManager[Any]]:
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    casts = [
        (kind, torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled())
        for kind in ("cpu", accelerator)
        if torch.is_autocast_enabled(kind)
    ]
    place = torch.get_default_device()
    module = getattr(torch, accelerator)
    # CUDA's current device is the thread's; asking for it starts CUDA. Apple's MPS has one device
    index = module.current_device() if accelerator != "mps" and module.is_initialized() else None

    @contextmanager
    def state() -> Iterator[None]:
        with ExitStack() as stack:
            if index is not None:
                stack.enter_context(module.device(index))
            if inference:
                stack.enter_context(torch.inference_mode())
            stack.enter_context(torch.set_grad_enabled(grad))
            for kind, dtype, cache in casts:
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=cache))
            if place.type != "cpu":  # where torch places anyway; a scope costs some us at every call
                stack.enter_context(place)
            yield

    return state


def stage_tensor(x: torch.Tensor, native: torch.device) -> torch.Tensor:
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


def stage_array(array: np.ndarray[Any, Any], native: torch.device) -> torch.Tensor:
    """A NumPy array straight into pinned memory, and from there to a GPU."""
    import numpy

    dtype = getattr(torch, array.dtype.name)
    values = array if array.dtype.isbuiltin == 1 else array.view(f"int{8 * array.dtype.itemsize}")
    # with its device: else inside `with gpu:` it would be there, and nothing there can be pinned
    pinned = torch.empty(values.shape, dtype=getattr(torch, values.dtype.name), device="cpu", pin_memory=True)
    numpy.copyto(pinned.numpy(), values)
    moved = pinned.to(native, non_blocking=True)
    return moved.view(dtype)
