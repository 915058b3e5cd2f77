"""`at`, which returns a copy of a tensor with new values at an index, and `top_k`.

NumPy computes on the host which elements an index selects. To do so, it indexes an array that contains the position of
each element in the flattened tensor. The result is the same on every backend, and an index out of range raises an
error. The kernels then only gather the elements at these positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdevice.core import registry
from xdevice.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError, shown
from xdevice.tensors.creation import to_numpy

from . import dtypes
from .checks import NUMBERS, Checks, shape_of
from .dtypes import NUMERIC, REAL
from .namespace import array_namespace, checks_of

if TYPE_CHECKING:
    import numpy as np

    # positions in a flattened tensor
    Positions = np.ndarray[Any, Any]


def at(x: Any) -> At:
    """Returns an object that creates copies of `x` with changes at an index: `at(x)[index].set(values)` and
    `at(x)[index].add(values)`.

    Experimental: it may change in a minor version.

    The index follows NumPy's rules: ints, slices, `...`, None, lists, tensors of integers, masks, and tuples of these.
    `values` is a number or a tensor. A tensor must broadcast to `x[index]`, and its dtype must be one that can be cast
    to the dtype of `x`. If an element is indexed twice, `set` uses its last value, and `add` adds all its values.
    Gradients flow to `x` and `values`. `x` itself does not change.

    Raises:
        IndexError: the index is out of range, or has an unsupported type. ShapeError: the values do not broadcast.
        NotATensorError, ArgumentError, DTypeError, DeviceMismatchError: `x` or `values` is not a tensor, or the two
            differ in backend, dtype or device.
        UnsupportedError: a compiler is tracing, and the index is itself a traced tensor, or a size is unknown.

    Costs a copy of `x`, plus 0.1 to 1 ms, and a read by the host if the index is a tensor. Each element of `x` adds
    1 ns on the host, or 50 to 100 ns on MXNet and Paddle, which gather all elements. In a compiled function, only the
    cost of the framework's own operations remains.

    Example:
        >>> x = xdevice.math.at(xdevice.zeros(2, 3))[0, 1:].set(xdevice.tensor([5.0, 6.0]))
        >>> xdevice.to_numpy(xdevice.math.at(x)[:, [1, 1]].add(0.5)).tolist()
        [[0.0, 6.0, 6.0], [0.0, 1.0, 0.0]]
    """
    return At(x)


class At:
    """The result of `at(x)`: a tensor that has not been indexed yet."""

    __slots__ = ("_x",)

    def __init__(self, x: Any) -> None:
        self._x = x

    def __getitem__(self, index: Any) -> Where:
        return Where(self._x, index)


class Where:
    """The result of `at(x)[index]`: a tensor and an index. The methods `set` and `add` return a changed copy of the
    tensor."""

    __slots__ = ("_index", "_x")

    def __init__(self, x: Any, index: Any) -> None:
        self._x = x
        self._index = index

    def set(self, values: Any) -> Any:
        """Returns a copy of the tensor, with the elements at the index replaced by `values`."""
        return _with_values(self._x, self._index, values, "set")

    def add(self, values: Any) -> Any:
        """Returns a copy of the tensor, with `values` added to the elements at the index."""
        return _with_values(self._x, self._index, values, "add")


def _with_values(x: Any, index: Any, values: Any, action: str) -> Any:
    """Returns a copy of the tensor `x`, with `values` set at the index, or added to the elements there. `action` is
    "set" or "add". The other arguments are the same as for `at(x)[index].set(values)`."""
    function = f"at(x)[...].{action}"
    checks = checks_of(x, function)
    x = (
        checks.checked_tensor(x, function)
        if action == "set"
        else checks.tensor_of_kinds(x, NUMERIC, function)
    )
    shape = checks.known_shape(x, function)
    values = _values_like(checks, x, values, function)
    values_shape = checks.known_shape(values, function)
    # `positions` are the positions in the flattened `x` that the index selects.
    # `value_positions` contains, for each of these positions, the position of its value in the
    # flattened `values`. `eagerly`, because a compiler would replace NumPy's functions, which compute
    # the positions, by operations of the framework
    positions, value_positions = checks.backend.eagerly(
        lambda: _positions(shape, index, values_shape, function)
    )
    # the index selects nothing
    if not positions.size:
        return checks.kernels.copy(x)
    flat, values = (checks.kernels.reshape(part, (-1,)) for part in (x, values))
    # if a position occurs several times, the last value is used, and the other values are
    # removed here
    if action == "set":
        positions, value_positions = checks.backend.eagerly(
            lambda: _last_of_each(positions, value_positions)
        )
        values = _elements_at(checks, values, value_positions)
    else:
        positions, values = _sum_repeated(
            checks, positions, _elements_at(checks, values, value_positions)
        )
        values = checks.kernels.add(_elements_at(checks, flat, positions), values)
    return checks.kernels.reshape(_put(checks, flat, positions, values), shape)


def _values_like(checks: Checks, x: Any, values: Any, function: str) -> Any:
    """Returns the argument `values`, a number or a tensor, as a tensor with the dtype and on the device of `x`. Raises
    `DTypeError` if the dtype of `x` cannot represent the values, and `DeviceMismatchError` if `values` is a tensor on
    another device. `function` is the function name to show in error messages."""
    name = checks.dtype_of(x)
    if type(values) in NUMBERS:
        if dtypes.promoted_with_number(name, values) != name:
            raise DTypeError(
                f"{function}: {shown(values)} does not fit in a tensor of dtype {name}; cast the tensor first, "
                "with xp.astype"
            )
        return checks.number_as_tensor(values, name, x)
    values = checks.checked_tensor(values, function)
    if not dtypes.can_cast(checks.dtype_of(values), name):
        raise DTypeError(
            f"{function}: values of dtype {checks.dtype_of(values)} do not fit in a tensor of dtype {name}; cast them "
            f"with xp.astype(values, xp.{name})"
        )
    checks.require_one_device(function, x, values)
    return checks.cast(values, name)


def _positions(
    shape: tuple[int, ...], index: Any, values_shape: tuple[int, ...], function: str
) -> tuple[Positions, Positions]:
    """Returns two vectors. The first contains the positions that the index selects in the flattened tensor. The second
    contains, for each of these positions, the position of its value in the flattened values. `shape` and `values_shape`
    are the shapes of the tensor and of the values. Raises `IndexError` if the index is out of range or not an index,
    and `ShapeError` if the values do not broadcast to the shape that the index selects. `function` is the function name
    to show in error messages."""
    import numpy as np

    positions = _selected(shape, index, function)
    try:
        # the positions of the values are broadcast as the values themselves would be, so that each selected position
        # gets the position of its value
        value_positions = np.broadcast_to(
            np.arange(int(np.prod(values_shape, dtype="int64"))).reshape(values_shape),
            np.shape(positions),
        )
    except ValueError:
        raise ShapeError(
            f"{function}: values of shape {values_shape} cannot be broadcast to {np.shape(positions)}, the shape that "
            f"the index selects"
        ) from None
    return np.ravel(positions), value_positions.ravel()


def _selected(shape: tuple[int, ...], index: Any, function: str) -> Any:
    """Returns the positions in the flattened tensor x that the index selects, in the shape of `x[index]`. `shape` is
    the shape of x. Raises `IndexError` if the index is out of range or not an index; `function` is the function name to
    show in the error message."""
    import numpy as np

    # the index is applied to an array that contains the position of each element
    index = tuple(map(_readable, index)) if isinstance(index, tuple) else _readable(index)
    try:
        return np.arange(int(np.prod(shape, dtype="int64"))).reshape(shape)[index]
    except (IndexError, TypeError, ValueError) as error:
        raise IndexError(f"{function} on a tensor of shape {shape}: {error}") from None


def _readable(part: Any) -> Any:
    """Returns a part of an index in the form that NumPy accepts: a tensor becomes an array, and any other part is
    returned unchanged. Raises `UnsupportedError` for a symbol, which has no values."""
    owned = registry.owner_and_kind(type(part))
    if owned is None:
        return part
    if owned.kind == "symbol":
        raise UnsupportedError(
            f"at: the values of the index are unknown while {owned.backend.name} traces the function; compute the "
            "index outside the function, or use xp.where"
        )
    return to_numpy(part)


def _last_of_each(
    positions: Positions, value_positions: Positions
) -> tuple[Positions, Positions]:
    """Returns two vectors. The first contains each position in `positions` once. The second contains, for each of these
    positions, the item of `value_positions` that belongs to its last occurrence in `positions`."""
    import numpy as np

    # for each position, the index of its last occurrence in `positions`: NumPy writes in order,
    # so the last index remains, and -1 where there is none
    last_indices = np.full(int(positions.max()) + 1, -1)
    last_indices[positions] = np.arange(positions.size)
    kept = np.sort(last_indices[last_indices >= 0])
    return positions[kept], value_positions[kept]


def _sum_repeated(checks: Checks, positions: Positions, values: Any) -> tuple[Positions, Any]:
    """Returns a vector that contains each position in `positions` once, and a tensor with the sum of `values` for
    each of these positions. In each round, neighbouring values of the same position are added in pairs, until each
    position has only one value. The rounding error therefore grows only with the logarithm of the number of values."""
    import numpy as np

    # the positions are sorted, so that equal positions are neighbours
    order = np.argsort(positions, kind="stable")
    positions, values = positions[order], _elements_at(checks, values, order)
    while (positions[1:] == positions[:-1]).any():
        # `starts` is True at the start of each run of equal positions. `is_first` is True for
        # every second element of a run, beginning with the first; these elements are the first
        # of a pair
        starts = np.r_[True, positions[1:] != positions[:-1]]
        indices = np.arange(positions.size)
        is_first = (indices - np.maximum.accumulate(np.where(starts, indices, 0))) % 2 == 0
        partners = indices[is_first] + 1
        # the last element of an odd run has no partner, because the next element is the first
        # of another pair, or there is no next element. For such an element, a zero that is
        # appended to the values is the partner
        partners[np.r_[is_first, True][partners]] = positions.size
        zero = checks.kernels.full_like(
            _elements_at(checks, values, indices[:1]), 0, checks.dtype_of(values)
        )
        values_and_zero = checks.kernels.concat([values, zero], 0)
        values = checks.kernels.add(
            _elements_at(checks, values, indices[is_first]),
            _elements_at(checks, values_and_zero, partners),
        )
        positions = positions[is_first]
    return positions, values


def _elements_at(checks: Checks, x: Any, positions: Positions) -> Any:
    """Returns the elements of the vector `x` at the given positions. If `positions` contains all positions in `x` in
    ascending order, returns `x` itself."""
    # `positions` contains all positions in ascending order
    if positions.size == x.shape[0] and (positions[1:] > positions[:-1]).all():
        return x
    return checks.kernels.take(x, checks.array_as_tensor(positions, x), 0)


def _put(checks: Checks, x: Any, positions: Positions, values: Any) -> Any:
    """Returns a copy of the vector `x`, with `values` at the given positions. No position may occur twice."""
    if checks.kernels.put is not None:
        return checks.kernels.put(x, checks.array_as_tensor(positions, x), values)
    import numpy as np

    # without the kernel `put`, both vectors are joined, and each element of the result is
    # gathered from the joined vector
    source = np.arange(x.shape[0])
    source[positions] = x.shape[0] + np.arange(positions.size)
    return checks.kernels.take(
        checks.kernels.concat([x, values], 0), checks.array_as_tensor(source, x), 0
    )


def part_at_index(checks: Checks, x: Any, index: Any) -> Any:
    """Returns `x[index]` by NumPy's rules, on every backend. Raises `IndexError` for an index out of range, and
    `UnsupportedError` if the index contains a symbol. If the index consists of slices and ints, no positions are
    computed on the host."""
    if is_basic_index(index):
        return _sliced(checks, x, index if isinstance(index, tuple) else (index,))
    import numpy as np

    shape = checks.known_shape(x, "x[...]")
    positions = checks.backend.eagerly(lambda: np.asarray(_selected(shape, index, "x[...]")))
    return checks.take_flat(x, positions)


def is_basic_index(index: Any) -> bool:
    """Whether an index consists only of slices, ints, None and `...`."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(
        part is None or part is ... or isinstance(part, slice) or _is_int(part)
        for part in parts
    )


