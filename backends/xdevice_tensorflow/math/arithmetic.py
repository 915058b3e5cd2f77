"""TensorFlow's kernels for `xdevice.array_namespace`. `xdevice.math.contract.arithmetic` describes their arguments and
results.

Facts about TensorFlow that the code depends on:
- An operation runs on the device of the open scope, not on the device of its operands. So each
  kernel opens a scope with the device of its first operand.
- `tf.sort` uses `top_k`, which does not sort NaN correctly. So floats are converted to integers that have the same
  order, and these are sorted (https://github.com/tensorflow/tensorflow/issues/117287, 95235).
- `floordiv` rounds the quotient of floats before it computes the floor: 1 // 0.1 is 10,
  although `floormod` returns a remainder of 0.1. So `floor_divide` computes the quotient from
  the remainder (no upstream issue known; 74893 is a different case).
- `argmax` and `argmin` skip NaN (no upstream issue known). The core corrects their results."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from xdevice.math.contract import tables
from xdevice.math.contract.arithmetic import HOST
from xdevice.math.contract.tables import named
from xdevice_tensorflow.placing import placed as _placed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

# `xdevice.math.contract.arithmetic` explains these constants
TAKE_NUMBERS = frozenset(
    [
        "add", "divide", "equal", "greater", "greater_equal", "less", "less_equal", "maximum", "minimum", "multiply",
        "not_equal", "pow", "subtract",
    ]
)  # fmt: skip
TAKES_MASKS = False
SKIPS_NAN = True
# many kernels do not exist for unsigned integers: https://github.com/tensorflow/tensorflow/issues/26069
_UNSIGNED = {"uint8": "int32", "uint16": "int32", "uint32": "int64", "uint64": HOST}
WIDER = {
    "abs": _UNSIGNED,
    "negative": _UNSIGNED,
    "pow": _UNSIGNED,
    "sign": _UNSIGNED,
    "matmul": {"int8": "int32", "int16": "int32"} | _UNSIGNED,
}
RESHAPE_IS_VIEW = True  # tensors cannot be changed, so a copy cannot be told from a view

# creating arrays


def dtype(name: str) -> Any:
    """Returns TensorFlow's dtype of this name."""
    return getattr(tf, name)


@_placed
def astype(x: Any, name: str) -> Any:
    """Returns a new tensor with the values of `x` in the dtype `name`."""
    # `tf.cast` from complex to bool considers only the real part
    if name == "bool":
        return tf.not_equal(x, tf.zeros((), x.dtype))
    return tf.cast(x, name)


# the first argument of `constant` and `number` is not a tensor, so they run on the device of
# `like`
def constant(array: np.ndarray[Any, Any], like: Any) -> Any:
    """Returns a tensor with the values of a NumPy array, on the device of `like`."""
    return _on_device_of(like, tf.constant, array)


copy = _placed(tf.identity)


@_placed
def full_like(x: Any, value: complex, name: str) -> Any:
    """Returns a tensor with the shape and the device of `x` and the dtype `name`, filled with
    `value`."""
    return tf.fill(tf.shape(x), _number(value, name))


def number(value: complex, name: str, like: Any) -> Any:
    """Returns `value` as a 0-d tensor, with the dtype `name`, on the device of
    `like`."""
    return _on_device_of(like, _number, value, name)


def _number(value: complex, name: str) -> Any:
    """Returns `value` as a 0-d tensor, with the dtype `name`, on the device of
    the open scope."""
    # if the dtype is bool, `tf.constant` raises an error for any number that is not a bool
    return tf.constant(bool(value) if name == "bool" else value, name)


def _on_device_of(like: Any, make: Callable[..., Any], *arguments: Any) -> Any:
    """Returns `make(*arguments)`, computed on the device of `like`."""
    return _placed(lambda x: make(*arguments))(like)


# elementwise functions

