"""Writes down what `convert_state` does to each tensor, as JSON, and does the same to the tensors of a file.

`Rule`s are functions of arrays. They are run here with `_Traced` objects in place of arrays, which write down what is
done to them. So each tensor of the target gets a `Way`: the name of a tensor of the source, or a list that begins with
an operation:

| operation | |
|---|---|
| `["transpose", way, axes]`, `["reshape", way, shape]`, `["repeat", way, times]` | as NumPy's |
| `["slice", way, axis, start, stop]` | |
| `["concatenate", [way, ...], axis]` | |
| `["add", [way, way]]`, `["zeros", shape]` | one bias for two, and two for one |
"""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from xdevice.base.dtypes import FLOATS, host_dtype
from xdevice.errors import FileFormatError, StateError, UnsupportedError, listed, shown
from xdevice.twins.weights.disk import path_errors, replacing, target_of
from xdevice.twins.weights.format import write_file

from . import given

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from xdevice.contract.layouts import Layer, Part
    from xdevice.twins.weights.format import Entry, Held

    Array = np.ndarray[Any, Any]
    Way = str | list[Any]

_FORMAT: Final = 1
_OPERATIONS: Final = ("transpose", "reshape", "repeat", "slice", "concatenate", "add", "zeros")


class Step(NamedTuple):
    """What `convert_state` did for one tensor of the target."""

    way: Way
    """Empty if the tensor was computed from values, and not only laid out otherwise."""
    shapes: dict[str, list[int]]
    """The shapes of the tensors in the way."""
    dtype: str | None
    """The dtype that it was cast to."""