def _is_int(part: Any) -> bool:
    """Whether a part of an index is an int, which removes its axis."""
    # True and False are masks, and do not stand for 1 and 0
    return isinstance(part, int) and not isinstance(part, bool)


def _sliced(checks: Checks, x: Any, parts: tuple[Any, ...]) -> Any:
    """Returns `x[parts]`, where `parts` consists of slices, ints, None and `...`. Calls at most one kernel for each
    part. Raises `IndexError` for too many parts, and for an int out of range."""
    indexed_axes = sum(part is not None and part is not ... for part in parts)
    # the number of axes for which there is no part; the ellipsis covers these axes
    other_axes = len(x.shape) - indexed_axes
    if other_axes < 0 or sum(part is ... for part in parts) > 1:
        raise IndexError(
            f"x[...] on a tensor of shape {shape_of(x)} accepts at most one index for each axis and one "
            f"ellipsis, not {shown(parts)}"
        )
    axis = 0
    for part in parts:
        if part is None:
            x = checks.kernels.expand_dims(x, axis)
        elif part is not ...:
            x = _sliced_along(checks, x, axis, part)
        # the next part belongs to the axis after those that this part covers. An ellipsis
        # covers `other_axes` axes. An int removes its axis, so the number of the next axis stays
        # the same
        axis += other_axes if part is ... else int(not _is_int(part))
    return x


