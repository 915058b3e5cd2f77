"""NumPy's kernels for `xdevice.nn`. `xdevice.math.contract.nn` describes their arguments and results.

NumPy itself has no neural-network functions and no gradients, so the kernels here are short
formulas.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from xdevice.base.dtypes import host_dtype

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]
    Pair = tuple[int, int]

# NumPy has no error function, and Python's takes a single number
_erf = np.frompyfunc(math.erf, 1, 1)
# as Any, because NumPy's types do not allow several axes
_view: Any = np.lib.stride_tricks.sliding_window_view


def relu(x: Array) -> Array:
    # a zero of the same dtype: in NumPy 1, a Python 0 would turn a 0-d float32 array into
    # float64
    return np.asarray(np.maximum(x, x.dtype.type(0)))


def sigmoid(x: Array) -> Array:
    # exp(-x) overflows for large negative numbers, exp(-|x|) never does. With s = exp(-|x|),
    # the sigmoid is s / (1 + s) below 0, and 1 / (1 + s) elsewhere
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, small, x.dtype.type(1)) / (x.dtype.type(1) + small))


def erf(x: Array) -> Array:
    return np.asarray(_erf(x), x.dtype)


def softmax(x: Array, axis: int) -> Array:
    """Returns the softmax along an axis."""
    with np.errstate(all="ignore"):
        # without subtracting the maximum, exp overflows for large logits, and infinity /
        # infinity is NaN
        parts = np.exp(x - np.max(x, axis, keepdims=True))
        return np.asarray(parts / np.sum(parts, axis, keepdims=True))


def log_softmax(x: Array, axis: int) -> Array:
    """Returns the logarithm of the softmax along an axis."""
    with np.errstate(all="ignore"):
        # as in `softmax`, exp would overflow for large logits
        x = x - np.max(x, axis, keepdims=True)
        return np.asarray(x - np.log(np.sum(np.exp(x), axis, keepdims=True)))


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Returns the mean of the cross-entropies of the rows of logits with their labels, the
    indices of classes."""
    return np.asarray(-np.mean(np.take_along_axis(log_softmax(logits, 1), labels[:, None], 1)))


def one_hot(indices: Array, n: int, name: str) -> Array:
    """Returns a vector of length `n` for each index, in the dtype `name`: 1 at the index, and 0
    elsewhere."""
    # each index is compared with all classes, along a new last axis
    return np.asarray(indices[..., None] == np.arange(n)).astype(host_dtype(name))


def conv2d(x: Array, kernel: Array, bias: Array | None, stride: Pair, padding: Pair) -> Array:
    """Returns the convolution of the images `x` with `kernel`, plus `bias` for each output
    channel unless `bias` is None."""
    windows = _windows(x, kernel.shape[2:], stride, padding, 0)
    # sums over the channels, rows and columns of each window; the output channels come last,
    # and move to axis 1
    result = np.moveaxis(np.tensordot(windows, kernel, ((1, 4, 5), (1, 2, 3))), -1, 1)
    return np.ascontiguousarray(result if bias is None else result + bias[:, None, None])


def max_pool2d(x: Array, size: Pair, stride: Pair, padding: Pair) -> Array:
    """Returns the maximum of each window of the images `x`. `size`, `stride` and `padding` are
    pairs (rows, columns)."""
    # padding with zeros would give a maximum of 0 in windows of negative numbers
    return np.asarray(np.max(_windows(x, size, stride, padding, -np.inf), (4, 5)))


def avg_pool2d(x: Array, size: Pair, stride: Pair, padding: Pair) -> Array:
    """Returns the mean of each window of the images `x`, in which padding counts as zeros.
    `size`, `stride` and `padding` are pairs (rows, columns)."""
    # padding counts as zeros, as in PyTorch
    return np.asarray(np.mean(_windows(x, size, stride, padding, 0), (4, 5)))


def dropout(x: Array, mask: Array, keep: float) -> Array:
    """Returns `x / keep` where the mask is True, and 0 elsewhere; `keep` is the probability of
    True."""
    # `keep` in the dtype of `x`, as in `relu`
    return np.asarray(x * mask / x.dtype.type(keep))


def _windows(
    x: Array, size: tuple[int, ...], stride: Pair, padding: Pair, value: float
) -> Array:
    """Returns all windows of the images `x` of the shape (N, C, H, W), padded with `value`, as
    an array of the shape (N, C, rows of windows, columns of windows, height of a window, width
    of a window)."""
    # `pad` would copy the images even if nothing is added
    if padding != (0, 0):
        x = np.pad(
            x,
            ((0, 0), (0, 0), *((length, length) for length in padding)),
            constant_values=value,
        )
    rows, columns = stride
    # the view has a window at each pixel, of which every `rows`-th and `columns`-th is used
    return np.asarray(_view(x, size, (2, 3))[:, :, ::rows, ::columns])
