"""The functions of the Python Array API standard that reduce many numbers to one number (sums, extremes, variances,
`all` and `any`), and cumulative sums and differences along an axis."""

from __future__ import annotations

import builtins
import math
from operator import index
from typing import TYPE_CHECKING, Any, NoReturn

from xdevice.base import spellings
from xdevice.base.dtypes import dtype_name
from xdevice.errors import ArgumentError, ShapeError

from . import dtypes
from .checks import Checks, reduction, shape_of, with_lengths
from .dtypes import ANY, NUMERIC, REAL, REAL_FLOATING

if TYPE_CHECKING:
    from collections.abc import Callable

    Axis = int | tuple[int, ...] | None


# sums, extremes and statistics


def _accumulation_dtype(checks: Checks, function: str, x: Any, dtype: Any) -> str:
    """Returns the name of the dtype of a sum or product of `x`. This is the argument `dtype` or, if that is None, the
    standard's default, which has 64 bits for integers. Raises `DTypeError` if `dtype` is bool, or is a dtype that the
    backend does not support. `function` is the function name to show in the error message."""
    if dtype is not None:
        wanted = checks.supported_dtype(dtype_name(dtype))
        if wanted == "bool":
            raise checks.kind_error(function, NUMERIC, wanted)
        return wanted
    name = checks.dtype_of(x)
    # MXNet and Paddle have no uint64, so they use int64
    if dtypes.kind_of(name) == "u" and "uint64" in checks.backend.dtypes:
        return checks.supported_dtype("uint64")
    return checks.supported_dtype("int64") if dtypes.kind_of(name) in dtypes.BITS else name


def _accumulation(function: str) -> Callable[..., Any]:
    """Returns the standard's function with the name `function`, which is "sum" or "prod". If `dtype` is None, that
    function computes bools and integers in int64, or in uint64 if they are unsigned and the backend has uint64."""

    def accumulation(
        checks: Checks,
        x: Any,
        /,
        *,
        axis: Axis = None,
        dtype: Any = None,
        keepdims: bool = False,
        **misspelled: NoReturn,
    ) -> Any:
        if misspelled:
            spellings.refuse(f"xp.{function}", misspelled, "axis=, dtype=, keepdims=")
        x = checks.tensor_of_kinds(x, ANY, function)
        x = checks.cast(x, _accumulation_dtype(checks, function, x, dtype))
        axes = checks.axis_indices(axis, len(x.shape), function)
        # there are no axes if the tensor has no dimensions, or for `axis=()`; each element is
        # then its own sum
        if not axes:
            return checks.kernels.copy(x)
        result = getattr(checks.kernels, function)(x, axes, bool(keepdims))
        # the result is cast back, because some frameworks add integers in a wider dtype
        return checks.cast(result, checks.dtype_of(x))

    return accumulation


prod = _accumulation("prod")
sum = _accumulation("sum")


def _extreme(checks: Checks, function: str, x: Any, axis: Axis, keepdims: bool) -> Any:
    """Returns the greatest element of `x` along the axes if `function` is "max", or the least element if it is "min".
    Raises `ShapeError` if an axis has no elements, and `DTypeError` for bool and complex numbers."""
    x = checks.tensor_of_kinds(x, REAL, function)
    shape = shape_of(x)
    axes = checks.axis_indices(axis, len(shape), function)
    # the second test alone would be enough, but the first test is faster, and few shapes
    # contain a 0
    if 0 in shape and 0 in [shape[axis_index] for axis_index in axes]:
        raise ShapeError(
            f"{function} of an empty tensor is not defined: the shape is {shape}, and axis is {axis}"
        )
    return (
        getattr(checks.kernels, function)(x, axes, bool(keepdims))
        if axes
        else checks.kernels.copy(x)
    )


max = reduction("max", _extreme)
min = reduction("min", _extreme)


