"""MXNet's kernels for `xdevice.array_namespace`. `xdevice.contract.arithmetic` says with which arguments the core calls
them, and what they have to return.

Facts about MXNet that the code depends on:
- Without NumPy's semantics, a setting of each thread, arrays without dimensions (0-d) or without elements do not exist.
  And a loss that is recorded with these semantics and differentiated without them crashes the process. So the first
  call of a kernel in a thread switches them on for good, or raises an error.
- For some operations MXNet has no kernel or a wrong one, and NumPy computes them on the host. Their gradient is 0, or
  they have none.
- MXNet's `sum` corrects rounding errors, and thereby makes NaN of infinities. So sums are computed by `einsum`, which
  only adds.
- The gradient of `einsum` of a 0-d array sometimes raises, and only later, when MXNet computes it in the background.
- `abs`, `square`, `pow` and `mod` of integers compute in floats.
- `where` with a number in place of an array gives the gradient to the elements that were not taken.
- `where` of empty arrays crashes the process. The mean of an empty array is 0. Integers are divided as float32.
"""

from __future__ import annotations

from functools import cache, wraps
from string import ascii_letters
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from mxnet.ndarray.numpy import _internal as _npi

from xdevice.base.dtypes import dtype_name, host_dtype
from xdevice.contract.arithmetic import OF_NUMBERS
from xdevice.errors import UnsupportedError

from . import semantics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TAKE_NUMBERS = frozenset(["add", "divide", "greater", "greater_equal", "less", "less_equal", "multiply", "subtract"])
ONE_DEVICE = True
RESHAPE_IS_VIEW = False
TAKES_MASKS = True
WIDER = dict.fromkeys(OF_NUMBERS, dict.fromkeys(("uint8", "int8"), "int32"))

_np = mx.np


# the semantics of the thread

enter = semantics.enter
leave = semantics.leave


def _kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    is_on, switch = mx.util.is_np_shape, semantics.require

    @wraps(function)
    def kernel(*arguments: Any) -> Any:
        if not is_on():
            switch()
        return function(*arguments)

    return kernel


def _by_numpy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a kernel of a function of NumPy: it computes on the host, and its result is on the device of `x`."""

    @wraps(function)
    def kernel(x: Any, *rest: Any) -> Any:
        if [part for part in rest if isinstance(part, mx.nd.NDArray) and part.ctx != x.ctx]:  # `any` is a kernel here
            raise ValueError("tensors on two devices")
        values = (part.asnumpy() if isinstance(part, mx.nd.NDArray) else part for part in (x, *rest))
        with np.errstate(all="ignore"):
            return constant(np.asarray(function(*values)), x)

    return _kernel(kernel)


def _of_bits(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a kernel for tensors of bool of one of MXNet's bitwise functions, which do not take bool: it computes in
    int8."""

    def kernel(x1: Any, x2: Any) -> Any:
        return function(x1.astype("int8"), x2.astype("int8")).astype("bool")

    return _kernel(kernel)


