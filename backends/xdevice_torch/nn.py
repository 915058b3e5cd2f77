"""PyTorch's kernels for `xdevice.nn`: `xdevice.contract.nn` says what they are promised."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from . import namespace, sharing

if TYPE_CHECKING:
    Tensor = torch.Tensor
    Pair = tuple[int, int]

relu = torch.relu
sigmoid = torch.sigmoid
softmax = torch.softmax
log_softmax = torch.log_softmax


def ends(indices: Tensor) -> list[int]:
    sharing.require_values(indices)
    return torch.stack(torch.aminmax(indices)).tolist()  # quicker than reading all by NumPy


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits, labels.long())


def one_hot(indices: Tensor, n: int, name: str) -> Tensor:
    made = torch.zeros((*indices.shape, n), dtype=namespace.dtype(name), device=indices.device)
    return made.scatter_(-1, indices.long().unsqueeze(-1), 1)


def conv2d(x: Tensor, kernel: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    return torch.conv2d(x, kernel, bias, stride, padding)


def max_pool2d(x: Tensor, size: Pair, stride: Pair, padding: Pair) -> Tensor:
    return torch.max_pool2d(x, size, stride, padding)


def avg_pool2d(x: Tensor, size: Pair, stride: Pair, padding: Pair) -> Tensor:
    return functional.avg_pool2d(x, size, stride, padding)


def dropout(x: Tensor, mask: Tensor, keep: float) -> Tensor:
    return x * mask / keep
