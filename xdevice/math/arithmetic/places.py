"""The functions of the Python Array API standard that find the greatest and least elements, sort, or select elements by
an index or a condition."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn

from xdevice.base import spellings
from xdevice.errors import ArgumentError, ShapeError, shown

from . import dtypes
from .checks import NUMBERS, Checks, broadcast_shape, reduction, shape_of, with_lengths
from .dtypes import ANY, BOOL, INTEGER, REAL

if TYPE_CHECKING:
    from collections.abc import Callable


def _extreme_position(
    checks: Checks, function: str, x: Any, axis: int | None, keepdims: bool
) -> Any:
    """Returns the index of the first greatest element (if `function` is "argmax") or of the first least element (if
    it is "argmin"), as int64. If there is a NaN, returns the index of the first NaN. Raises `ShapeError` if there are
    no elements."""
    x = checks.tensor_of_kinds(x, REAL, function)
    shape = shape_of(x)
    axis_index = None if axis is None else checks.axis_index(axis, len(shape), function)
    if 0 in (shape if axis_index is None else (shape[axis_index],)):
        raise ShapeError(
            f"{function} of an empty tensor is not defined: the shape is {shape}, and axis is {axis}"
        )
    return checks.call_fused(
        _unchecked_extreme_position, (x,), function, axis_index, bool(keepdims)
    )


def _unchecked_extreme_position(
    checks: Checks, x: Any, function: str, axis_index: int | None, keepdims: bool
) -> Any:
    """Returns the result of `_extreme_position` for checked arguments. The result contains indices along the axis
    `axis_index`, or in the flattened tensor if `axis_index` is None."""
    kernels = checks.kernels
    flat = kernels.reshape(x, (-1,)) if axis_index is None else x
    # `axis_index or 0`, because a flattened tensor has only the axis 0
    positions = checks.cast(
        _kernel_positions(checks, function, flat, axis_index or 0),
        checks.supported_dtype("int64"),
    )
    if not keepdims:
        return positions
    # in the result, all axes have the length 1, or only the axis that was searched
    return (
        kernels.reshape(positions, (1,) * len(x.shape))
        if axis_index is None
        else kernels.expand_dims(positions, axis_index)
    )


def _kernel_positions(checks: Checks, function: str, x: Any, axis: int) -> Any:
    """Returns the positions that the kernel `function` finds along the axis. If there is a NaN, the result is the
    position of the first NaN, even if the kernel ignores NaN."""
    kernels = checks.kernels
    positions = getattr(kernels, function)(x, axis)
    # integers cannot be NaN, and the kernels of some frameworks find NaN themselves
    if dtypes.kind_of(checks.dtype_of(x)) != "f" or not kernels.SKIPS_NAN:
        return positions
    # both functions return the position of NaN, as in NumPy; `argmax` of the mask finds the
    # first NaN
    is_nan = kernels.isnan(x)
    first = kernels.argmax(kernels.astype(is_nan, "int32"), axis)
    return kernels.where(kernels.any(is_nan, (axis,), False), first, positions)


argmax = reduction("argmax", _extreme_position)
argmin = reduction("argmin", _extreme_position)


def where(checks: Checks, condition: Any, x1: Any, x2: Any, /) -> Any:
    """Returns a tensor with the elements of `x1` where the condition is True, and the elements of `x2` elsewhere."""
    condition = checks.tensor_of_kinds(condition, BOOL, "where")
    if type(x1) in NUMBERS and type(x2) in NUMBERS:
        # two numbers get the dtype of a tensor that is created from a list of both numbers
        name = dtypes.promoted_with_number(dtypes.promoted_with_number("bool", x1), x2)
        x1, x2 = (
            checks.number_as_tensor(x, checks.supported_dtype(name), condition)
            for x in (x1, x2)
        )
    else:
        x1, x2 = checks.operands("where", ANY, (x1, x2))
    if checks.compares_devices:
        checks.require_one_device("where", condition, x1, x2)
    try:
        return checks.kernels.where(condition, x1, x2)
    except Exception:
        checks.raise_if_misfit("where", condition, x1, x2)
        raise


def take(
    checks: Checks, x: Any, indices: Any, /, *, axis: int | None = None, **misspelled: NoReturn
) -> Any:
    """Returns the elements of `x` at the given indices along an axis. `indices` is a vector. If `axis` is None, `x`
    must be a vector. Raises `ShapeError` if `axis` is missing or does not exist, or if `indices` is not a vector.
    Raises `IndexError` for an index out of range, `DTypeError` if the indices are not integers, and
    `DeviceMismatchError` if they are on a different device from `x`."""
    if misspelled:
        spellings.refuse("xp.take", misspelled, "axis=")
    x, indices = (
        checks.checked_tensor(x, "take"),
        checks.tensor_of_kinds(indices, INTEGER, "take"),
    )
    checks.require_one_device("take", x, indices)
    ndim = len(x.shape)
    # the standard allows the axis to be omitted only for a vector
    if axis is None and ndim != 1:
        raise ShapeError(f"take needs an axis for a tensor of shape {shape_of(x)}; pass axis=")
    if len(indices.shape) != 1:
        raise ShapeError(
            f"take expects a vector of indices, not a tensor of shape {shape_of(indices)}"
        )
    axis_index = checks.axis_index(0 if axis is None else axis, ndim, "take")
    return checks.kernels.take(
        x, _indices_in_range(checks, x, indices, axis_index, "take"), axis_index
    )


def take_along_axis(checks: Checks, x: Any, indices: Any, /, *, axis: int = -1) -> Any:
    """Returns the elements of `x` at the given indices along an axis. The indices may differ for each position along
    the other axes. Raises `ShapeError` if the two shapes do not match, `IndexError` for an index out of range,
    `DTypeError` if the indices are not integers, and `DeviceMismatchError` if they are on a different device from
    `x`."""
    kernels = checks.kernels
    x = checks.checked_tensor(x, "take_along_axis")
    indices = checks.tensor_of_kinds(indices, INTEGER, "take_along_axis")
    checks.require_one_device("take_along_axis", x, indices)
    # both must have the same number of dimensions; apart from the axis, their shapes are
    # broadcast
    shape, indices_shape = shape_of(x), shape_of(indices)
    if len(shape) != len(indices_shape):
        raise ShapeError(
            f"take_along_axis expects tensors with the same number of dimensions, but their shapes are {shape} and "
            f"{indices_shape}"
        )
    axis_index = checks.axis_index(axis, len(shape), "take_along_axis")
    other_axes = broadcast_shape(
        with_lengths(shape, axis_index, 1), with_lengths(indices_shape, axis_index, 1)
    )
    # the standard broadcasts the other axes; the frameworks do not broadcast them, or do so
    # differently
    target = with_lengths(other_axes, axis_index, shape[axis_index])
    x = (
        x
        if target == shape
        else kernels.broadcast_to(x, checks.require_known_lengths(target, "take_along_axis"))
    )
    target = with_lengths(other_axes, axis_index, indices_shape[axis_index])
    if target != indices_shape:
        indices = kernels.broadcast_to(
            indices, checks.require_known_lengths(target, "take_along_axis")
        )
    return kernels.take_along_axis(
        x, _indices_in_range(checks, x, indices, axis_index, "take_along_axis"), axis_index
    )


def _indices_in_range(checks: Checks, x: Any, indices: Any, axis: int, function: str) -> Any:
    """Returns the indices, which select elements of `x` along `axis`, as int32 or int64. Each negative index is
    replaced by the equivalent non-negative index. Raises `IndexError` for indices outside the axis, which the
    frameworks treat differently; `function` is the function name to show in the error message. While a function is
    traced, the indices have no values and are not checked."""
    kernels, length = checks.kernels, shape_of(x)[axis]
    name = checks.dtype_of(indices)
    # all frameworks accept indices of int32 and int64
    index_dtype = name if name in ("int32", "int64") else checks.supported_dtype("int64")
    # for traced indices, operations of the framework replace the negative indices. The length of
    # the axis is None if it is unknown, too; the framework then computes it
    if not checks.has_values(indices):
        indices = checks.cast(indices, index_dtype)
        axis_length = (
            checks.element_count(x, (axis,), index_dtype)
            if length is None
            else checks.number_as_tensor(length, index_dtype, indices)
        )
        is_negative = kernels.less(indices, checks.number_as_tensor(0, index_dtype, indices))
        return kernels.where(is_negative, kernels.add(indices, axis_length), indices)
    # for a tensor on the host, this reads the tensor's own memory without a copy
    values = checks.backend.peek(indices)
    # read as an unsigned integer, a negative index is in the upper half of the range, so one
    # pass over the values shows whether an index is negative or too large. The upper half
    # begins at `half`, which may be less than the length of the axis if the dtype is narrow,
    # such as int8
    unsigned = values.view(values.dtype.str.replace("i", "u"))
    half = 1 << (8 * values.itemsize - 1)
    if values.size and int(unsigned.max()) >= min(length, half):
        low, high = int(values.min()), int(values.max())
        if low < -length or high >= length:
            wrong = low if low < -length else high
            raise IndexError(
                f"{function}: index {wrong} is out of range for an axis of length {length}"
            )
        # few frameworks accept negative indices, so they are replaced here
        if low < 0:
            return checks.array_as_tensor(
                (values + (values < 0) * length).astype(index_dtype, copy=False), indices
            )
    return checks.cast(indices, index_dtype)


def _ordering(
    function: str, compute: Callable[[Checks, Any, int, bool], Any]
) -> Callable[..., Any]:
    """Returns the standard's function with the name `function` ("sort" or "argsort"), which returns
    `compute(checks, x, axis_index, descending)`. Every kernel is stable, so the argument `stable` has no effect."""

    def ordering(
        checks: Checks,
        x: Any,
        /,
        *,
        axis: int = -1,
        descending: bool = False,
        stable: bool = True,
        **misspelled: NoReturn,
    ) -> Any:
        if misspelled:
            spellings.refuse(f"xp.{function}", misspelled, "axis=, descending=, stable=")
        x = checks.tensor_of_kinds(x, REAL, function)
        # a 0-d tensor has no axis; `compute` then ignores the index 0
        axis_index = checks.axis_index(axis, len(x.shape), function) if len(x.shape) else 0
        return compute(checks, x, axis_index, bool(descending))

    return ordering


def _sorted(checks: Checks, x: Any, axis_index: int, descending: bool) -> Any:
    """Returns `x`, sorted along the axis `axis_index` in ascending order, or in descending order if `descending` is
    True."""
    # the contract promises that kernels are called with tensors that have an axis and elements
    if not len(x.shape) or 0 in shape_of(x):
        return checks.kernels.copy(x)
    return checks.kernels.sort(x, axis_index, descending)


def _argsorted(checks: Checks, x: Any, axis_index: int, descending: bool) -> Any:
    """Returns the indices, as int64, that sort `x` along the axis `axis_index` in ascending order, or in descending
    order if `descending` is True."""
    name = checks.supported_dtype("int64")
    # for a 0-d tensor, the index is 0; for a tensor without elements, there are
    # no indices
    if not len(x.shape) or 0 in shape_of(x):
        return checks.kernels.full_like(x, 0, name)
    return checks.cast(checks.kernels.argsort(x, axis_index, descending), name)


argsort = _ordering("argsort", _argsorted)
sort = _ordering("sort", _sorted)


def isin(checks: Checks, x1: Any, x2: Any, /, *, invert: bool = False) -> Any:
    """Returns a mask that is True for each element of `x1` that occurs in `x2`. If `invert` is True, the mask is True
    for each element that does not occur in `x2`. NaN never occurs in `x2`."""
    kernels = checks.kernels
    x1, x2 = checks.operands_on_one_device("isin", REAL, x1, x2)
    # no element occurs in an empty `x2`
    if 0 in shape_of(x2):
        return kernels.full_like(x1, bool(invert), "bool")
    # the elements are searched for in a sorted vector, because comparing all pairs of elements
    # would need memory for the product of both sizes
    ordered = sort(checks, kernels.reshape(x2, (-1,)))
    # each element is compared with the element at its position in the sorted vector, or with
    # the last element if that position is the end
    positions = searchsorted(checks, ordered, x1)
    positions = kernels.minimum(
        positions,
        checks.number_as_tensor(
            shape_of(ordered)[0] - 1, checks.dtype_of(positions), positions
        ),
    )
    neighbours = kernels.take(ordered, kernels.reshape(positions, (-1,)), 0)
    neighbours = kernels.reshape(neighbours, checks.known_shape(x1, "isin"))
    return kernels.not_equal(neighbours, x1) if invert else kernels.equal(neighbours, x1)


def searchsorted(
    checks: Checks, x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None
) -> Any:
    """Returns, for each element of `x2`, the index at which it would be inserted into the sorted vector `x1`. If `x1`
    already contains the element, this is the index of its first occurrence (`side="left"`), or the index after its last
    occurrence (`side="right"`). If `x1` is not sorted, `sorter` must contain the indices that sort `x1`. Raises
    `ShapeError` unless `x1` is a vector, and `ArgumentError` for any other `side`."""
    x1, x2 = checks.operands_on_one_device("searchsorted", REAL, x1, x2)
    if len(x1.shape) != 1:
        raise ShapeError(
            f"searchsorted expects a sorted vector, not a tensor of shape {shape_of(x1)}"
        )
    if side not in ("left", "right"):
        raise ArgumentError(f"searchsorted: side must be 'left' or 'right', not {shown(side)}")
    shape = checks.known_shape(x2, "searchsorted")
    # kernels need a sorted vector; `sorter` contains the indices that sort `x1`
    if sorter is not None:
        x1 = take(checks, x1, sorter)
    # there is nothing to search for, or nothing to search in
    if 0 in shape or 0 in shape_of(x1):
        return checks.kernels.full_like(x2, 0, checks.supported_dtype("int64"))
    positions = _insertion_points(checks, x1, checks.kernels.reshape(x2, (-1,)), side)
    return checks.cast(
        checks.kernels.reshape(positions, shape), checks.supported_dtype("int64")
    )


def _insertion_points(checks: Checks, x1: Any, x2: Any, side: str) -> Any:
    """Returns the result of `searchsorted` for two vectors. NaN is placed after all numbers, as in `sort`. The
    frameworks treat NaN differently, so each NaN is replaced by infinity before the kernel is called. The kernel's
    results are then corrected: the position of a NaN is directly after all numbers (for the side "left") or at the end
    (for "right"). No number is placed after a NaN."""
    kernels = checks.kernels
    name = checks.dtype_of(x1)
    if dtypes.kind_of(name) != "f":
        return kernels.searchsorted(x1, x2, side)
    infinity = checks.number_as_tensor(math.inf, name, x1)
    # masks of the elements that are NaN
    x1_is_nan, x2_is_nan = kernels.isnan(x1), kernels.isnan(x2)
    positions = kernels.searchsorted(
        kernels.where(x1_is_nan, infinity, x1), kernels.where(x2_is_nan, infinity, x2), side
    )
    index_dtype = checks.dtype_of(positions)
    # the number of elements of `x1`, and the number of its elements that are not NaN
    count = checks.element_count(x1, (0,), index_dtype)
    number_count = checks.cast(
        kernels.sum(kernels.astype(kernels.logical_not(x1_is_nan), index_dtype), (0,), False),
        index_dtype,
    )
    return kernels.where(
        x2_is_nan,
        number_count if side == "left" else count,
        kernels.minimum(positions, number_count),
    )
