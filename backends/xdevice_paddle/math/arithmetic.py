"""Paddle's kernels for `xdevice.array_namespace`. `xdevice.math.contract.arithmetic` describes their arguments and
results.

Paddle's own functions have the following faults (no upstream issues known). The kernels here
correct them, unless the list says otherwise:
- On the CPU, `sqrt` of infinity in float32 is NaN if the tensor has eight or more elements.
- `equal` treats floats that differ by 1e-8 as equal (in older versions; 3.3.1 does not).
- `pow` and `full_like` compute integers as float64.
- `argmax` and `argmin` skip NaN. The core corrects this.
- `matmul` of two stacks of integer matrices that are broadcast writes outside its memory, which
  crashes the process later (3.3.1).
- A reduction with `axis=[]` reduces over all axes. This is not corrected, because the core never
  passes `axis=[]`.
"""

from __future__ import annotations

import builtins
import math
from operator import matmul as product  # this module defines a `matmul`, and calls this one
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import paddle

from xdevice.base.dtypes import dtype_name
from xdevice.math.contract.arithmetic import OF_NUMBERS
from xdevice_paddle.optimizer_states import IS_2
from xdevice_paddle.private import private

from . import paddle2

# operators and Paddle's own functions that serve as kernels without changes. The operators are
# implemented in C++, without checks in Python
from operator import add, mul as multiply, sub as subtract, truediv as divide  # isort: skip  # noqa: F401
from paddle import (  # isort: skip  # noqa: F401
    abs, acos, acosh, all, any, asin, asinh, atan, atan2, atanh, bitwise_and, bitwise_or, bitwise_xor, broadcast_to,
    ceil, concat, conj, cos, cosh, einsum, exp, expm1, fft, flip, floor, greater_equal, imag, isfinite, isinf,
    isnan, less_equal, log, log10, log1p, log2, logical_and, logical_not, logical_or, logical_xor, maximum, mean,
    minimum, nextafter, prod, real, reciprocal, reshape, roll, round, sign, sin, sinh, square, squeeze, stack, tan,
    tanh, trunc, where,
)  # fmt: skip


if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

# constants that `xdevice.math.contract.arithmetic` explains
TAKE_NUMBERS = frozenset[str]()
RESHAPE_IS_VIEW = False
TAKES_MASKS = True
SKIPS_NAN = True
WIDER = dict.fromkeys(OF_NUMBERS, dict.fromkeys(("uint8", "int8", "int16"), "int32"))

_full = private.get("paddle._C_ops.full")

# creating arrays


def dtype(name: str) -> Any:
    """Returns Paddle's dtype with the given name."""
    return getattr(paddle, name)


def astype(x: Any, name: str) -> Any:
    """Returns a new tensor with the values of `x` in the dtype named `name`."""
    if paddle.is_floating_point(x) and not name.startswith(("float", "bfloat", "complex")):
        # integers and bools have no gradient, but Paddle would pass a gradient through them
        x = x.detach()
    return paddle.cast(x, name)


def _place_of(x: Any) -> Any:
    """Returns the place (Paddle's word for a device) of `x`, or None if `x` is traced and has no place."""
    return x.place if isinstance(x, paddle.Tensor) else None


def constant(array: np.ndarray[Any, Any], like: Any) -> Any:
    """Returns the values of a NumPy array as a tensor on the device of `like`."""
    return paddle.to_tensor(array, place=_place_of(like))


bitwise_invert = paddle.bitwise_not
_newer = paddle2 if IS_2 else paddle
bitwise_left_shift, bitwise_right_shift = _newer.bitwise_left_shift, _newer.bitwise_right_shift
copysign, signbit = _newer.copysign, _newer.signbit
copy = paddle.assign


def full_like(x: Any, value: complex, name: str) -> Any:
    """Returns a tensor with the shape and the device of `x` and the dtype named `name`, filled with
    `value`."""
    # `full_like` would round a larger int to float64, so the int is added to zeros instead.
    # `builtins.abs`, because `abs` is a kernel in this module
    if isinstance(value, int) and builtins.abs(value) > 2**53:
        return paddle.add(paddle.full_like(x, 0, name), number(value, name, x))
    return paddle.full_like(x, value, name)


def number(value: complex, name: str, like: Any) -> Any:
    """Returns `value` as a 0-d tensor, with the dtype named `name`, on the device of
    `like`."""
    place = _place_of(like)
    # `_C_ops.full` requires a place, and does not accept complex numbers
    if _full is None or place is None or type(value) is complex:
        return paddle.to_tensor(value, name, place=place)
    return _full([], value, dtype(name), place)  # to_tensor takes ten times as long


# elementwise functions

greater = paddle.greater_than
less = paddle.less_than
negative = paddle.neg


def equal(x1: Any, x2: Any) -> Any:
    """Returns, for each pair of elements, whether they are equal."""
    # in older versions, Paddle's own function treats floats that differ by 1e-8 as equal. NaN is
    # not equal to NaN here either, because both comparisons below return False for NaN
    if not paddle.is_floating_point(x1):
        return paddle.equal(x1, x2)
    return paddle.logical_and(paddle.less_equal(x1, x2), paddle.greater_equal(x1, x2))


