"""The functions of the Python Array API standard that change shapes, join tensors, or compute products of tensors.
These functions check axes and shapes themselves, so that all backends raise the same errors."""

from __future__ import annotations

from math import prod
from numbers import Integral
from operator import index
from typing import TYPE_CHECKING, Any, NoReturn

from xdevice.base import spellings
from xdevice.errors import ShapeError, shown
from xdevice.tensors.creation import as_tuple

from .checks import Checks, broadcast_shape, shape_of, with_lengths
from .dtypes import INTEGER, NUMERIC, kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence


# functions that change shapes


def broadcast_to(checks: Checks, x: Any, /, shape: Sequence[int]) -> Any:
    """Returns `x`, broadcast to the given shape. Raises `ShapeError` if `x` cannot be broadcast to that shape."""
    x = checks.checked_tensor(x, "broadcast_to")
    target = _sizes(shape, "broadcast_to")
    old = shape_of(x)
    # broadcasting aligns shapes at the last axis
    pairs = zip(reversed(old), reversed(target), strict=False)
    # None is a length that is unknown while a function is traced; it may match
    fits = [length in (1, None, new) for length, new in pairs]
    if len(old) > len(target) or not all(fits):
        raise ShapeError(
            f"broadcast_to: a tensor of shape {old} cannot be broadcast to the shape {target}"
        )
    return checks.kernels.broadcast_to(x, target)


def broadcast_arrays(checks: Checks, *arrays: Any) -> tuple[Any, ...]:
    """Returns the tensors, broadcast to their common shape."""
    tensors = [checks.checked_tensor(x, "broadcast_arrays") for x in arrays]
    if tensors:
        checks.require_one_device("broadcast_arrays", *tensors)
    # the shape is computed here, because the frameworks raise different errors for shapes that
    # do not match
    shape = broadcast_shape(*[checks.known_shape(x, "broadcast_arrays") for x in tensors])
    return tuple([checks.kernels.broadcast_to(x, shape) for x in tensors])


def broadcast_shapes(checks: Checks, *shapes: Sequence[int]) -> tuple[int, ...]:
    """Returns the common shape of tensors of the given shapes after broadcasting."""
    return broadcast_shape(*[_sizes(shape, "broadcast_shapes") for shape in shapes])


def expand_dims(
    checks: Checks, x: Any, /, axis: int | tuple[int, ...] = 0, **misspelled: NoReturn
) -> Any:
    """Returns `x` with new axes of length 1. `axis` contains the indices of the new axes in the result. Raises
    `ShapeError` if an axis occurs twice or does not exist in the result."""
    if misspelled:
        spellings.refuse("xp.expand_dims", misspelled, "axis=")
    x = checks.checked_tensor(x, "expand_dims")
    if not isinstance(axis, tuple):
        return checks.kernels.expand_dims(
            x, checks.axis_index(axis, len(x.shape) + 1, "expand_dims")
        )
    ndim = len(x.shape) + len(axis)
    # the indices of the new axes in the result; the axes are inserted in ascending order
    axis_indices = sorted([checks.axis_index(item, ndim, "expand_dims") for item in axis])
    if len({*axis_indices}) != len(axis_indices):
        raise ShapeError(f"expand_dims: the same axis appears twice in {shown(axis)}")
    for axis_index in axis_indices:
        x = checks.kernels.expand_dims(x, axis_index)
    return x


def flip(
    checks: Checks,
    x: Any,
    /,
    *,
    axis: int | tuple[int, ...] | None = None,
    **misspelled: NoReturn,
) -> Any:
    """Returns `x` with the order of the elements reversed along the axes. None means all axes."""
    if misspelled:
        spellings.refuse("xp.flip", misspelled, "axis=")
    x = checks.checked_tensor(x, "flip")
    axes = checks.axis_indices(axis, len(x.shape), "flip")
    # the contract promises that kernels are called with at least one axis
    return checks.kernels.flip(x, axes) if axes else checks.kernels.copy(x)