def _average(checks: Checks, function: str, x: Any, axis: Axis, keepdims: bool) -> Any:
    """Returns the mean of `x` along the axes. `function` is "mean", the function name to show in error messages."""
    x = checks.tensor_of_kinds(x, dtypes.FLOATING, function)
    axes = checks.axis_indices(axis, len(x.shape), function)
    # the contract promises that kernels are called with at least one axis; with `axis=()`,
    # there is nothing to reduce
    return checks.kernels.mean(x, axes, bool(keepdims)) if axes else checks.kernels.copy(x)


mean = reduction("mean", _average)


def _deviation(function: str) -> Callable[..., Any]:
    """Returns the standard's function `function`, which is "var" or "std"."""

    def deviation(
        checks: Checks,
        x: Any,
        /,
        *,
        axis: Axis = None,
        correction: float = 0.0,
        keepdims: bool = False,
        **misspelled: NoReturn,
    ) -> Any:
        if misspelled:
            spellings.refuse(f"xp.{function}", misspelled, "axis=, correction=, keepdims=")
        x = checks.tensor_of_kinds(x, REAL_FLOATING, function)
        axes = checks.axis_indices(axis, len(x.shape), function)
        settings = function, axes, float(correction), bool(keepdims)
        return checks.call_fused(_variance, (x,), *settings)

    return deviation


std = _deviation("std")
var = _deviation("var")


def _variance(
    checks: Checks,
    x: Any,
    function: str,
    axes: tuple[int, ...],
    correction: float,
    keepdims: bool,
) -> Any:
    """Returns the variance: the sum of the squared differences from the mean, divided by the number of elements minus
    `correction`. If `function` is "std", returns the square root of the variance."""
    kernels = checks.kernels
    # without axes, each element is its own mean, and each square is its own sum. The mean keeps its axes (True), so
    # that it broadcasts to `x`
    deviations = kernels.subtract(x, kernels.mean(x, axes, True) if axes else x)
    squares = kernels.square(deviations)
    total = kernels.sum(squares, axes, keepdims) if axes else squares
    variance = kernels.divide(total, _divisor(checks, x, axes, correction))
    return kernels.sqrt(variance) if function == "std" else variance


def _divisor(checks: Checks, x: Any, axes: tuple[int, ...], correction: float) -> Any:
    """Returns the divisor of a variance: the number of elements along `axes` minus `correction`, or 0 if this
    difference is negative. The divisor is a float if the kernel `divide` accepts floats, and otherwise a tensor."""
    kernels, name = checks.kernels, checks.dtype_of(x)
    lengths = [shape_of(x)[axis_index] for axis_index in axes]
    if None not in lengths:
        # a divisor of 0 makes the variance infinity or NaN, as in NumPy
        divisor = float(builtins.max(math.prod(lengths) - correction, 0))
        return divisor if "divide" in kernels.TAKE_NUMBERS else kernels.number(divisor, name, x)
    # a length is unknown while a function is traced, so the framework computes the divisor
    divisor = kernels.subtract(
        checks.element_count(x, axes, name), kernels.number(correction, name, x)
    )
    return kernels.maximum(divisor, kernels.number(0.0, name, x))


def _cumulative(function: str, initial: int) -> Callable[..., Any]:
    """Returns the standard's function with the name `function`, which is "cumulative_sum" or "cumulative_prod". If
    `include_initial` is True, the result of that function begins with `initial`, which is the sum or the product of
    no elements. The function raises `ShapeError` if the axis is omitted for a tensor that is not a vector."""

    def cumulation(
        checks: Checks,
        x: Any,
        /,
        *,
        axis: int | None = None,
        dtype: Any = None,
        include_initial: bool = False,
    ) -> Any:
        kernels = checks.kernels
        x = checks.tensor_of_kinds(x, NUMERIC, function)
        shape = shape_of(x)
        # the standard allows the axis to be omitted only for a vector
        if axis is None and len(shape) != 1:
            raise ShapeError(
                f"{function} needs an axis for a tensor of shape {shape}; pass axis="
            )
        axis_index = checks.axis_index(0 if axis is None else axis, len(shape), function)
        name = _accumulation_dtype(checks, function, x, dtype)
        x = checks.cast(x, name)
        # the result is cast back, because some frameworks add integers in a wider dtype;
        # without elements, there is nothing to add
        total = (
            checks.cast(getattr(kernels, function)(x, axis_index), name)
            if 0 not in shape
            else kernels.copy(x)
        )
        if not include_initial:
            return total
        shape = checks.known_shape(x, f"{function} with include_initial")
        first = kernels.broadcast_to(
            kernels.number(initial, name, x), with_lengths(shape, axis_index, 1)
        )
        return kernels.concat([first, total], axis_index)

    return cumulation


