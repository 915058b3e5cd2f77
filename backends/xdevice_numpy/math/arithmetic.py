"""NumPy's kernels for `xdevice.array_namespace`. `xdevice.math.contract.arithmetic` describes their arguments and
results.

The code depends on these facts about NumPy:
- It returns a scalar where the Array API standard requires a 0-d array.
- It warns about `1 / 0` and `log(0)`, for which the standard defines results. Kernels that may cause
  such warnings therefore silence them. `add`, `multiply` and `subtract` do not silence them, because
  silencing takes longer than an addition.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from xdevice.base.dtypes import host_dtype
from xdevice.errors import UnsupportedError
from xdevice.math.contract.tables import argsort, named, sliced  # noqa: F401  # kernels as they are

if TYPE_CHECKING:
    from collections.abc import Callable

    Array = np.ndarray[Any, Any]

# the constants that `xdevice.math.contract.arithmetic` explains. No kernel accepts a Python
# number, because NumPy 1 computes with a 0-d float32 array and a number in float64
TAKE_NUMBERS = frozenset[str]()
TAKES_MASKS = True
ONE_DEVICE = True
RESHAPE_IS_VIEW = True


def require(x: Any) -> None:
    """Raises `UnsupportedError` for a `numpy.matrix`."""
    if isinstance(x, np.matrix):
        raise UnsupportedError(
            f"numpy does not support arithmetic with an object of type {type(x).__qualname__} here, because a "
            f"matrix has different rules for dimensions and products; convert it to an array: numpy.asarray(x)"
        )


def settled(x: Any) -> Array:
    """Returns the result of a kernel as an array. The core calls this for kernels of two
    tensors, because some of NumPy's functions, such as `np.add`, return a scalar for 0-d
    operands."""
    return np.asarray(x)


def _returning_array(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a kernel that calls `function`, which never warns. The kernel returns an array even if the function
    returns a scalar. It does not silence warnings, because that would take 2 us."""

    def kernel(*operands: Array) -> Array:
        return np.asarray(function(*operands))

    return kernel