def matrix_transpose(checks: Checks, x: Any, /) -> Any:
    """Returns `x` with its last two axes swapped. Raises `ShapeError` if `x` has fewer than two dimensions."""
    x = checks.checked_tensor(x, "matrix_transpose")
    ndim = len(x.shape)
    if ndim < 2:
        raise ShapeError(
            f"matrix_transpose expects a tensor with at least two dimensions, not a tensor of shape {shape_of(x)}"
        )
    return checks.kernels.permute_dims(x, (*range(ndim - 2), ndim - 1, ndim - 2))


def moveaxis(
    checks: Checks, x: Any, source: int | Sequence[int], destination: int | Sequence[int], /
) -> Any:
    """Returns `x` with the axes `source` moved to the positions `destination`; the other axes keep their order.
    Raises `ShapeError` if an axis or a position occurs twice, or if the numbers of axes and of positions differ."""
    x = checks.checked_tensor(x, "moveaxis")
    ndim = len(x.shape)
    sources, targets = (
        [checks.axis_index(item, ndim, "moveaxis") for item in as_tuple(axis)]
        for axis in (source, destination)
    )
    # no axis may be moved to two positions, and no two axes may be moved to the same position
    if not len(sources) == len({*sources}) == len(targets) == len({*targets}):
        raise ShapeError(
            f"moveaxis: source and destination must be equally long and must not repeat an axis; got source={source} "
            f"and destination={destination}"
        )
    # the other axes keep their order; the moved axes are inserted, beginning with the lowest
    # position
    order = [axis for axis in range(ndim) if axis not in sources]
    for target, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(target, axis)
    return checks.kernels.permute_dims(x, tuple(order))


def permute_dims(checks: Checks, x: Any, /, axes: Sequence[int]) -> Any:
    """Returns `x` with its axes in the order `axes`. Raises `ShapeError` unless `axes` contains each axis exactly
    once."""
    x = checks.checked_tensor(x, "permute_dims")
    ndim = len(x.shape)
    order = tuple([checks.axis_index(axis, ndim, "permute_dims") for axis in as_tuple(axes)])
    if len(order) != ndim or len({*order}) != ndim:
        raise ShapeError(
            f"permute_dims: axes must name each axis of a {ndim}-dimensional tensor once, not {shown(axes)}"
        )
    return checks.kernels.permute_dims(x, order)


def repeat(
    checks: Checks, x: Any, repeats: Any, /, *, axis: int | None = None, **misspelled: NoReturn
) -> Any:
    """Returns `x` with each element repeated along the axis. `repeats` is an int, or contains an int for each element
    along the axis. Raises `ShapeError` for a negative int, or if the number of ints differs from the number of
    elements."""
    if misspelled:
        spellings.refuse("xp.repeat", misspelled, "repeats=, axis=")
    x = checks.checked_tensor(x, "repeat")
    # the standard says that the flattened tensor is used if there is no axis
    if axis is None and len(x.shape) != 1:
        x = checks.kernels.reshape(x, (-1,))
    axis_index = 0 if axis is None else checks.axis_index(axis, len(x.shape), "repeat")
    # `repeats` is an int: all elements are repeated equally often, and no indices need to be
    # computed. A tensor of one integer may also have `__index__`, but unlike an int, it has a
    # dtype
    if hasattr(type(repeats), "__index__") and not hasattr(repeats, "dtype"):
        if repeats < 0:
            raise ShapeError(f"repeat: repeats must be at least 0, not {repeats}")
        return checks.kernels.repeat(x, index(repeats), axis_index)
    counts = _counts(checks, x, repeats)
    length = checks.known_shape(x, "repeat")[axis_index]
    # these are wrong: a negative count, several axes, or a number of counts other than 1 and
    # the number of elements
    if (
        (counts < 0).any()
        or counts.ndim > 1
        or (counts.ndim == 1 and counts.size not in (1, length))
    ):
        raise ShapeError(
            f"repeat: for an axis of length {length}, repeats must be one non-negative int, or {length} non-negative "
            f"ints, not {shown(repeats)}"
        )
    import numpy

    # `indices` contains each index as often as its element is repeated; a single count applies
    # to all elements
    indices = numpy.repeat(numpy.arange(length, dtype="int64"), counts)
    return checks.kernels.take(x, checks.array_as_tensor(indices, x), axis_index)


