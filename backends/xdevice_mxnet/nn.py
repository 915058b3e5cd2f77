"""MXNet's kernels for `xdevice.nn`: `xdevice.contract.nn` says what they are promised.

What this must keep:
- NumPy's semantics are on in this thread: the core has called the namespace's `enter`;
- a convolution of no images has no gradient: one of zeros goes with them.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx

_np, _npx = mx.np, mx.npx

Pair = tuple[int, int]

relu = _npx.relu
sigmoid = _npx.sigmoid


def softmax(x: Any, axis: int) -> Any:
    return _npx.softmax(x, axis=axis)


def log_softmax(x: Any, axis: int) -> Any:
    return _npx.log_softmax(x, axis=axis)


def cross_entropy(logits: Any, labels: Any) -> Any:
    return -_np.mean(_npx.pick(log_softmax(logits, 1), labels, 1))


def one_hot(indices: Any, n: int, name: str) -> Any:
    if name == "bool":
        return one_hot(indices, n, "int8").astype(name)
    return _npx.one_hot(indices, n, dtype=name)


def conv2d(x: Any, kernel: Any, bias: Any, stride: Pair, padding: Pair) -> Any:
    if x.shape[0] == 0:
        blank = _np.zeros((1, *x.shape[1:]), dtype=x.dtype, ctx=x.ctx)
        return conv2d(_np.concatenate([x, blank]), kernel, bias, stride, padding)[:0]
    filters, _, *size = kernel.shape
    return _npx.convolution(
        x, kernel, bias, kernel=size, stride=stride, pad=padding, num_filter=filters, no_bias=bias is None
    )


def max_pool2d(x: Any, size: Pair, stride: Pair, padding: Pair) -> Any:
    return _npx.pooling(x, kernel=size, stride=stride, pad=padding, pool_type="max")


def avg_pool2d(x: Any, size: Pair, stride: Pair, padding: Pair) -> Any:
    return _npx.pooling(x, kernel=size, stride=stride, pad=padding, pool_type="avg")


def dropout(x: Any, mask: Any, keep: float) -> Any:
    return x * mask / keep
