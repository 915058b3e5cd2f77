"""Joins tensors, and sums tensors of several devices: by NCCL if each is on a GPU of its own, else on the device of the
first tensor.

`torch.cuda.nccl` works within one process, on the current streams, and keeps its communicators. It bypasses autograd:
no gradient is recorded, and this module itself has to increment the version counter of each tensor that NCCL writes.
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
_NCCL = (
    *_SHORT,
    torch.float32,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.int8,
    torch.uint8,
)


# PyTorch does not add these unsigned integers; sums of signed ones have the same bits
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _seen_as(dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    # a conjugate refuses view() even to its own dtype
    return x if x.dtype is dtype else x.view(dtype)


def is_for_nccl(tensors: list[torch.Tensor]) -> bool:
    """Whether NCCL can sum these tensors in place: each is contiguous, not empty, of a dtype of NCCL's, and on a GPU of
    its own."""
    return (
        tensors[0].dtype in _NCCL
        and tensors[0].numel() > 0
        and all(x.is_cuda and x.is_contiguous() and not x.is_neg() for x in tensors)
        and len({x.device for x in tensors}) == len(tensors)
        and torch.cuda.nccl.is_available(tensors)
    )


@torch.no_grad()
def by_nccl(tensors: list[torch.Tensor], mean: bool) -> None:
    """Writes the sum or mean of the tensors into each of them."""
    torch.cuda.nccl.all_reduce([x.detach() for x in tensors])
    for x in tensors:
        if not x.is_inference():
            torch.autograd.graph.increment_version(x)
        if mean:
            x /= len(tensors)


class TorchReplicas(Replicas):
    def join(self, parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(parts) if parts[0].dim() else torch.stack(parts)

    def leaf(self, x: torch.Tensor, device: Device) -> torch.Tensor:
        require_shape(x)
        new: torch.Tensor = self.copy(x.detach(), device)
        if isinstance(x, torch.nn.Parameter):
            return torch.nn.Parameter(new, x.requires_grad)
        return new.requires_grad_(new.is_floating_point() or new.is_complex())

    def can_write(self, x: torch.Tensor) -> bool:
        steps = x.stride()
        overlaps = 0 in steps and any(
            step == 0 and size > 1 for size, step in zip(x.shape, steps, strict=True)
        )
        return (not overlaps or not x.numel()) and (
            not x.is_inference() or torch.is_inference_mode_enabled()
        )

    def memory_of(self, x: torch.Tensor) -> tuple[int, tuple[int, ...]]:
        return x.data_ptr(), tuple(step * x.itemsize for step in x.stride())

    def write(self, x: torch.Tensor, value: torch.Tensor) -> None:
        with torch.no_grad():
            x.copy_(value)

    @torch.no_grad()
    def total(self, tensors: Iterable[torch.Tensor], mean: bool) -> torch.Tensor:
        """The sum or mean of tensors on one device, added in their order. Unsigned integers, which PyTorch does not
        add, are added as signed ones."""
        rest = iter(tensors)
        first = next(rest)
        dtype = _SIGNED.get(first.dtype, first.dtype)
        start = _seen_as(dtype, first).to(
            torch.float32 if dtype in _SHORT else dtype, copy=True
        )
        total: torch.Tensor = add_up(start, (_seen_as(dtype, x) for x in rest), mean)
        return _seen_as(first.dtype, total.to(dtype))

    def all_reduce(self, tensors: list[torch.Tensor], mean: bool) -> list[torch.Tensor]:
        if not is_for_nccl(tensors):
            return super().all_reduce(tensors, mean)
        by_nccl(tensors, mean)
        return tensors