def _counts(checks: Checks, x: Any, repeats: Any) -> Any:
    """Returns the number of times that `repeat` repeats each element, as a NumPy array. `repeats` is a sequence of
    ints or a tensor of integers. Raises `ShapeError`, `DTypeError` or `DeviceMismatchError` for other arguments, and
    `UnsupportedError` for a symbol."""
    import numpy

    # `repeats` is a sequence of ints; otherwise it must be a tensor
    if hasattr(repeats, "__iter__") and not hasattr(repeats, "dtype"):
        return numpy.asarray(_ints(repeats, "repeat"), "int64")
    repeats = checks.tensor_of_kinds(repeats, INTEGER, "repeat")
    checks.require_one_device("repeat", x, repeats)
    checks.require_values(repeats, "the argument repeats")
    # the host reads the values
    return checks.backend.peek(repeats)


def reshape(
    checks: Checks, x: Any, /, shape: Sequence[int], *, copy: bool | None = None
) -> Any:
    """Returns the elements of `x` in another shape. One length of this shape may be -1. If `copy` is True, the result
    is always a copy. If `copy` is False, raises `ValueError` if a copy is needed, and `UnsupportedError` on a backend
    that does not report whether it copies. Raises `ShapeError` if the numbers of elements differ."""
    x = checks.checked_tensor(x, "reshape")
    old = shape_of(x)
    new = _without_minus_one(old, _ints(shape, "reshape"))
    # MXNet and Paddle do not report whether `reshape` copied the tensor
    if copy is False and not checks.kernels.RESHAPE_IS_VIEW:
        raise checks.backend.unsupported("reshape with copy=False", "omit copy=False")
    result = (
        checks.kernels.reshape(x, new) if copy is not False else checks.kernels.view(x, new)
    )
    return checks.kernels.copy(result) if copy else result


def roll(
    checks: Checks,
    x: Any,
    /,
    shift: int | Sequence[int],
    *,
    axis: int | Sequence[int] | None = None,
    **misspelled: NoReturn,
) -> Any:
    """Returns `x` with its elements shifted along the axes. `shift` is an int, or contains an int for each axis.
    Elements that are shifted beyond the end reappear at the beginning. If `axis` is None, the flattened tensor is
    shifted. Raises `ShapeError` if the numbers of shifts and of axes differ."""
    if misspelled:
        spellings.refuse("xp.roll", misspelled, "shift=, axis=")
    x = checks.checked_tensor(x, "roll")
    shape = shape_of(x)
    shifts = as_tuple(shift)
    # without an axis, the flattened tensor is rolled
    if axis is None:
        if len(shifts) != 1:
            raise ShapeError(f"roll without axis= expects one shift, not {shown(shift)}")
        if len(shape) == 1:
            return _rolled(checks, x, shifts, (0,))
        shape = checks.known_shape(x, "roll without axis=")
        rolled = _rolled(checks, checks.kernels.reshape(x, (-1,)), shifts, (0,))
        return checks.kernels.reshape(rolled, shape)
    axes = as_tuple(axis)
    # a single shift applies to all axes
    if len(shifts) == 1:
        shifts *= len(axes)
    if len(shifts) != len(axes):
        raise ShapeError(
            f"roll needs one shift for each axis, but the shifts are {shown(shift)} and the axes are {shown(axis)}"
        )
    axis_indices = tuple([checks.axis_index(item, len(shape), "roll") for item in axes])
    return _rolled(checks, x, shifts, axis_indices) if axis_indices else x


def _rolled(checks: Checks, x: Any, shifts: Sequence[Any], axes: tuple[int, ...]) -> Any:
    """Returns the tensor `x`, rolled along each of `axes` by the corresponding item of `shifts`. Each item is an int of
    any size and sign."""
    lengths = [shape_of(x)[axis] for axis in axes]
    # the contract promises that each shift is less than the length of its axis; for an axis
    # without elements, the shift is 0. A length of None is unknown while a function is traced,
    # so the shift remains unchanged
    pairs = zip(shifts, lengths, strict=True)
    steps = tuple(
        [
            index(shift) if length is None else index(shift) % (length or 1)
            for shift, length in pairs
        ]
    )
    return checks.kernels.roll(x, steps, axes)


