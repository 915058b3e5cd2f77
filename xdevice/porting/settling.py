"""What two models compute on one input: which layers have one input, and where the models come apart.

The source runs once, and each of its layers' inputs and outputs are kept. The target then runs with these outputs in
the place of its own: so every layer gets the input that it should have, whatever its weights are, and what differs
between two layers does not reach the layers behind them. A layer of the target is the one of the source that has its
kind, its shape and its input.

What must be kept:
- images may have their channels first on one side and last on the other, and a flattened image comes in another order;
- layers of one kind, shape and input, as query and key, are told apart by nothing before them: by what comes behind.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain, permutations
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from xdevice.base.dtypes import dtype_name
from xdevice.contract import calls as seeing
from xdevice.core import registry
from xdevice.errors import NotATensorError, StateError, shown

from .likeness import likeness
from .pairing import by_name, check_pair, paired, signature
from .refusals import MOST
from .sides import some_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from xdevice.contract import Backend
    from xdevice.contract.calls import Call
    from xdevice.contract.layouts import Layer

    from .sides import Side

    Array = np.ndarray[Any, Any]

CLOSE: Final = 1e-4
"""How far apart outputs may be, of the largest number: rounding through 160 layers stayed below 1e-5."""
_SAME: Final = 1e-3
"""The same for the inputs of two layers that may be one."""
_LIKELY: Final = 0.8
"""The least similarity of two inputs that are one but for a setting: a dropout's mode, a pool's padding."""
_MOST_RUNS: Final = 24
_IMAGES: Final = ("conv", "conv_transpose", "batch_norm", "prelu", "instance_norm", "group_norm")


class Seen(NamedTuple):
    """One call of a layer."""

    path: str
    inputs: list[Array]
    outputs: list[Array]


class Run(NamedTuple):
    """One call of a model."""

    calls: list[Seen]
    outputs: list[Array]


class Settled(NamedTuple):
    """What came of one run of the target with the outputs of the source."""

    chosen: dict[str, str]
    """The source's layer, by the target's."""
    ties: list[tuple[str, frozenset[str]]]
    """Layers of the target, and those of the source with their input that were left for them."""
    apart: list[tuple[str, str]]
    """Layers of the target whose input is not that of its counterpart, and the one that was called before; "" for the
    outputs of the model."""
    open: list[str]
    """Layers of the target of which nothing can be said."""
    sure: dict[str, str]
    """Those of `chosen` that are the only ones with their input."""


class Runs:
    """The two models and what the source computes."""

    def __init__(self, source: Side, target: Side, inputs: object) -> None:
        self._source, self._target = source, target
        self._arrays = _arrays_of(inputs)
        self.expected = run(source, self._arrays)
        self._by_path: dict[str, list[Seen]] = {}
        for call in self.expected.calls:
            self._by_path.setdefault(call.path, []).append(call)
        self._theirs = [self._moved(x) for x in self._arrays]

    def _moved(self, x: Array) -> Array:
        """An input as the target takes it: with its channels where they are there."""
        here, there = (side.backend.has_channels_last(side.model) for side in (self._source, self._target))
        if here is None or there is None or here == there or x.ndim < 3 or not self._is_image(x):
            return x
        return np.moveaxis(x, -1, 1) if here else np.moveaxis(x, 1, -1)

    def _is_image(self, x: Array) -> bool:
        if x.ndim > 3:
            return True
        kinds = {layer.path: layer.kind for layer in self._source.layers}
        taken = (call for call in self.expected.calls if call.inputs and call.inputs[0].shape == x.shape)
        return kinds.get(next((call.path for call in taken), "")) in _IMAGES

    def outputs_apart(self, computed: Run) -> float:
        """How far apart the outputs are, with the channels of both where the source has them."""
        ours, theirs = self.expected.outputs, computed.outputs
        if len(ours) != len(theirs):
            return float("inf")
        return max((self._output_apart(one, other) for one, other in zip(ours, theirs, strict=True)), default=0.0)

    def _output_apart(self, one: Array, other: Array) -> float:
        here, there = (side.backend.has_channels_last(side.model) for side in (self._source, self._target))
        ways = [other]
        if None not in (here, there) and here != there and other.ndim > 2:
            ways.append(np.moveaxis(other, -1, 1) if there else np.moveaxis(other, 1, -1))
        return min((apart(one, way) for way in ways if one.shape == way.shape), default=float("inf"))

    def plain(self) -> Run:
        """What the target computes by itself."""
        return run(self._target, self._theirs)

    def settle(
        self, left: Sequence[Layer], right: Sequence[Layer], guess: Mapping[str, str], fixed: Mapping[str, str]
    ) -> Settled:
        """Which layer of the target is which of the source. `guess` holds where nothing speaks against it, `fixed`
        whatever does; both by the target's paths."""
        best = self._forced(left, right, guess, fixed)
        runs = 1
        while best.open and runs < _MOST_RUNS:  # what is known of the layers behind leaves fewer for those before
            again = self._forced(left, right, guess, {**best.sure, **fixed})
            runs += 1
            if len(again.sure) <= len(best.sure):
                break
            best = again
        groups = _groups(best.ties)
        tied = set(chain.from_iterable(groups))
        for targets in groups:
            sources = [best.chosen[path] for path in targets]
            for order in permutations(sources) if len(targets) < 5 else ():
                if not best.apart or runs >= _MOST_RUNS:
                    break
                told = dict(zip(targets, order, strict=True))
                if any(best.chosen[path] != own for path, own in told.items()):
                    runs += 1
                    held = {path: own for path, own in best.chosen.items() if path in tied}
                    tried = self._forced(left, right, guess, {**held, **fixed, **told})
                    if _rank(tried) < _rank(best):
                        best = tried._replace(ties=best.ties)
        return best

    def _forced(
        self, left: Sequence[Layer], right: Sequence[Layer], guess: Mapping[str, str], fixed: Mapping[str, str]
    ) -> Settled:
        forcing = _Forcing(self, left, right, guess, fixed)
        return forcing.settled

    def first_apart(self, pairs: Sequence[tuple[Layer, Layer]]) -> str:
        """Where the models first come apart, as a text: with the weights in the target."""
        one, other = [one for one, _ in pairs], [other for _, other in pairs]
        held = {there.path: here.path for here, there in pairs}
        forcing = _Forcing(self, one, other, held, held)
        return forcing.first

    # for a run with the outputs of the source

    @property
    def sides(self) -> tuple[Side, Side]:
        return self._source, self._target

    @property
    def theirs(self) -> list[Array]:
        return self._theirs

    def calls_of(self, path: str) -> list[Seen]:
        return self._by_path.get(path, [])