def not_equal(x1: Any, x2: Any) -> Any:
    # not Paddle's own function, so that the result is always the opposite of the corrected `equal`
    return paddle.logical_not(equal(x1, x2))


def floor_divide(x1: Any, x2: Any) -> Any:
    return _divided_safely(paddle.floor_divide, x1, x2)


def remainder(x1: Any, x2: Any) -> Any:
    return _divided_safely(paddle.remainder, x1, x2)


def _divided_safely(function: Callable[..., Any], x1: Any, x2: Any) -> Any:
    """Returns the quotient or the remainder of `x1` divided by `x2`, depending on `function`. The
    result of dividing an integer by 0 is 0. On the CPU, Paddle would crash the process if an
    integer is divided by 0, or if the smallest integer is divided by -1."""
    if paddle.is_floating_point(x1):
        return function(x1, x2)
    # the divisors 0 and -1 are replaced by 1; for -1, the numerator is negated
    by_zero, by_minus_one, ones = x2 == 0, x2 == -1, paddle.ones_like(x2)
    x1 = paddle.where(by_minus_one, paddle.neg(x1), x1)
    result = function(x1, paddle.where(paddle.logical_or(by_zero, by_minus_one), ones, x2))
    return paddle.where(by_zero, paddle.zeros_like(result), result)


def pow(x1: Any, x2: Any) -> Any:
    """Returns `x1` to the power of `x2`, in the dtype that both have."""
    # Paddle's own function computes integers as float64, which can represent all powers that fit
    # into int32, but not all that fit into int64
    return paddle.pow(x1, x2) if x1.dtype != paddle.int64 else _int64_power(x1, x2)


def _int64_power(x: Any, exponent: Any) -> Any:
    """Returns `x` to the power of `exponent`, both int64, computed by repeated squaring. An even exponent above 63 is
    replaced by 62, and an odd exponent above 63 by 63. With exponents above 63, only the powers of 0, 1 and -1 do not
    overflow, and the replacement does not change these powers."""
    two = number(2, "int64", x)  # a Python number with a 0-d tensor would result in a vector
    remaining_exponent = paddle.where(
        exponent > 63, paddle.remainder(exponent, two) + 62, exponent
    )
    result = paddle.ones_like(x)
    # exponents now have at most six bits, because they are at most 63. In each step, the result is
    # multiplied by `x` if the lowest bit of `remaining_exponent` is 1; then `x` is squared, and the
    # bit is removed
    for _ in range(6):
        result = paddle.where(
            paddle.remainder(remaining_exponent, two) == 1, result * x, result
        )
        x, remaining_exponent = x * x, paddle.floor_divide(remaining_exponent, two)
    return result


def sqrt(x: Any) -> Any:
    if x.dtype != paddle.float32:
        return paddle.sqrt(x)
    # on the CPU, the square root of infinity is NaN in float32, but correct in float64
    return paddle.cast(paddle.sqrt(paddle.cast(x, "float64")), "float32")


# reductions, sorting and indexing

max = paddle.amax
min = paddle.amin


def sum(x: Any, axes: tuple[int, ...] | None, keepdims: bool) -> Any:
    # None means all axes. This is the faster call, used in training steps; the core passes None
    # only if `keepdims` is False
    return paddle.sum(x) if axes is None else paddle.sum(x, axes, keepdim=keepdims)


argmax = paddle.argmax
argmin = paddle.argmin


def argsort(x: Any, axis: int, descending: bool) -> Any:
    """Returns the indices that sort `x` along an axis, in descending order if `descending` is
    True. Equal elements keep their order."""
    return paddle.argsort(x, axis, descending, stable=True)


cumulative_prod = paddle.cumprod
cumulative_sum = paddle.cumsum


def searchsorted(x1: Any, x2: Any, side: str) -> Any:
    """Returns, for each value of `x2`, the index at which it would be inserted into the sorted vector `x1`. The value
    would be inserted before equal elements if `side` is "left", and after them if `side` is "right"."""
    positions = paddle.searchsorted(x1, x2, right=side == "right")
    if not x1.is_floating_point():
        return positions
    # Paddle returns the end as the position of each infinity, even of -inf (no upstream issue
    # known). So the position of an infinity is the number of elements of `x1` before it; for side
    # "right", equal elements are included in this number
    is_before = x1 < math.inf if side == "left" else x1 == -math.inf
    count = paddle.sum(is_before.astype(positions.dtype))
    zero, length = paddle.zeros_like(positions), paddle.full_like(positions, x1.shape[0])
    low, high = (zero, count) if side == "left" else (count, length)
    return paddle.where(x2 == -math.inf, low, paddle.where(x2 == math.inf, high, positions))


