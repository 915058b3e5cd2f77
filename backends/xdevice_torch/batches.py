"""Moves many tensors to a GPU with one wait for all of them.

`x.to(gpu)` waits for the copy of each tensor. Moving 100 tensors of 16 bytes to an H200 takes 1.39 ms that way, and
0.89 ms if only the last copy is waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SMALL: Final = 1 << 20
"""The size in bytes up to which tensors are sent with one wait for all, which was measured to be faster."""


def sent(
    tensors: Sequence[torch.Tensor], gpu: torch.device, move: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor]:
    """Copies tensors to a CUDA device, and returns the copies. Large tensors, and those that are not on the host, are
    moved by `move`. When this returns, all tensors have been read, so that pinned ones may be overwritten."""
    *first, last = tensors
    try:
        there = [x.cuda(gpu, non_blocking=True) if _is_small(x) else move(x) for x in first]
        if _is_small(last):
            return [*there, last.cuda(gpu)]  # this one call waits for all, in half the time of stream.synchronize()
        there.append(move(last))
    except BaseException:
        torch.cuda.current_stream(gpu).synchronize()
        raise
    torch.cuda.current_stream(gpu).synchronize()
    return there


def _is_small(x: torch.Tensor) -> bool:
    return x.is_cpu and x.layout is torch.strided and x.nbytes <= _SMALL
