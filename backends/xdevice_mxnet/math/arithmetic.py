"""MXNet's kernels for `xdevice.array_namespace`. `xdevice.math.contract.arithmetic` describes their arguments and
results.

The code depends on these facts about MXNet:
- NumPy's semantics are a setting of each thread. Without them, there are no 0-d arrays and no arrays
  without elements. Differentiating a loss that was recorded with them then crashes the process. The first call of a
  kernel in a thread therefore enables them permanently, or raises an error.
- If MXNet has no kernel for an operation, or a wrong kernel, NumPy computes the operation on the host. The gradient of
  such an operation is 0 or missing, or raises an error. MXNet's own gradient of `eigh` and `eigvalsh` is 0 (no upstream
  issue known).
- `abs`, `square`, `pow` and `mod` compute integers as floats (no upstream issue known).
- If an argument of `where` is a number instead of an array, the gradient flows to the elements that were not selected
  (https://github.com/apache/mxnet/issues/17893). Therefore `where` is called with arrays only.
- `where` of empty arrays crashes the process. The mean of an empty array is 0. Integers are
  divided as float32 (no upstream issues known).
"""

from __future__ import annotations

import builtins
from functools import wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

from xdevice.base.dtypes import dtype_name, host_dtype
from xdevice.errors import UnsupportedError
from xdevice.math.contract import tables
from xdevice.math.contract.arithmetic import OF_NUMBERS
from xdevice.math.contract.tables import named
from xdevice_mxnet import semantics

from . import sums
from .operators import operator

if TYPE_CHECKING:
    from collections.abc import Callable

    # for type checkers, which do not find the kernels that `globals().update` adds below from
    # `_OWN` and the other tables
    def __getattr__(name: str) -> Any: ...


# the constants that `xdevice.math.contract.arithmetic` explains
TAKE_NUMBERS = frozenset(
    ["add", "divide", "greater", "greater_equal", "less", "less_equal", "multiply", "subtract"]
)
ONE_DEVICE = True
RESHAPE_IS_VIEW = False
TAKES_MASKS = True
WIDER = dict.fromkeys(OF_NUMBERS, dict.fromkeys(("uint8", "int8"), "int32"))

_np = mx.np


# NumPy's semantics in the current thread

enter = semantics.enter
leave = semantics.leave