cumulative_prod = _cumulative("cumulative_prod", initial=1)
cumulative_sum = _cumulative("cumulative_sum", initial=0)


def diff(
    checks: Checks,
    x: Any,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: Any = None,
    append: Any = None,
) -> Any:
    """Returns the differences between neighbouring elements along an axis, computed `n` times in succession. Before
    that, the tensor `prepend` is joined to the beginning of `x`, and `append` to its end. Raises `ArgumentError` if `n`
    is negative."""
    kernels = checks.kernels
    x = checks.tensor_of_kinds(x, NUMERIC, "diff")
    axis_index = checks.axis_index(axis, len(x.shape), "diff")
    if index(n) < 0:
        raise ArgumentError(f"diff: n must be at least 0, not {n}")
    parts = [
        checks.tensor_of_kinds(part, NUMERIC, "diff")
        for part in (prepend, x, append)
        if part is not None
    ]
    if len(parts) > 1:
        checks.require_one_device("diff", *parts)
        x = kernels.concat(checks.promoted(parts), axis_index)
    length = checks.known_shape(x, "diff")[axis_index]
    # after `length` rounds, no elements remain
    return checks.call_fused(
        _differences, (x,), axis_index, length, builtins.min(index(n), length)
    )


def _differences(checks: Checks, x: Any, axis_index: int, length: int, times: int) -> Any:
    """Returns the differences between neighbouring elements along the axis `axis_index`, computed `times` times in
    succession. `length` is the length of the axis."""
    kernels = checks.kernels
    # each round leaves one element fewer; `last` is the number of differences in the round
    for last in range(length - 1, length - 1 - times, -1):
        x = kernels.subtract(
            kernels.sliced(x, axis_index, 1, last + 1), kernels.sliced(x, axis_index, 0, last)
        )
    return x


# reductions of truth values


def _all_or_any(checks: Checks, function: str, x: Any, axis: Axis, keepdims: bool) -> Any:
    """Returns a bool tensor: whether all elements of `x` along the axes are nonzero (if `function` is "all"), or
    whether at least one element is nonzero (if `function` is "any")."""
    x = checks.checked_tensor(x, function)
    axes = checks.axis_indices(axis, len(x.shape), function)
    return checks.call_fused(_combined_truth, (x,), function, axes, bool(keepdims))


def _combined_truth(
    checks: Checks, x: Any, function: str, axes: tuple[int, ...], keepdims: bool
) -> Any:
    """Returns the result of `function`, which is "all" or "any", for the elements of `x` along the axes. Without
    axes, each element is tested separately."""
    # the kernels of some frameworks accept only bool
    x = checks.cast(x, "bool")
    return (
        getattr(checks.kernels, function)(x, axes, keepdims) if axes else checks.kernels.copy(x)
    )


all = reduction("all", _all_or_any)
any = reduction("any", _all_or_any)


def _count(checks: Checks, function: str, x: Any, axis: Axis, keepdims: bool) -> Any:
    """Returns the number of nonzero elements of `x` along the axes. `function` is "count_nonzero", the function name to
    show in error messages."""
    x = checks.checked_tensor(x, function)
    axes = checks.axis_indices(axis, len(x.shape), function)
    return checks.call_fused(_count_of_true, (x,), axes, bool(keepdims))


def _count_of_true(checks: Checks, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    """Returns the number of nonzero elements of `x` along the axes. The elements are cast to bool and then added;
    each nonzero element becomes True, which adds 1 to the sum."""
    return sum(checks, checks.cast(x, "bool"), axis=axes, keepdims=keepdims)


count_nonzero = reduction("count_nonzero", _count)