class _Forcing:
    """One run of the target in which each layer gives what its counterpart has given."""

    def __init__(
        self,
        runs: Runs,
        left: Sequence[Layer],
        right: Sequence[Layer],
        guess: Mapping[str, str],
        fixed: Mapping[str, str],
    ) -> None:
        self._runs, self._guess, self._fixed = runs, guess, fixed
        source, target = runs.sides
        self._target = target
        self._kinds = {layer.path: signature(source, layer) for layer in left}
        self._wanted = {layer.path: signature(target, layer) for layer in right}
        self._chosen: dict[str, str] = {}
        self._left: dict[str, list[Seen]] = {}
        self._ties: list[tuple[str, frozenset[str]]] = []
        self._apart: list[tuple[str, str]] = []
        self._open: list[str] = []
        self._sure: dict[str, str] = {}
        self._before = ""
        self.first = ""
        result = run(target, runs.theirs, self._give)
        if runs.outputs_apart(result) > CLOSE:
            self._note("", f"what lies behind {self._before}")
        self.settled = Settled(self._chosen, self._ties, self._apart, self._open, self._sure)

    def _give(self, call: Call, result: Any) -> Any:
        if call.path not in self._wanted:
            return result
        backend = self._target.backend
        inputs = [_array(self._target, x) for x in call.inputs]
        own = self._choose(call.path, inputs)
        expected = self._next_call(call.path, own, inputs)
        if not expected:
            return result
        has_input = _is_close(expected[0].inputs, inputs, _SAME)
        if not has_input:
            self._note(call.path, f"what lies between {self._before or 'the beginning'} and {call.path}")
        outputs = [_array(self._target, x) for x in call.outputs]
        if has_input and not _is_close(expected[0].outputs, outputs, CLOSE):
            self.first = self.first or f"{call.path}, whose input agrees with that of {own}"
        self._before = call.path
        kind = str(self._wanted[call.path][0])
        new = [_like(x, there, kind, self._runs) for x, there in zip(expected[0].outputs, outputs, strict=False)]
        if len(new) != len(outputs) or len(list(seeing.tensors(backend, result))) != len(new):
            return result
        given = [
            self._given(np.array(x.astype(there.dtype), order="C"), own)
            for x, there, own in zip(new, outputs, seeing.tensors(backend, result), strict=True)
        ]
        return seeing.replaced(backend, result, iter(given))

    def _next_call(self, path: str, own: str, inputs: list[Array]) -> list[Seen]:
        """The call of the source that this is: the one of its number, unless another one has its input. A shared layer
        is called in another order by a model that computes its branches in another order."""
        left = self._left.setdefault(path, list(self._runs.calls_of(own) if own else ()))
        place = next((n for n, call in enumerate(left) if _is_close(call.inputs, inputs, _SAME)), 0)
        return [left.pop(place)] if left else []

    def _given(self, x: Array, own: Any) -> Any:
        """The numbers as a tensor like the target's own one, whose kind it keeps where there are several."""
        backend, place = self._target.backend, self._target.backend.device_of(own)
        new = backend.from_numpy(x, place)
        if x.shape != tuple(own.shape) or not backend.can_write(own):
            return new
        copy = backend.copy(own, place)
        backend.write(copy, new)
        return copy

    def _note(self, path: str, where: str) -> None:
        self._apart.append((path, self._before))
        self.first = self.first or where

    def _choose(self, path: str, inputs: list[Array]) -> str:
        """The layer of the source that this is; "" if nothing tells."""
        if path in self._chosen:
            return self._chosen[path]
        found = self._fixed.get(path) or self._found(path, inputs)
        if found:
            self._chosen[path] = found
            if path in self._fixed:
                self._sure[path] = found
        else:
            self._open.append(path)
        return found

    def _found(self, path: str, inputs: list[Array]) -> str:
        taken = {*self._chosen.values(), *self._fixed.values()}
        wanted = self._wanted[path]
        fitting = [
            own for own, kind in self._kinds.items() if kind == wanted and own not in taken and self._runs.calls_of(own)
        ]
        close = [
            own for own in fitting if any(_is_close(call.inputs, inputs, _SAME) for call in self._runs.calls_of(own))
        ]
        guess = self._guess.get(path, "")
        self._ties.append((path, frozenset(close)))
        if len(close) == 1:
            self._sure[path] = close[0]
        if close:
            return guess if guess in close else max(close, key=lambda own: likeness(own, path))
        if guess in fitting:
            return guess
        if len(fitting) < 2:
            return fitting[0] if fitting else ""
        ranked = sorted(
            ((_similarity(self._runs.calls_of(own)[0].inputs, inputs), own) for own in fitting), reverse=True
        )
        (first, best), (second, _) = ranked[:2]
        return best if first > _LIKELY and first - second > (1 - first) / 2 + 0.05 else ""