def squeeze(
    checks: Checks, x: Any, /, axis: int | tuple[int, ...], **misspelled: NoReturn
) -> Any:
    """Returns `x` without the axes `axis`, which must have the length 1. Raises `ShapeError` for an axis of any other
    length."""
    if misspelled:
        spellings.refuse("xp.squeeze", misspelled, "axis=")
    x = checks.checked_tensor(x, "squeeze")
    shape = shape_of(x)
    axes = checks.axis_indices(axis, len(shape), "squeeze")
    if any(shape[axis_index] not in (1, None) for axis_index in axes):
        raise ShapeError(
            f"squeeze removes only axes of length 1, not axis {axis} of the shape {shape}"
        )
    # the contract promises that kernels are called with at least one axis
    return checks.kernels.squeeze(x, axes) if axes else checks.kernels.copy(x)


def unstack(
    checks: Checks, x: Any, /, *, axis: int = 0, **misspelled: NoReturn
) -> tuple[Any, ...]:
    """Returns a tuple with one tensor for each index along the axis. The tensor contains the elements of `x` at that
    index, and does not have the axis."""
    if misspelled:
        spellings.refuse("xp.unstack", misspelled, "axis=")
    x = checks.checked_tensor(x, "unstack")
    axis_index = checks.axis_index(axis, len(x.shape), "unstack")
    # the number of results must be known
    checks.known_shape(x, "unstack")
    return tuple(checks.kernels.unstack(x, axis_index))


def tile(checks: Checks, x: Any, repetitions: Sequence[int], /) -> Any:
    """Returns a tensor in which the whole of `x` is repeated `repetitions[i]` times along axis i. If the number of
    axes differs from the number of repetitions, ones are inserted at the beginning of the shape or of `repetitions`,
    whichever is shorter."""
    x = checks.checked_tensor(x, "tile")
    times = _sizes(repetitions, "tile")
    shape = checks.known_shape(x, "tile")
    ndim = max(len(shape), len(times))
    # a new axis of length 1 is inserted before each axis, broadcast, and then merged with that
    # axis. Adapters therefore need no kernel `tile`
    shape = (1,) * (ndim - len(shape)) + shape
    times = (1,) * (ndim - len(times)) + times
    pairs = [*zip(times, shape, strict=True)]
    # for the shape (2, 3), repeated 4 and 5 times: (1, 2, 1, 3), (4, 2, 5, 3) and (8, 15)
    with_new_axes = [size for length in shape for size in (1, length)]
    broadcast = [size for pair in pairs for size in pair]
    merged = [n * length for n, length in pairs]
    wide = checks.kernels.reshape(x, tuple(with_new_axes))
    wide = checks.kernels.broadcast_to(wide, tuple(broadcast))
    return checks.kernels.reshape(wide, tuple(merged))


# functions that join tensors


def concat(
    checks: Checks, arrays: Sequence[Any], /, *, axis: int | None = 0, **misspelled: NoReturn
) -> Any:
    """Returns the tensors `arrays`, joined along an axis. If `axis` is None, the tensors are flattened before they
    are joined. Raises `ShapeError` if there are no tensors, or if their shapes differ along any other axis."""
    if misspelled:
        spellings.refuse("xp.concat", misspelled, "axis=")
    tensors = _tensors_to_join(checks, arrays, "concat")
    if axis is None:
        return checks.kernels.concat([checks.kernels.reshape(x, (-1,)) for x in tensors], 0)
    shapes = [shape_of(x) for x in tensors]
    axis_index = checks.axis_index(axis, len(shapes[0]), "concat")
    # apart from the axis, all shapes must be equal; a shape with an unknown length is accepted.
    # Equal shapes, the usual case, need only the first test
    distinct_shapes = {*shapes}
    if len(distinct_shapes) > 1:
        distinct_shapes = {
            with_lengths(shape, axis_index) for shape in distinct_shapes if None not in shape
        }
    if len(distinct_shapes) > 1:
        raise ShapeError(
            f"concat: shapes may differ only along axis {axis}, but the tensors have the shapes {shown(shapes)}"
        )
    return checks.kernels.concat(tensors, axis_index)


