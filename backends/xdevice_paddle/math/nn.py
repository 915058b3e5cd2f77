"""Paddle's kernels for `xdevice.nn`. `xdevice.math.contract.nn` describes their arguments and results.

Paddle's own kernels for the CPU have these faults (3.3.1). The functions here correct the first and the last fault. For
the other two faults, the core checks labels and indices before each call, because this module has no `guards`:
- In `log_softmax` and `cross_entropy`, the logarithm of a probability is never below -64.
- `cross_entropy` reads labels modulo 2**32, and skips labels that equal its `ignore_index`.
- `embedding` reads outside its memory for the index -1, and raises an error for all other
  invalid indices.
- A tensor of numbers cannot be multiplied by a tensor of bools.
"""

from __future__ import annotations

from math import log, sqrt
from typing import TYPE_CHECKING, Any

import paddle
from numpy import float32
from paddle.nn import functional

from xdevice.contract.patching import listening
from xdevice_paddle.private import private

if TYPE_CHECKING:
    from collections.abc import Sequence

Pair = tuple[int, int]

_losses_and_softmax = private.get("paddle._C_ops.cross_entropy_with_softmax")
_adam = private.get("paddle._C_ops.adam_")

_IGNORED_LABEL = -100
"""The label that Paddle's kernel ignores. No label has this value, because the core refuses
negative labels."""

_HAS_ADAM = _adam is not None and paddle.__version__[0] == "3"
"""Whether Paddle's kernel has the parameters that `adam` passes: before version 3 it has no
`amsgrad`."""
_LAST_ADAM_ARGUMENTS = (False, True, False)
"""The last three arguments of Paddle's kernel. Parameters have only one precision
(`multi_precision` is False), the powers of beta are not updated (`use_global_beta_pow` is
True), and `amsgrad` is False."""

relu = functional.relu
sigmoid = functional.sigmoid
softmax = functional.softmax


def log_softmax(x: Any, axis: int) -> Any:
    """Returns the logarithm of the softmax along an axis."""
    # the maximum is detached, because it cancels out: a gradient through it would only take time
    x = x - paddle.max(x.detach(), axis, keepdim=True)
    # exact, unlike Paddle's own function, whose result is never below -64, and five times as fast
    # for 1000 classes
    return x - paddle.logsumexp(x, axis, keepdim=True)


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Returns the mean cross-entropy of the rows of logits. `labels` contains the index of the
    class for each row."""
    # a traced function cannot read the losses, so it always uses the exact computation below
    if paddle.in_dynamic_mode():
        column = paddle.unsqueeze(labels, 1)
        losses = _bounded_losses(logits, column)
        # Paddle's kernel limits losses to 64 on the CPU, but not on GPUs
        if losses.place.is_gpu_place() or not _may_be_at_the_bound(losses):
            return paddle.mean(losses)
    # the loss for the most probable class of each row, which is never near the bound, plus the
    # distance from the logit of that class to the logit of the label
    top_class = paddle.argmax(logits, 1, keepdim=True)
    difference = paddle.index_sample(logits, top_class) - paddle.index_sample(
        logits, paddle.unsqueeze(labels, 1)
    )
    return functional.cross_entropy(logits, top_class) + paddle.mean(difference)


def _bounded_losses(logits: Any, column: Any) -> Any:
    """Returns the losses of the N rows of logits in the shape (N, 1). On the CPU, Paddle limits
    each loss to 64. `column` contains the labels in the shape (N, 1)."""
    if _losses_and_softmax is None:
        # limited to 64: https://github.com/PaddlePaddle/Paddle/issues/20994
        return functional.softmax_with_cross_entropy(
            logits, column, ignore_index=_IGNORED_LABEL
        )
    # the arguments after `column` are soft_label, use_softmax, numeric_stable_mode, ignore_index
    # and axis. The result is a pair of the softmax and the losses
    return _losses_and_softmax(logits, column, False, True, True, _IGNORED_LABEL, -1)[1]


embedding = functional.embedding
gelu = functional.gelu


def layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Returns `x` normalized along its last axis, and scaled and shifted by `weight` and `bias`,
    which may be None. Returns NotImplemented for a vector and for `eps` above 1e-3, which Paddle
    does not support; then the core computes the result."""
    # Paddle's own function refuses vectors, and an eps above 1e-3
    if len(x.shape) == 1 or eps > 1e-3:
        return NotImplemented
    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def one_hot(indices: Any, n: int, name: str) -> Any:
    """Returns, for each index, a vector of length `n` in the dtype named `name`, with 1 at the
    index and 0 elsewhere."""
    # Paddle's own function always returns float32
    result = functional.one_hot(indices, n)
    return result if name == "float32" else paddle.cast(result, name)


