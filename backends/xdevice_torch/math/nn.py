"""PyTorch's kernels for `xdevice.nn`. `xdevice.math.contract.nn` says with which arguments the core calls them, and
what they have to return."""

from __future__ import annotations

from math import nan
from secrets import randbits
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from xdevice.contract.environment import is_blocking_wanted
from xdevice_torch import conversion
from xdevice_torch.blocking import is_blocking
from xdevice_torch.private import private

from . import arithmetic
from .compiling import Symbol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Tensor = torch.Tensor
    Pair = tuple[int, int]

_USUALLY_PASSED_OVER = -100
"""The label that PyTorch's loss ignores by default. It is used in compiled graphs, because these are cached for all
processes, and a random label would differ in each."""
_PASSED_OVER = -(2**62) - randbits(61)
"""The label that the loss ignores outside compiled graphs: a random one, which no tensor of labels contains by
mistake."""

_ASSERTS = torch.version.cuda is not None and not is_blocking_wanted()
"""Whether the kernels of a GPU refuse indices with assertions, and that is soon enough."""
_fused_adam = private.get("torch._fused_adam_")
_is_compiling = torch.compiler.is_compiling
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_transformation = private.get("torch._C._functorch.peek_interpreter_stack", lambda: True)


TRACED = ("adam",)
relu = torch.relu
sigmoid = torch.sigmoid
softmax = torch.softmax
log_softmax = torch.log_softmax


def ends(indices: Tensor) -> list[int]:
    conversion.require_values(indices)
    return torch.stack(torch.aminmax(indices)).tolist()  # quicker than reading all by NumPy


def guards(indices: Tensor, place: str) -> bool:
    if type(indices) is not torch.Tensor:  # as those that torch.export traces
        return False
    if place != "cpu" and indices.device.type not in _raising():
        return False
    return not _is_dynamo_compiling() and _transformation() is None


def _raising() -> tuple[str, ...]:
    """The devices whose kernels raise: a virtual GPU at once, CUDA with an assertion, which the host notices when it
    next waits. ROCm's builds leave assertions out unless they are asked for (ROCM_KERNEL_ASSERT)."""
    return ("vgpu", "cuda") if _ASSERTS and not is_blocking() else ("vgpu",)


def _is_unread(indices: Tensor) -> bool:
    """Whether these are indices on CUDA in a compiled function, where nobody has checked them: one that is out of range
    would end the process's work on the GPU."""
    return type(indices) is Symbol and indices.is_cuda


def _nan_where_wrong(function: Callable[[Tensor], Tensor], indices: Tensor, n: int) -> Tensor:
    wrong = (indices < 0) | (indices >= n)
    result = function(indices.masked_fill(wrong, 0))
    return result.masked_fill(
        wrong.reshape(*wrong.shape, *[1] * (result.ndim - wrong.ndim)), nan
    )


def _losses(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    # -100 would be passed over silently, where a label out of range has to raise
    passed_over = _USUALLY_PASSED_OVER if _is_compiling() else _PASSED_OVER
    return functional.cross_entropy(
        logits, labels.long(), ignore_index=passed_over, reduction=reduction
    )


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return (
        cross_entropies(logits, labels).mean()
        if _is_unread(labels)
        else _losses(logits, labels, "mean")
    )


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    if _is_unread(labels):
        return _nan_where_wrong(
            lambda safe: _losses(logits, safe, "none"), labels, logits.shape[1]
        )
    return _losses(logits, labels, "none")


def binary_cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")


def embedding(indices: Tensor, table: Tensor) -> Tensor:
    if _is_unread(indices):
        return _nan_where_wrong(
            lambda safe: functional.embedding(safe, table), indices, table.shape[0]
        )
    return functional.embedding(indices, table)


def one_hot(indices: Tensor, n: int, name: str) -> Tensor:
    if _is_unread(indices):
        # a comparison takes any index, where `scatter_` would end the work on the GPU
        return (indices.unsqueeze(-1) == torch.arange(n, device=indices.device)).to(
            arithmetic.dtype(name)
        )
    result = torch.zeros(
        (*indices.shape, n), dtype=arithmetic.dtype(name), device=indices.device
    )
    return result.scatter_(-1, indices.long().unsqueeze(-1), 1)


def gelu(x: Tensor, approximate: bool) -> Tensor:
    return functional.gelu(x, approximate="tanh" if approximate else "none")


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return torch.layer_norm(x, x.shape[-1:], weight, bias, eps)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    if causal and mask is not None:  # PyTorch takes only one of both
        mask, causal = (
            mask
            & torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril(),
            False,
        )
    return functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)


conv2d = torch.conv2d
max_pool2d = torch.max_pool2d
avg_pool2d = functional.avg_pool2d


def dropout(x: Tensor, mask: Tensor, keep: float) -> Tensor:
    return x * mask / keep


def adam(
    rows: Sequence[Any], step: Tensor, rate: Any, betas: tuple[float, float], eps: float
) -> Any:
    params, grads, *means = zip(*rows, strict=True)
    # subclasses do not come through the kernel as themselves, and it was tried on these devices
    if type(params[0]) not in (torch.Tensor, torch.nn.Parameter, Symbol) or not (
        step.is_cpu or step.is_cuda
    ):
        return NotImplemented
    if _fused_adam is None or _transformation() is not None:
        return NotImplemented
    with torch.no_grad():  # the kernel writes, and takes the memory as it lies
        p, m, v = (
            [x.clone(memory_format=torch.contiguous_format) for x in each]
            for each in (params, *means)
        )
        g, steps = [x.contiguous() for x in grads], [step.float() + 1.0] * len(p)
        settings: dict[str, Any] = {
            "beta1": betas[0],
            "beta2": betas[1],
            "eps": eps,
            "weight_decay": 0.0,
        }
        _fused_adam(p, g, m, v, [], steps, lr=rate, **settings, amsgrad=False, maximize=False)
    return list(zip(p, m, v, strict=True))