def stack(
    checks: Checks, arrays: Sequence[Any], /, *, axis: int = 0, **misspelled: NoReturn
) -> Any:
    """Returns the tensors `arrays`, joined along a new axis. Raises `ShapeError` if there are no tensors, or if their
    shapes differ."""
    if misspelled:
        spellings.refuse("xp.stack", misspelled, "axis=")
    tensors = _tensors_to_join(checks, arrays, "stack")
    shapes = [shape_of(x) for x in tensors]
    if len({shape for shape in shapes if None not in shape}) > 1:
        raise ShapeError(
            f"stack expects tensors of the same shape, but their shapes are {shown(shapes)}"
        )
    return checks.kernels.stack(tensors, checks.axis_index(axis, len(shapes[0]) + 1, "stack"))


def _tensors_to_join(checks: Checks, arrays: Sequence[Any], function: str) -> list[Any]:
    """Returns a list of the tensors `arrays`, cast to their common dtype. Raises `ShapeError` if there are no
    tensors, and `DeviceMismatchError` if they are on several devices. `function` is the function name to show in error
    messages."""
    tensors = [checks.checked_tensor(x, function) for x in arrays]
    if not tensors:
        raise ShapeError(f"{function} needs at least one tensor")
    checks.require_one_device(function, *tensors)
    return checks.promoted(tensors)


# products of tensors


