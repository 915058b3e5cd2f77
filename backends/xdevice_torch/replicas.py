"""Joins tensors, and sums tensors of several devices: with NCCL if all tensors are on different
GPUs, otherwise on the device of the first tensor.

`torch.cuda.nccl` works within one process, on the current streams, and reuses its
communicators. It bypasses autograd: nothing is recorded for gradients, and this module itself
must increment the version counter of each tensor to which NCCL writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from xdevice.contract.replicas import Replicas, add_up

from .conversion import require_shape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xdevice.base.devices import Device

_SHORT = (torch.float16, torch.bfloat16)
"""The dtypes that `total` adds as float32."""
_NCCL = (
    *_SHORT,
    torch.float32,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.int8,
    torch.uint8,
)
"""The dtypes whose tensors are summed with NCCL."""


# PyTorch cannot add these unsigned integers; the sums of signed integers have the same bits
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _viewed_as(dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    """Returns `x` itself if it has the dtype `dtype`. Otherwise returns `x` with its bits interpreted as `dtype`, which
    has the same size."""
    # view() of a lazy conjugate raises an error even for its own dtype
    return x if x.dtype is dtype else x.view(dtype)


def is_for_nccl(tensors: list[torch.Tensor]) -> bool:
    """Whether NCCL can sum these tensors, which have the same shape and dtype, in place. The tensors must be on
    different GPUs, contiguous and not empty, and have one of the dtypes in `_NCCL`. No tensor may be lazily negated,
    because the numbers in its memory have the opposite sign."""
    return (
        # the first tensor represents all tensors, because they differ only in device and
        # values. These dtypes are real, so no tensor is a lazy conjugate
        tensors[0].dtype in _NCCL
        and tensors[0].numel() > 0
        and all(x.is_cuda and x.is_contiguous() and not x.is_neg() for x in tensors)
        and len({x.device for x in tensors}) == len(tensors)
        and torch.cuda.nccl.is_available(tensors)
    )


@torch.no_grad()
def by_nccl(tensors: list[torch.Tensor], mean: bool) -> None:
    """Writes the sum of the tensors, or their mean if `mean` is True, to each tensor. `is_for_nccl(tensors)` must be
    True."""
    torch.cuda.nccl.all_reduce([x.detach() for x in tensors])
    for x in tensors:
        # so that a backward pass that needs the old values raises an error; an inference tensor
        # has no version counter
        if not x.is_inference():
            torch.autograd.graph.increment_version(x)
        if mean:
            x /= len(tensors)


class TorchReplicas(Replicas):
    """The hooks for tensors on several devices of this process."""

    def join(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """Returns the parts, joined along their first axis. 0-d parts are joined into a vector."""
        # `cat` does not accept 0-d tensors
        return torch.cat(parts) if parts[0].dim() else torch.stack(parts)

    def leaf(self, x: torch.Tensor, device: Device) -> torch.Tensor:
        """Returns a copy of `x` on a device, detached from earlier operations. If `x` is a parameter, the copy is a
        parameter too, and is frozen if `x` is frozen. Any other copy requires a gradient if its dtype is a float or
        complex dtype. Raises `NotBuiltError` if `x` is a parameter without a shape."""
        require_shape(x)
        new: torch.Tensor = self.copy(x.detach(), device)
        # a frozen parameter stays frozen
        if isinstance(x, torch.nn.Parameter):
            return torch.nn.Parameter(new, x.requires_grad)
        # in PyTorch only floats and complex numbers have gradients
        return new.requires_grad_(new.is_floating_point() or new.is_complex())

    def can_write(self, x: torch.Tensor) -> bool:
        """Whether PyTorch can write to `x`. Returns False for an expanded tensor, whose
        elements share memory, and for an inference tensor outside inference mode."""
        steps = x.stride()
        # a stride of 0 along an axis longer than 1 means that elements share memory
        overlaps = 0 in steps and any(
            step == 0 and size > 1 for size, step in zip(x.shape, steps, strict=True)
        )
        return (not overlaps or not x.numel()) and (
            not x.is_inference() or torch.is_inference_mode_enabled()
        )

    def memory_of(self, x: torch.Tensor) -> tuple[int, tuple[int, ...]]:
        """Returns the address of a tensor's first element, and its strides in bytes."""
        return x.data_ptr(), tuple(step * x.itemsize for step in x.stride())

    def write(self, x: torch.Tensor, value: torch.Tensor) -> None:
        """Writes the values of `value` to `x`, without recording the write for gradients."""
        with torch.no_grad():
            x.copy_(value)

    @torch.no_grad()
    def total(self, tensors: Iterable[torch.Tensor], mean: bool) -> torch.Tensor:
        """Returns the sum of tensors on one device, or their mean if `mean` is True, in the dtype of the first tensor.
        The tensors are added in the given order. 16-bit floats are added as float32. Wide unsigned integers, which
        PyTorch cannot add, are added as signed integers."""
        remaining = iter(tensors)
        first = next(remaining)
        dtype = _SIGNED.get(first.dtype, first.dtype)
        # a copy, because `add_up` adds the other tensors to it in place; it is float32 for
        # 16-bit floats, because these would be rounded after each addition
        start = _viewed_as(dtype, first).to(
            torch.float32 if dtype in _SHORT else dtype, copy=True
        )
        total: torch.Tensor = add_up(start, (_viewed_as(dtype, x) for x in remaining), mean)
        return _viewed_as(first.dtype, total.to(dtype))

    def all_reduce(self, tensors: list[torch.Tensor], mean: bool) -> list[torch.Tensor]:
        """Sums tensors on several devices, or computes their mean if `mean` is True. Returns a list with one result for
        each tensor, on the device of the tensor. Also writes the result to each tensor that PyTorch can write to."""
        if not is_for_nccl(tensors):
            return super().all_reduce(tensors, mean)
        by_nccl(tensors, mean)
        return tensors