class _Traced:
    """Stands for an array in a rule of `layouts`, and knows how it is made."""

    def __init__(self, shape: Sequence[int], way: Way) -> None:
        self.shape = tuple(int(size) for size in shape)
        self.way = way

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def T(self) -> _Traced:  # noqa: N802  # NumPy's name
        return self.transpose()

    def transpose(self, *axes: Any) -> _Traced:
        wanted = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        order = [axis % self.ndim for axis in wanted or range(self.ndim)[::-1]]
        if order == sorted(order):
            return self
        return _Traced([self.shape[axis] for axis in order], ["transpose", self.way, order])

    def reshape(self, *shape: Any) -> _Traced:
        wanted = list(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        if -1 in wanted:
            wanted[wanted.index(-1)] = self.size // -math.prod(wanted)
        return self if tuple(wanted) == self.shape else _Traced(wanted, ["reshape", self.way, wanted])

    def cut(self, axis: int, start: int, stop: int) -> _Traced:
        shape = [*self.shape[:axis], stop - start, *self.shape[axis + 1 :]]
        return _Traced(shape, ["slice", self.way, axis, start, stop])

    def __getitem__(self, index: Any) -> _Traced:
        if isinstance(index, slice):
            return self.cut(0, index.start, index.stop)
        if type(index) is not int:
            raise UnsupportedError(f"the index {shown(index)}")
        return self.cut(0, index, index + 1).reshape(self.shape[1:])

    def __add__(self, other: _Traced) -> _Traced:
        return _Traced(self.shape, ["add", [self.way, other.way]])

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        known = _FUNCTIONS.get(function)
        if known is None:
            raise UnsupportedError(f"numpy.{function.__name__}")
        return known(*arguments, **options)


def _moved(x: _Traced, source: Any, target: Any) -> _Traced:
    starts, ends = ([int(axis) % x.ndim for axis in np.atleast_1d(axes)] for axes in (source, target))
    order = [axis for axis in range(x.ndim) if axis not in starts]
    for end, start in sorted(zip(ends, starts, strict=True)):
        order.insert(end, start)
    return x.transpose(order)


def _split(x: _Traced, ends: Any, axis: int = 0) -> list[_Traced]:
    size = x.shape[axis]
    if isinstance(ends, int):
        ends = [size // ends * number for number in range(1, ends)]
    edges = [0, *map(int, ends), size]
    return [x.cut(axis, start, stop) for start, stop in pairwise(edges)]


def _concatenated(parts: Sequence[_Traced], axis: int = 0) -> _Traced:
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    return _Traced(shape, ["concatenate", [part.way for part in parts], axis])


def _squeezed(x: _Traced) -> _Traced:
    return x.reshape([size for size in x.shape if size != 1])


def _repeated(x: _Traced, times: int) -> _Traced:
    return x if times == 1 else _Traced([x.size * times], ["repeat", x.way, int(times)])


def _zeros(shape: Sequence[int]) -> _Traced:
    return _Traced(shape, ["zeros", [*shape]])


_FUNCTIONS: Final[dict[Any, Callable[..., Any]]] = {
    np.transpose: lambda x, axes=(): x.transpose(*axes),
    np.reshape: lambda x, shape: x.reshape(shape),
    np.moveaxis: _moved,
    np.split: _split,
    np.concatenate: _concatenated,
    np.stack: lambda parts: _concatenated([part.reshape(1, *part.shape) for part in parts]),
    np.repeat: _repeated,
    np.squeeze: _squeezed,
    np.zeros_like: lambda x, shape=None: _zeros(x.shape if shape is None else shape),
    np.shape: lambda x: x.shape,
}


def step(layer: Layer, part: Part, variables: Mapping[str, Any], dtype: str | None) -> Step:
    """The step from the parameters of the source's layer, which are in `variables`, to a tensor of the target."""
    try:
        made: Any = part.rule.native(*[_given(layer, variables, parameter) for parameter in part.of])
        way = made.way
    except (UnsupportedError, TypeError, AttributeError):
        way = []
    return Step(way, {name: [*variables[name].shape] for name in names_in(way)}, dtype)


def _given(layer: Layer, variables: Mapping[str, Any], parameter: str) -> Any:
    part = next((part for part in layer.parts if parameter in part.of), None)
    if part is None and parameter.endswith(".bias"):  # which was filled with zeros
        return _zeros(_given(layer, variables, parameter.replace(".bias", ".weight")).shape[:1])
    if part is None:
        raise UnsupportedError(f"{parameter}, which was computed")
    made: tuple[Any, ...] = part.rule.canonical(_Traced(variables[part.name].shape, part.name))  # type: ignore[arg-type]
    return made[part.of.index(parameter)]


def text(backend: str, steps: Mapping[str, Step]) -> str:
    """The map as JSON. Raises `StateError` if a tensor was computed from values."""
    computed = [name for name, step in steps.items() if not step.way]
    if computed:
        raise StateError(
            f"{listed(computed, 3)} are computed from the source's values, and a map only lays tensors out"
        )
    shapes: dict[str, list[int]] = {}
    targets = {}
    for name, step in steps.items():
        shapes |= step.shapes
        targets[name] = {"is": step.way} if step.dtype is None else {"is": step.way, "dtype": step.dtype}
    lines = [
        f"{json.dumps(title)}: {{\n  "
        + ",\n  ".join(f"{json.dumps(key)}: {json.dumps(one)}" for key, one in of.items())
        + "\n}"
        for title, of in (("from", shapes), ("to", targets))
    ]
    return f'{{"xdevice.map": {_FORMAT}, "backend": {json.dumps(backend)},\n' + ",\n".join(lines) + "}\n"


def names_in(way: Way) -> Iterator[str]:
    """The names of the source's tensors in a way."""
    if isinstance(way, str):
        yield way
    elif way and way[0] in ("concatenate", "add"):
        for one in way[1]:
            yield from names_in(one)
    elif way and way[0] != "zeros":
        yield from names_in(way[1])


def evaluate(way: Way, read: Callable[[str], Array], dtype: np.dtype[Any]) -> Array:
    """The array that a way leads to; `read` gives the tensors of the source."""
    if isinstance(way, str):
        return read(way)
    operation, inner, *rest = way
    if operation == "zeros":
        return np.zeros(inner, dtype)
    if operation in ("concatenate", "add"):
        arrays = [evaluate(one, read, dtype) for one in inner]
        found: Array = np.concatenate(arrays, *rest) if operation == "concatenate" else sum(arrays[1:], arrays[0])
        return found
    x = evaluate(inner, read, dtype)
    if operation == "slice":
        axis, start, stop = rest
        cut: Array = x[(slice(None),) * axis + (slice(start, stop),)]
        return cut
    ways: dict[str, Callable[..., Any]] = {"transpose": np.transpose, "reshape": np.reshape, "repeat": np.repeat}
    if operation not in ways:
        raise FileFormatError(f"a map has {', '.join(_OPERATIONS)}, and not {shown(operation)}")
    made: Array = ways[operation](x, *rest)
    return made


# files


def convert_file(path: str, source: str, target: str) -> list[str]:
    """Converts a checkpoint by a map, one tensor at a time, into a safetensors file. Returns lines that say what was
    done."""
    done: list[str] = []
    shapes, targets = _read(path)
    new = target_of(target)
    with given.opened(source, done) as whole:
        entries = given.state_of(whole, shapes, done)
        _require_fit(shapes, entries, source)
        made = {name: _made(name, one, shapes, entries) for name, one in targets.items()}
        with replacing(new) as part:
            write_file(part, made, _arrays(targets, entries, made))
        parts = list(_unused_parts(targets, shapes, entries))
    unused = [name for name in entries if name not in shapes]
    return [f"{target}: {len(targets)} tensors", *done, *(f"left out: {name}" for name in [*parts, *unused])]


def _unused_parts(
    targets: Mapping[str, Mapping[str, Any]], shapes: Mapping[str, tuple[int, ...]], entries: Mapping[str, Entry | Held]
) -> Iterator[str]:
    """Yields what the map leaves out of the tensors that it cuts and is not 0, such as a key's bias where the model of
    which the map was made had zeros."""
    cuts: dict[str, list[Way]] = {}
    for one in targets.values():
        for way, name in _single(one["is"]):
            cuts.setdefault(name, []).append(way)
    for name, ways in cuts.items():
        if not all('"slice"' in json.dumps(way) for way in ways):
            continue
        is_used = np.zeros(shapes[name], "bool")
        views = [evaluate(way, lambda _, whole=is_used: whole, is_used.dtype) for way in ways]  # type: ignore[misc]
        if not all(np.may_share_memory(view, is_used) for view in views):
            continue  # a way that copies, as a reshape of what was transposed; no rule of a layout cuts that
        for view in views:
            view[...] = True
        count = 0 if is_used.all() else np.count_nonzero(entries[name].read()[~is_used])
        if count:
            yield f"{count} numbers of {name}, which the map does not use"


def _single(way: Way) -> Iterator[tuple[Way, str]]:
    """The ways in `way` that begin at one tensor each, with its name."""
    if isinstance(way, str):
        yield way, way
    elif way[0] in ("concatenate", "add"):
        for one in way[1]:
            yield from _single(one)
    elif way[0] != "zeros":
        yield from ((way if inner == way[1] else inner, name) for inner, name in _single(way[1]))


def _read(path: str) -> tuple[dict[str, tuple[int, ...]], dict[str, dict[str, Any]]]:
    with path_errors(f"{path!r:.1000} cannot be read"), open(path, encoding="utf-8") as file:
        whole = file.read()
    try:
        found = json.loads(whole)
        if found["xdevice.map"] != _FORMAT:
            raise ValueError(f"it has the format {found['xdevice.map']!r}, and this version reads {_FORMAT}")
        shapes = {name: tuple(map(int, shape)) for name, shape in found["from"].items()}
        lacking = [name for one in found["to"].values() for name in names_in(one["is"]) if name not in shapes]
        if lacking:
            raise ValueError(f"it uses {listed(map(repr, lacking), 3)}, and does not say their shapes")
        return shapes, found["to"]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise FileFormatError(f"{path} is no map that State.save_map has written: {shown(error)}") from error


def _require_fit(shapes: Mapping[str, tuple[int, ...]], entries: Mapping[str, Entry | Held], source: str) -> None:
    lacking = [name for name in shapes if name not in entries]
    if lacking:
        raise StateError(
            f"{source} lacks {listed(map(repr, lacking), 3)}, which the map uses; it has {listed(entries, 3)}"
        )
    other = next((name for name, shape in shapes.items() if entries[name].shape != shape), None)
    if other is not None:
        raise StateError(f"{other} is {entries[other].shape} in {source}, and {shapes[other]} in the map")


def _made(
    name: str, one: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], entries: Mapping[str, Entry | Held]
) -> tuple[str, tuple[int, ...]]:
    """The dtype and shape of a tensor that is to be written. Raises if its way does not fit the shapes."""
    dtypes = sorted({entries[origin].dtype for origin in names_in(one["is"])})
    if len(dtypes) > 1:
        raise StateError(f"{name} is made of several dtypes, {listed(dtypes, 4)}")
    dtype, blank = dtypes[0], np.zeros((), "bool")
    try:
        shape = evaluate(one["is"], lambda origin: np.broadcast_to(blank, shapes[origin]), blank.dtype).shape
    except (ValueError, TypeError, IndexError) as error:
        raise FileFormatError(f"the map's way to {name} does not fit: {error}") from error
    cast = one.get("dtype")
    return (cast if cast and dtype in FLOATS else dtype), shape


def _arrays(
    targets: Mapping[str, Mapping[str, Any]], entries: Mapping[str, Entry | Held], made: Mapping[str, tuple[str, Any]]
) -> Iterator[Array]:
    held: dict[str, Array] = {}

    def read(name: str) -> Array:
        if name not in held:  # the tensors that are made of one, as q, k and v, mostly come one behind the other
            held.clear()
            held[name] = entries[name].read()
        return held[name]

    for name, one in targets.items():
        dtype = host_dtype(made[name][0])
        yield evaluate(one["is"], read, dtype).astype(dtype, copy=False)
