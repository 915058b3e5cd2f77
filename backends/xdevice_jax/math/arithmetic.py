"""JAX's kernels for `xdevice.array_namespace`. `xdevice.math.contract.arithmetic` describes their arguments and
results."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from xdevice.base.dtypes import host_dtype

# JAX's own functions that can be used as kernels without changes
from jax.numpy import (  # isort: skip  # noqa: F401
    abs, acos, acosh, argmax, argmin, asin, asinh, atan, atan2, atanh, bitwise_and, bitwise_invert, bitwise_left_shift,
    bitwise_or, bitwise_right_shift, bitwise_xor, broadcast_to, ceil, clip, conj, copy, copysign, cos, cosh, einsum,
    equal, exp, expand_dims, expm1, fft, flip, floor, greater, greater_equal, hypot, imag, isfinite, isinf, isnan, less,
    less_equal, linalg, log, log10, log1p, log2, logaddexp, logical_and, logical_not, logical_or, logical_xor, maximum,
    minimum, negative, nextafter, not_equal, permute_dims, pow, real, reciprocal, remainder, repeat, reshape, roll,
    round, sign, signbit, sin, sinh, sqrt, square, squeeze, stack, tan, tanh, tril, triu, trunc, where,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Callable

    from jax import Array

# the constants that `xdevice.math.contract.arithmetic` explains
TAKE_NUMBERS = frozenset(["add", "divide", "maximum", "minimum", "multiply", "subtract"])
ONE_DEVICE = True
TAKES_MASKS = True
RESHAPE_IS_VIEW = True  # arrays cannot be changed, so a copy and a view look the same

# creating arrays

dtype = host_dtype


def astype(x: Array, name: str) -> Array:
    """Returns a new array with the values of `x` converted to the dtype `name`."""
    # copied even if `x` already has that dtype, because the contract requires a new array
    return jnp.astype(x, host_dtype(name), copy=True)


def constant(array: np.ndarray[Any, Any], like: Array) -> Array:
    """Returns the values of a NumPy array on the device of `like`. If `like` is traced, or spread over several devices,
    the result is uncommitted, so JAX can combine it with arrays on any device."""
    if isinstance(like, jax.core.Tracer):
        return jnp.asarray(array)
    # committed to that device, so that JAX raises an error if the array is combined with an array on another device
    devices = like.sharding.device_set
    return jax.device_put(array, *devices) if len(devices) == 1 else jnp.asarray(array)


def full_like(x: Array, value: complex, name: str) -> Array:
    """Returns an array with the shape and the device of `x` and the dtype `name`, filled with
    `value`."""
    return jnp.full_like(x, value, dtype=host_dtype(name))


def number(value: complex, name: str, like: Array) -> Array:
    """Returns `value` as a 0-d array, with the dtype `name`, on the device of
    `like`."""
    # suppresses NumPy's warning about a number that is too large for the dtype and becomes infinity
    with np.errstate(all="ignore"):
        return constant(np.asarray(value).astype(host_dtype(name)), like)


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function` as one compiled program. The program is called with a tuple of tensors, followed by the
    settings. The settings must be hashable, because JAX compiles once for each combination of settings."""
    # the settings are passed as one tuple, because `static_argnums` refers to the positions of arguments, and functions
    # have different numbers of settings
    program = jax.jit(lambda tensors, settings: function(*tensors, *settings), static_argnums=1)
    return lambda tensors, *settings: program(tensors, settings)


# elementwise functions

# compiled once more, so that the gradient is also one program: JAX inlines its own functions, and each step of their
# gradients would be a separate program
add = jax.jit(jnp.add)
divide = jax.jit(jnp.divide)
multiply = jax.jit(jnp.multiply)
subtract = jax.jit(jnp.subtract)


