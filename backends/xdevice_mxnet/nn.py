"""MXNet's kernels for `xdevice.nn`. `xdevice.contract.nn` says with which arguments the core calls them, and what they
have to return.

Facts that the code depends on:
- NumPy's semantics are on in this thread, because the core has called `arithmetic.enter` before.
- `log_softmax` of float32 has errors up to 5e-6. MXNet can compute it exactly, but that takes up to 17 times as long.
- Convolutions and pools of an empty batch fail later, in their gradients or when MXNet computes them in the background.
  So an image of zeros is added to an empty batch.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import mxnet as mx

if TYPE_CHECKING:
    from collections.abc import Callable

_np, _npx = mx.np, mx.npx

Pair = tuple[int, int]

relu = _npx.relu
sigmoid = _npx.sigmoid
erf = _npx.erf


def softmax(x: Any, axis: int) -> Any:
    return _npx.softmax(x, axis=axis)


def log_softmax(x: Any, axis: int) -> Any:
    return _npx.log_softmax(x, axis=axis)


def cross_entropy(logits: Any, labels: Any) -> Any:
    return _np.mean(cross_entropies(logits, labels))


def cross_entropies(logits: Any, labels: Any) -> Any:
    return -_npx.pick(log_softmax(logits, 1), labels, 1)


def layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    if x.dtype != "float32":  # its eps is a float32
        return NotImplemented
    weight = _np.ones(x.shape[-1:], dtype=x.dtype, ctx=x.ctx) if weight is None else weight
    bias = _np.zeros(x.shape[-1:], dtype=x.dtype, ctx=x.ctx) if bias is None else bias
    return _npx.layer_norm(x, weight, bias, eps=eps)


def one_hot(indices: Any, n: int, name: str) -> Any:
    if name == "bool":
        return one_hot(indices, n, "int8").astype(name)
    return _npx.one_hot(indices, n, dtype=name)


def _of_some(kernel: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(kernel)
    def run(x: Any, *rest: Any) -> Any:
        if x.shape[0]:
            return kernel(x, *rest)
        blank = _np.zeros((1, *x.shape[1:]), dtype=x.dtype, ctx=x.ctx)
        return kernel(_np.concatenate([x, blank]), *rest)[:0]

    return run


@_of_some
def conv2d(x: Any, kernel: Any, bias: Any, stride: Pair, padding: Pair) -> Any:
    filters, _, *size = kernel.shape
    return _npx.convolution(
        x, kernel, bias, kernel=size, stride=stride, pad=padding, num_filter=filters, no_bias=bias is None
    )


@_of_some
def max_pool2d(x: Any, size: Pair, stride: Pair, padding: Pair) -> Any:
    return _npx.pooling(x, kernel=size, stride=stride, pad=padding, pool_type="max")


@_of_some
def avg_pool2d(x: Any, size: Pair, stride: Pair, padding: Pair) -> Any:
    return _npx.pooling(x, kernel=size, stride=stride, pad=padding, pool_type="avg")


def dropout(x: Any, mask: Any, keep: float) -> Any:
    return x * mask / keep