def tensordot(
    checks: Checks, x1: Any, x2: Any, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Any:
    """Returns the products of `x1` and `x2`, summed over some axes of both tensors. `axes` is a pair of sequences: the
    axes of `x1`, and the axes of `x2`. It may also be a number n, which means the last n axes of `x1` and the first n
    axes of `x2`. Raises `ShapeError` if there are no such axes, or if their lengths differ."""
    x1, x2 = checks.operands_on_one_device("tensordot", NUMERIC, x1, x2)
    shapes = (
        checks.known_shape(x1, "tensordot"),
        checks.known_shape(x2, "tensordot"),
    )
    first, second = _summed_axes(checks, shapes, axes)
    # the result is computed as a product of two matrices. The sum is over the axes `first` and
    # `second`; `left` and `right` are the other axes, which become the axes of the result
    left = [axis for axis in range(len(shapes[0])) if axis not in first]
    right = [axis for axis in range(len(shapes[1])) if axis not in second]
    left_lengths = [shapes[0][axis] for axis in left]
    right_lengths = [shapes[1][axis] for axis in right]
    inner = prod([shapes[0][axis] for axis in first])
    rows = _as_matrix(checks, x1, (*left, *first), (prod(left_lengths), inner))
    columns = _as_matrix(checks, x2, (*second, *right), (inner, prod(right_lengths)))
    product = checks.kernels.matmul(rows, columns)
    return checks.kernels.reshape(product, (*left_lengths, *right_lengths))


def _as_matrix(checks: Checks, x: Any, order: tuple[int, ...], shape: tuple[int, int]) -> Any:
    """Returns `x` as a matrix of the shape `shape`. The axes of `x` are first permuted into the order `order`, and then
    merged into two axes."""
    return checks.kernels.reshape(checks.kernels.permute_dims(x, order), shape)


def _summed_axes(
    checks: Checks, shapes: tuple[tuple[int, ...], ...], axes: Any
) -> tuple[list[int], list[int]]:
    """Returns the axes over which `tensordot` sums: the axes of the first tensor, and the axes of the second tensor.
    `shapes` contains the shapes of the two tensors. `axes` is the caller's argument: a number of axes, or two
    sequences. Raises `ShapeError` if there are no such axes, or if their lengths differ."""
    ndims = len(shapes[0]), len(shapes[1])
    # NumPy's ints are `Integral`, too, and so is True, which is no number of axes
    if isinstance(axes, Integral) and not isinstance(axes, bool):
        # a number means that many axes at the end of the first tensor, and as many at the
        # beginning of the second tensor
        count = int(axes)
        axes = range(ndims[0] - count, ndims[0]), range(count)
        if not 0 <= count <= min(ndims):
            raise ShapeError(
                f"tensordot: axes must be from 0 to the number of axes in each of the shapes {shapes[0]} and "
                f"{shapes[1]}, not {count}"
            )
    is_pair = isinstance(axes, tuple | list) and len(axes) == 2
    if not is_pair or not all(hasattr(type(named), "__iter__") for named in axes):
        raise ShapeError(
            f"tensordot: axes must be a number of axes, or two sequences such as ([1], [0]), not {shown(axes)}"
        )
    first, second = (
        [checks.axis_index(axis, ndim, "tensordot") for axis in named]
        for named, ndim in zip(axes, ndims, strict=True)
    )
    if [shapes[0][axis] for axis in first] != [shapes[1][axis] for axis in second]:
        raise ShapeError(
            f"tensordot: the axes {first} of the shape {shapes[0]} do not match the axes {second} of {shapes[1]}; "
            "matching axes must be equally long"
        )
    return first, second


def vecdot(checks: Checks, x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Returns the scalar products of the vectors along an axis, with `x1` conjugated. The result does not have that
    axis. Raises `ShapeError` if the lengths of the axes differ, or if the tensors have different numbers of axes and
    `axis` is not negative."""
    x1, x2 = checks.operands_on_one_device("vecdot", NUMERIC, x1, x2)
    shapes = shape_of(x1), shape_of(x2)
    ndim = min(map(len, shapes))
    axis_index = checks.axis_index(axis, ndim, "vecdot")
    # a non-negative `axis` would refer to two different axes of the broadcast result
    if axis >= 0 and len(shapes[0]) != len(shapes[1]):
        raise ShapeError(
            f"vecdot: axis must be negative, not {axis}, because the shapes {shapes[0]} and {shapes[1]} have different "
            "numbers of axes"
        )
    # the axis is made negative, because the tensors may have different numbers of axes
    axis = axis_index - ndim
    lengths = shapes[0][axis], shapes[1][axis]
    if None not in lengths and lengths[0] != lengths[1]:
        raise ShapeError(
            f"vecdot expects axes of equal length, not {shapes[0][axis]} and {shapes[1][axis]}"
        )
    try:
        is_complex = kind_of(checks.dtype_of(x1)) == "c"
        product = checks.kernels.multiply(checks.kernels.conj(x1) if is_complex else x1, x2)
    # the shapes are checked only after an error, because checking them first would take as long
    # as a small product
    except Exception:
        checks.raise_if_misfit("vecdot", x1, x2)
        raise
    # the sum is cast to the dtype of the operands, because some frameworks add small integers
    # in a wider dtype
    name = checks.dtype_of(product)
    return checks.cast(checks.kernels.sum(product, (len(product.shape) + axis,), False), name)


def _sizes(shape: Any, function: str) -> tuple[int, ...]:
    """Returns the argument `shape`, a non-negative int or a sequence of non-negative ints, as a tuple. Raises
    `ShapeError` for any other argument."""
    lengths = _ints(shape, function)
    if min(lengths, default=0) < 0:
        raise ShapeError(
            f"{function} expects a non-negative int or a sequence of non-negative ints, not {shown(shape)}"
        )
    return lengths


def _ints(shape: Any, function: str) -> tuple[int, ...]:
    """Returns the argument `shape`, an int or a sequence of ints, as a tuple. Raises `ShapeError` for any other
    argument."""
    try:
        return tuple(map(index, as_tuple(shape)))
    except TypeError:
        raise ShapeError(
            f"{function} expects an int or a sequence of ints, not {shown(shape)}"
        ) from None


def _without_minus_one(old: tuple[Any, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape `new` with the actual length in place of -1. `old` is the shape of the tensor that is to be
    reshaped. Raises `ShapeError` if the numbers of elements differ. If a length in `old` is None, which means that it
    is unknown, `new` is returned unchanged."""
    # if a length is unknown while a function is traced, the framework itself replaces -1
    if None in old or min(new, default=0) >= 0:
        if None not in old and prod(old) != prod(new):
            raise ShapeError(
                f"reshape: the number of elements is {prod(old)} in the shape {old}, but {prod(new)} in {new}"
            )
        return new
    product = prod([length for length in new if length != -1])
    # only one length may be -1, and no other length may be negative. If another length is 0,
    # any length could replace -1, so this is refused
    if new.count(-1) != 1 or product <= 0 or prod(old) % product:
        raise ShapeError(
            f"reshape: a tensor of shape {old} does not fit in the shape {new}; one length may be -1 if the others "
            f"divide the number of elements, {prod(old)}"
        )
    return tuple([prod(old) // product if length == -1 else length for length in new])