def _with_numpy_semantics(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a kernel that first enables NumPy's semantics in this thread, unless they are already enabled, and then
    calls `function`."""
    # looked up here, and not at each call of the kernel
    is_enabled, enable = mx.util.is_np_shape, semantics.require

    @wraps(function)
    def kernel(*arguments: Any) -> Any:
        if not is_enabled():
            enable()
        return function(*arguments)

    return kernel


def _of_arrays_or_number(name: str) -> Callable[..., Any]:
    """Returns a kernel for two arrays, or for an array and a float, which calls MXNet's operators for the function
    `name`."""
    # MXNet has two operators for each such function, such as `_npi_add` for two arrays, and
    # `_npi_add_scalar` for an array and a number
    mxnet_function = getattr(_np, name)
    # this function is called if an argument is not an mx.np array, such as an mx.nd array
    of_number = operator("npi", name, "scalar", own=lambda x, scalar: mxnet_function(x, scalar))

    # called for arguments that the operator for two arrays does not accept
    def of_others(x1: Any, x2: Any) -> Any:
        return of_number(x1, scalar=x2) if type(x2) is float else mxnet_function(x1, x2)

    return _with_numpy_semantics(operator("npi", name, own=of_others))


def _refusing_gradients(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a kernel that calls `function`, which has no correct gradient: MXNet would use zeros as its gradient.
    The kernel raises `UnsupportedError` for tensors that are part of a recorded graph. `name` is the kernel's name in
    the error."""

    @wraps(function)
    def kernel(x: Any, *others: Any) -> Any:
        if mx.autograd.is_recording() and builtins.any(map(_is_recorded, (x, *others))):
            raise UnsupportedError(
                f"mxnet cannot compute the gradient of {name}, and would use zeros instead; use another backend, or "
                f"make the input a constant: xdevice.math.stop_gradient(x)"
            )
        return function(x, *others)

    return kernel


def _is_recorded(x: Any) -> bool:
    """Whether `x` is an array for which MXNet would compute a gradient."""
    if not isinstance(x, mx.nd.NDArray):
        return False
    try:
        mx.autograd.get_symbol(x)
    except mx.MXNetError:
        # the error is "NDArray is not part of a computation graph"; MXNet has no function that
        # reports this without an error
        return False
    return True


def _by_numpy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a kernel that calls `function`, a function of NumPy. The kernel computes on the host, and its result is
    on the device of its first argument."""

    @wraps(function)
    def kernel(x: Any, *others: Any) -> Any:
        # a list is used instead of `any`, because `any` is a kernel in this module
        if [y for y in others if isinstance(y, mx.nd.NDArray) and y.ctx != x.ctx]:
            raise ValueError(
                "the tensors are on different devices; move them to one device with xdevice.to_device"
            )
        values = (
            value.asnumpy() if isinstance(value, mx.nd.NDArray) else value
            for value in (x, *others)
        )
        with np.errstate(all="ignore"):
            return constant(np.asarray(function(*values)), x)

    return _with_numpy_semantics(kernel)


def _for_bool_as_int8(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a kernel for bool tensors, which calls one of MXNet's bitwise functions. MXNet's functions do not accept
    bool, so the kernel computes in int8."""

    def kernel(x1: Any, x2: Any) -> Any:
        return function(x1.astype("int8"), x2.astype("int8")).astype("bool")

    return _with_numpy_semantics(kernel)


def _rearranging(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a kernel that calls `function`, which only rearranges values. The kernel also accepts bools, which many
    of MXNet's functions refuse, and rearranges them as int8."""

    @wraps(function)
    def kernel(x: Any, *others: Any) -> Any:
        if x.dtype == np.bool_:
            return function(x.astype("int8"), *others).astype("bool")
        return function(x, *others)

    return _with_numpy_semantics(kernel)


def _is_float(x: Any) -> bool:
    """Whether an array has a real floating-point dtype."""
    # MXNet's dtypes are NumPy's scalar types, which have no `kind` themselves
    return bool(np.dtype(x.dtype).kind == "f")


# creating arrays

dtype = host_dtype


@_with_numpy_semantics
def astype(x: Any, name: str) -> Any:
    """Returns a new array with the values of `x` in the dtype `name`."""
    if name == "bool":
        return _np.not_equal(x, 0) if x.dtype != np.bool_ else x.copy()
    # integers have no gradient, but MXNet would pass one through them
    if _is_float(x) and not name.startswith("float"):
        x = x.detach()
    return x.astype(name)


@_with_numpy_semantics
def constant(array: np.ndarray[Any, Any], like: Any) -> Any:
    """Returns the values of a NumPy array as an array on the device of `like`."""
    return _np.array(array, dtype=array.dtype, ctx=like.ctx)


copy = _with_numpy_semantics(operator("np", "copy", own=lambda x: x.copy()))


@_with_numpy_semantics
def full_like(x: Any, value: complex, name: str) -> Any:
    """Returns an array with the shape and the device of `x` and the dtype `name`, filled with
    `value`."""
    return constant(np.full(x.shape, value, host_dtype(name)), x)


def number(value: complex, name: str, like: Any) -> Any:
    """Returns `value` as a 0-d array, with the dtype `name`, on the device of
    `like`."""
    with np.errstate(all="ignore"):
        return constant(np.asarray(value).astype(host_dtype(name)), like)


# elementwise functions

# MXNet's operators that return the correct results
_OWN = named(
    "ceil", "copysign", "cos", "cosh", "equal", "exp", "expm1", "floor", "hypot", "isfinite", "isinf", "isnan", "log",
    "log10", "log1p", "log2", "logical_not", "maximum", "minimum", "negative", "not_equal", "reciprocal", "sin", "sinh",
    "sqrt", "tan", "tanh", "trunc", acos="arccos", acosh="arccosh", asin="arcsin", asinh="arcsinh", atan="arctan",
    atan2="arctan2", atanh="arctanh",
)  # fmt: skip
# the functions that NumPy computes, because MXNet has no operator or a wrong operator for them
_ON_THE_HOST = named(
    "argmax", "argmin", "floor_divide", "searchsorted", "signbit", bitwise_invert="invert",
    bitwise_left_shift="left_shift", bitwise_right_shift="right_shift",
)  # fmt: skip
globals().update(
    {name: _with_numpy_semantics(operator("npi", own)) for name, own in _OWN.items()}
)
globals().update({name: _by_numpy(getattr(np, own)) for name, own in _ON_THE_HOST.items()})
# "divide" is excluded, because MXNet's operators for it have another name (see `divide` below)
globals().update({name: _of_arrays_or_number(name) for name in TAKE_NUMBERS - {"divide"}})
cumulative_prod = _refusing_gradients("cumulative_prod", _by_numpy(np.cumprod))
nextafter = _refusing_gradients("nextafter", _by_numpy(np.nextafter))
divide = _of_arrays_or_number("true_divide")
logical_and = _for_bool_as_int8(_np.bitwise_and)
logical_or = _for_bool_as_int8(_np.bitwise_or)
logical_xor = _for_bool_as_int8(_np.bitwise_xor)


def _bitwise(
    of_bool: Callable[..., Any], of_integers: Callable[..., Any]
) -> Callable[..., Any]:
    """Returns a kernel that calls `of_bool` for bool tensors, and `of_integers`, MXNet's own function, for integers."""
    return _with_numpy_semantics(
        lambda x1, x2: of_bool(x1, x2) if x1.dtype == np.bool_ else of_integers(x1, x2)
    )


bitwise_and = _bitwise(logical_and, _np.bitwise_and)
bitwise_or = _bitwise(logical_or, _np.bitwise_or)
bitwise_xor = _bitwise(logical_xor, _np.bitwise_xor)


@_with_numpy_semantics
def abs(x: Any) -> Any:
    # MXNet's own function would convert integers to floats
    return _np.abs(x) if _is_float(x) else _np.maximum(x, _np.negative(x))


@_with_numpy_semantics
def pow(x1: Any, x2: Any) -> Any:
    """Returns `x1` to the power of `x2`, in the dtype of the operands."""
    # MXNet's own function would convert integers to floats, so NumPy computes the powers of
    # integers
    return _np.power(x1, x2) if _is_float(x1) else _integer_power(x1, x2)


_integer_power = _by_numpy(np.power)


@_with_numpy_semantics
def remainder(x1: Any, x2: Any) -> Any:
    """Returns the remainder of the division of `x1` by `x2`, with the sign of `x2`."""
    if not _is_float(x1):
        return _integer_remainder(x1, x2)
    # the result is NaN if the divisor is 0 or `x1` is infinite, while MXNet's own `mod` returns
    # 0
    return where(
        logical_or(x2 == 0, _np.isinf(x1)),
        number(np.nan, dtype_name(x1.dtype), x1),
        _np.mod(x1, x2),
    )


_integer_remainder = _by_numpy(np.remainder)


@_with_numpy_semantics
def round(x: Any) -> Any:
    """Returns the nearest whole numbers. A number halfway between two whole numbers is rounded to the even number."""
    # MXNet's own `round` does not round halves to the even neighbour, as the standard requires
    low = _np.floor(x)
    fraction = x - low
    is_up = logical_or(fraction > 0.5, logical_and(fraction == 0.5, _np.mod(low, 2) != 0))
    # the result has the sign of x, because the result for -0.5 must be -0.0
    return _np.copysign(where(is_up, low + 1, low), x)


@_with_numpy_semantics
def sign(x: Any) -> Any:
    signs = _np.sign(x)
    # MXNet returns 0 as the sign of NaN
    return where(_np.isnan(x), x, signs) if _is_float(x) else signs


@_with_numpy_semantics
def square(x: Any) -> Any:
    # MXNet's own function would convert integers to floats
    return _np.square(x) if _is_float(x) else _np.multiply(x, x)


@_with_numpy_semantics
def where(condition: Any, x1: Any, x2: Any) -> Any:
    """Returns an array with the elements of `x1` where the condition is True, and the elements of `x2` elsewhere."""
    shape = np.broadcast_shapes(condition.shape, x1.shape, x2.shape)
    # MXNet's `where` of empty arrays crashes the process
    return _where(condition, x1, x2) if 0 not in shape else _empty_like(shape, x1)


_where = operator("npi", "where")


def _empty_like(shape: tuple[int, ...], like: Any) -> Any:
    """Returns an array without elements, with the dtype and the device of `like`. At least one length in `shape` is
    0."""
    return constant(np.zeros(shape, host_dtype(dtype_name(like.dtype))), like)


# reductions, sorting and indexing


def _reducing(function: Callable[..., Any], if_empty: Any) -> Callable[..., Any]:
    """Returns a kernel with the arguments `(x, axes, keepdims)`, which calls `function`, a reduction. MXNet does not
    reduce arrays without elements correctly. For an array without elements, each element of the result is
    `if_empty`."""

    @wraps(function)
    def kernel(x: Any, axes: tuple[int, ...] | None, keepdims: bool) -> Any:
        if x.size:
            return function(x, axis=axes, keepdims=keepdims)
        # NumPy determines the shape of the result
        kept = np.sum(np.zeros(x.shape), axes, keepdims=keepdims)
        return constant(np.full(kept.shape, if_empty, host_dtype(dtype_name(x.dtype))), x)

    return _with_numpy_semantics(kernel)


all = _by_numpy(lambda x, axes, keepdims: np.all(x, axes, keepdims=keepdims))
any = _by_numpy(lambda x, axes, keepdims: np.any(x, axes, keepdims=keepdims))


def _mean(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    """Returns the mean of `x` over the axes in the tuple `axis`. `x` has elements."""
    # each sum is divided by the number of elements that were added for it
    total = sum(x, axis, keepdims)
    return total / (x.size // total.size)


max = _reducing(operator("np", "max"), if_empty=0)
mean = _reducing(_mean, if_empty=np.nan)
min = _reducing(operator("np", "min"), if_empty=0)
prod = _reducing(operator("np", "prod"), if_empty=1)


@_with_numpy_semantics
def sum(x: Any, axes: tuple[int, ...] | None, keepdims: bool) -> Any:
    """Returns the sum over `axes`. None means all axes."""
    shape = x.shape  # read only once, because MXNet builds the tuple at each read
    # without elements, the sum is 0; while MXNet is recording, the result must depend on `x`
    if 0 in shape:
        is_recording = mx.autograd.is_recording()
        sum_of_empty = _recorded_sum_of_empty if is_recording else _sum_of_empty
        return sum_of_empty(x, axes, keepdims)
    # the sum of a 0-d array is a copy, because `sums.total` needs at least one axis
    if not shape:
        return copy(x)
    total = sums.total(x, shape, tuple(range(len(shape))) if axes is None else axes)
    # `total` does not have the summed axes
    if not keepdims:
        return total
    # they are added with the length 1. `axes` is not None here, because the core passes None only
    # if `keepdims` is False
    return total.reshape(tuple(1 if i in (axes or ()) else n for i, n in enumerate(shape)))


_sum_of_empty = _reducing(_np.sum, if_empty=0)


def _recorded_sum_of_empty(x: Any, axes: tuple[int, ...] | None, keepdims: bool) -> Any:
    """Returns the sum of `x`, which has no elements. The result must depend on `x`, because MXNet raises an error for a
    loss that does not depend on any input. For this purpose, the function joins `x` with one zero, and adds the sum of
    the joined array, which is 0."""
    joined = _np.concatenate([x.reshape((-1,)), _np.zeros(1, dtype=x.dtype, ctx=x.ctx)])
    return _sum_of_empty(x, axes, keepdims) + sum(joined, None, False)


argsort = _by_numpy(tables.argsort)
cumulative_sum = _with_numpy_semantics(_np.cumsum)
sliced = _with_numpy_semantics(tables.sliced)


def sort(x: Any, axis: int, descending: bool) -> Any:
    """Returns `x` sorted along an axis, in descending order if `descending` is True."""
    # NumPy computes the order on the host, and MXNet gathers the elements, so that a gradient
    # flows
    return take_along_axis(x, argsort(x, axis, descending), axis)


@_with_numpy_semantics
def take(x: Any, indices: Any, axis: int) -> Any:
    """Returns the slices of `x` along an axis at the indices in the vector `indices`."""
    if not x.size or not indices.size:
        return _empty_like((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x)
    # no index is out of range, because the core has checked all indices
    return _np.take(x, indices, axis, mode="clip")


@_with_numpy_semantics
def einsum(subscripts: str, *tensors: Any) -> Any:
    """Returns the sums of products that the subscripts describe, such as "ij,jk->ik"."""
    # only the order of three or more tensors can be optimized
    return _np.einsum(subscripts, *tensors, optimize=len(tensors) > 2)


@_with_numpy_semantics
def take_along_axis(x: Any, indices: Any, axis: int) -> Any:
    """Returns the elements of `x` at these indices along an axis, as an array with the shape of `indices`."""
    if not indices.size:
        return _empty_like(indices.shape, x)
    # MXNet has no kernel for this, so each index is converted to an index into the flat array.
    # The coordinate along `axis` is the index itself; the coordinates along the other axes are
    # those of the element of the result
    coordinates = list(np.ogrid[tuple(map(slice, indices.shape))])
    coordinates[axis] = indices.asnumpy()
    flat = np.ravel_multi_index(np.broadcast_arrays(*coordinates), x.shape)
    # all indices are in range, so "clip" only saves a check by MXNet
    return _np.take(x.reshape((-1,)), constant(flat, x), 0, mode="clip")


# shapes and products


@_rearranging
def broadcast_to(x: Any, shape: tuple[int, ...]) -> Any:
    return _np.broadcast_to(x, shape) if 0 not in shape else _empty_like(shape, x)


concat = _with_numpy_semantics(_np.concatenate)
expand_dims = _rearranging(_np.expand_dims)


@_rearranging
def flip(x: Any, axes: tuple[int, ...]) -> Any:
    return _np.flip(x, axes) if x.size else x.copy()


@_with_numpy_semantics
def matmul(x1: Any, x2: Any) -> Any:
    """Returns the product of two matrices or stacks of matrices."""
    # read only once, like the shapes, because MXNet creates a new object at each read, which
    # takes a microsecond
    dtype = np.dtype(x1.dtype)
    if dtype.kind != "f":
        return _integer_product(x1, x2)
    shape1, shape2 = x1.shape, x2.shape
    if len(shape2) == 2 <= len(shape1) and dtype != np.float16:
        # `dot` is used because the gradient of `matmul` takes twice as long; `dot` does not
        # accept float16
        return _dot(x1, x2)
    # if `matmul` broadcasts both operands, its gradient is wrong (1.9.1), so they are broadcast
    # first
    stack = _stack_of_both(shape1, shape2)
    if stack is not None:
        x1, x2 = (broadcast_to(x, (*stack, *x.shape[-2:])) for x in (x1, x2))
    return _np.matmul(x1, x2)


def _stack_of_both(shape1: tuple[int, ...], shape2: tuple[int, ...]) -> tuple[int, ...] | None:
    """Returns the shape of the stack (all axes except the last two) to which `matmul` broadcasts both operands with
    these shapes. Returns None if `matmul` broadcasts only one operand or neither."""
    stack1, stack2 = shape1[:-2], shape2[:-2]
    if stack1 == stack2 or not stack1 or not stack2:
        return None
    stack = np.broadcast_shapes(stack1, stack2)
    return None if stack in (stack1, stack2) else stack


_dot = operator("np", "dot")
_integer_product = _by_numpy(np.matmul)

_reshaped = operator("np", "reshape")
_transposed = operator("np", "transpose")
permute_dims = _rearranging(lambda x, axes: _transposed(x, axes=axes))
reshape = _rearranging(lambda x, shape: _reshaped(x, newshape=shape))


@_rearranging
def roll(x: Any, shifts: tuple[int, ...], axes: tuple[int, ...]) -> Any:
    return _np.roll(x, shifts, axes) if x.size else x.copy()


squeeze = _rearranging(_np.squeeze)


stack = _with_numpy_semantics(_np.stack)


@_with_numpy_semantics
def unstack(x: Any, axis: int) -> list[Any]:
    """Returns a list of the parts of `x` along an axis, each without that axis."""
    return [squeeze(sliced(x, axis, i, i + 1), (axis,)) for i in range(x.shape[axis])]


view = reshape

# the extension `linalg`


@_with_numpy_semantics
def _svd(x: Any, full_matrices: bool) -> tuple[Any, Any, Any]:
    """Returns the factors U, S and Vh of the singular value decomposition of `x`. MXNet's kernel accepts only
    matrices with at most as many rows as columns, so other matrices are transposed. Raises `UnsupportedError` if
    `full_matrices` is True and `x` is not square."""
    rows, columns = x.shape[-2:]
    if full_matrices and rows != columns:
        raise UnsupportedError(
            "mxnet does not support linalg.svd with full matrices; pass full_matrices=False"
        )
    if rows <= columns:
        return tuple(_np.linalg.svd(x))
    # x = U S V', so its transpose is V S U', in which U and V are swapped
    v, values, uh = _np.linalg.svd(_np.swapaxes(x, -1, -2))
    return _np.swapaxes(uh, -1, -2), values, _np.swapaxes(v, -1, -2)


# `eigh` and `eigvalsh` are not in this list, because they are refused while gradients are
# computed
_FACTORIZATIONS = ("cholesky", "det", "inv", "slogdet", "solve")
linalg = SimpleNamespace(
    **{name: _with_numpy_semantics(getattr(_np.linalg, name)) for name in _FACTORIZATIONS},
    **{
        name: _refusing_gradients(
            f"linalg.{name}", _with_numpy_semantics(getattr(_np.linalg, name))
        )
        for name in ("eigh", "eigvalsh")
    },
    svd=_svd,
    # S, the second of the factors U, S and Vh, which is the same without full matrices (False)
    svdvals=lambda x: _svd(x, False)[1],
)