# functions of `tf.math` that become kernels when they are placed. A keyword argument maps the
# name of a kernel to TensorFlow's name
_OF_MATH = named(
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "conj", "cos", "cosh", "equal",
    "exp", "expm1", "floor", "greater", "greater_equal", "imag", "less", "less_equal", "log", "log1p", "logical_and",
    "logical_not", "logical_or", "logical_xor", "maximum", "minimum", "multiply", "negative", "nextafter", "not_equal",
    "pow", "real", "reciprocal", "round", "sign", "sin", "sinh", "sqrt", "square", "subtract", "tan", "tanh",
    all="reduce_all", any="reduce_any", cumulative_prod="cumprod", cumulative_sum="cumsum", divide="truediv",
    max="reduce_max", mean="reduce_mean", min="reduce_min", prod="reduce_prod", remainder="floormod", sum="reduce_sum",
)  # fmt: skip
# the same for functions of `tf`
_OF_SHAPES = named(
    "broadcast_to", "expand_dims", "matmul", "reshape", "roll", "squeeze", "where", flip="reverse",
    permute_dims="transpose",
)  # fmt: skip
globals().update({name: _placed(getattr(tf.math, own)) for name, own in _OF_MATH.items()})
globals().update({name: _placed(getattr(tf, own)) for name, own in _OF_SHAPES.items()})
bitwise_left_shift = _placed(tf.bitwise.left_shift)
bitwise_right_shift = _placed(tf.bitwise.right_shift)