def _rank(settled: Settled) -> int:
    return len(settled.apart) + len(settled.open)


def _groups(ties: Sequence[tuple[str, frozenset[str]]]) -> list[list[str]]:
    """The layers of the target that may be exchanged: the first of them may be each of several of the source, the last
    one only what is left."""
    groups: list[tuple[list[str], frozenset[str]]] = []
    for path, close in ties:
        group = next((paths for paths, known in groups if close & known), None)
        if group is not None:
            group.append(path)
        elif close:
            groups.append(([path], close))
    return [paths for paths, _ in groups if len(paths) > 1]


# pairing


def paired_by_inputs(runs: Runs, renamed: Mapping[str, str]) -> list[tuple[Layer, Layer]]:
    """The layers of two models that have one kind, shape and input; where nothing else tells, those of one order.

    Raises:
        StateError: there is a layer of which nothing tells which it is.
    """
    source, target = runs.sides
    refusal = None
    guess: dict[str, str] = {}
    try:
        guess = {other.path: one.path for one, other in paired(source, target, renamed)}
    except StateError as error:
        if renamed:
            by_name(source, target, renamed)  # whether these are right
        refusal = error
    fixed = {there: here for here, there in renamed.items()}
    if all(here == there for there, here in guess.items() if there not in fixed):
        fixed = {**guess, **fixed}  # where both models have the same paths, these say which layer is which
    settled = runs.settle(source.layers, target.layers, guess, fixed)
    ours, theirs = ({layer.path: layer for layer in side.layers} for side in (source, target))
    chosen = {**fixed, **settled.chosen}
    for there, here in guess.items():
        if there not in chosen and here not in chosen.values():
            chosen[there] = here
    if refusal is not None:
        _require_all(runs, settled, chosen, refusal)
    pairs = [(ours[chosen[there]], theirs[there]) for there in theirs if there in chosen]
    for one, other in pairs:
        check_pair(source, one, target, other)
    return pairs


