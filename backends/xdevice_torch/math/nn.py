"""PyTorch's kernels for `xdevice.nn`. `xdevice.math.contract.nn` describes their arguments and results."""

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

_IGNORED_WHEN_COMPILED = -100
"""The label that the loss ignores in compiled graphs. It is PyTorch's default, because compiled graphs are cached for
all processes, and a random label would differ between processes."""
_IGNORED_LABEL = -(2**62) - randbits(61)
"""The label that the loss ignores outside compiled graphs. It is a random number, so that no tensor of labels contains
it by accident."""

_ASSERTIONS_SUFFICE = torch.version.cuda is not None and not is_blocking_wanted()
"""Whether xdevice relies on the assertions in a GPU's kernels to refuse indices out of range. Their error is raised
only when the program next waits for the GPU. True in builds for CUDA, unless the whole process is in blocking mode."""
_fused_adam = private.get("torch._fused_adam_")
_is_compiling = torch.compiler.is_compiling
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
# returns the active transformation of `torch.func`, or None. If PyTorch lacks this private
# function, returns True, so that every call is treated as transformed, and the fast paths below
# are not used
_transformation = private.get("torch._C._functorch.peek_interpreter_stack", lambda: True)


# the kernels that also accept `Symbol`s; `xdevice.math.contract.nn` explains this
TRACED = ("adam",)
relu = torch.relu
sigmoid = torch.sigmoid
softmax = torch.softmax
log_softmax = torch.log_softmax


def ends(indices: Tensor) -> list[int]:
    """Returns a list of two ints, the smallest and the largest index, with a single copy to the host."""
    conversion.require_values(indices)
    # faster than reading all indices with NumPy
    return torch.stack(torch.aminmax(indices)).tolist()


def guards(indices: Tensor, kind: str) -> bool:
    """Whether the kernels for a device of this kind refuse indices out of range. If so, the core need not read
    `indices` first. Returns True on the CPU and on the types of devices in `_device_types_that_raise()`, except while
    something traces or transforms the call."""
    if type(indices) is not torch.Tensor:  # for example, a symbol of torch.export
        return False
    if kind != "cpu" and indices.device.type not in _device_types_that_raise():
        return False
    return not _is_dynamo_compiling() and _transformation() is None


def _device_types_that_raise() -> tuple[str, ...]:
    """Returns the types of devices, other than the CPU, whose kernels raise an error for indices out of range. A
    virtual GPU raises the error at once. In a CUDA kernel, an assertion fails, but the host notices this only when it
    next waits for the GPU, which is too late in blocking mode. Builds for ROCm have no assertions unless
    ROCM_KERNEL_ASSERT is set."""
    return ("vgpu", "cuda") if _ASSERTIONS_SUFFICE and not is_blocking() else ("vgpu",)


def _is_unchecked_on_gpu(indices: Tensor) -> bool:
    """Whether these indices are on a CUDA GPU in a compiled function. Such indices have not been checked, and an index
    out of range would make the GPU unusable for the rest of the process."""
    return type(indices) is Symbol and indices.is_cuda


def _nan_where_wrong(function: Callable[[Tensor], Tensor], indices: Tensor, n: int) -> Tensor:
    """Returns `function(indices)`, with NaN for each index that is not in `range(n)`.
    `function` is called with 0 instead of such an index, and must return one value or one row
    for each index."""
    wrong = (indices < 0) | (indices >= n)
    result = function(indices.masked_fill(wrong, 0))
    # adds the axes of a row to the mask, because the result has these axes too
    return result.masked_fill(
        wrong.reshape(*wrong.shape, *[1] * (result.ndim - wrong.ndim)), nan
    )


