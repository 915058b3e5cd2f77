"""TensorFlow's kernels for `xdevice.nn`. `xdevice.math.contract.nn` describes their arguments and results.

Facts about TensorFlow that the code depends on:
- It has kernels for images of the shape (N, C, H, W) on GPUs only. On the CPU, and in a traced
  function, whose device is not known, `conv2d` transposes the images and the result. A pool
  treats each channel as an image, which is faster.
- A convolution of an empty batch returns the batch unchanged (2.21), so an image of zeros is
  added to the batch.
- An operation runs on the device of the open scope, not on that of its operands.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from xdevice_tensorflow.blocking import is_blocking
from xdevice_tensorflow.placing import placed

if TYPE_CHECKING:
    from collections.abc import Callable

Pair = tuple[int, int]

relu = placed(tf.nn.relu)
sigmoid = placed(tf.sigmoid)
erf = placed(tf.math.erf)
softmax = placed(tf.nn.softmax)
log_softmax = placed(tf.nn.log_softmax)


def guards(indices: Any, kind: str) -> bool:
    """Whether the core may call the kernels below without reading `indices`, which are on a device of this kind
    ("cpu", "gpu"). For an index out of range these kernels return NaN."""
    # on the CPU reading costs little, and the core can raise; in blocking mode a mistake has to
    # raise at once
    return kind != "cpu" and not is_blocking()


@placed
def cross_entropy(logits: Any, labels: Any) -> Any:
    """Returns the mean of the losses that `cross_entropies` returns for the rows."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


