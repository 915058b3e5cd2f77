"""TensorFlow's kernels for `xdevice.nn`. `xdevice.math.contract.nn` describes their arguments and results.

Facts about TensorFlow that the code depends on:
- TensorFlow has kernels for images of the shape (N, C, H, W) only on GPUs. On the CPU, and in a traced function, whose
  device is not known, `conv2d` transposes the images and the result. The pools treat each channel as a separate image
  instead, which is faster.
- The convolution of an empty batch returns the batch unchanged (2.21), so an image of zeros is
  added to the batch.
- An operation runs on the device of the open scope, not on the device of its operands.
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
    """Whether the core may call the kernels in this module without checking that the values of `indices` are in range.
    `kind` is the kind of the device of `indices`. On a GPU, these kernels return NaN for an index that is out of
    range."""
    # on the CPU, it costs little to read the indices, so the core can raise an error; in
    # blocking mode, a mistake has to raise an error immediately
    return kind != "cpu" and not is_blocking()


@placed
def cross_entropy(logits: Any, labels: Any) -> Any:
    """Returns the mean of the losses that `cross_entropies` returns."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


@placed
def cross_entropies(logits: Any, labels: Any) -> Any:
    """Returns the cross-entropy of each row of `logits` with its label in `labels`. A label is the index of a class."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


@placed
def binary_cross_entropies(logits: Any, labels: Any) -> Any:
    """Returns the cross-entropy of each logit with its label in `labels`. A label is a probability."""
    return tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)


@placed
def embedding(indices: Any, table: Any) -> Any:
    """Returns the row of `table` at each index in `indices`. On a GPU, the row is NaN if the index is out of range."""
    return _nan_where_wrong(tf.gather(table, indices), indices, table)


@placed
def one_hot(indices: Any, n: int, name: str) -> Any:
    """Returns a vector of length `n` for each index, in the dtype `name`: 1 at the index, and 0
    elsewhere. On a GPU, all elements of a vector of floats are NaN if the index is out of
    range."""
    if name == "bool":
        # True for the class, and False for all other classes, because TensorFlow's defaults, 1
        # and 0, are not bools
        return tf.one_hot(indices, n, on_value=True, off_value=False, dtype=name)
    ones = tf.one_hot(indices, n, dtype=name)
    return _nan_where_wrong(ones, indices, n) if ones.dtype.is_floating else ones


def _nan_where_wrong(rows: Any, indices: Any, n: Any) -> Any:
    """Returns a copy of `rows` with NaN in each row whose index is outside `range(n)`. `rows` has one row for each
    index in `indices`; GPU kernels return zeros for an index out of range. `n` is an int, or a tensor, which stands for
    the length of its first axis. On the host, returns `rows` itself, because the core has already checked the indices.
    A traced function may run on a GPU, so its rows are treated like rows on a GPU."""
    if "GPU" not in getattr(rows, "backing_device", "GPU"):
        return rows
    # while a function is traced, the length of a table may be unknown, in which case an
    # operation computes it
    length = n if isinstance(n, int) else n.shape[0] or tf.shape(n, indices.dtype)[0]
    is_wrong = tf.logical_or(indices < 0, indices >= length)
    return tf.where(is_wrong[..., tf.newaxis], tf.constant(math.nan, rows.dtype), rows)


@placed
def conv2d(x: Any, kernel: Any, bias: Any, stride: Pair, padding: Pair) -> Any:
    """Returns the convolution of the images `x` with `kernel`, plus `bias` for each output
    channel unless `bias` is None."""
    # the convolution of an empty batch would return the batch unchanged (no upstream issue
    # known)
    if x.shape[0] == 0:
        blank = tf.zeros((1, *x.shape[1:]), x.dtype)
        return conv2d(tf.concat([x, blank], 0), kernel, bias, stride, padding)[:0]
    # from (O, C, height, width): in TensorFlow, a kernel always has the shape (height, width, C, O),
    # for both formats of images
    weights = tf.transpose(kernel, (2, 3, 1, 0))
    # a symbolic tensor in a traced function has no `backing_device`. It is treated like a
    # tensor on the CPU, because that works on every device
    if "GPU" in getattr(x, "backing_device", ""):
        result = tf.nn.conv2d(x, weights, stride, _padding_of_axes(padding, "NCHW"), "NCHW")
        return result if bias is None else tf.nn.bias_add(result, bias, "NCHW")
    # on the CPU, the channels must be the last axis:
    # https://github.com/tensorflow/tensorflow/issues/46623
    result = tf.nn.conv2d(_channels_last(x), weights, stride, _padding_of_axes(padding))
    return _channels_first(result if bias is None else tf.nn.bias_add(result, bias))


@placed
def max_pool2d(x: Any, size: Pair, stride: Pair, padding: Pair) -> Any:
    """Returns the maximum of each window of the images `x`. `size`, `stride` and `padding` are
    pairs (rows, columns)."""

    def pool(images: Any, data_format: str = "NHWC") -> Any:
        """Returns the result of TensorFlow's pool for images whose axes are in the order
        `data_format`."""
        return tf.nn.max_pool2d(
            images, size, stride, _padding_of_axes(padding, data_format), data_format
        )

    return _each_channel(pool, x)


@placed
def avg_pool2d(x: Any, size: Pair, stride: Pair, padding: Pair) -> Any:
    """Returns the mean of each window of the images `x`. The padding consists of zeros, which are included in the
    means. `size`, `stride` and `padding` are pairs (rows, columns)."""
    # zeros are added, because TensorFlow would leave its own padding out of the mean
    if padding != (0, 0):
        height, width = padding
        x = tf.pad(x, [[0, 0], [0, 0], [height, height], [width, width]])
    return _each_channel(
        partial(tf.nn.avg_pool2d, ksize=size, strides=stride, padding="VALID"), x
    )


@placed
def dropout(x: Any, mask: Any, keep: float) -> Any:
    """Returns `x / keep` where the mask is True, and 0 elsewhere. `keep` is the probability that an element of the mask
    is True."""
    # in TensorFlow, the product of a float and a bool tensor is a bool tensor
    return x * tf.cast(mask, x.dtype) / keep


def _channels_last(x: Any) -> Any:
    """Transposes images from the shape (N, C, H, W) to the shape (N, H, W, C)."""
    return tf.transpose(x, (0, 2, 3, 1))


def _channels_first(x: Any) -> Any:
    """Transposes images from the shape (N, H, W, C) to the shape (N, C, H, W)."""
    return tf.transpose(x, (0, 3, 1, 2))


def _each_channel(pool: Callable[..., Any], x: Any) -> Any:
    """Returns the result of `pool` for the images `x`, which have the shape (N, C, H, W). Unless the images are on a
    GPU, each channel is treated as an image with one channel, so that no axes need to be transposed."""
    # a symbolic tensor in a traced function has no `backing_device`, as in `conv2d`
    if "GPU" in getattr(x, "backing_device", ""):
        return pool(x, data_format="NCHW")
    n, channels, height, width = _sizes(x)
    result = pool(tf.reshape(x, (n * channels, height, width, 1)))
    return tf.reshape(result, (n, channels, *_sizes(result)[1:3]))


def _sizes(x: Any) -> Any:
    """Returns the lengths of all axes. A length is an int, or a tensor if the length is unknown because a function is
    being traced."""
    # `tf.reshape` does not accept None, which stands for an unknown length in `x.shape`
    return x.shape if x.shape.is_fully_defined() else tf.unstack(tf.shape(x))


def _padding_of_axes(padding: Pair, data_format: str = "NHWC") -> Any:
    """Returns the padding before and after each axis, in the form that TensorFlow expects for
    this order of the axes."""
    height, width = padding
    if padding == (0, 0):
        return "VALID"  # with explicit zeros, a pool takes three times as long
    sides = [[height, height], [width, width]]
    return [[0, 0], *sides, [0, 0]] if data_format == "NHWC" else [[0, 0], [0, 0], *sides]
