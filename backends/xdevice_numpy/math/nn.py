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

# NumPy has no error function, and Python's error function accepts only a single number
_erf = np.frompyfunc(math.erf, 1, 1)
# annotated as Any, because NumPy's type annotations do not allow several axes
_view: Any = np.lib.stride_tricks.sliding_window_view


def relu(x: Array) -> Array:
    # the zero has the dtype of `x`, because in NumPy 1, a Python 0 would turn a 0-d float32
    # array into float64
    return np.asarray(np.maximum(x, x.dtype.type(0)))


def sigmoid(x: Array) -> Array:
    # exp(-x) overflows for large negative numbers, but exp(-|x|) never overflows. With s =
    # exp(-|x|), the sigmoid is s / (1 + s) below 0, and 1 / (1 + s) elsewhere
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, small, x.dtype.type(1)) / (x.dtype.type(1) + small))


def erf(x: Array) -> Array:
    return np.asarray(_erf(x), x.dtype)


def softmax(x: Array, axis: int) -> Array:
    """Returns the softmax along an axis."""
    with np.errstate(all="ignore"):
        # if the maximum were not subtracted, exp would overflow for large logits, and infinity
        # / infinity is NaN
        parts = np.exp(x - np.max(x, axis, keepdims=True))
        return np.asarray(parts / np.sum(parts, axis, keepdims=True))


def log_softmax(x: Array, axis: int) -> Array:
    """Returns the logarithm of the softmax along an axis."""
    with np.errstate(all="ignore"):
        # as in `softmax`, exp would overflow for large logits
        x = x - np.max(x, axis, keepdims=True)
        return np.asarray(x - np.log(np.sum(np.exp(x), axis, keepdims=True)))


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Returns the mean of the cross-entropies of all rows of logits. `labels` contains the index of the class for each
    row."""
    return np.asarray(-np.mean(np.take_along_axis(log_softmax(logits, 1), labels[:, None], 1)))


def one_hot(indices: Array, n: int, name: str) -> Array:
    """Returns a vector of length `n` for each index, in the dtype `name`: 1 at the index, and 0
    elsewhere."""
    # each index is compared with all classes, along a new last axis
    return np.asarray(indices[..., None] == np.arange(n)).astype(host_dtype(name))


def conv2d(x: Array, kernel: Array, bias: Array | None, stride: Pair, padding: Pair) -> Array:
    """Returns the convolution of the images `x` with `kernel`, plus `bias` for each output
    channel unless `bias` is None."""
    windows = _windows(x, kernel.shape[2:], stride, padding, value=0)
    # sums over the channels, rows and columns of each window; the output channels are the last
    # axis of the result, and are moved to axis 1
    result = np.moveaxis(np.tensordot(windows, kernel, axes=((1, 4, 5), (1, 2, 3))), -1, 1)
    return np.ascontiguousarray(result if bias is None else result + bias[:, None, None])


def max_pool2d(x: Array, size: Pair, stride: Pair, padding: Pair) -> Array:
    """Returns the maximum of each window of the images `x`. `size`, `stride` and `padding` are
    pairs (rows, columns)."""
    # with a padding of zeros, the maximum of a window of negative numbers would be 0
    return np.asarray(np.max(_windows(x, size, stride, padding, value=-np.inf), axis=(4, 5)))


def avg_pool2d(x: Array, size: Pair, stride: Pair, padding: Pair) -> Array:
    """Returns the mean of each window of the images `x`. Padding consists of zeros, which are included in the mean.
    `size`, `stride` and `padding` are pairs (rows, columns)."""
    # the zeros of the padding are included, as in PyTorch
    return np.asarray(np.mean(_windows(x, size, stride, padding, value=0), axis=(4, 5)))


def dropout(x: Array, mask: Array, keep: float) -> Array:
    """Returns `x / keep` where the mask is True, and 0 elsewhere. `keep` is the probability that an element of the
    mask is True."""
    # `keep` has the dtype of `x`, for the same reason as the zero in `relu`
    return np.asarray(x * mask / x.dtype.type(keep))


def _windows(
    x: Array, size: tuple[int, ...], stride: Pair, padding: Pair, value: float
) -> Array:
    """Returns all windows of the images `x`, which have the shape (N, C, H, W) and are padded with `value`. The
    result has the shape (N, C, rows of windows, columns of windows, height of a window, width of a window)."""
    # `pad` would copy the images even if nothing is added
    if padding != (0, 0):
        x = np.pad(
            x,
            ((0, 0), (0, 0), *((length, length) for length in padding)),
            constant_values=value,
        )
    rows, columns = stride
    # the view contains a window at each pixel, but only every `rows`-th row and every
    # `columns`-th column of windows is used
    return np.asarray(_view(x, size, axis=(2, 3))[:, :, ::rows, ::columns])