@placed
def cross_entropies(logits: Any, labels: Any) -> Any:
    """Returns the cross-entropy of each row of logits with its label, the index of a class."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


@placed
def binary_cross_entropies(logits: Any, labels: Any) -> Any:
    """Returns the cross-entropy of each logit with its label, a probability."""
    return tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)


@placed
def embedding(indices: Any, table: Any) -> Any:
    """Returns the row of `table` for each index; on a GPU, NaN for an index out of range."""
    return _nan_where_wrong(tf.gather(table, indices), indices, table)


@placed
def one_hot(indices: Any, n: int, name: str) -> Any:
    """Returns a vector of length `n` for each index, in the dtype `name`: 1 at the index, and 0
    elsewhere. On a GPU, floats are all NaN for an index out of range."""
    if name == "bool":
        # the values for the class and for the others; TensorFlow's defaults of 1 and 0 are not
        # bools
        return tf.one_hot(indices, n, True, False, dtype=name)
    ones = tf.one_hot(indices, n, dtype=name)
    return _nan_where_wrong(ones, indices, n) if ones.dtype.is_floating else ones


def _nan_where_wrong(rows: Any, indices: Any, n: Any) -> Any:
    """Returns `rows`, which has one row for each index, with NaN in the rows whose index is not
    in `range(n)`. `n` is an int, or a tensor whose first axis has that length. GPU kernels give
    zeros for such an index. On the host, where the core has checked the indices, returns `rows`
    itself; a traced function may run on a GPU, so its rows are treated like those on a GPU."""
    if "GPU" not in getattr(rows, "backing_device", "GPU"):
        return rows
    # while a function is traced, the length of a table may not be known; then an operation
    # computes it
    length = n if isinstance(n, int) else n.shape[0] or tf.shape(n, indices.dtype)[0]
    is_wrong = tf.logical_or(indices < 0, indices >= length)
    return tf.where(is_wrong[..., tf.newaxis], tf.constant(math.nan, rows.dtype), rows)


@placed
def conv2d(x: Any, kernel: Any, bias: Any, stride: Pair, padding: Pair) -> Any:
    """Returns the convolution of the images `x` with `kernel`, plus `bias` for each output
    channel unless `bias` is None."""
    # a convolution of an empty batch would return the batch unchanged (no upstream issue known)
    if x.shape[0] == 0:
        blank = tf.zeros((1, *x.shape[1:]), x.dtype)
        return conv2d(tf.concat([x, blank], 0), kernel, bias, stride, padding)[:0]
    # TensorFlow's kernels have the shape (height, width, C, O), whichever format the images
    # have
    weights = tf.transpose(kernel, (2, 3, 1, 0))
    # a symbol of a traced function lacks `backing_device`, and is treated as on the CPU,
    # because that works on every device
    if "GPU" in getattr(x, "backing_device", ""):
        result = tf.nn.conv2d(x, weights, stride, _padding_of_axes(padding, "NCHW"), "NCHW")
        return result if bias is None else tf.nn.bias_add(result, bias, "NCHW")
    # on the CPU only channels in the last axis are supported:
    # https://github.com/tensorflow/tensorflow/issues/46623
    result = tf.nn.conv2d(_channels_last(x), weights, stride, _padding_of_axes(padding))
    return _channels_first(result if bias is None else tf.nn.bias_add(result, bias))


@placed
def max_pool2d(x: Any, size: Pair, stride: Pair, padding: Pair) -> Any:
    """Returns the maximum of each window of the images `x`. `size`, `stride` and `padding` are
    pairs (rows, columns)."""

    def pool(images: Any, data_format: str = "NHWC") -> Any:
        """Returns the images after TensorFlow's pool, for images with their axes in the order
        `data_format`."""
        return tf.nn.max_pool2d(
            images, size, stride, _padding_of_axes(padding, data_format), data_format
        )

    return _each_channel(pool, x)


@placed
def avg_pool2d(x: Any, size: Pair, stride: Pair, padding: Pair) -> Any:
    """Returns the mean of each window of the images `x`, in which padding counts as zeros.
    `size`, `stride` and `padding` are pairs (rows, columns)."""
    # padding counts as zeros; TensorFlow's own padding is left out of the mean
    if padding != (0, 0):
        height, width = padding
        x = tf.pad(x, [[0, 0], [0, 0], [height, height], [width, width]])
    return _each_channel(
        partial(tf.nn.avg_pool2d, ksize=size, strides=stride, padding="VALID"), x
    )


@placed
def dropout(x: Any, mask: Any, keep: float) -> Any:
    """Returns `x / keep` where the mask is True, and 0 elsewhere; `keep` is the probability of
    True."""
    # the product of a float and a bool tensor is a bool tensor in TensorFlow
    return x * tf.cast(mask, x.dtype) / keep


def _channels_last(x: Any) -> Any:
    """Returns images of the shape (N, C, H, W) in the shape (N, H, W, C)."""
    return tf.transpose(x, (0, 2, 3, 1))


def _channels_first(x: Any) -> Any:
    """Returns images of the shape (N, H, W, C) in the shape (N, C, H, W)."""
    return tf.transpose(x, (0, 3, 1, 2))


def _each_channel(pool: Callable[..., Any], x: Any) -> Any:
    """Returns the images `x` of the shape (N, C, H, W) after `pool`. Outside a GPU each channel
    becomes an image with one channel, so that the axes need not be exchanged."""
    # a symbol of a traced function lacks `backing_device`, as in `conv2d`
    if "GPU" in getattr(x, "backing_device", ""):
        return pool(x, data_format="NCHW")
    n, channels, height, width = _sizes(x)
    result = pool(tf.reshape(x, (n * channels, height, width, 1)))
    return tf.reshape(result, (n, channels, *_sizes(result)[1:3]))


def _sizes(x: Any) -> Any:
    """Returns the lengths of all axes: ints, or tensors while a function is traced and a length
    is not known."""
    # `tf.reshape` does not take the None that an unknown length has in `x.shape`
    return x.shape if x.shape.is_fully_defined() else tf.unstack(tf.shape(x))


def _padding_of_axes(padding: Pair, data_format: str = "NHWC") -> Any:
    """Returns the padding before and after each axis, as TensorFlow expects it for this order
    of the axes."""
    height, width = padding
    if padding == (0, 0):
        return "VALID"  # with explicit zeros a pool takes three times as long
    sides = [[height, height], [width, width]]
    return [[0, 0], *sides, [0, 0]] if data_format == "NHWC" else [[0, 0], [0, 0], *sides]