conv2d = functional.conv2d
max_pool2d = functional.max_pool2d


def avg_pool2d(x: Any, size: Pair, stride: Pair, padding: Pair) -> Any:
    """Returns the mean of each window of the images `x`, including the zeros of the padding.
    `size`, `stride` and `padding` are pairs (rows, columns)."""
    # the mean includes the zeros of the padding, as in PyTorch
    return functional.avg_pool2d(x, size, stride, padding, exclusive=False)


def dropout(x: Any, mask: Any, keep: float) -> Any:
    """Returns `x / keep` where `mask` is True, and 0 elsewhere. `keep` is the probability of
    True in `mask`."""
    # Paddle cannot multiply numbers by bools
    return x * paddle.cast(mask, x.dtype) / keep


def adam(
    rows: Sequence[Any], step: Any, rate: Any, betas: tuple[float, float], eps: float
) -> Any:
    """Computes a step of Adam with Paddle's kernel. Returns the new parameter and means for each row (parameter,
    gradient, two running means). `step` is a tensor with the number of previous steps, and `rate` is the learning rate.
    Returns NotImplemented if the kernel cannot be used; then the core computes the step by its own formula."""
    # the kernel is used only on the CPU. A beta of 0 is excluded, because the powers of beta are
    # computed from its logarithm
    if not _HAS_ADAM or not step.place.is_cpu_place() or 0 in betas:
        return NotImplemented
    with paddle.no_grad():
        steps = paddle.cast(step, "float32") + 1.0
        # 1 - beta ** steps for both betas, which corrects the bias of the two means
        mean_correction, square_correction = (
            -paddle.expm1(steps * log(beta)) for beta in betas
        )
        # `no_power` is 0 and replaces the power of the first beta, because the rate below already
        # includes the correction for the first mean
        power, no_power = paddle.exp(steps * log(betas[1])), steps * 0.0
        # the kernel multiplies the rate by `sqrt(1 - power)`, which has lost half of its digits;
        # the new rate compensates for this. The kernel also computes 1 - beta in float32, which is
        # off by 1e-5 for the mean of the squares; scaling the gradients compensates for this
        scale = sqrt((1 - betas[1]) / (1 - float(float32(betas[1]))))
        rate = rate * paddle.sqrt(square_correction / (1.0 - power)) / (mean_correction * scale)
        # clones, because the kernel writes into its arguments, which belong to the caller
        result = [(p.clone(), g * scale, m.clone(), v.clone()) for p, g, m, v in rows]
        for p, g, m, v in result:
            _adam(
                p,
                g,
                rate,
                m,
                v,
                None,  # moment2_max, only for amsgrad
                no_power,  # beta1_pow
                power,  # beta2_pow
                None,  # master_param
                None,  # skip_update
                *betas,
                eps,
                False,  # lazy_mode
                1000,  # min_row_size_to_use_multithread
                *_LAST_ADAM_ARGUMENTS,
            )
    return [(p, m, v) for p, _, m, v in result]


def _may_be_at_the_bound(losses: Any) -> bool:
    """Whether Paddle's kernel may have limited one of these losses to its bound of 64. If so, the losses must be
    computed by exact operations, which take three times as long."""
    # also True for NaN; 63 leaves a margin below the bound
    return not _read_number(paddle.max(losses.detach())) < 63


def _read_number(x: Any) -> Any:
    """Returns the number in a 0-d tensor. Computing a maximum with Paddle and
    reading it here takes half as long as copying all numbers to NumPy for `numpy.max`."""
    # so that this read is not reported as a transfer of the program; has the same effect as
    # `patching.unreported`, in a tenth of the time
    token = listening.set(False)
    try:
        return x.numpy().item()
    finally:
        listening.reset(token)