# `partial`, because type checkers treat a plain `@jax.jit` as an untyped decorator
@partial(jax.jit)
def floor_divide(x1: Array, x2: Array) -> Array:
    """Returns the quotient rounded down. For floats, division by 0 returns an infinity, and 0 / 0 returns NaN."""
    quotient = jnp.floor_divide(x1, x2)
    # the standard does not define the result of dividing integers by 0, so only floats are corrected
    if not jnp.issubdtype(quotient.dtype, jnp.floating):
        return quotient
    # for a divisor of 0, JAX returns NaN, but the standard requires infinity:
    # https://github.com/jax-ml/jax/issues/37752
    return jnp.where((x2 == 0) & (x1 != 0), x1 / x2, quotient)


# reductions, sorting and indexing


def _reducing(function: Callable[..., Array]) -> Callable[..., Array]:
    """Returns a kernel with the arguments `(x, axes, keepdims)` that calls `function`, one of JAX's reductions."""

    def kernel(x: Array, axes: tuple[int, ...] | None, keepdims: bool) -> Array:
        return function(x, axes, keepdims=keepdims)

    return kernel


all = _reducing(jnp.all)
any = _reducing(jnp.any)
max = _reducing(jnp.max)
mean = _reducing(jnp.mean)
min = _reducing(jnp.min)
prod = _reducing(jnp.prod)
sum = _reducing(jnp.sum)


def argsort(x: Array, axis: int, descending: bool) -> Array:
    """Returns the indices that sort `x` along an axis, in descending order if `descending` is
    True. Equal elements keep their order."""
    return jnp.argsort(x, axis, stable=True, descending=descending)


cumulative_prod = jnp.cumprod
cumulative_sum = jnp.cumsum


def searchsorted(x1: Array, x2: Array, side: str) -> Array:
    """Returns, for each value of `x2`, the index at which it would be inserted into the sorted vector `x1`. The value
    would be inserted before equal elements if `side` is "left", and after them if `side` is "right"."""
    return jnp.searchsorted(x1, x2, side=side)


def sliced(x: Array, axis: int, start: int, stop: int) -> Array:
    """Returns the elements of `x` along an axis from `start` up to, but not including, `stop`."""
    return jax.lax.slice_in_dim(x, start, stop, axis=axis)


def sort(x: Array, axis: int, descending: bool) -> Array:
    """Returns `x` sorted along an axis, in descending order if `descending` is True."""
    return jnp.sort(x, axis, stable=True, descending=descending)


def take(x: Array, indices: Array, axis: int) -> Array:
    """Returns the slices of `x` at the indices in the vector `indices` along an axis."""
    # without a mode, JAX would check the bounds of each index, and insert NaN for an index out of range
    return jnp.take(x, indices, axis, mode=_mode(indices, "clip"))


# `partial`, because type checkers treat a plain `@jax.jit` as an untyped decorator
@partial(jax.jit)
def put(x: Array, indices: Array, values: Array) -> Array:
    """Returns a copy of `x` in which `values[i]` replaces the row `x[indices[i]]`."""
    # the core guarantees that no index occurs twice, so JAX may write the values in any order
    return x.at[indices].set(values, unique_indices=True)


def take_along_axis(x: Array, indices: Array, axis: int) -> Array:
    """Returns the elements of `x` at these indices along an axis, as an array with the shape of `indices`."""
    return jnp.take_along_axis(x, indices, axis, mode=_mode(indices, "promise_in_bounds"))


def _mode(indices: Array, fast: str) -> str:
    """Returns the mode in which JAX handles indices out of range: `fast` for indices that the core has checked, and
    "fill" for traced indices, whose values cannot be checked."""
    # for an index out of range, "fill" returns NaN, whereas "clip" would hide the mistake and return another element
    return "fill" if isinstance(indices, jax.core.Tracer) else fast


# shapes and products

concat = jnp.concatenate


def diagonal(x: Array, k: int) -> Array:
    """Returns the diagonals of the matrices in the last two axes. `k` is 0 for the main diagonals, positive for
    diagonals above them, and negative for diagonals below them."""
    return jnp.diagonal(x, k, -2, -1)


matmul = jax.jit(jnp.matmul)


def unstack(x: Array, axis: int) -> tuple[Array, ...]:
    """Returns the parts of `x` along an axis, each without that axis."""
    return jnp.unstack(x, axis=axis)


view = reshape  # a program cannot notice whether a reshape copies, because arrays cannot be changed