def _require_all(runs: Runs, settled: Settled, chosen: dict[str, str], refusal: StateError) -> None:
    """That every layer that ran has its counterpart; those that did not run are paired if there is one of a kind."""
    source, target = runs.sides
    left = {layer.path: signature(source, layer) for layer in source.layers if layer.path not in chosen.values()}
    right = {layer.path: signature(target, layer) for layer in target.layers if layer.path not in chosen}
    for there, wanted in right.items():
        fitting = [here for here, kind in left.items() if kind == wanted]
        if len(fitting) == 1 and list(right.values()).count(wanted) == 1:
            chosen[there] = fitting[0]
    doubtful = [there for there in right if there not in chosen and right[there] in left.values()]
    if doubtful:
        where = f"; the models come apart before: {settled.apart[0][1]} agrees" if settled.apart else ""
        text = (
            f"inputs= tells {len(chosen)} of {len(target.layers)} layers, and not {some_of(doubtful)}{where}. {refusal}"
        )
        raise StateError(text[:MOST]) from refusal


@contextmanager
def loaded(side: Side, state: Mapping[str, Any]) -> Iterator[None]:
    """The model has these values inside, and its own afterwards."""
    backend = side.backend
    values = {
        name: value for name, value in state.items()
        if name in side.variables and _fits(side.variables[name], value)
    }  # fmt: skip
    kept = {name: backend.to_numpy(side.variables[name]).copy() for name in values}
    try:
        for name, value in values.items():
            _write(backend, side.variables[name], value)
        yield
    finally:
        for name, array in kept.items():
            place = backend.device_of(side.variables[name])
            backend.write(side.variables[name], backend.from_numpy(array, place))


def _fits(variable: Any, value: Any) -> bool:
    return dtype_name(variable.dtype) == dtype_name(value.dtype) and tuple(variable.shape) == tuple(value.shape)


def _write(backend: Backend, variable: Any, value: Any) -> None:
    place = backend.device_of(variable)
    backend.write(variable, value if backend.device_of(value) is place else backend.move(value, place))


# running


def run(side: Side, arrays: Sequence[Array], give: Any = None) -> Run:
    """Calls a model in evaluation mode."""
    backend = side.backend
    variables = iter(side.variables.values())
    place = backend.device_of(next(variables))
    inputs = tuple(backend.from_numpy(np.array(x, order="C"), place) for x in arrays)
    stand_in = seeing.standing_in(give) if give is not None else _nothing()
    with backend.calls(side.model) as calls, stand_in:
        try:
            result = backend.infer(side.model, inputs)
        except StateError:
            raise
        except Exception as error:
            shapes = ", ".join(str(x.shape) for x in arrays)
            raise StateError(
                f"the model of {backend.name} cannot be called on inputs= of the shape {shapes}: "
                f"{type(error).__name__}: {str(error)[:400]}"
            ) from error
    seen = [
        Seen(call.path, *([_array(side, x) for x in some] for some in (call.inputs, call.outputs))) for call in calls
    ]
    return Run(seen, [_array(side, x) for x in seeing.tensors(backend, result)])


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _array(side: Side, x: Any) -> Array:
    found: Array = side.backend.to_numpy(x)
    return found if found.dtype.kind in "iubc" or found.dtype == np.float64 else found.astype("float32")


def _arrays_of(inputs: object) -> list[Array]:
    """The inputs as arrays: one tensor of any framework, or a list or tuple of the arguments."""
    every = inputs if isinstance(inputs, list | tuple) else (inputs,)
    found = []
    for x in every:
        owner = registry.kind_of(type(x))
        if owner is None or owner.kind != "tensor":
            raise NotATensorError(
                f"inputs= are a tensor, or a tuple of the tensors that the model is called with, not {shown(x, 60)} of "
                f"type {type(x).__qualname__}"
            )
        found.append(owner.backend.to_numpy(x))
    return found


# comparing


def apart(one: Array, other: Array) -> float:
    """How far apart two outputs of one shape are, of the largest number, and of what a batch's rows have of their own,
    where rounding allows."""
    if not one.size:
        return 0.0
    both, there = one.astype("float64"), other.astype("float64")
    off = np.where((both == there) | (np.isnan(both) & np.isnan(there)), 0.0, np.abs(both - there))
    if not off.any():
        return 0.0
    largest = float(np.abs(one).max())
    found = float(off.max()) / max(largest, 1e-30)
    if one.ndim > 1 and len(one) > 1:
        own = float(np.abs(one - one.mean(axis=0)).max()) + 1e-2 * largest
        found = max(found, float(off.max()) / max(own, 1e-30))
    return found if np.isfinite(found) else float("inf")