def _without_warnings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a kernel that calls `function`, which may warn, for example about infinity or NaN. The kernel does not
    warn, and returns an array even if the function returns a scalar."""

    def kernel(*operands: Any) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(function(*operands))

    return kernel


# creating arrays

dtype = host_dtype


def astype(x: Array, name: str) -> Array:
    """Returns a new array with the values of `x` in the dtype `name`."""
    # NumPy warns if NaN or infinity becomes an integer
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(host_dtype(name))


def constant(array: Array, like: Array) -> Array:
    """Returns the values of a NumPy array as an array on the device of `like`."""
    return array  # NumPy has only one device, so the array is already there


def copy(x: Array) -> Array:
    """Returns a copy of `x` in new memory."""
    return np.array(x, copy=True)


def full_like(x: Array, value: complex, name: str) -> Array:
    """Returns an array with the shape and the device of `x` and the dtype `name`, filled with
    `value`."""
    return np.full(x.shape, value, host_dtype(name))


def number(value: complex, name: str, like: Array) -> Array:
    """Returns `value` as a 0-d array, with the dtype `name`, on the device of
    `like`."""
    # NumPy warns if the number is too large for the dtype and becomes infinity
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(host_dtype(name))


# elementwise functions

add = np.add
multiply = np.multiply
subtract = np.subtract
where = np.where

# NumPy's functions that never warn; a keyword gives NumPy's name for a function whose name in
# the standard differs
_NEVER_WARNING = named(
    "bitwise_and", "bitwise_or", "bitwise_xor", "ceil", "conj", "copysign", "equal", "floor", "greater",
    "greater_equal", "imag", "isfinite", "isinf", "isnan", "less", "less_equal", "logical_and", "logical_not",
    "logical_or", "logical_xor", "negative", "not_equal", "real", "signbit", "trunc", abs="absolute",
    bitwise_invert="invert", bitwise_left_shift="left_shift", bitwise_right_shift="right_shift",
)  # fmt: skip
# NumPy's functions that warn for some values
_WARNING = named(
    "cos", "cosh", "divide", "exp", "expm1", "floor_divide", "hypot", "log", "log10", "log1p", "log2", "logaddexp",
    "maximum", "minimum", "nextafter", "reciprocal", "remainder", "round", "sin", "sinh", "sqrt", "square", "tan",
    "tanh", acos="arccos", acosh="arccosh", asin="arcsin", asinh="arcsinh", atan="arctan", atan2="arctan2",
    atanh="arctanh", pow="power",
)  # fmt: skip
globals().update(
    {name: _returning_array(getattr(np, own)) for name, own in _NEVER_WARNING.items()}
)
globals().update({name: _without_warnings(getattr(np, own)) for name, own in _WARNING.items()})


@_without_warnings
def sign(x: Array) -> Array:
    """Returns -1, 0 or 1 for each real number, and x / |x| for each complex number."""
    if x.dtype.kind != "c":
        return np.asarray(np.sign(x))
    # the standard defines the sign of a complex number as x / |x|, and the sign of 0 as 0;
    # NumPy 1 returns the sign of the real part instead
    result = x / np.where(x == 0, 1, np.abs(x))
    return np.asarray(np.where(x == 0, 0, result), x.dtype)


# reductions, sorting and indexing


def _reducing(function: Callable[..., Any]) -> Callable[..., Array]:
    """Returns a kernel with the arguments `(x, axes, keepdims)`, which calls `function`, one of NumPy's reductions.
    The kernel does not warn."""

    def kernel(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(function(x, axis=axes, keepdims=keepdims))

    return kernel


all = _reducing(np.all)
any = _reducing(np.any)
max = _reducing(np.max)
min = _reducing(np.min)
prod = _reducing(np.multiply.reduce)


def mean(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """Returns the mean over `axes`. If `keepdims` is True, these axes remain as axes of length 1."""
    # for an empty array, np.mean would call `warnings.warn`, which `errstate` does not silence
    with np.errstate(all="ignore"):
        total = np.asarray(np.add.reduce(x, axis=axes, keepdims=keepdims))
        # the divisor, which is the number of elements of each sum, has the dtype of the total,
        # because in NumPy 1, a Python float would turn a 0-d float32 total into float64
        return np.asarray(total / total.dtype.type(x.size / total.size if total.size else 1))


def sum(x: Array, axes: tuple[int, ...] | None, keepdims: bool) -> Array:
    return np.asarray(np.add.reduce(x, axis=axes, keepdims=keepdims))


argmax = _returning_array(np.argmax)
argmin = _returning_array(np.argmin)


def cumulative_prod(x: Array, axis: int) -> Array:
    """Returns, for each position along an axis, the product of the elements up to and including that position."""
    with np.errstate(all="ignore"):
        # without `dtype`, NumPy would widen small integers; the core itself does this where the
        # standard requires it
        return np.cumprod(x, axis=axis, dtype=x.dtype)


def cumulative_sum(x: Array, axis: int) -> Array:
    """Returns, for each position along an axis, the sum of the elements up to and including that position."""
    # the dtype is given for the same reason as in `cumulative_prod`
    return np.cumsum(x, axis=axis, dtype=x.dtype)


def searchsorted(x1: Array, x2: Array, side: Any) -> Array:
    """Returns, for each value of `x2`, the index at which it would be inserted into the sorted vector `x1`. The value
    would be inserted before equal elements if `side` is "left", and after them if `side` is "right"."""
    return np.searchsorted(x1, x2, side)


def sort(x: Array, axis: int, descending: bool) -> Array:
    """Returns `x` sorted along an axis, in descending order if `descending` is True."""
    result = np.sort(x, axis=axis, kind="stable")
    return np.flip(result, axis) if descending else result


def take(x: Array, indices: Array, axis: int) -> Array:
    """Returns the slices of `x` along an axis at the indices in the vector `indices`."""
    return np.take(x, indices, axis=axis)


def put(x: Array, indices: Array, values: Array) -> Array:
    """Returns a copy of `x`, in which `values[i]` replaces the element `x[indices[i]]` for each i."""
    # kernels return new arrays, and never write into the caller's arrays
    result = x.copy()
    result[indices] = values
    return result


take_along_axis = np.take_along_axis


@_without_warnings
def clip(x: Array, min: float | None, max: float | None) -> Array:
    """Returns `x` with values below `min` replaced by `min`, and values above `max` replaced by `max`. None means that
    there is no bound."""
    # the bounds are cast to the dtype of `x`, because a bound of another dtype would change the
    # dtype of the result
    bounds: Any = [
        None if bound is None else np.asarray(bound).astype(x.dtype) for bound in (min, max)
    ]
    return np.asarray(np.clip(x, *bounds))


def cross(x1: Array, x2: Array, axis: int) -> Array:
    return np.cross(x1, x2, axis=axis)


def einsum(subscripts: str, *tensors: Array) -> Array:
    """Returns the sums of products that the subscripts describe, such as "ij,jk->ik"."""
    with np.errstate(all="ignore"):
        return np.asarray(np.einsum(subscripts, *tensors, optimize=True))


# shapes and products

broadcast_to = np.broadcast_to
concat = np.concatenate


def diagonal(x: Array, k: int) -> Array:
    """Returns the diagonals of the matrices in the last two axes of `x`. `k` is 0 for the main diagonals, positive
    for diagonals above the main diagonals, and negative for diagonals below them."""
    return np.diagonal(x, k, -2, -1)


expand_dims = np.expand_dims
flip = np.flip
matmul = np.matmul
permute_dims = np.transpose
repeat = np.repeat
reshape = np.reshape
roll = np.roll
squeeze = np.squeeze
stack = np.stack
tril = np.tril
triu = np.triu


def unstack(x: Array, axis: int) -> tuple[Array, ...]:
    """Returns a tuple of the parts of `x` along an axis, each without that axis."""
    # iterating over a vector yields scalars, so each scalar is converted to an array
    return tuple(np.moveaxis(x, axis, 0) if x.ndim > 1 else map(np.asarray, x))


def view(x: Array, shape: tuple[int, ...]) -> Array:
    """Returns an array with another shape that shares the memory of `x`. Raises ValueError if that is impossible."""
    result = np.reshape(x, shape)
    # NumPy silently copies the array if no strides can describe the new shape; an empty array
    # has no memory to share
    if x.size and not np.shares_memory(result, x):
        raise ValueError(
            f"an array with strides {x.strides} cannot be reshaped to {shape} without a copy; omit copy=False"
        )
    return result


# the extensions `linalg` and `fft`


def _returning_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a kernel that calls `function`, which returns one result or a tuple of results. The kernel returns
    arrays even if NumPy returns scalars, and does not warn."""

    def kernel(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            result = function(*arguments)
        return (
            tuple(map(np.asarray, result)) if isinstance(result, tuple) else np.asarray(result)
        )

    return kernel


fft = np.fft
# NumPy's names of these functions are the same as in the standard; only `svdvals` (below) does
# not exist in NumPy 1
_FACTORIZATIONS = (
    "cholesky",
    "det",
    "eig",
    "eigh",
    "eigvalsh",
    "inv",
    "qr",
    "slogdet",
    "solve",
    "svd",
)
linalg = SimpleNamespace(
    **{name: _returning_arrays(getattr(np.linalg, name)) for name in _FACTORIZATIONS},
    svdvals=_returning_arrays(partial(np.linalg.svd, compute_uv=False)),
)