def _losses(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    """Returns PyTorch's cross-entropy without ignoring any label. `reduction` is "mean" or "none"."""
    # by default PyTorch would silently ignore the label -100, which is out of range and must raise
    # an error. In compiled functions, the core has refused this label before, or the caller replaces
    # it (`_nan_where_wrong`)
    ignored_label = _IGNORED_WHEN_COMPILED if _is_compiling() else _IGNORED_LABEL
    return functional.cross_entropy(
        logits, labels.long(), ignore_index=ignored_label, reduction=reduction
    )


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns the mean of the losses that `cross_entropies` returns."""
    return (
        cross_entropies(logits, labels).mean()
        if _is_unchecked_on_gpu(labels)
        else _losses(logits, labels, reduction="mean")
    )


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns the cross-entropy of each row of `logits` with its label in `labels`. A label is the index of a class."""
    if _is_unchecked_on_gpu(labels):
        return _nan_where_wrong(
            lambda safe: _losses(logits, safe, reduction="none"), labels, n=logits.shape[1]
        )
    return _losses(logits, labels, reduction="none")


def binary_cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns the cross-entropy of each logit with its label in `labels`. A label is a probability."""
    return functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")


def embedding(indices: Tensor, table: Tensor) -> Tensor:
    """Returns the row of `table` at each index in `indices`."""
    if _is_unchecked_on_gpu(indices):
        return _nan_where_wrong(
            lambda safe: functional.embedding(safe, table), indices, n=table.shape[0]
        )
    return functional.embedding(indices, table)


def one_hot(indices: Tensor, n: int, name: str) -> Tensor:
    """Returns a vector of length `n` for each index, in the dtype `name`: 1 at the index, and 0 elsewhere."""
    if _is_unchecked_on_gpu(indices):
        # a comparison works with any index, while `scatter_` could make the GPU unusable (see `_is_unchecked_on_gpu`)
        return (indices.unsqueeze(-1) == torch.arange(n, device=indices.device)).to(
            arithmetic.dtype(name)
        )
    result = torch.zeros(
        (*indices.shape, n), dtype=arithmetic.dtype(name), device=indices.device
    )
    return result.scatter_(-1, indices.long().unsqueeze(-1), 1)


def gelu(x: Tensor, approximate: bool) -> Tensor:
    """Returns the GELU of `x`, computed with tanh if `approximate` is True, and otherwise with
    the error function."""
    return functional.gelu(x, approximate="tanh" if approximate else "none")


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Returns `x`, normalized along its last axis, then scaled by `weight` and shifted by `bias`. `weight` and `bias`
    may be None."""
    return torch.layer_norm(x, x.shape[-1:], weight, bias, eps)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Returns, for each query in `q`, the mean of the values `v`, weighted by how well the query matches the keys `k`.
    `mask` is None, or a bool tensor that is True for each pair of a query and a key that may be combined. If `causal`
    is True, a query is not combined with later keys."""
    # PyTorch accepts either a mask or `is_causal`, so the two are combined to one mask: `tril`
    # excludes the keys after each query
    if causal and mask is not None:
        pairs = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
        mask, causal = mask & pairs.tril(), False
    return functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)


conv2d = torch.conv2d
max_pool2d = torch.max_pool2d
avg_pool2d = functional.avg_pool2d


def dropout(x: Tensor, mask: Tensor, keep: float) -> Tensor:
    """Returns `x / keep` where the mask is True, and 0 elsewhere. `keep` is the probability
    that an element of the mask is True."""
    return x * mask / keep


def adam(
    rows: Sequence[Any], step: Tensor, rate: Any, betas: tuple[float, float], eps: float
) -> Any:
    """Returns, for each row (parameter, gradient, two running means), the new parameter and
    means after a step of Adam, computed by PyTorch's fused kernel. `step` is the number of steps
    before this one, and `rate` is the learning rate. Returns NotImplemented if this kernel cannot
    be used, so that the core computes the step by its own formula."""
    params, grads, *means = zip(*rows, strict=True)
    # the fused kernel does not preserve the type of a subclass, and it was tested only on the
    # CPU and on CUDA. All tensors of the rows are of the type of the first (`Rows.kernel`)
    if type(params[0]) not in (torch.Tensor, torch.nn.Parameter, Symbol) or not (
        step.is_cpu or step.is_cuda
    ):
        return NotImplemented
    # inside a transformation of `torch.func`, PyTorch would raise an error, because the kernel
    # has no batching rule
    if _fused_adam is None or _transformation() is not None:
        return NotImplemented
    # cloned, because the kernel writes to these tensors, and contiguous, because it ignores strides
    with torch.no_grad():
        p, m, v = (
            [x.clone(memory_format=torch.contiguous_format) for x in column]
            for column in (params, *means)
        )
        # the kernel expects the number of steps including this one, as a float32 tensor for each
        # parameter. It only reads the gradients and these numbers, so the gradients are not cloned,
        # and all parameters share one tensor
        g, steps = [x.contiguous() for x in grads], [step.float() + 1.0] * len(p)
        settings: dict[str, Any] = {
            "beta1": betas[0],
            "beta2": betas[1],
            "eps": eps,
            "weight_decay": 0.0,
        }
        # the empty list stands for the maxima that only `amsgrad` uses
        _fused_adam(p, g, m, v, [], steps, lr=rate, **settings, amsgrad=False, maximize=False)
    return list(zip(p, m, v, strict=True))
