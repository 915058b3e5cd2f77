"""Kernels of `xdevice.nn` that are written with functions of the array namespace, for adapters that lack
these kernels.

`BY_HAND` in `xdevice.math.contract.nn` lists these kernels, and the docstring of that module says what kernels may
assume. The first argument of each kernel, `nn`, contains all kernels of the backend, so that one kernel can call
another.
"""

from __future__ import annotations

from functools import partial
from math import pi, sqrt
from types import SimpleNamespace
from typing import Any

from xdevice.math.contract.nn import BY_HAND, OPTIONAL

from .checks import shape_of
from .namespace import array_namespace, checks_of


def with_missing_kernels(adapter: Any) -> Any:
    """Returns a namespace with the kernels of the module `adapter`. If that module lacks a kernel in `BY_HAND`, the
    kernel comes from this module, compiled if the adapter has a function `compiled`."""
    defined = {name: getattr(adapter, name) for name in dir(adapter)}
    # what the adapter defines replaces the defaults in `OPTIONAL`
    kernels = SimpleNamespace(**OPTIONAL | defined)
    for name, settings in BY_HAND.items():
        if name not in defined:
            # the function with that name in this module; `kernels` becomes its argument `nn`
            kernel = partial(globals()[name], kernels)
            setattr(
                kernels,
                name,
                kernels.compiled(kernel, settings) if kernels.compiled else kernel,
            )
    return kernels


def attention(nn: Any, q: Any, k: Any, v: Any, mask: Any, causal: bool) -> Any:
    """The kernel of `xdevice.nn.attention`, for the queries `q`, keys `k` and values `v`.
    `mask` is None, or a bool tensor, which is True for each key that a query uses. If `causal` is True, query i also
    ignores the keys after the i-th."""
    xp = array_namespace(q)
    if causal:
        causal_mask = _causal_mask(q, k)
        mask = causal_mask if mask is None else xp.logical_and(mask, causal_mask)
    scores = xp.divide(xp.matmul(q, xp.matrix_transpose(k)), sqrt(q.shape[-1]))
    # not -1, because the contract promises that kernels are called with a non-negative axis
    last_axis = len(scores.shape) - 1
    if mask is None:
        return xp.matmul(nn.softmax(scores, last_axis), v)
    # the least finite number and not -inf, because with -inf the gradients of a query without
    # any key would be NaN
    least = float(xp.finfo(scores.dtype).min)
    # for a query without any key, the weights are all equal here, and become zeros below
    weights = nn.softmax(xp.where(mask, scores, least), last_axis)
    return xp.matmul(xp.where(mask, weights, 0.0), v)


def _causal_mask(q: Any, k: Any) -> Any:
    """Returns a bool mask for the queries `q` and the keys `k`. The mask is True for query i and each key up to the
    i-th. Raises `UnsupportedError` if a length is unknown while a function is traced."""
    import numpy

    checks = checks_of(q, "attention")
    # the number of queries, and the number of keys
    lengths = shape_of(q)[-2], shape_of(k)[-2]
    if None in lengths:
        raise checks.backend.unsupported(
            "causal attention on a sequence whose length is unknown while a function is traced",
            "pass the causal mask as mask=",
        )
    return checks.array_as_tensor(numpy.tri(*lengths, dtype=bool), q)


def batch_norm(
    nn: Any, x: Any, mean: Any, variance: Any, weight: Any, bias: Any, eps: float
) -> Any:
    """The kernel of `xdevice.nn.batch_norm`. `mean`, `variance`, `weight` and `bias` are vectors with a number for
    each channel; the channels are axis 1 of `x`. `weight` and `bias` may be None. `eps` is added to the variance."""
    xp = array_namespace(x)
    # a vector that is reshaped to this shape is broadcast to all axes except axis 1
    along_channels = (1, -1, *[1] * (len(x.shape) - 2))

    def of_channels(vector: Any) -> Any:
        return xp.reshape(vector, along_channels)

    root = xp.sqrt(xp.add(of_channels(variance), eps))
    scale = xp.reciprocal(root) if weight is None else xp.divide(of_channels(weight), root)
    result = xp.multiply(xp.subtract(x, of_channels(mean)), scale)
    return result if bias is None else xp.add(result, of_channels(bias))


def binary_cross_entropies(nn: Any, logits: Any, labels: Any) -> Any:
    """Returns the loss of each element for `xdevice.nn.binary_cross_entropy_with_logits`.
    `logits` and `labels` are tensors of floats, of the same shape."""
    xp = array_namespace(logits)
    # max(x, 0) - x * y + log(1 + exp(-|x|)), which does not overflow; `negative_abs` is -|x|,
    # and `positive_part` is max(x, 0). `where` is used instead of `abs` and `maximum`, because
    # their gradients at 0 differ from the gradient of the loss at 0
    is_positive = xp.greater(logits, 0.0)
    negative_abs = xp.where(is_positive, xp.negative(logits), logits)
    positive_part = xp.where(is_positive, logits, 0.0)
    return xp.add(
        xp.subtract(positive_part, xp.multiply(logits, labels)), xp.log1p(xp.exp(negative_abs))
    )


def cross_entropies(nn: Any, logits: Any, labels: Any) -> Any:
    """Returns the loss of each row for `xdevice.nn.cross_entropy`. `logits` has the shape (n, classes), and `labels`
    contains the index of a class for each row."""
    xp = array_namespace(logits)
    # for each row, the logarithm of the label's probability
    log_probabilities = xp.take_along_axis(
        nn.log_softmax(logits, 1), xp.expand_dims(labels, axis=1), axis=1
    )
    return xp.negative(xp.squeeze(log_probabilities, axis=1))


def embedding(nn: Any, indices: Any, table: Any) -> Any:
    """Returns the rows of the table at the given indices. `indices` may have any shape."""
    xp = array_namespace(table)
    # `take` accepts only a vector, so the indices are flattened first, and their axes are
    # restored below
    rows = xp.take(table, xp.reshape(indices, (-1,)), axis=0)
    return xp.reshape(rows, (*indices.shape, table.shape[1]))


def gelu(nn: Any, x: Any, approximate: bool) -> Any:
    """The kernel of `xdevice.nn.gelu`. It uses the error function, or tanh if `approximate` is True."""
    xp = array_namespace(x)
    # x / 2 * (1 + erf(x / sqrt(2)))
    if not approximate:
        factor = xp.add(1.0, nn.erf(xp.multiply(x, sqrt(0.5))))
        return xp.multiply(0.5, xp.multiply(x, factor))
    # Hendrycks and Gimpel, 2016, https://arxiv.org/abs/1606.08415
    inner = xp.add(x, xp.multiply(0.044715, xp.multiply(x, xp.multiply(x, x))))
    # 0.5 * (1 + tanh(z)) is sigmoid(2 * z)
    return xp.multiply(x, nn.sigmoid(xp.multiply(sqrt(8 / pi), inner)))


def layer_norm(nn: Any, x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """The kernel of `xdevice.nn.layer_norm`, which normalizes over the last axis. `weight` and `bias` may be None.
    `eps` is added to the variance."""
    xp = array_namespace(x)
    # not computed as E(x * x) - E(x) ** 2, which loses all digits if the mean is large compared
    # with the deviation
    deviation = xp.subtract(x, xp.mean(x, axis=-1, keepdims=True))
    variance = xp.mean(xp.multiply(deviation, deviation), axis=-1, keepdims=True)
    result = xp.divide(deviation, xp.sqrt(xp.add(variance, eps)))
    result = result if weight is None else xp.multiply(result, weight)
    return result if bias is None else xp.add(result, bias)