def sliced(x: Any, axis: int, start: int, stop: int) -> Any:
    """Returns the elements along an axis from `start` up to, but not including, `stop`."""
    return paddle.slice(x, [axis], [start], [stop])


def sort(x: Any, axis: int, descending: bool) -> Any:
    """Returns `x` sorted along an axis, in descending order if `descending` is True."""
    return paddle.sort(x, axis, descending, stable=True)


take = paddle.index_select


def take_along_axis(x: Any, indices: Any, axis: int) -> Any:
    """Returns a tensor with the shape of `indices`, which contains the elements of `x` at these
    indices along an axis."""
    # Paddle has no kernel for bools on the CPU, and no kernel for complex numbers
    if x.dtype == paddle.bool:
        return paddle.cast(take_along_axis(paddle.cast(x, "int32"), indices, axis), "bool")
    if paddle.is_complex(x):
        parts = (
            take_along_axis(part, indices, axis) for part in (paddle.real(x), paddle.imag(x))
        )
        return paddle.complex(*parts)
    return paddle.take_along_axis(x, indices, axis, broadcast=False)


# shapes and products


expand_dims = paddle.unsqueeze


def matmul(x1: Any, x2: Any) -> Any:
    """Returns the product of two matrices or stacks of matrices."""
    # `is` is tested first, because a call of `is_floating_point` takes as long as a small product
    if x1.dtype is paddle.float32 or paddle.is_floating_point(x1):
        # the numbers of axes are made equal, because otherwise the gradient of the product of two
        # stacks raises an error (3.3.1)
        if 2 < x1.ndim < x2.ndim:
            x1 = _of_rank(x1, x2.ndim)
        elif 2 < x2.ndim < x1.ndim:
            x2 = _of_rank(x2, x1.ndim)
        return product(x1, x2)
    # integers are multiplied as (..., m, k, 1) * (..., 1, k, n) and summed over k, because Paddle's
    # own product of stacks of integers may write outside its memory. Complex numbers are computed
    # in the same way, although Paddle's own product would be correct for them. Vectors are refused;
    # the core then reshapes them to matrices, and calls again. Shapes that do not match are refused
    # too, because `multiply` would broadcast them
    if x1.ndim < 2 or x2.ndim < 2 or x1.shape[-1] != x2.shape[-2]:
        raise ValueError(
            f"arrays with the shapes {x1.shape} and {x2.shape} have no matrix product"
        )
    products = paddle.multiply(paddle.unsqueeze(x1, -1), paddle.unsqueeze(x2, -3))
    # the name, because Paddle 2 refuses a tensor's own dtype
    return paddle.sum(products, -2, dtype=dtype_name(x1.dtype))


def _of_rank(x: Any, rank: int) -> Any:
    """Returns `x` with `rank` axes; new axes of length 1 come first."""
    return reshape(x, [1] * (rank - x.ndim) + x.shape)


permute_dims = paddle.transpose


unstack = paddle.unbind
view = reshape

# the extension `linalg`


def solve(x1: Any, x2: Any) -> Any:
    """Returns the solution y of `x1 @ y = x2`. `x1` is a matrix or a stack of matrices."""
    # Paddle's own gradient ends the process with SIGSEGV unless both operands require a gradient
    # (3.3.1), so `_Solve` replaces it
    if (
        paddle.in_dynamic_mode()
        and paddle.is_grad_enabled()
        and not (x1.stop_gradient and x2.stop_gradient)
    ):
        return _Solve.apply(x1, x2)
    return paddle.linalg.solve(x1, x2)


class _Solve(paddle.autograd.PyLayer):  # type: ignore[misc]
    """`paddle.linalg.solve` with a custom gradient. If x1 @ y = x2, and g is the gradient of y,
    then the gradient of x2 is h = solve(adjoint of x1, g), and the gradient of x1 is
    -h @ (adjoint of y)."""

    @staticmethod
    def forward(ctx: Any, x1: Any, x2: Any) -> Any:
        """Returns y, and stores the values that `backward` needs."""
        result = paddle.linalg.solve(x1, x2)
        ctx.save_for_backward(x1, result)
        ctx.are_constant = x1.stop_gradient, x2.stop_gradient
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Returns the gradients of x1 and x2, with None in place of a gradient that is not
        required."""
        x1, result = ctx.saved_tensor()
        x2_gradient = solve(_adjoint(x1), gradient)
        x1_gradient = None if ctx.are_constant[0] else -product(x2_gradient, _adjoint(result))
        return x1_gradient, None if ctx.are_constant[1] else x2_gradient


def _adjoint(x: Any) -> Any:
    """Returns the adjoint of each matrix in `x`: its conjugate transpose."""
    return conj(paddle.swapaxes(x, -1, -2))


# a copy of Paddle's module, because the functions of the module itself must not be replaced
linalg = SimpleNamespace(**vars(paddle.linalg))
linalg.solve = solve
# Paddle returns the sign and the logarithm as two rows of one tensor
linalg.slogdet = lambda x: tuple(paddle.unbind(paddle.linalg.slogdet(x), 0))
