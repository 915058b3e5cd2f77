"""MXNet's kernels for `xdevice.nn`. `xdevice.math.contract.nn` describes their arguments and results.

The code depends on these facts:
- NumPy's semantics are enabled in this thread, because the core has called `arithmetic.enter`
  before.
- `log_softmax` of float32 has errors of up to 5e-6. MXNet can compute it exactly, but that takes
  up to 17 times as long.
- Convolutions and pools of an empty batch fail later, in their gradients or when MXNet computes
  them in the background. An image of zeros is therefore added to an empty batch.
"""

from __future__ import annotations

from functools import lru_cache, wraps
from math import sqrt
from typing import TYPE_CHECKING, Any

import mxnet as mx
from numpy import finfo, float32

from xdevice.contract.patching import unreported

from . import arithmetic
from .operators import operator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_np, _npx = mx.np, mx.npx

Pair = tuple[int, int]

relu = operator("npx", "relu")
sigmoid = operator("npx", "sigmoid")
erf = operator("npx", "erf")

# the operators that the kernels below call with additional arguments
_softmax = operator("npx", "softmax")
_log_softmax = operator("npx", "log_softmax")
_pick = operator("npx", "pick")
_mean = operator("npi", "mean")
_embedding = operator("npx", "embedding")
_leaky_relu = operator("npx", "leaky_relu")
_layer_norm = operator("npx", "layer_norm")
_convolution = operator("npx", "convolution")
_pooling = operator("npx", "pooling")
_batch_product = operator("npx", "batch_dot")
_where = operator("npi", "where")
_adam = operator("nd", "adam_update")


def softmax(x: Any, axis: int) -> Any:
    """Returns the softmax along an axis."""
    return _softmax(x, axis=axis)


def log_softmax(x: Any, axis: int) -> Any:
    """Returns the logarithm of the softmax along an axis."""
    return _log_softmax(x, axis=axis)


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Returns the mean of the losses that `cross_entropies` returns."""
    return _mean(cross_entropies(logits, labels))


def cross_entropies(logits: Any, labels: Any) -> Any:
    """Returns the cross-entropy of each row of logits and its label. A label is the index of a class."""
    # by default, both operators work along the last axis, which is the axis of the classes
    return arithmetic.negative(_pick(_log_softmax(logits), labels))


def embedding(indices: Any, table: Any) -> Any:
    """Returns the row of `table` at each index."""
    # MXNet's operator requires both lengths of the table as settings
    rows, features = table.shape
    return _embedding(indices, table, input_dim=rows, output_dim=features)


def gelu(x: Any, approximate: bool) -> Any:
    """Returns the GELU of `x`, computed with the error function. Returns NotImplemented if `approximate` is True, for
    a dtype other than float32, and for a 0-d array; the core then computes the result."""
    # MXNet's operator has no approximation with tanh, computes in float32, and does not accept
    # 0-d arrays, so the core computes these cases
    if approximate or x.dtype != "float32" or not x.ndim:
        return NotImplemented
    return _leaky_relu(x, act_type="gelu")


def layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Returns `x`, normalized along its last axis, multiplied by `weight`, and shifted by `bias`. `weight` and `bias`
    may be None. Returns NotImplemented for a dtype other than float32; the core then computes the result."""
    # MXNet's operator rounds eps to float32, so it is correct only for float32
    if x.dtype != "float32":
        return NotImplemented
    # the operator requires both arrays, while the contract allows None
    weight = _np.ones(x.shape[-1:], dtype=x.dtype, ctx=x.ctx) if weight is None else weight
    bias = _np.zeros(x.shape[-1:], dtype=x.dtype, ctx=x.ctx) if bias is None else bias
    return _layer_norm(x, weight, bias, eps=eps)


def one_hot(indices: Any, n: int, name: str) -> Any:
    """Returns a vector of length `n` for each index, in the dtype `name`: 1 at the index, and 0
    elsewhere."""
    if name == "bool":
        # MXNet's operator cannot return bools
        return one_hot(indices, n, "int8").astype(name)
    return _npx.one_hot(indices, n, dtype=name)


