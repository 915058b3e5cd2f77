"""JAX's kernels for `xdevice.array_namespace`: `xdevice.contract.arithmetic` says what they are promised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from xdevice.base.dtypes import host_dtype

if TYPE_CHECKING:
    from jax import Array

TAKE_NUMBERS = frozenset(["add", "divide", "maximum", "minimum", "multiply", "subtract"])
ONE_DEVICE = True
RESHAPE_IS_VIEW = True  # arrays cannot be changed, so nobody can tell a copy from a view

# making

dtype = host_dtype


def astype(x: Array, name: str) -> Array:
    return jnp.astype(x, host_dtype(name), copy=True)


def constant(array: np.ndarray[Any, Any], like: Array) -> Array:
    """The array on the device of `like`; uncommitted, so that it can be used with arrays on any device, if `like` is
    traced or spread over several."""
    if isinstance(like, jax.core.Tracer):
        return jnp.asarray(array)
    places = like.sharding.device_set
    return jax.device_put(array, *places) if len(places) == 1 else jnp.asarray(array)


copy = jnp.copy


def full_like(x: Array, value: complex, name: str) -> Array:
    return jnp.full_like(x, value, dtype=host_dtype(name))


def number(value: complex, name: str, like: Array) -> Array:
    with np.errstate(all="ignore"):
        return constant(np.asarray(value).astype(host_dtype(name)), like)


# of each element

abs = jnp.abs
acos = jnp.acos
acosh = jnp.acosh
add = jnp.add
asin = jnp.asin
asinh = jnp.asinh
atan = jnp.atan
atan2 = jnp.atan2
atanh = jnp.atanh
ceil = jnp.ceil
cos = jnp.cos
cosh = jnp.cosh
divide = jnp.divide
equal = jnp.equal
exp = jnp.exp
expm1 = jnp.expm1
floor = jnp.floor
greater = jnp.greater
greater_equal = jnp.greater_equal
isfinite = jnp.isfinite
isinf = jnp.isinf
isnan = jnp.isnan
less = jnp.less
less_equal = jnp.less_equal
log = jnp.log
log10 = jnp.log10
log1p = jnp.log1p
log2 = jnp.log2
logical_and = jnp.logical_and
logical_not = jnp.logical_not
logical_or = jnp.logical_or
logical_xor = jnp.logical_xor
maximum = jnp.maximum
minimum = jnp.minimum
multiply = jnp.multiply
negative = jnp.negative
not_equal = jnp.not_equal
pow = jnp.pow
reciprocal = jnp.reciprocal
remainder = jnp.remainder
round = jnp.round
sign = jnp.sign
sin = jnp.sin
sinh = jnp.sinh
sqrt = jnp.sqrt
square = jnp.square
subtract = jnp.subtract
tan = jnp.tan
tanh = jnp.tanh
trunc = jnp.trunc
where = jnp.where


def floor_divide(x1: Array, x2: Array) -> Array:
    made = jnp.floor_divide(x1, x2)
    if not jnp.issubdtype(made.dtype, jnp.floating):
        return made
    return jnp.where((x2 == 0) & (x1 != 0), x1 / x2, made)  # JAX gives NaN for a divisor of 0, the standard infinity


# of many elements


def all(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return jnp.all(x, axes, keepdims=keepdims)


def any(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return jnp.any(x, axes, keepdims=keepdims)


def max(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return jnp.max(x, axes, keepdims=keepdims)


def mean(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return jnp.mean(x, axes, keepdims=keepdims)


def min(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return jnp.min(x, axes, keepdims=keepdims)


def prod(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return jnp.prod(x, axes, keepdims=keepdims)


def sum(x: Array, axes: tuple[int, ...] | None, keepdims: bool) -> Array:
    return jnp.sum(x, axes, keepdims=keepdims)


argmax = jnp.argmax
argmin = jnp.argmin


def argsort(x: Array, axis: int, descending: bool) -> Array:
    return jnp.argsort(x, axis, stable=True, descending=descending)


cumulative_sum = jnp.cumsum


def sort(x: Array, axis: int, descending: bool) -> Array:
    return jnp.sort(x, axis, stable=True, descending=descending)


def take(x: Array, indices: Array, axis: int) -> Array:
    return jnp.take(x, indices, axis, mode="fill")  # the values of traced indices cannot be checked


def take_along_axis(x: Array, indices: Array, axis: int) -> Array:
    return jnp.take_along_axis(x, indices, axis, mode="fill")


# of shapes

broadcast_to = jnp.broadcast_to
concat = jnp.concatenate
expand_dims = jnp.expand_dims
flip = jnp.flip
matmul = jnp.matmul
permute_dims = jnp.permute_dims
reshape = jnp.reshape
roll = jnp.roll
squeeze = jnp.squeeze
stack = jnp.stack
view = reshape