def _sliced_along(checks: Checks, x: Any, axis: int, part: slice | int) -> Any:
    """Returns the elements of `x` that `part`, a part of an index, selects along an axis. For an int, the axis is
    removed. Raises `IndexError` for an int out of range."""
    # the slice selects all elements, so no kernel is needed
    if part == slice(None):
        return x
    length = checks.known_shape(x, "x[...]")[axis]
    if not isinstance(part, slice):
        if not -length <= part < length:
            raise IndexError(
                f"x[...] on a tensor of shape {shape_of(x)}: index {part} is out of range for axis {axis}"
            )
        return checks.kernels.squeeze(
            checks.kernels.sliced(x, axis, part % length, part % length + 1), (axis,)
        )
    start, stop, step = part.indices(length)
    # the slice selects no elements
    if not range(start, stop, step):
        return checks.kernels.sliced(x, axis, 0, 0)
    # the kernel `sliced` supports only the step 1; for other steps, the elements are gathered
    # by their indices
    if step == 1:
        return checks.kernels.sliced(x, axis, start, stop)
    import numpy as np

    return checks.kernels.take(x, checks.array_as_tensor(np.arange(start, stop, step), x), axis)


def top_k(x: Any, k: int) -> tuple[Any, Any]:
    """Returns two tensors: the `k` greatest elements along the last axis, in descending order, and their indices
    along that axis, as int64.

    Experimental: it may change in a minor version.

    Among equal elements, the element with the lower index comes first. NaN is treated as greater than all numbers, as
    in `xp.sort`. Gradients flow to the selected elements.

    Raises:
        ArgumentError: `k` is not an int from 1 to the length of the axis. ShapeError: `x` has
            no axis.
        DTypeError: `x` contains bools or complex numbers. NotATensorError: `x` is not a tensor.

    Costs a sort along the axis.

    Example:
        >>> values, indices = xdevice.math.top_k(xdevice.tensor([[1.0, 3.0, 2.0, 3.0]]), 3)
        >>> xdevice.to_numpy(values).tolist(), xdevice.to_numpy(indices).tolist()
        ([[3.0, 3.0, 2.0]], [[1, 3, 2]])
    """
    checks = checks_of(x, "top_k")
    x = checks.tensor_of_kinds(x, REAL, "top_k")
    length = checks.known_shape(x, "top_k")[-1:]
    if not length:
        raise ShapeError(
            "top_k works along the last axis, but a 0-dimensional tensor has no axes"
        )
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= length[0]:
        raise ArgumentError(
            f"top_k: k must be an int from 1 to {length[0]}, the length of the last axis, not {shown(k)}"
        )
    import numpy as np

    xp = array_namespace(x)
    # `argsort` is stable, so among equal elements, the element with the lower index comes first
    order = xp.argsort(x, descending=True)
    chosen = xp.take(order, checks.array_as_tensor(np.arange(k), x), axis=-1)
    return xp.take_along_axis(x, chosen, axis=-1), chosen