def _of_bits(function: Callable[..., Any], of_bool: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a kernel that calls `function` for integers, and `of_bool` for bool tensors,
    which TensorFlow's bitwise functions do not accept."""

    @_placed
    def kernel(x: Any, *others: Any) -> Any:
        return of_bool(x, *others) if x.dtype is tf.bool else function(x, *others)

    return kernel


bitwise_and = _of_bits(tf.bitwise.bitwise_and, tf.logical_and)
bitwise_invert = _of_bits(tf.bitwise.invert, tf.logical_not)
bitwise_or = _of_bits(tf.bitwise.bitwise_or, tf.logical_or)
bitwise_xor = _of_bits(tf.bitwise.bitwise_xor, tf.math.logical_xor)


@_placed
def copysign(x1: Any, x2: Any) -> Any:
    """Returns the magnitudes of `x1` with the signs of `x2`."""
    return tf.where(signbit(x1) == signbit(x2), x1, -x1)


def _of_parts(test: Callable[..., Any], together: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a kernel for `test`, a function that tests floats, but does not accept complex
    numbers. For complex numbers, the kernel tests the real and the imaginary parts separately,
    and combines the two results with `together`, which is a logical "and" or "or"."""

    @_placed
    def kernel(x: Any) -> Any:
        if x.dtype.is_floating:
            return test(x)
        return together(test(tf.math.real(x)), test(tf.math.imag(x)))

    return kernel


isfinite = _of_parts(tf.math.is_finite, tf.logical_and)
isinf = _of_parts(tf.math.is_inf, tf.logical_or)
isnan = _of_parts(tf.math.is_nan, tf.logical_or)


@_placed
def signbit(x: Any) -> Any:
    """Returns for each float whether its sign bit is set."""
    # the bits of the float are read as an integer of the same size, in which the same bit is
    # the sign. So the result is True for -0.0
    return tf.bitcast(x, {2: tf.int16, 4: tf.int32, 8: tf.int64}[x.dtype.size]) < 0


@_placed
def floor_divide(x1: Any, x2: Any) -> Any:
    """Returns the quotient, rounded down. For floats, the result does not have the rounding
    error of TensorFlow's `floordiv`."""
    if not x1.dtype.is_floating:
        return tf.math.floordiv(x1, x2)
    quotient, remainder = x1 / x2, tf.truncatemod(x1, x2)
    # `truncatemod` rounds the quotient towards 0. If the quotient is negative and not a whole
    # number, its floor is one less
    is_one_less = (remainder != 0) & ((remainder < 0) != (x2 < 0))
    floored = (x1 - remainder) / x2 - tf.cast(is_one_less, x1.dtype)
    # `quotient * 0` has the sign of the quotient
    floored = tf.where(floored == 0, quotient * 0, tf.round(floored))
    # the quotient by 0 is infinite or NaN, which the steps above would not preserve. Between its steps,
    # the function is constant, so its gradient is 0
    return tf.stop_gradient(tf.where(x2 == 0, quotient, floored))


@_placed
def log10(x: Any) -> Any:
    return tf.math.log(x) / tf.constant(math.log(10), x.dtype)


@_placed
def log2(x: Any) -> Any:
    return tf.math.log(x) / tf.constant(math.log(2), x.dtype)


@_placed
def trunc(x: Any) -> Any:
    return tf.where(x < 0, tf.math.ceil(x), tf.math.floor(x))


# reductions, sorting and indexing

argmax = _placed(tf.argmax)
argmin = _placed(tf.argmin)


@_placed
def argsort(x: Any, axis: int, descending: bool) -> Any:
    """Returns the indices that sort `x` along an axis, in descending order if `descending` is
    True. Equal elements keep their order."""
    keys = _exchanged_with_last(_sortable_integers(x), axis)
    # `top_k` sorts in descending order, and keeps the order of equal values. For the ascending
    # order, sort the complements (`invert`), whose order is reversed
    indices = tf.math.top_k(
        keys if descending else tf.bitwise.invert(keys), tf.shape(keys)[-1]
    ).indices
    return _exchanged_with_last(indices, axis)


def _sortable_integers(x: Any) -> Any:
    """Returns integers with the same order as the values of `x`. NaN becomes the greatest integer. Integers are
    returned as they are."""
    if not x.dtype.is_floating:
        return x
    # all values of float16 and bfloat16 exist in float32
    if x.dtype.size < 4:
        x = tf.cast(x, tf.float32)
    integer_dtype = tf.int32 if x.dtype.size == 4 else tf.int64
    # all NaNs get the same bit pattern, and so do both zeros
    is_nan = tf.math.is_nan(x)
    x = tf.where(x == 0, tf.zeros((), x.dtype), x)
    x = tf.where(is_nan, tf.constant(math.nan, x.dtype), x)
    # read as integers, the bits of positive floats have the order of the floats, and the bits
    # of negative floats have the reverse order. So all bits of negative floats except the sign
    # (`integer_dtype.max`) are inverted
    bits = tf.bitcast(x, integer_dtype)
    keys = tf.where(bits < 0, tf.bitwise.bitwise_xor(bits, integer_dtype.max), bits)
    return tf.where(is_nan, integer_dtype.max, keys)


def _exchanged_with_last(x: Any, axis: int) -> Any:
    """Returns `x` with `axis` and the last axis exchanged."""
    order = list(range(len(x.shape)))
    order[axis], order[-1] = order[-1], order[axis]
    # nothing is exchanged if `axis` is the last axis
    return x if axis == order[axis] else tf.transpose(x, order)


@_placed
def searchsorted(x1: Any, x2: Any, side: str) -> Any:
    """Returns, for each value of `x2`, the index at which it would be inserted into the sorted vector `x1`. The value
    would be inserted before equal elements if `side` is "left", and after them if `side` is "right"."""
    return tf.searchsorted(x1, x2, side)


sliced = _placed(tables.sliced)


@_placed
def sort(x: Any, axis: int, descending: bool) -> Any:
    """Returns `x` sorted along an axis, in descending order if `descending` is True."""
    return take_along_axis(x, argsort(x, axis, descending), axis)


@_placed
def take(x: Any, indices: Any, axis: int) -> Any:
    """Returns the slices of `x` along `axis` at the indices in the vector `indices`."""
    return tf.gather(x, indices, axis=axis)


def einsum(subscripts: str, *tensors: Any) -> Any:
    """Returns the sums of products that the subscripts describe, such as "ij,jk->ik"."""
    # runs on the device of the first tensor, because the first argument is a string
    return _on_device_of(tensors[0], tf.einsum, subscripts, *tensors)


@_placed
def put(x: Any, indices: Any, values: Any) -> Any:
    """Returns a copy of `x` in which `values[i]` replaces the row `x[indices[i]]`."""
    # TensorFlow expects a vector of coordinates for each index; here, it has one coordinate
    return tf.tensor_scatter_nd_update(x, tf.expand_dims(indices, 1), values)


@_placed
def take_along_axis(x: Any, indices: Any, axis: int) -> Any:
    """Returns a tensor with the shape of `indices`. The result contains the elements of `x` at these indices along
    `axis`."""
    # if all axes but one are batch axes, `gather` works only along the last axis
    last = len(x.shape) - 1
    return _exchanged_with_last(
        tf.gather(
            _exchanged_with_last(x, axis),
            _exchanged_with_last(indices, axis),
            axis=last,
            batch_dims=last,
        ),
        axis,
    )


# shapes and products


def concat(tensors: Sequence[Any], axis: int) -> Any:
    """Returns the tensors joined along an existing axis."""
    # runs on the device of the first tensor, because a list has no device
    return _on_device_of(tensors[0], tf.concat, tensors, axis)


def stack(tensors: Sequence[Any], axis: int) -> Any:
    """Returns the tensors joined along a new axis."""
    return _on_device_of(tensors[0], tf.stack, tensors, axis)


unstack = _placed(lambda x, axis: tf.unstack(x, axis=axis))
view = _placed(tf.reshape)

# the extensions `linalg` and `fft`


@_placed
def _svd(x: Any, full_matrices: bool) -> tuple[Any, Any, Any]:
    """Returns the factors U, S and Vh of the singular value decomposition of `x`. Vh is the
    adjoint of V."""
    # TensorFlow returns V, but the standard requires the adjoint of V
    values, u, v = tf.linalg.svd(x, full_matrices=full_matrices)
    return u, values, tf.linalg.adjoint(v)


_FACTORIZATIONS = ("cholesky", "det", "eig", "eigh", "eigvalsh", "inv", "slogdet", "solve")
linalg = SimpleNamespace(
    **{name: _placed(getattr(tf.linalg, name)) for name in _FACTORIZATIONS},
    qr=_placed(lambda x, mode: tf.linalg.qr(x, full_matrices=mode == "complete")),
    svd=_svd,
    svdvals=_placed(lambda x: tf.linalg.svd(x, compute_uv=False)),
)


def _transform(
    function: Callable[..., Any], input_length: Callable[[int], int]
) -> Callable[..., Any]:
    """Returns a kernel with the arguments `(x, n, axis, norm)` for `function`, one of TensorFlow's transforms. These
    work along the last axis, and only the inverse transforms divide by `n`. `input_length(n)` returns the length of the
    input of a transform with `n` results: `n // 2 + 1` for `irfft`, and `n` for the other transforms."""

    @_placed
    def kernel(x: Any, n: int, axis: int, norm: str) -> Any:
        x, length = _exchanged_with_last(x, axis), input_length(n)
        # `tf.signal.fft` returns as many results as its input has elements, so the input is
        # truncated or padded with zeros
        x = x[..., :length]
        missing = length - x.shape[-1]
        # no other axis is padded
        x = tf.pad(x, [*[(0, 0)] * (len(x.shape) - 1), (0, missing)])
        # `rfft` and `irfft` also get the number of real elements; for `irfft`, the length of
        # the input does not determine it
        result = (
            function(x)
            if function not in (tf.signal.rfft, tf.signal.irfft)
            else function(x, [n])
        )
        # the factor is 1 / n, its square root, or 1; TensorFlow's inverse transforms already
        # contain the factor 1 / n
        is_inverse = function in (tf.signal.ifft, tf.signal.irfft)
        power = {"backward": 0.0, "ortho": 0.5, "forward": 1.0}[norm]
        scale = float(n) ** (power if is_inverse else -power)
        return _exchanged_with_last(result * tf.cast(scale, result.dtype), axis)

    return kernel


fft = SimpleNamespace(
    fft=_transform(tf.signal.fft, lambda n: n),
    ifft=_transform(tf.signal.ifft, lambda n: n),
    irfft=_transform(tf.signal.irfft, lambda n: n // 2 + 1),
    rfft=_transform(tf.signal.rfft, lambda n: n),
)
