"""Sums over devices: by NCCL where each tensor is on a GPU of its own, else where the first one is.

`torch.cuda.nccl` works within one process, on the streams that are current, and keeps its communicators. It bypasses
autograd, so no gradient is recorded, and the version of each tensor is counted up here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from xdevice.contract.sums import add_up

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHORT = (torch.float16, torch.bfloat16)
_NCCL = (*_SHORT, torch.float32, torch.float64, torch.int32, torch.int64, torch.int8, torch.uint8)


# unsigned integers cannot be added, and their bits are the same as of signed ones
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


@torch.no_grad()
def total(tensors: Iterable[torch.Tensor], mean: bool) -> torch.Tensor:
    """The sum or mean of tensors of one device, in their order."""
    rest = iter(tensors)
    first = next(rest)
    dtype = _SIGNED.get(first.dtype, first.dtype)
    start = _seen_as(dtype, first).to(torch.float32 if dtype in _SHORT else dtype, copy=True)
    found: torch.Tensor = add_up(start, (_seen_as(dtype, x) for x in rest), mean)
    return _seen_as(first.dtype, found.to(dtype))


def _seen_as(dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype is dtype else x.view(dtype)  # which a conjugate view refuses even for its own dtype


def is_for_nccl(tensors: list[torch.Tensor]) -> bool:
    """Whether NCCL takes these tensors as they are."""
    return (
        hasattr(torch._C, "_nccl_all_reduce")
        and tensors[0].dtype in _NCCL
        and tensors[0].numel() > 0
        and all(x.is_cuda and x.is_contiguous() and not x.is_neg() for x in tensors)
        and len({x.device for x in tensors}) == len(tensors)
    )


@torch.no_grad()
def by_nccl(tensors: list[torch.Tensor], mean: bool) -> None:
    """Writes the sum or mean into each of them."""
    torch.cuda.nccl.all_reduce([x.detach() for x in tensors])
    for x in tensors:
        if not x.is_inference():
            torch.autograd.graph.increment_version(x)
        if mean:
            x /= len(tensors)