def _for_empty_batches_too(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a kernel that also accepts empty batches. It adds an image of zeros to an empty batch, calls `kernel`,
    and removes the result for this image."""

    @wraps(kernel)
    def run(x: Any, *others: Any) -> Any:
        if x.shape[0]:
            return kernel(x, *others)
        blank = _np.zeros((1, *x.shape[1:]), dtype=x.dtype, ctx=x.ctx)
        return kernel(_np.concatenate([x, blank]), *others)[:0]

    return run


@_for_empty_batches_too
def conv2d(x: Any, kernel: Any, bias: Any, stride: Pair, padding: Pair) -> Any:
    """Returns the convolution of the images `x` with `kernel`, plus `bias` for each output
    channel unless `bias` is None."""
    # the kernel has the shape (filters, channels, height, width)
    filters, _, *size = kernel.shape
    arrays = (x, kernel) if bias is None else (x, kernel, bias)
    return _convolution(
        *arrays,
        kernel=tuple(size),
        stride=stride,
        pad=padding,
        num_filter=filters,
        no_bias=bias is None,
    )


@_for_empty_batches_too
def max_pool2d(x: Any, size: Pair, stride: Pair, padding: Pair) -> Any:
    """Returns the maximum of each window of the images `x`. `size`, `stride` and `padding` are
    pairs (rows, columns)."""
    return _pooling(x, kernel=size, stride=stride, pad=padding, pool_type="max")


@_for_empty_batches_too
def avg_pool2d(x: Any, size: Pair, stride: Pair, padding: Pair) -> Any:
    """Returns the mean of each window of the images `x`. Padding consists of zeros, which are included in the mean.
    `size`, `stride` and `padding` are pairs (rows, columns)."""
    # MXNet includes the zeros of the padding in the mean, as PyTorch does
    return _pooling(x, kernel=size, stride=stride, pad=padding, pool_type="avg")


@lru_cache(4)
def _causal_mask(queries: int, keys: int, device: Any) -> Any:
    """Returns a bool matrix with a row for each query and a column for each key. An element is True if its key is not
    after its query. The last four matrices are cached, because all layers of a model use the same matrix."""
    return _np.tril(_np.ones((queries, keys), ctx=device)).astype("bool")


def attention(q: Any, k: Any, v: Any, mask: Any, causal: bool) -> Any:
    """Returns, for each query in `q`, the mean of the values `v`, weighted by how well their keys in `k` match the
    query. `mask` is None, or a bool tensor that is True for each key that a query may use. If `causal` is True, a
    query uses no later key."""
    scores_shape, least_float = (*q.shape[:-1], k.shape[-2]), float(finfo(q.dtype).min)
    size = q.shape[-1]
    # `batch_dot` requires arrays with three dimensions, so the axes of the stack are merged
    # into one
    q, k, values = (arithmetic.reshape(part, (-1, *part.shape[-2:])) for part in (q, k, v))
    scores = arithmetic.reshape(
        arithmetic.divide(_batch_product(q, k, transpose_b=True), size**0.5), scores_shape
    )
    # a new array object that shares the memory, because threads must not share an array object,
    # as `sums.py` explains
    causal_mask = _causal_mask(*scores_shape[-2:], q.ctx).detach() if causal else None
    if mask is None or causal_mask is None:
        visible = causal_mask if mask is None else mask
    else:
        visible = arithmetic.logical_and(mask, causal_mask)
    if visible is not None:
        # the least finite number and not -inf, because with -inf the gradients of a query
        # without any key would be NaN
        scores = _where(visible, scores, _np.full_like(scores, least_float))
    weights = _softmax(scores)
    # a mask may hide all keys from a query; the softmax then returns the same weight for all
    # keys, but the result must be zeros. Without a mask, each causal query has at least one key
    if mask is not None:
        weights = _where(visible, weights, _np.zeros_like(weights))
    result = _batch_product(arithmetic.reshape(weights, (-1, *scores_shape[-2:])), values)
    return arithmetic.reshape(result, (*scores_shape[:-1], v.shape[-1]))


def dropout(x: Any, mask: Any, keep: float) -> Any:
    """Returns `x / keep` where the mask is True, and 0 elsewhere. `keep` is the probability that an element of the
    mask is True."""
    return x * mask / keep


def adam(
    rows: Sequence[Any], step: Any, rate: Any, betas: tuple[float, float], eps: float
) -> Any:
    """Computes a step of Adam with MXNet's kernel. Returns the new parameter and the new means for each row (parameter,
    gradient, two running means). `step` is a tensor with the number of previous steps, and `rate` is the learning rate.
    Returns NotImplemented on a GPU; the core then computes the step with its own formula."""
    # the kernel requires the number of steps as a Python number; reading it from a GPU would
    # wait for the GPU
    if step.ctx.device_type != "cpu":
        return NotImplemented
    with mx.autograd.pause(), unreported():
        steps, rate = step.item() + 1, float(rate)
        # MXNet's kernel does not correct the bias of the two means, so the rate and epsilon
        # contain the corrections
        mean_correction, square_correction = (1 - beta**steps for beta in betas)
        # the kernel computes 1 - beta in float32, which has an error of 1e-5 for the mean of
        # the squares; scaling the gradients corrects this error
        scale = sqrt((1 - betas[1]) / (1 - float(float32(betas[1]))))
        settings = {
            "lr": rate / mean_correction * sqrt(square_correction) / scale,
            "rescale_grad": scale,
            "beta1": betas[0],
            "beta2": betas[1],
            "epsilon": eps * sqrt(square_correction),
        }
        result = []
        for p, g, m, v in rows:
            # copied, because the kernel writes into both means, and returns only the new
            # parameter
            m, v = arithmetic.copy(m), arithmetic.copy(v)
            result.append((_adam(p, g, m, v, **settings), m, v))
    return result
