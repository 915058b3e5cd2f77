"""TensorFlow's kernels for `xdevice.array_namespace`. `xdevice.contract.arithmetic` says with which arguments the core
calls them, and what they have to return.

Facts about TensorFlow that the code depends on:
- An operation runs on the device of the open scope, not on that of its operands. So each kernel opens a scope with the
  device of its first operand.
- `top_k`, on which `tf.sort` is built, does not sort NaN correctly. So floats are sorted by integers in the same order.
- `floordiv` of floats rounds the quotient before it takes the floor: 1 // 0.1 is 10, while `floormod` gives a remainder
  of 0.1. So `floor_divide` computes the quotient from the remainder.
- `argmax` and `argmin` skip NaN.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from xdevice.math.contract.arithmetic import HOST
from xdevice_tensorflow.placing import placed as _placed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

TAKE_NUMBERS = frozenset(
    [
        "add", "divide", "equal", "greater", "greater_equal", "less", "less_equal", "maximum", "minimum", "multiply",
        "not_equal", "pow", "subtract",
    ]
)  # fmt: skip
TAKES_MASKS = False
_UNSIGNED = {"uint8": "int32", "uint16": "int32", "uint32": "int64", "uint64": HOST}
WIDER = {
    "abs": _UNSIGNED,
    "negative": _UNSIGNED,
    "pow": _UNSIGNED,
    "sign": _UNSIGNED,
    "matmul": {"int8": "int32", "int16": "int32"} | _UNSIGNED,
}
RESHAPE_IS_VIEW = True  # tensors cannot be changed, so nobody can tell a copy from a view

# making


def dtype(name: str) -> Any:
    return getattr(tf, name)


@_placed
def astype(x: Any, name: str) -> Any:
    if name == "bool":
        return tf.not_equal(x, tf.zeros((), x.dtype))
    return tf.cast(x, name)


def constant(array: np.ndarray[Any, Any], like: Any) -> Any:
    return _made(like, tf.constant, array)


copy = _placed(tf.identity)


@_placed
def full_like(x: Any, value: complex, name: str) -> Any:
    return tf.fill(tf.shape(x), _number(value, name))


def number(value: complex, name: str, like: Any) -> Any:
    return _made(like, _number, value, name)


def _number(value: complex, name: str) -> Any:
    return tf.constant(bool(value) if name == "bool" else value, name)


def _made(like: Any, make: Callable[..., Any], *arguments: Any) -> Any:
    return _placed(lambda x: make(*arguments))(like)


# of each element

abs = _placed(tf.abs)
acos = _placed(tf.acos)
acosh = _placed(tf.acosh)
add = _placed(tf.add)
asin = _placed(tf.asin)
asinh = _placed(tf.asinh)
atan = _placed(tf.atan)
atan2 = _placed(tf.atan2)
atanh = _placed(tf.atanh)
bitwise_left_shift = _placed(tf.bitwise.left_shift)
bitwise_right_shift = _placed(tf.bitwise.right_shift)
ceil = _placed(tf.math.ceil)
conj = _placed(tf.math.conj)
cos = _placed(tf.cos)
cosh = _placed(tf.cosh)
divide = _placed(tf.math.truediv)
equal = _placed(tf.equal)
exp = _placed(tf.exp)
expm1 = _placed(tf.math.expm1)
floor = _placed(tf.floor)
greater = _placed(tf.greater)
greater_equal = _placed(tf.greater_equal)
imag = _placed(tf.math.imag)
less = _placed(tf.less)
less_equal = _placed(tf.less_equal)
log = _placed(tf.math.log)
log1p = _placed(tf.math.log1p)
logical_and = _placed(tf.logical_and)
logical_not = _placed(tf.logical_not)
logical_or = _placed(tf.logical_or)
logical_xor = _placed(tf.math.logical_xor)
maximum = _placed(tf.maximum)
minimum = _placed(tf.minimum)
multiply = _placed(tf.multiply)
negative = _placed(tf.negative)
nextafter = _placed(tf.math.nextafter)
not_equal = _placed(tf.not_equal)
pow = _placed(tf.pow)
real = _placed(tf.math.real)
reciprocal = _placed(tf.math.reciprocal)
remainder = _placed(tf.math.floormod)
round = _placed(tf.round)
sign = _placed(tf.sign)
sin = _placed(tf.sin)
sinh = _placed(tf.sinh)
sqrt = _placed(tf.sqrt)
square = _placed(tf.square)
subtract = _placed(tf.subtract)
tan = _placed(tf.tan)
tanh = _placed(tf.tanh)
where = _placed(tf.where)


def _of_bits(function: Callable[..., Any], of_bool: Callable[..., Any]) -> Callable[..., Any]:
    return _placed(lambda x, *rest: (of_bool if x.dtype is tf.bool else function)(x, *rest))


bitwise_and = _of_bits(tf.bitwise.bitwise_and, tf.logical_and)
bitwise_invert = _of_bits(tf.bitwise.invert, tf.logical_not)
bitwise_or = _of_bits(tf.bitwise.bitwise_or, tf.logical_or)
bitwise_xor = _of_bits(tf.bitwise.bitwise_xor, tf.math.logical_xor)


@_placed
def copysign(x1: Any, x2: Any) -> Any:
    return tf.where(signbit(x1) == signbit(x2), x1, -x1)


@_placed
def hypot(x1: Any, x2: Any) -> Any:
    x1, x2 = tf.abs(x1), tf.abs(x2)
    large, small = tf.maximum(x1, x2), tf.minimum(x1, x2)
    made = large * tf.sqrt(1 + tf.square(tf.math.divide_no_nan(small, large)))
    return tf.where(tf.math.is_inf(x1) | tf.math.is_inf(x2), tf.constant(math.inf, x1.dtype), made)


@_placed
def logaddexp(x1: Any, x2: Any) -> Any:
    large = tf.maximum(x1, x2)
    apart = tf.where(x1 == x2, tf.zeros((), x1.dtype), -tf.abs(x1 - x2))  # infinities are not subtracted
    return large + tf.math.log1p(tf.exp(apart))


@_placed
def isfinite(x: Any) -> Any:
    return tf.math.is_finite(x) if x.dtype.is_floating else isfinite(tf.math.real(x)) & isfinite(tf.math.imag(x))


@_placed
def isinf(x: Any) -> Any:
    return tf.math.is_inf(x) if x.dtype.is_floating else isinf(tf.math.real(x)) | isinf(tf.math.imag(x))


@_placed
def isnan(x: Any) -> Any:
    return tf.math.is_nan(x) if x.dtype.is_floating else isnan(tf.math.real(x)) | isnan(tf.math.imag(x))


@_placed
def signbit(x: Any) -> Any:
    return tf.bitcast(x, {2: tf.int16, 4: tf.int32, 8: tf.int64}[x.dtype.size]) < 0


@_placed
def floor_divide(x1: Any, x2: Any) -> Any:
    if not x1.dtype.is_floating:
        return tf.math.floordiv(x1, x2)
    rounded, rest = x1 / x2, tf.truncatemod(x1, x2)
    times = (x1 - rest) / x2 - tf.cast((rest != 0) & ((rest < 0) != (x2 < 0)), x1.dtype)
    times = tf.where(times == 0, rounded * 0, tf.round(times))  # `rounded * 0` has the sign of the quotient
    return tf.stop_gradient(tf.where(x2 == 0, rounded, times))


@_placed
def log10(x: Any) -> Any:
    return tf.math.log(x) / tf.constant(math.log(10), x.dtype)


@_placed
def log2(x: Any) -> Any:
    return tf.math.log(x) / tf.constant(math.log(2), x.dtype)


@_placed
def trunc(x: Any) -> Any:
    return tf.where(x < 0, tf.math.ceil(x), tf.math.floor(x))


# of many elements

all = _placed(tf.reduce_all)
any = _placed(tf.reduce_any)
max = _placed(tf.reduce_max)
mean = _placed(tf.reduce_mean)
min = _placed(tf.reduce_min)
prod = _placed(tf.reduce_prod)
sum = _placed(tf.reduce_sum)


@_placed
def argmax(x: Any, axis: int) -> Any:
    return _place(tf.argmax, x, axis)


@_placed
def argmin(x: Any, axis: int) -> Any:
    return _place(tf.argmin, x, axis)


def _place(find: Callable[..., Any], x: Any, axis: int) -> Any:
    found = find(x, axis)
    if not x.dtype.is_floating:
        return found
    is_nan = tf.math.is_nan(x)
    return tf.where(tf.reduce_any(is_nan, axis), tf.argmax(tf.cast(is_nan, "int32"), axis), found)


@_placed
def argsort(x: Any, axis: int, descending: bool) -> Any:
    keys = _last(_keys(x), axis)
    # top_k puts the first of equal values first; the complement reverses the order of integers
    places = tf.math.top_k(keys if descending else tf.bitwise.invert(keys), tf.shape(keys)[-1]).indices
    return _last(places, axis)


def _keys(x: Any) -> Any:
    """Returns integers that sort as the values of `x` do, with NaN last."""
    if not x.dtype.is_floating:
        return x
    if x.dtype.size < 4:
        x = tf.cast(x, tf.float32)
    whole = tf.int32 if x.dtype.size == 4 else tf.int64
    x = tf.where(tf.math.is_nan(x), tf.constant(math.nan, x.dtype), tf.where(x == 0, tf.zeros((), x.dtype), x))
    bits = tf.bitcast(x, whole)
    return tf.where(tf.math.is_nan(x), whole.max, tf.where(bits < 0, tf.bitwise.bitwise_xor(bits, whole.max), bits))


def _last(x: Any, axis: int) -> Any:
    """Returns `x` with `axis` and the last axis exchanged."""
    order = list(range(len(x.shape)))
    order[axis], order[-1] = order[-1], order[axis]
    return x if axis == order[axis] else tf.transpose(x, order)


cumulative_prod = _placed(tf.math.cumprod)
cumulative_sum = _placed(tf.cumsum)


@_placed
def searchsorted(x1: Any, x2: Any, side: str) -> Any:
    return tf.searchsorted(x1, x2, side)


@_placed
def sliced(x: Any, axis: int, start: int, stop: int) -> Any:
    return x[(slice(None),) * axis + (slice(start, stop),)]


@_placed
def sort(x: Any, axis: int, descending: bool) -> Any:
    return take_along_axis(x, argsort(x, axis, descending), axis)


@_placed
def take(x: Any, indices: Any, axis: int) -> Any:
    return tf.gather(x, indices, axis=axis)


def einsum(subscripts: str, tensors: Sequence[Any]) -> Any:
    return _made(tensors[0], tf.einsum, subscripts, *tensors)


@_placed
def put(x: Any, indices: Any, values: Any) -> Any:
    return tf.tensor_scatter_nd_update(x, tf.expand_dims(indices, 1), values)


@_placed
def take_along_axis(x: Any, indices: Any, axis: int) -> Any:
    last = len(x.shape) - 1
    return _last(tf.gather(_last(x, axis), _last(indices, axis), axis=last, batch_dims=last), axis)


# of shapes

broadcast_to = _placed(tf.broadcast_to)


def concat(tensors: Sequence[Any], axis: int) -> Any:
    return _made(tensors[0], tf.concat, list(tensors), axis)


expand_dims = _placed(tf.expand_dims)
flip = _placed(tf.reverse)
matmul = _placed(tf.matmul)
permute_dims = _placed(tf.transpose)
reshape = _placed(tf.reshape)
roll = _placed(tf.roll)
squeeze = _placed(tf.squeeze)


def stack(tensors: Sequence[Any], axis: int) -> Any:
    return _made(tensors[0], tf.stack, list(tensors), axis)


unstack = _placed(lambda x, axis: tf.unstack(x, axis=axis))
view = reshape

# the extensions


@_placed
def _svd(x: Any, full_matrices: bool) -> tuple[Any, Any, Any]:
    values, u, v = tf.linalg.svd(x, full_matrices=full_matrices)
    return u, values, tf.linalg.adjoint(v)


linalg = SimpleNamespace(
    cholesky=_placed(tf.linalg.cholesky),
    det=_placed(tf.linalg.det),
    eigh=_placed(tf.linalg.eigh),
    eigvalsh=_placed(tf.linalg.eigvalsh),
    inv=_placed(tf.linalg.inv),
    qr=_placed(lambda x, mode: tf.linalg.qr(x, full_matrices=mode == "complete")),
    slogdet=_placed(tf.linalg.slogdet),
    solve=_placed(tf.linalg.solve),
    svd=_svd,
    svdvals=_placed(lambda x: tf.linalg.svd(x, compute_uv=False)),
)


def _transform(function: Callable[..., Any], of_length: Callable[[int], int]) -> Callable[..., Any]:
    """Makes a kernel of one of TensorFlow's transforms along the last axis, which scale the inverse alone."""

    @_placed
    def kernel(x: Any, n: int, axis: int, norm: str) -> Any:
        x, length = _last(x, axis), of_length(n)
        x = x[..., :length]
        x = tf.pad(x, [(0, 0)] * (len(x.shape) - 1) + [(0, length - x.shape[-1])])
        made = function(x) if function not in (tf.signal.rfft, tf.signal.irfft) else function(x, [n])
        is_inverse = function in (tf.signal.ifft, tf.signal.irfft)
        power = {"backward": 0.0, "ortho": 0.5, "forward": 1.0}[norm]
        scale = float(n) ** (power if is_inverse else -power)
        return _last(made * tf.cast(scale, made.dtype), axis)

    return kernel


fft = SimpleNamespace(
    fft=_transform(tf.signal.fft, lambda n: n),
    ifft=_transform(tf.signal.ifft, lambda n: n),
    irfft=_transform(tf.signal.irfft, lambda n: n // 2 + 1),
    rfft=_transform(tf.signal.rfft, lambda n: n),
)
