"""The Python Array API standard's functions of many elements: sums, extremes, products of matrices, sorting and
taking."""

from __future__ import annotations

import math
from operator import index
from typing import TYPE_CHECKING, Any, NoReturn

from xdevice.base import spellings
from xdevice.base.dtypes import dtype_name
from xdevice.errors import ArgumentError, ShapeError, shown
from xdevice.math.contract.arithmetic import SKIPS_NAN

from . import dtypes
from .checks import NUMBERS, Checks, Room, broadcast_shape, shape_of, with_lengths
from .dtypes import ANY, BOOL, INTEGER, NUMERIC, REAL, REAL_FLOATING

if TYPE_CHECKING:
    from collections.abc import Callable

    Axis = int | tuple[int, ...] | None


def functions(checks: Checks) -> dict[str, Callable[..., Any]]:
    """The functions of this module that are made for fast calls, by name."""
    table = {"matmul": _matmul(checks), "sum": _sum(checks)}
    for name, function in table.items():
        function.__qualname__ = name  # what an error for a wrong keyword says
    return table


def _matmul(checks: Checks) -> Callable[..., Any]:
    # written without a lock, as in `elementwise`
    kernels: dict[Any, Callable[[Any, Any], Any]] = {}  # for the dtypes seen so far

    def matmul(x1: Any, x2: Any, /) -> Any:
        if checks.is_plain(x1) and checks.is_plain(x2):
            dtype = x1.dtype  # read once, which takes Paddle 0.4 us
            kernel = kernels.get(dtype)
            if kernel is not None and x2.dtype is dtype:
                if checks.compares_devices:
                    checks.require_one_device("matmul", x1, x2)
                try:  # before the shapes are checked, which takes as long as a small product
                    return kernel(x1, x2)
                except Exception:  # the checks below say why, or the kernel raises it again
                    pass
        x1, x2 = checks.operands("matmul", NUMERIC, (x1, x2))
        checks.require_one_device("matmul", x1, x2)
        _require_fit(x1, x2)
        kernels[x1.dtype] = checks.kernel("matmul", x1.dtype)
        return _product(checks, x1, x2)

    return matmul


def _require_fit(x1: Any, x2: Any) -> None:
    shapes = shape_of(x1), shape_of(x2)
    if not shapes[0] or not shapes[1]:
        raise ShapeError(
            f"matmul takes vectors and matrices, not the shapes {shapes[0]} and {shapes[1]}"
        )
    inner = shapes[0][-1], shapes[1][-2 if len(shapes[1]) > 1 else 0]
    if None not in inner and inner[0] != inner[1]:
        raise ShapeError(
            f"matmul: {shapes[0]} and {shapes[1]} do not fit: {inner[0]} is not {inner[1]}"
        )


def _product(checks: Checks, x1: Any, x2: Any) -> Any:
    """The product of two matrices. A vector counts as a matrix of one row or one column, and its axis of length 1 is
    dropped from the result."""
    # the frameworks disagree about vectors beside stacks of matrices
    kernels, vectors = checks.kernels, (len(x1.shape) == 1, len(x2.shape) == 1)
    x1 = kernels.expand_dims(x1, 0) if vectors[0] else x1
    x2 = kernels.expand_dims(x2, 1) if vectors[1] else x2
    broadcast_shape(shape_of(x1)[:-2], shape_of(x2)[:-2])
    result = kernels.matmul(x1, x2)
    ndim = len(result.shape)
    gone = (ndim - 2,) * vectors[0] + (ndim - 1,) * vectors[1]
    return kernels.squeeze(result, gone) if gone else result


def _sum(checks: Checks) -> Callable[..., Any]:
    reduced = Reducing(checks)._reduced
    kernels: dict[
        Any, Callable[..., Any]
    ] = {}  # for floats seen so far, whose sums have the dtype of the tensor

    def sum(
        x: Any,
        /,
        *,
        axis: Axis = None,
        dtype: Any = None,
        keepdims: bool = False,
        **spelling: NoReturn,
    ) -> Any:
        if spelling:
            spellings.refuse("xp.sum", spelling, "axis=, dtype=, keepdims=")
        is_whole = axis is None and dtype is None and not keepdims
        kernel = kernels.get(x.dtype) if is_whole and checks.is_plain(x) else None
        if kernel is not None:
            try:
                return kernel(x, None, False)
            except Exception:
                checks.require_fit("sum", x)
                raise
        x = checks.require(x, ANY, "sum")
        if dtypes.kind_of(checks.name(x)) == "f":
            kernels[x.dtype] = checks.kernel("sum", x.dtype)
        return reduced("sum", x, axis, dtype, keepdims)

    return sum


