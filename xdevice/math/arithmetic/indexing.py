"""`at`: tensors with other values at an index; and `top_k`.

NumPy computes on the host where an index points. It gives the same answer on every backend, and refuses an index that
is out of range. The kernels then only gather.
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

    Places = np.ndarray[Any, Any]


def at(x: Any) -> At:
    """`at(x)[index].set(values)` and `at(x)[index].add(values)`: copies of `x`, changed at the index.

    Experimental: it may change in a minor version.

    The index is NumPy's: ints, slices, `...`, None, lists, tensors of integers, masks, and tuples of these. `values`
    are a number or a tensor, which broadcasts to `x[index]`, of a dtype that `x` can hold. If an element is indexed
    twice, `set` takes the last value for it, and `add` adds all of them. Gradients flow to `x` and `values`. `x` stays
    as it is.

    Raises:
        IndexError: an index that is out of range, or an object that is not an index. ShapeError: values that do not
            broadcast.
        NotATensorError, ArgumentError, DTypeError, DeviceMismatchError: `x` or `values` is not a tensor, or has another
            backend, dtype or device.
        UnsupportedError: an index that is itself traced by a compiler, or sizes that are not known while it traces.

    Costs a copy of `x`, 0.1 to 1 ms, and a read if the index is a tensor. On the host each element of `x` adds 1 ns; on
    MXNet and Paddle, which gather all elements, 50 to 100 ns. A compiled function costs only the framework's work.

    Example:
        >>> x = xdevice.math.at(xdevice.zeros(2, 3))[0, 1:].set(xdevice.tensor([5.0, 6.0]))
        >>> xdevice.to_numpy(xdevice.math.at(x)[:, [1, 1]].add(0.5)).tolist()
        [[0.0, 6.0, 6.0], [0.0, 1.0, 0.0]]
    """
    return At(x)


class At:
    """The result of `at(x)`: a tensor whose index is still to be given."""

    __slots__ = ("_x",)

    def __init__(self, x: Any) -> None:
        self._x = x

    def __getitem__(self, index: Any) -> Where:
        return Where(self._x, index)


class Where:
    """The result of `at(x)[index]`: a tensor and an index into it, before `set` or `add` is called."""

    __slots__ = ("_index", "_x")

    def __init__(self, x: Any, index: Any) -> None:
        self._x = x
        self._index = index

    def set(self, values: Any) -> Any:
        """Returns the tensor with these values at the index."""
        return _changed(self._x, self._index, values, "set")

    def add(self, values: Any) -> Any:
        """Returns the tensor with these values added at the index."""
        return _changed(self._x, self._index, values, "add")


def _changed(x: Any, index: Any, values: Any, what: str) -> Any:
    """The tensor with `values` set or added (`what`) at the index."""
    function = f"at(x)[...].{what}"
    checks = checks_of(x, function)
    x = checks.tensor(x, function) if what == "set" else checks.require(x, NUMERIC, function)
    shape = checks.full_shape(x, function)
    values = _values(checks, x, values, function)
    own = checks.full_shape(values, function)
    places, chosen = checks.backend.eagerly(lambda: _places(shape, index, own, function))
    if not places.size:
        return checks.kernels.copy(x)
    flat, values = (checks.kernels.reshape(part, (-1,)) for part in (x, values))
    # the last value for a place counts, so the others are dropped before they are written
    if what == "set":
        places, chosen = checks.backend.eagerly(lambda: _last(places, chosen))
        values = _taken(checks, values, chosen)
    else:
        places, values = _summed(checks, places, _taken(checks, values, chosen))
        values = checks.kernels.add(_taken(checks, flat, places), values)
    return checks.kernels.reshape(_put(checks, flat, places, values), shape)


def _values(checks: Checks, x: Any, values: Any, function: str) -> Any:
    """The values for `at`, as a tensor of the dtype of `x`. Raises `DTypeError` if that dtype cannot hold them."""
    name = checks.name(x)
    if type(values) in NUMBERS:
        if dtypes.with_number(name, values) != name:
            raise DTypeError(
                f"{function}: {shown(values)} does not fit into a tensor of {name}; cast the tensor first"
            )
        return checks.number(values, name, x)
    values = checks.tensor(values, function)
    if not dtypes.can_cast(checks.name(values), name):
        raise DTypeError(
            f"{function}: {checks.name(values)} does not fit into a tensor of {name}; cast one of them"
        )
    checks.require_one_device(function, x, values)
    return checks.cast(values, name)


def _places(
    shape: tuple[int, ...], index: Any, own: tuple[int, ...], function: str
) -> tuple[Places, Places]:
    """The positions in the flat tensor that an index selects, and for each the position of its value in the flat
    values."""
    import numpy as np

    places = _pointed(shape, index, function)
    try:
        chosen = np.broadcast_to(
            np.arange(int(np.prod(own, dtype="int64"))).reshape(own), np.shape(places)
        )
    except ValueError:
        raise ShapeError(
            f"{function}: values of the shape {own} do not broadcast to {np.shape(places)}, the shape at the index"
        ) from None
    return np.ravel(places), chosen.ravel()


def _pointed(shape: tuple[int, ...], index: Any, function: str) -> Any:
    """The positions in the flat tensor that an index selects, in the shape of `x[index]`."""
    import numpy as np

    index = tuple(map(_read, index)) if isinstance(index, tuple) else _read(index)
    try:
        return np.arange(int(np.prod(shape, dtype="int64"))).reshape(shape)[index]
    except (IndexError, TypeError, ValueError) as error:
        raise IndexError(f"{function} of the shape {shape}: {error}") from None


def _read(part: Any) -> Any:
    """A part of an index as NumPy takes it."""
    owned = registry.kind_of(type(part))
    if owned is None:
        return part
    if owned.kind == "symbol":
        raise UnsupportedError(
            f"at: an index that {owned.backend.name} traces has no values yet; name the place outside, or use xp.where"
        )
    return to_numpy(part)


def _last(places: Places, chosen: Places) -> tuple[Places, Places]:
    """Each position once, with the last of the values for it."""
    import numpy as np

    winners = np.full(int(places.max()) + 1, -1)
    winners[places] = np.arange(places.size)  # NumPy promises that the last one stays
    kept = np.sort(winners[winners >= 0])
    return places[kept], chosen[kept]


def _summed(checks: Checks, places: Places, values: Any) -> tuple[Places, Any]:
    """Each position once, with the sum of the values for it: neighbours are added until no two share a position."""
    import numpy as np

    # in pairs, so that the error grows with the logarithm of their number
    order = np.argsort(places, kind="stable")
    places, values = places[order], _taken(checks, values, order)
    while (places[1:] == places[:-1]).any():
        starts = np.r_[True, places[1:] != places[:-1]]
        count = np.arange(places.size)
        is_first = (count - np.maximum.accumulate(np.where(starts, count, 0))) % 2 == 0
        second = count[is_first] + 1
        # without a partner: the zero behind all
        second[np.r_[is_first, True][second]] = places.size
        nothing = checks.kernels.full_like(
            _taken(checks, values, count[:1]), 0, checks.name(values)
        )
        others = checks.kernels.concat([values, nothing], 0)
        values = checks.kernels.add(
            _taken(checks, values, count[is_first]), _taken(checks, others, second)
        )
        places = places[is_first]
    return places, values


def _taken(checks: Checks, x: Any, places: Places) -> Any:
    if places.size == x.shape[0] and (places[1:] > places[:-1]).all():
        return x  # all of them, in order
    return checks.kernels.take(x, checks.constant(places, x), 0)


def _put(checks: Checks, x: Any, places: Places, values: Any) -> Any:
    """The vector `x` with other values at some places, each of which is named once."""
    # without it: from both, one behind the other, each element is taken from where it is now
    if checks.kernels.put is not None:
        return checks.kernels.put(x, checks.constant(places, x), values)
    import numpy as np

    source = np.arange(x.shape[0])
    source[places] = x.shape[0] + np.arange(places.size)
    return checks.kernels.take(
        checks.kernels.concat([x, values], 0), checks.constant(source, x), 0
    )


def elements(checks: Checks, x: Any, index: Any) -> Any:
    """`x[index]` by NumPy's rules, on every backend; slices and ints need no values on the host."""
    if is_sliced(index):
        return _sliced(checks, x, index if isinstance(index, tuple) else (index,))
    import numpy as np

    shape = checks.full_shape(x, "x[...]")
    places = checks.backend.eagerly(lambda: np.asarray(_pointed(shape, index, "x[...]")))
    return checks.gathered(x, places)