def _shaping(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a kernel of a function that only rearranges values. If the function does not take bool, as many of MXNet's,
    the kernel does: it rearranges bools as int8."""

    @wraps(function)
    def kernel(x: Any, *rest: Any) -> Any:
        return function(x, *rest) if x.dtype != np.bool_ else function(x.astype("int8"), *rest).astype("bool")

    return _kernel(kernel)


def _is_float(x: Any) -> bool:
    return bool(np.dtype(x.dtype).kind == "f")


# making

dtype = host_dtype


@_kernel
def astype(x: Any, name: str) -> Any:
    if name == "bool":
        return _np.not_equal(x, 0) if x.dtype != np.bool_ else x.copy()
    if _is_float(x) and not name.startswith("float"):
        x = x.detach()  # integers have no gradient, but MXNet would pass one through them
    return x.astype(name)


@_kernel
def constant(array: np.ndarray[Any, Any], like: Any) -> Any:
    return _np.array(array, dtype=array.dtype, ctx=like.ctx)


@_kernel
def copy(x: Any) -> Any:
    return _np.copy(x) if type(x) is _np.ndarray else x.copy()  # _np.copy takes a third of the time of x.copy()


@_kernel
def full_like(x: Any, value: complex, name: str) -> Any:
    return constant(np.full(x.shape, value, host_dtype(name)), x)


def number(value: complex, name: str, like: Any) -> Any:
    with np.errstate(all="ignore"):
        return constant(np.asarray(value).astype(host_dtype(name)), like)


# of each element

acos = _kernel(_np.arccos)
acosh = _kernel(_np.arccosh)
add = _kernel(_np.add)
asin = _kernel(_np.arcsin)
asinh = _kernel(_np.arcsinh)
atan = _kernel(_np.arctan)
atan2 = _kernel(_np.arctan2)
atanh = _kernel(_np.arctanh)
bitwise_invert = _by_numpy(np.invert)
bitwise_left_shift = _by_numpy(np.left_shift)
bitwise_right_shift = _by_numpy(np.right_shift)
ceil = _kernel(_np.ceil)
copysign = _kernel(_np.copysign)
cos = _kernel(_np.cos)
cosh = _kernel(_np.cosh)
divide = _kernel(_np.true_divide)
equal = _kernel(_np.equal)
exp = _kernel(_np.exp)
expm1 = _kernel(_np.expm1)
floor = _kernel(_np.floor)
floor_divide = _by_numpy(np.floor_divide)
greater = _kernel(_np.greater)
greater_equal = _kernel(_np.greater_equal)
hypot = _kernel(_np.hypot)
isfinite = _kernel(_np.isfinite)
isinf = _kernel(_np.isinf)
isnan = _kernel(_np.isnan)
less = _kernel(_np.less)
less_equal = _kernel(_np.less_equal)
log = _kernel(_np.log)
log10 = _kernel(_np.log10)
log1p = _kernel(_np.log1p)
log2 = _kernel(_np.log2)
logaddexp = _by_numpy(np.logaddexp)
logical_and = _of_bits(_np.bitwise_and)
logical_not = _kernel(_np.logical_not)
logical_or = _of_bits(_np.bitwise_or)
logical_xor = _of_bits(_np.bitwise_xor)
maximum = _kernel(_np.maximum)
minimum = _kernel(_np.minimum)
multiply = _kernel(_np.multiply)
negative = _kernel(_np.negative)
nextafter = _by_numpy(np.nextafter)
not_equal = _kernel(_np.not_equal)
reciprocal = _kernel(_np.reciprocal)
signbit = _by_numpy(np.signbit)
sin = _kernel(_np.sin)
sinh = _kernel(_np.sinh)
sqrt = _kernel(_np.sqrt)
subtract = _kernel(_np.subtract)
tan = _kernel(_np.tan)
tanh = _kernel(_np.tanh)
trunc = _kernel(_np.trunc)


@_kernel
def bitwise_and(x1: Any, x2: Any) -> Any:
    return (logical_and if x1.dtype == np.bool_ else _np.bitwise_and)(x1, x2)


@_kernel
def bitwise_or(x1: Any, x2: Any) -> Any:
    return (logical_or if x1.dtype == np.bool_ else _np.bitwise_or)(x1, x2)


@_kernel
def bitwise_xor(x1: Any, x2: Any) -> Any:
    return (logical_xor if x1.dtype == np.bool_ else _np.bitwise_xor)(x1, x2)


@_kernel
def abs(x: Any) -> Any:
    return _np.abs(x) if _is_float(x) else _np.maximum(x, _np.negative(x))


@_kernel
def pow(x1: Any, x2: Any) -> Any:
    return _np.power(x1, x2) if _is_float(x1) else _whole_power(x1, x2)


_whole_power = _by_numpy(np.power)


@_kernel
def remainder(x1: Any, x2: Any) -> Any:
    if not _is_float(x1):
        return _whole_remainder(x1, x2)
    # MXNet's own `mod` is 0 for a divisor of 0 and for infinities
    return where(logical_or(x2 == 0, _np.isinf(x1)), number(np.nan, dtype_name(x1.dtype), x1), _np.mod(x1, x2))


_whole_remainder = _by_numpy(np.remainder)


@_kernel
def round(x: Any) -> Any:
    low = _np.floor(x)
    rest = x - low
    is_up = logical_or(rest > 0.5, logical_and(rest == 0.5, _np.mod(low, 2) != 0))
    return where(is_up, low + 1, low)


@_kernel
def sign(x: Any) -> Any:
    made = _np.sign(x)
    return where(_np.isnan(x), x, made) if _is_float(x) else made


@_kernel
def square(x: Any) -> Any:
    return _np.square(x) if _is_float(x) else _np.multiply(x, x)


@_kernel
def where(condition: Any, x1: Any, x2: Any) -> Any:
    shape = np.broadcast_shapes(condition.shape, x1.shape, x2.shape)
    return _np.where(condition, x1, x2) if 0 not in shape else _nothing(shape, x1)


def _nothing(shape: tuple[int, ...], like: Any) -> Any:
    return constant(np.zeros(shape, host_dtype(dtype_name(like.dtype))), like)


# of many elements


def _reducing(function: Callable[..., Any], of_nothing: Any) -> Callable[..., Any]:
    @wraps(function)
    def kernel(x: Any, axes: tuple[int, ...] | None, keepdims: bool) -> Any:
        if x.size:
            return function(x, axis=axes, keepdims=keepdims)
        kept = np.sum(np.zeros(x.shape), axes, keepdims=keepdims)
        return constant(np.full(kept.shape, of_nothing, host_dtype(dtype_name(x.dtype))), x)

    return _kernel(kernel)


all = _by_numpy(lambda x, axes, keepdims: np.all(x, axes, keepdims=keepdims))
any = _by_numpy(lambda x, axes, keepdims: np.any(x, axes, keepdims=keepdims))


def _mean(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    total = sum(x, axis, keepdims)
    return total / (x.size // total.size)


max = _reducing(_np.max, 0)
mean = _reducing(_mean, np.nan)
min = _reducing(_np.min, 0)
prod = _reducing(_np.prod, 1)


@_kernel
def sum(x: Any, axes: tuple[int, ...] | None, keepdims: bool) -> Any:
    shape = x.shape  # read once: MXNet builds the tuple each time
    if 0 in shape:
        return (_linked_sum_of_nothing if mx.autograd.is_recording() else _sum_of_nothing)(x, axes, keepdims)
    if not shape:
        return copy(x)
    total = _npi.einsum(x, subscripts=_summed(len(shape), axes), optimize=0)
    return total if not keepdims else total.reshape(tuple(1 if i in (axes or ()) else n for i, n in enumerate(shape)))


_sum_of_nothing = _reducing(_np.sum, 0)


def _linked_sum_of_nothing(x: Any, axes: tuple[int, ...] | None, keepdims: bool) -> Any:
    """Returns the sum of `x`, which has no elements, computed by operations on `x`, so that a loss that contains the
    sum has a gradient. For that, zeros are appended to `x` and summed, and cut off where the result has to be empty."""
    kept = [slice(0) if not n and axes is not None and i not in axes else slice(None) for i, n in enumerate(x.shape)]
    for axis, length in enumerate(x.shape):
        if not length:
            blank = _np.zeros((*x.shape[:axis], 1, *x.shape[axis + 1 :]), dtype=x.dtype, ctx=x.ctx)
            x = _np.concatenate([x, blank], axis)
    total = sum(x, axes, keepdims)
    return total[tuple(one for i, one in enumerate(kept) if keepdims or (axes is not None and i not in axes))]


@cache
def _summed(ndim: int, axes: tuple[int, ...] | None) -> str:
    """Returns the subscripts with which `einsum` sums over `axes`; over all axes if `axes` is None."""
    letters = ascii_letters[:ndim]
    return f"{letters}->" + "".join(letters[axis] for axis in range(ndim) if axes is not None and axis not in axes)


argmax = _by_numpy(np.argmax)
argmin = _by_numpy(np.argmin)


@_by_numpy
def argsort(x: Any, axis: int, descending: bool) -> Any:
    if not descending:
        return np.argsort(x, axis, kind="stable")
    mirrored = np.argsort(np.flip(x, axis), axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(mirrored, axis)


cumulative_prod = _by_numpy(np.cumprod)
cumulative_sum = _kernel(_np.cumsum)
searchsorted = _by_numpy(np.searchsorted)


@_kernel
def sliced(x: Any, axis: int, start: int, stop: int) -> Any:
    return x[(slice(None),) * axis + (slice(start, stop),)]


def sort(x: Any, axis: int, descending: bool) -> Any:
    return take_along_axis(x, argsort(x, axis, descending), axis)


@_kernel
def take(x: Any, indices: Any, axis: int) -> Any:
    if not x.size or not indices.size:
        return _nothing((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x)
    return _np.take(x, indices, axis, mode="clip")


@_kernel
def einsum(subscripts: str, tensors: Sequence[Any]) -> Any:
    return _np.einsum(subscripts, *tensors, optimize=len(tensors) > 2)


@_kernel
def take_along_axis(x: Any, indices: Any, axis: int) -> Any:
    if not indices.size:
        return _nothing(indices.shape, x)
    places = list(np.ogrid[tuple(map(slice, indices.shape))])
    places[axis] = indices.asnumpy()
    flat = np.ravel_multi_index(np.broadcast_arrays(*places), x.shape)
    return _np.take(x.reshape((-1,)), constant(flat, x), 0, mode="clip")


# of shapes


@_shaping
def broadcast_to(x: Any, shape: tuple[int, ...]) -> Any:
    return _np.broadcast_to(x, shape) if 0 not in shape else _nothing(shape, x)


@_kernel
def concat(tensors: Sequence[Any], axis: int) -> Any:
    return _np.concatenate(list(tensors), axis)


expand_dims = _shaping(_np.expand_dims)


@_shaping
def flip(x: Any, axes: tuple[int, ...]) -> Any:
    return _np.flip(x, axes) if x.size else x.copy()


@_kernel
def matmul(x1: Any, x2: Any) -> Any:
    dtype = np.dtype(x1.dtype)  # read once, as the shapes: MXNet makes each anew, in a microsecond
    if dtype.kind != "f":
        return _whole_product(x1, x2)
    is_plain = len(x2.shape) == 2 <= len(x1.shape) and dtype != np.float16
    return _np.dot(x1, x2) if is_plain else _np.matmul(x1, x2)  # the gradient of `matmul` takes twice as long


_whole_product = _by_numpy(np.matmul)

permute_dims = _shaping(_np.transpose)
reshape = _shaping(_np.reshape)


@_shaping
def roll(x: Any, shifts: tuple[int, ...], axes: tuple[int, ...]) -> Any:
    return _np.roll(x, shifts, axes) if x.size else x.copy()


squeeze = _shaping(_np.squeeze)


@_kernel
def stack(tensors: Sequence[Any], axis: int) -> Any:
    return _np.stack(list(tensors), axis)


@_kernel
def unstack(x: Any, axis: int) -> list[Any]:
    return [squeeze(sliced(x, axis, i, i + 1), (axis,)) for i in range(x.shape[axis])]


view = reshape

# the extension


@_kernel
def _svd(x: Any, full_matrices: bool) -> tuple[Any, Any, Any]:
    rows, columns = x.shape[-2:]
    if full_matrices and rows != columns:
        raise UnsupportedError("mxnet does not support linalg.svd with full matrices; say full_matrices=False")
    if rows <= columns:  # MXNet takes no others
        return tuple(_np.linalg.svd(x))
    v, values, uh = _np.linalg.svd(_np.swapaxes(x, -1, -2))
    return _np.swapaxes(uh, -1, -2), values, _np.swapaxes(v, -1, -2)


linalg = SimpleNamespace(
    cholesky=_kernel(_np.linalg.cholesky),
    det=_kernel(_np.linalg.det),
    eigh=_kernel(_np.linalg.eigh),
    eigvalsh=_kernel(_np.linalg.eigvalsh),
    inv=_kernel(_np.linalg.inv),
    slogdet=_kernel(_np.linalg.slogdet),
    solve=_kernel(_np.linalg.solve),
    svd=_svd,
    svdvals=lambda x: _svd(x, False)[1],
)