def distance(ours: Sequence[Array], theirs: Sequence[Array]) -> float:
    """How far apart the values are, of the largest number; infinite if they do not have one shape."""
    if len(ours) != len(theirs) or not ours:
        return float("inf") if len(ours) != len(theirs) else 0.0
    return max(_distance(one, other) for one, other in zip(ours, theirs, strict=True))


def _distance(one: Array, other: Array) -> float:
    if one.ndim != other.ndim or not one.size or not other.size:
        return 0.0 if one.shape == other.shape else float("inf")
    scale = max(float(np.abs(one).max()), 1e-30)
    largest = float(np.abs(other).max())
    if not 0.9 < largest / scale < 1.1:  # the rest need not be read
        return abs(largest / scale - 1)
    ways = (_without_zeros(one, there) for there in _layouts(other))
    return min(
        (float(np.abs(x - there).max()) / scale for x, there in ways if x.shape == there.shape), default=float("inf")
    )


def _without_zeros(one: Array, other: Array) -> tuple[Array, Array]:
    """Two images of different sizes without the zeros around them, which may be padding."""
    if one.ndim < 3:
        return one, other
    for axis in range(1, one.ndim):
        if one.shape[axis] != other.shape[axis]:
            one, other = _trimmed(one, axis), _trimmed(other, axis)
    return one, other


def _trimmed(x: Array, axis: int) -> Array:
    filled = np.flatnonzero(x.any(axis=tuple(other for other in range(x.ndim) if other != axis)))
    if not filled.size:
        return x
    return x[(slice(None),) * axis + (slice(int(filled[0]), int(filled[-1]) + 1),)]


def _layouts(x: Array) -> Iterator[Array]:
    """As it is, and with its channels elsewhere; of flattened images the numbers alone, sorted."""
    yield x
    if x.ndim > 2:
        yield np.moveaxis(x, 1, -1)
        yield np.moveaxis(x, -1, 1)


def _is_close(ours: Sequence[Array], theirs: Sequence[Array], limit: float) -> bool:
    found = distance(ours[:1] if limit == _SAME else ours, theirs[:1] if limit == _SAME else theirs)
    if found <= limit:
        return True
    flat = limit == _SAME and bool(ours) and bool(theirs) and ours[0].ndim == theirs[0].ndim == 2
    if not flat or ours[0].shape != theirs[0].shape:
        return False
    return _distance(np.sort(ours[0], axis=1), np.sort(theirs[0], axis=1)) <= limit


def _similarity(ours: Sequence[Array], theirs: Sequence[Array]) -> float:
    """How alike the first of each are where they overlap, in the best layout, but for a factor or a few numbers: their
    correlation, or the share of the numbers that agree. -1 if they cannot be compared."""
    if not ours or not theirs or ours[0].ndim != theirs[0].ndim:
        return -1.0
    found = [-1.0]
    for there in _layouts(theirs[0]):
        one, other = _without_zeros(ours[0], there)
        cut = tuple(slice(0, min(sizes)) for sizes in zip(one.shape, other.shape, strict=True))
        if one[cut].size * 2 >= max(one.size, other.size):
            found.append(_agreement(one[cut].astype("float64").ravel(), other[cut].astype("float64").ravel()))
    return max(found)


def _agreement(one: Array, other: Array) -> float:
    same = float((np.abs(one - other) <= _SAME * max(float(np.abs(one).max()), 1e-30)).mean()) if one.any() else 0.0
    one, other = one - one.mean(), other - other.mean()
    size = float(np.sqrt((one @ one) * (other @ other)))
    return max(same, float(one @ other) / size if size else 0.0)


def _like(x: Array, there: Array, kind: str, runs: Runs) -> Array:
    """An output of the source in the layout of the target's."""
    if x.ndim < 3 or x.ndim != there.ndim:
        return x
    source, target = runs.sides
    here, last = (side.backend.has_channels_last(side.model) for side in (source, target))
    moved = np.moveaxis(x, 1, -1) if last else np.moveaxis(x, -1, 1)
    if here == last or None in (here, last):
        return x
    fits = [way for way in (moved, x) if way.shape == there.shape]
    if kind in _IMAGES:
        return fits[0] if fits else moved
    return x if not fits or fits[-1] is x else fits[0]