def _reduction(function: str, method: str) -> Callable[..., Any]:
    """A function of the standard's that only has axes, as a call of a method of `Reducing`."""

    def reduction(
        self: Reducing,
        x: Any,
        /,
        *,
        axis: Axis = None,
        keepdims: bool = False,
        **spelling: NoReturn,
    ) -> Any:
        if spelling:
            spellings.refuse(f"xp.{function}", spelling, "axis=, keepdims=")
        return getattr(self, method)(function, x, axis, keepdims)

    return reduction


class Reducing(Room):
    """Functions that reduce tensors, or put their elements into another order."""

    def __init__(self, checks: Checks) -> None:
        super().__init__(checks)
        self._spread = checks.fused(self._of_squares)
        self._differences = checks.fused(self._of_neighbours)
        self._truth = checks.fused(self._of_bools)
        self._counted = checks.fused(self._of_ones)
        self._first = checks.fused(self._of_extremes)

    # statistics

    def _reduced(self, function: str, x: Any, axis: Axis, dtype: Any, keepdims: bool) -> Any:
        """Computes `sum` or `prod`. Bools and integers are computed as int64, or as uint64 if they are unsigned."""
        checks = self._checks
        x = checks.cast(x, self._accumulated(function, x, dtype))
        axes = checks.axes(axis, len(x.shape), function)
        if not axes:
            return self._kernels.copy(x)
        return checks.cast(
            getattr(self._kernels, function)(x, axes, bool(keepdims)), checks.name(x)
        )

    def _accumulated(self, function: str, x: Any, dtype: Any) -> str:
        if dtype is not None:
            wanted = self._checks.supported(dtype_name(dtype))
            if wanted == "bool":
                raise self._checks.refused(function, NUMERIC, wanted)
            return wanted
        name = self._checks.name(x)
        if dtypes.kind_of(name) == "u" and "uint64" in self._checks.backend.dtypes:
            return self._checks.supported("uint64")
        return self._checks.supported("int64") if dtypes.kind_of(name) in "biu" else name

    def prod(
        self,
        x: Any,
        /,
        *,
        axis: Axis = None,
        dtype: Any = None,
        keepdims: bool = False,
        **spelling: NoReturn,
    ) -> Any:
        if spelling:
            spellings.refuse("xp.prod", spelling, "axis=, dtype=, keepdims=")
        return self._reduced(
            "prod", self._checks.require(x, ANY, "prod"), axis, dtype, keepdims
        )

    max = _reduction("max", "_extreme")
    min = _reduction("min", "_extreme")

    def _extreme(self, function: str, x: Any, axis: Axis, keepdims: bool) -> Any:
        x = self._checks.require(x, REAL, function)
        shape = shape_of(x)
        axes = self._checks.axes(axis, len(shape), function)
        if 0 in shape and any(shape[one] == 0 for one in axes):
            raise ShapeError(
                f"{function} of an empty tensor is not defined: the shape is {shape}, the axis {axis}"
            )
        return (
            getattr(self._kernels, function)(x, axes, bool(keepdims))
            if axes
            else self._kernels.copy(x)
        )

    mean = _reduction("mean", "_average")

    def _average(self, function: str, x: Any, axis: Axis, keepdims: bool) -> Any:
        x = self._checks.require(x, dtypes.FLOATING, function)
        axes = self._checks.axes(axis, len(x.shape), function)
        return self._kernels.mean(x, axes, bool(keepdims)) if axes else self._kernels.copy(x)

    def var(
        self,
        x: Any,
        /,
        *,
        axis: Axis = None,
        correction: float = 0.0,
        keepdims: bool = False,
        **spelling: NoReturn,
    ) -> Any:
        if spelling:
            spellings.refuse("xp.var", spelling, "axis=, correction=, keepdims=")
        return self._variance("var", x, axis, correction, keepdims)

    def std(
        self,
        x: Any,
        /,
        *,
        axis: Axis = None,
        correction: float = 0.0,
        keepdims: bool = False,
        **spelling: NoReturn,
    ) -> Any:
        if spelling:
            spellings.refuse("xp.std", spelling, "axis=, correction=, keepdims=")
        return self._variance("std", x, axis, correction, keepdims)

    def _variance(
        self, function: str, x: Any, axis: Axis, correction: float, keepdims: bool
    ) -> Any:
        x = self._checks.require(x, REAL_FLOATING, function)
        axes = self._checks.axes(axis, len(x.shape), function)
        return self._spread((x,), function, axes, float(correction), bool(keepdims))

    def _of_squares(
        self, x: Any, function: str, axes: tuple[int, ...], correction: float, keepdims: bool
    ) -> Any:
        kernels = self._kernels
        deviations = kernels.subtract(x, kernels.mean(x, axes, True) if axes else x)
        squares = kernels.square(deviations)
        total = kernels.sum(squares, axes, keepdims) if axes else squares
        variance = kernels.divide(total, self._divisor(x, axes, correction))
        return kernels.sqrt(variance) if function == "std" else variance

    def _divisor(self, x: Any, axes: tuple[int, ...], correction: float) -> Any:
        """The divisor of a variance: the number of elements less `correction`, and at least 0."""
        checks, kernels, name = self._checks, self._kernels, self._checks.name(x)
        lengths = [shape_of(x)[one] for one in axes]
        if None not in lengths:
            # as NumPy does: a divisor of 0 gives infinity or NaN
            divisor = float(max(math.prod(lengths) - correction, 0))
            return (
                divisor
                if "divide" in kernels.TAKE_NUMBERS
                else kernels.number(divisor, name, x)
            )
        divisor = kernels.subtract(
            checks.length(x, axes, name), kernels.number(correction, name, x)
        )
        return kernels.maximum(divisor, kernels.number(0.0, name, x))

    def cumulative_sum(
        self,
        x: Any,
        /,
        *,
        axis: int | None = None,
        dtype: Any = None,
        include_initial: bool = False,
    ) -> Any:
        return self._cumulated("cumulative_sum", 0, x, axis, dtype, include_initial)

    def cumulative_prod(
        self,
        x: Any,
        /,
        *,
        axis: int | None = None,
        dtype: Any = None,
        include_initial: bool = False,
    ) -> Any:
        return self._cumulated("cumulative_prod", 1, x, axis, dtype, include_initial)

    def _cumulated(
        self,
        function: str,
        initial: int,
        x: Any,
        axis: int | None,
        dtype: Any,
        has_initial: bool,
    ) -> Any:
        checks, kernels = self._checks, self._kernels
        x = checks.require(x, NUMERIC, function)
        shape = shape_of(x)
        if axis is None and len(shape) != 1:
            raise ShapeError(f"{function} of the shape {shape} needs an axis")
        place = checks.axis(0 if axis is None else axis, len(shape), function)
        name = self._accumulated(function, x, dtype)
        x = checks.cast(x, name)
        # some frameworks add up integers in a wider dtype
        total = (
            checks.cast(getattr(kernels, function)(x, place), name)
            if 0 not in shape
            else kernels.copy(x)
        )
        if not has_initial:
            return total
        shape = checks.full_shape(x, f"{function} with include_initial")
        first = kernels.broadcast_to(
            kernels.number(initial, name, x), with_lengths(shape, place, 1)
        )
        return kernels.concat([first, total], place)

    def diff(
        self, x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None
    ) -> Any:
        checks, kernels = self._checks, self._kernels
        x = checks.require(x, NUMERIC, "diff")
        place = checks.axis(axis, len(x.shape), "diff")
        if index(n) < 0:
            raise ArgumentError(f"diff takes an n of 0 or more, not {n}")
        parts = [
            checks.require(part, NUMERIC, "diff")
            for part in (prepend, x, append)
            if part is not None
        ]
        if len(parts) > 1:
            checks.require_one_device("diff", *parts)
            x = kernels.concat(checks.promoted(parts), place)
        length = checks.full_shape(x, "diff")[place]
        return self._differences((x,), place, length, min(index(n), length))

    def _of_neighbours(self, x: Any, place: int, length: int, times: int) -> Any:
        kernels = self._kernels
        # each round leaves one element less
        for last in range(length - 1, length - 1 - times, -1):
            x = kernels.subtract(
                kernels.sliced(x, place, 1, last + 1), kernels.sliced(x, place, 0, last)
            )
        return x

    # truth

    all = _reduction("all", "_true")
    any = _reduction("any", "_true")

    def _true(self, function: str, x: Any, axis: Axis, keepdims: bool) -> Any:
        x = self._checks.tensor(x, function)
        axes = self._checks.axes(axis, len(x.shape), function)
        return self._truth((x,), function, axes, bool(keepdims))

    def _of_bools(self, x: Any, function: str, axes: tuple[int, ...], keepdims: bool) -> Any:
        # not all frameworks take the truth of numbers
        x = self._checks.cast(x, "bool")
        return (
            getattr(self._kernels, function)(x, axes, keepdims)
            if axes
            else self._kernels.copy(x)
        )

    count_nonzero = _reduction("count_nonzero", "_count")

    def _count(self, function: str, x: Any, axis: Axis, keepdims: bool) -> Any:
        x = self._checks.tensor(x, function)
        return self._counted(
            (x,), self._checks.axes(axis, len(x.shape), function), bool(keepdims)
        )

    def _of_ones(self, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return self._reduced("sum", self._checks.cast(x, "bool"), axes, None, keepdims)

    # places

    def argmax(
        self,
        x: Any,
        /,
        *,
        axis: int | None = None,
        keepdims: bool = False,
        **spelling: NoReturn,
    ) -> Any:
        if spelling:
            spellings.refuse("xp.argmax", spelling, "axis=, keepdims=")
        return self._place("argmax", x, axis, keepdims)

    def argmin(
        self,
        x: Any,
        /,
        *,
        axis: int | None = None,
        keepdims: bool = False,
        **spelling: NoReturn,
    ) -> Any:
        if spelling:
            spellings.refuse("xp.argmin", spelling, "axis=, keepdims=")
        return self._place("argmin", x, axis, keepdims)

    def _place(self, function: str, x: Any, axis: int | None, keepdims: bool) -> Any:
        """The index of the first extreme element (by `argmax` or `argmin`), or of the first NaN if there is one."""
        x = self._checks.require(x, REAL, function)
        shape = shape_of(x)
        place = None if axis is None else self._checks.axis(axis, len(shape), function)
        if 0 in (shape if place is None else (shape[place],)):
            raise ShapeError(
                f"{function} of an empty tensor is not defined: the shape is {shape}, the axis {axis}"
            )
        return self._first((x,), function, place, bool(keepdims))

    def _of_extremes(self, x: Any, function: str, place: int | None, keepdims: bool) -> Any:
        checks, kernels = self._checks, self._kernels
        flat = kernels.reshape(x, (-1,)) if place is None else x
        places = checks.cast(
            self._first_extreme(function, flat, place or 0), checks.supported("int64")
        )
        if not keepdims:
            return places
        return (
            kernels.reshape(places, (1,) * len(x.shape))
            if place is None
            else kernels.expand_dims(places, place)
        )

    def _first_extreme(self, function: str, x: Any, axis: int) -> Any:
        kernels = self._kernels
        places = getattr(kernels, function)(x, axis)
        if dtypes.kind_of(self._checks.name(x)) != "f" or not getattr(
            kernels, SKIPS_NAN, False
        ):
            return places
        is_nan = kernels.isnan(x)
        first = kernels.argmax(kernels.astype(is_nan, "int32"), axis)
        return kernels.where(kernels.any(is_nan, (axis,), False), first, places)

    def where(self, condition: Any, x1: Any, x2: Any, /) -> Any:
        condition = self._checks.require(condition, BOOL, "where")
        if type(x1) in NUMBERS and type(x2) in NUMBERS:
            # two numbers promote as the elements of a list do
            name = dtypes.with_number(dtypes.with_number("bool", x1), x2)
            x1, x2 = (
                self._checks.number(x, self._checks.supported(name), condition)
                for x in (x1, x2)
            )
        else:
            x1, x2 = self._checks.operands("where", ANY, (x1, x2))
        if self._checks.compares_devices:
            self._checks.require_one_device("where", condition, x1, x2)
        try:
            return self._kernels.where(condition, x1, x2)
        except Exception:
            self._checks.require_fit("where", condition, x1, x2)
            raise

    def take(
        self, x: Any, indices: Any, /, *, axis: int | None = None, **spelling: NoReturn
    ) -> Any:
        if spelling:
            spellings.refuse("xp.take", spelling, "axis=")
        checks = self._checks
        x, indices = checks.tensor(x, "take"), checks.require(indices, INTEGER, "take")
        checks.require_one_device("take", x, indices)
        ndim = len(x.shape)
        if axis is None and ndim != 1:
            raise ShapeError(f"take from the shape {shape_of(x)} needs an axis")
        if len(indices.shape) != 1:
            raise ShapeError(
                f"take takes a vector of indices, not the shape {shape_of(indices)}"
            )
        place = checks.axis(0 if axis is None else axis, ndim, "take")
        return self._kernels.take(x, self._checked(x, indices, place, "take"), place)

    def take_along_axis(self, x: Any, indices: Any, /, *, axis: int = -1) -> Any:
        checks, kernels = self._checks, self._kernels
        x, indices = (
            checks.tensor(x, "take_along_axis"),
            checks.require(indices, INTEGER, "take_along_axis"),
        )
        checks.require_one_device("take_along_axis", x, indices)
        shape, wanted = shape_of(x), shape_of(indices)
        if len(shape) != len(wanted):
            raise ShapeError(
                f"take_along_axis takes two shapes of as many dimensions, not {shape} and {wanted}"
            )
        place = checks.axis(axis, len(shape), "take_along_axis")
        others = broadcast_shape(with_lengths(shape, place, 1), with_lengths(wanted, place, 1))
        wide = with_lengths(others, place, shape[place])
        # the standard broadcasts the other axes, and the frameworks do not, or do so differently
        x = (
            x
            if wide == shape
            else kernels.broadcast_to(x, checks.require_known(wide, "take_along_axis"))
        )
        wide = with_lengths(others, place, wanted[place])
        if wide != wanted:
            indices = kernels.broadcast_to(
                indices, checks.require_known(wide, "take_along_axis")
            )
        return kernels.take_along_axis(
            x, self._checked(x, indices, place, "take_along_axis"), place
        )

    def _checked(self, x: Any, indices: Any, axis: int, function: str) -> Any:
        """The indices, with negative ones counted from the front. Raises `IndexError` for indices outside the axis,
        which frameworks answer differently. While a function is traced the indices have no values, and are not
        checked."""
        checks, kernels, length = self._checks, self._kernels, shape_of(x)[axis]
        name = checks.name(indices)
        # which all frameworks take
        whole = name if name in ("int32", "int64") else checks.supported("int64")
        if not checks.has_values(indices):
            indices = checks.cast(indices, whole)
            along = (
                checks.length(x, (axis,), whole)
                if length is None
                else checks.number(length, whole, indices)
            )
            is_negative = kernels.less(indices, checks.number(0, whole, indices))
            return kernels.where(is_negative, kernels.add(indices, along), indices)
        values = checks.backend.peek(indices)
        # what is negative is in the upper half there
        unsigned = values.view(values.dtype.str.replace("i", "u"))
        if values.size and int(unsigned.max()) >= min(length, 1 << (8 * values.itemsize - 1)):
            low, high = int(values.min()), int(values.max())
            if low < -length or high >= length:
                wrong = low if low < -length else high
                raise IndexError(
                    f"{function}: there is no index {wrong} in an axis of {length}"
                )
            if low < 0:
                return checks.constant(
                    (values + (values < 0) * length).astype(whole, copy=False), indices
                )
        return checks.cast(indices, whole)

    def argsort(
        self,
        x: Any,
        /,
        *,
        axis: int = -1,
        descending: bool = False,
        stable: bool = True,
        **spelling: NoReturn,
    ) -> Any:
        if spelling:
            spellings.refuse("xp.argsort", spelling, "axis=, descending=, stable=")
        checks = self._checks
        x = checks.require(x, REAL, "argsort")
        place = checks.axis(axis, len(x.shape), "argsort") if len(x.shape) else 0
        name = checks.supported("int64")
        if not len(x.shape) or 0 in shape_of(x):
            return self._kernels.full_like(x, 0, name)
        return checks.cast(self._kernels.argsort(x, place, bool(descending)), name)

    def isin(self, x1: Any, x2: Any, /, *, invert: bool = False) -> Any:
        checks, kernels = self._checks, self._kernels
        x1, x2 = checks.operands("isin", REAL, (x1, x2))
        checks.require_one_device("isin", x1, x2)
        if 0 in shape_of(x2):
            return kernels.full_like(x1, bool(invert), "bool")
        ordered = self.sort(kernels.reshape(x2, (-1,)))
        # beyond the last one there is none
        places = self.searchsorted(ordered, x1)
        places = kernels.minimum(
            places, checks.number(shape_of(ordered)[0] - 1, checks.name(places), places)
        )
        neighbours = kernels.take(ordered, kernels.reshape(places, (-1,)), 0)
        neighbours = kernels.reshape(neighbours, checks.full_shape(x1, "isin"))
        return kernels.not_equal(neighbours, x1) if invert else kernels.equal(neighbours, x1)

    def searchsorted(
        self, x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None
    ) -> Any:
        checks = self._checks
        x1, x2 = checks.operands("searchsorted", REAL, (x1, x2))
        checks.require_one_device("searchsorted", x1, x2)
        if len(x1.shape) != 1:
            raise ShapeError(
                f"searchsorted takes a sorted vector, not the shape {shape_of(x1)}"
            )
        if side not in ("left", "right"):
            raise ArgumentError(
                f"searchsorted: side must be 'left' or 'right', not {shown(side)}"
            )
        shape = checks.full_shape(x2, "searchsorted")
        # kernels are promised a vector that is sorted
        if sorter is not None:
            x1 = self.take(x1, sorter)
        if 0 in shape or 0 in shape_of(x1):
            return self._kernels.full_like(x2, 0, checks.supported("int64"))
        places = self._places(x1, self._kernels.reshape(x2, (-1,)), side)
        return checks.cast(self._kernels.reshape(places, shape), checks.supported("int64"))

    def _places(self, x1: Any, x2: Any, side: str) -> Any:
        """Kernels part where there is NaN, which is behind all numbers here, as in `sort`."""
        checks, kernels = self._checks, self._kernels
        name = checks.name(x1)
        if dtypes.kind_of(name) != "f":
            return kernels.searchsorted(x1, x2, side)
        most, are_nan, is_nan = (
            checks.number(math.inf, name, x1),
            kernels.isnan(x1),
            kernels.isnan(x2),
        )
        places = kernels.searchsorted(
            kernels.where(are_nan, most, x1), kernels.where(is_nan, most, x2), side
        )
        whole = checks.name(places)
        count = checks.length(x1, (0,), whole)
        numbers = checks.cast(
            kernels.sum(kernels.astype(kernels.logical_not(are_nan), whole), (0,), False), whole
        )
        return kernels.where(
            is_nan, numbers if side == "left" else count, kernels.minimum(places, numbers)
        )

    def sort(
        self,
        x: Any,
        /,
        *,
        axis: int = -1,
        descending: bool = False,
        stable: bool = True,
        **spelling: NoReturn,
    ) -> Any:
        if spelling:
            spellings.refuse("xp.sort", spelling, "axis=, descending=, stable=")
        checks = self._checks
        x = checks.require(x, REAL, "sort")
        place = checks.axis(axis, len(x.shape), "sort") if len(x.shape) else 0
        if not len(x.shape) or 0 in shape_of(x):
            return self._kernels.copy(x)
        return self._kernels.sort(x, place, bool(descending))