def is_sliced(index: Any) -> bool:
    """Whether an index consists of slices, ints, None and `...` only."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(
        part is None or part is ... or isinstance(part, slice) or _is_int(part)
        for part in parts
    )


def _is_int(part: Any) -> bool:
    return isinstance(part, int) and not isinstance(part, bool)


def _sliced(checks: Checks, x: Any, parts: tuple[Any, ...]) -> Any:
    """`x[parts]` for slices, ints, None and `...`, by one kernel for each axis."""
    named = sum(part is not None and part is not ... for part in parts)
    others = len(x.shape) - named
    if others < 0 or sum(part is ... for part in parts) > 1:
        raise IndexError(
            f"x[...] of the shape {shape_of(x)} takes at most one part for each axis and one "
            f"ellipsis, not {shown(parts)}"
        )
    axis = 0
    for part in parts:
        if part is None:
            x = checks.kernels.expand_dims(x, axis)
        elif part is not ...:
            x = _along(checks, x, axis, part)
        axis += others if part is ... else int(not _is_int(part))
    return x


def _along(checks: Checks, x: Any, axis: int, part: slice | int) -> Any:
    """The elements that a part of an index names along an axis."""
    # spares a kernel
    if part == slice(None):
        return x
    length = checks.full_shape(x, "x[...]")[axis]
    if not isinstance(part, slice):
        if not -length <= part < length:
            raise IndexError(
                f"x[...] of the shape {shape_of(x)}: there is no index {part} in the axis {axis}"
            )
        return checks.kernels.squeeze(
            checks.kernels.sliced(x, axis, part % length, part % length + 1), (axis,)
        )
    start, stop, step = part.indices(length)
    if not range(start, stop, step):
        return checks.kernels.sliced(x, axis, 0, 0)
    # `sliced` has no steps, and PyTorch has none that are negative
    if step == 1:
        return checks.kernels.sliced(x, axis, start, stop)
    import numpy as np

    return checks.kernels.take(x, checks.constant(np.arange(start, stop, step), x), axis)


def top_k(x: Any, k: int) -> tuple[Any, Any]:
    """The `k` greatest elements along the last axis, greatest first, and their indices there, as int64.

    Experimental: it may change in a minor version.

    Of equal elements, the lower index comes first. NaN counts as greater than all numbers, as in `xp.sort`.
    Gradients flow to the chosen elements.

    Raises:
        ArgumentError: `k` is not an int from 1 to the length of the axis. ShapeError: a tensor without axes.
        DTypeError: bool or complex numbers. NotATensorError: not a tensor.

    Costs a sort along the axis.

    Example:
        >>> values, indices = xdevice.math.top_k(xdevice.tensor([[1.0, 3.0, 2.0, 3.0]]), 3)
        >>> xdevice.to_numpy(values).tolist(), xdevice.to_numpy(indices).tolist()
        ([[3.0, 3.0, 2.0]], [[1, 3, 2]])
    """
    checks = checks_of(x, "top_k")
    x = checks.require(x, REAL, "top_k")
    length = checks.full_shape(x, "top_k")[-1:]
    if not length:
        raise ShapeError(
            "top_k is along the last axis, and a tensor without dimensions has none"
        )
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= length[0]:
        raise ArgumentError(
            f"top_k takes a k from 1 to {length[0]}, the length of the last axis, not {shown(k)}"
        )
    import numpy as np

    xp = array_namespace(x)
    order = xp.argsort(x, descending=True)
    chosen = xp.take(order, checks.constant(np.arange(k), x), axis=-1)
    return xp.take_along_axis(x, chosen, axis=-1), chosen
