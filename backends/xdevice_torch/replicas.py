"""Joins tensors, and sums tensors of several devices: with NCCL if no two are on the same GPU,
otherwise on the device of the first tensor.

`torch.cuda.nccl` works within one process, on the current streams, and keeps its communicators.
It bypasses autograd: no gradient is recorded, and this module itself has to increment the
version counter of each tensor that NCCL writes.
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


# PyTorch does not add these unsigned integers; sums of signed ones have the same bits
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _viewed_as(dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    """Returns `x` with its bits read as `dtype`, which has the same size; `x` itself if that is
    its dtype."""
    # a lazy conjugate refuses view() even to its own dtype
    return x if x.dtype is dtype else x.view(dtype)


def is_for_nccl(tensors: list[torch.Tensor]) -> bool:
    """Whether NCCL can sum these tensors, which have the same shape and dtype, in place. They
    must be on different GPUs, contiguous and not empty, and have one of the dtypes in `_NCCL`.
    No tensor may be a lazy negative, whose memory has the opposite signs."""
    return (
        # the first represents all, because they differ in device and values only; these dtypes
        # are real, so no tensor is a lazy conjugate
        tensors[0].dtype in _NCCL
        and tensors[0].numel() > 0
        and all(x.is_cuda and x.is_contiguous() and not x.is_neg() for x in tensors)
        and len({x.device for x in tensors}) == len(tensors)
        and torch.cuda.nccl.is_available(tensors)
    )


@torch.no_grad()
def by_nccl(tensors: list[torch.Tensor], mean: bool) -> None:
    """Writes the sum of the tensors, or their mean if `mean` is True, into each of them. NCCL
    must be able to sum them (`is_for_nccl`)."""
    torch.cuda.nccl.all_reduce([x.detach() for x in tensors])
    for x in tensors:
        # so that a backward pass which needs the old values raises; an inference tensor has no
        # counter
        if not x.is_inference():
            torch.autograd.graph.increment_version(x)
        if mean:
            x /= len(tensors)


class TorchReplicas(Replicas):
    """Tensors on several devices of this process."""

    def join(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """Returns the parts joined along their first axis; parts without axes are joined into a
        vector."""
        # `cat` takes no 0-d tensors
        return torch.cat(parts) if parts[0].dim() else torch.stack(parts)

    def leaf(self, x: torch.Tensor, device: Device) -> torch.Tensor:
        """Returns a copy of `x` on a device, detached from earlier operations. A copy of floats
        or complex numbers requires its gradient. The copy of a parameter is a parameter, frozen
        if `x` is. Raises `NotBuiltError` for a parameter without a shape."""
        require_shape(x)
        new: torch.Tensor = self.copy(x.detach(), device)
        # a frozen parameter stays frozen
        if isinstance(x, torch.nn.Parameter):
            return torch.nn.Parameter(new, x.requires_grad)
        # PyTorch has gradients of floats and complex numbers only
        return new.requires_grad_(new.is_floating_point() or new.is_complex())

    def can_write(self, x: torch.Tensor) -> bool:
        """Whether PyTorch can write into `x`. False for an expanded tensor, whose elements
        share memory, and for an inference tensor outside inference mode."""
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
        """Writes the values of `value` into `x`, without a record for gradients."""
        with torch.no_grad():
            x.copy_(value)

    @torch.no_grad()
    def total(self, tensors: Iterable[torch.Tensor], mean: bool) -> torch.Tensor:
        """Returns the sum of tensors on one device, added in the order given, or their mean if `mean` is True, in the
        dtype of the first tensor. 16-bit floats are added as float32, and wide unsigned integers, which PyTorch does
        not add, as signed integers."""
        rest = iter(tensors)
        first = next(rest)
        dtype = _SIGNED.get(first.dtype, first.dtype)
        # a copy, because `add_up` adds the others in place; 16-bit floats would be rounded
        # after each addition
        start = _viewed_as(dtype, first).to(
            torch.float32 if dtype in _SHORT else dtype, copy=True
        )
        total: torch.Tensor = add_up(start, (_viewed_as(dtype, x) for x in rest), mean)
        return _viewed_as(first.dtype, total.to(dtype))

    def all_reduce(self, tensors: list[torch.Tensor], mean: bool) -> list[torch.Tensor]:
        """Returns the sum of tensors on several devices, or their mean if `mean` is True, once
        on the device of each tensor. The result is written into each tensor that can be written
        into."""
        if not is_for_nccl(tensors):
            return super().all_reduce(tensors, mean)
        by_nccl(tensors, mean)
        return tensors
