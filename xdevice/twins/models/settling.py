"""Runs two models on one input to tell which layer of the target is which of the source, and where
the models begin to compute different numbers.

The source runs once, and each layer's inputs and outputs are kept. The target then runs with the outputs of its own
layers replaced by these: so every layer of the target gets the input that it should have, whatever its weights are, and
a difference between two layers does not reach the layers behind them. The counterpart of a layer of the target is the
layer of the source with the same kind, shape and input.

What makes this harder:
- images may have their channels first on one side and last on the other, and a flattened image comes in another order;
- layers of one kind, shape and input, as query and key, can be told apart only by the inputs of the layers behind them.
"""

from __future__ import annotations

from itertools import chain, permutations
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from xdevice.contract import calls as seeing
from xdevice.errors import ArgumentError, StateError
from xdevice.twins.tracing import distances, inference, layerwise
from xdevice.twins.tracing.layerwise import Traced

from .likeness import likeness
from .pairing import signature
from .sameness import Given, as_given, is_same, similarity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from xdevice.contract.calls import Call
    from xdevice.contract.layouts import Layer
    from xdevice.twins.tracing.inference import Run

    from .sides import Side

    Array = np.ndarray[Any, Any]

_LIKELY: Final = 0.8
"""If two inputs are more similar than this, they count as the same input, which only a setting, such as a pool's
padding, has made different."""
_MOST_RUNS: Final = 24


class Settled(NamedTuple):
    """What one run of the target, with its layers' outputs replaced by the source's, tells about which layers
    correspond."""

    chosen: dict[str, str]
    """The path of each layer's counterpart in the source, by the layer's path in the target."""
    ties: list[tuple[str, frozenset[str]]]
    """Layers of the target, each with the layers of the source that have the same input, and that no other layer of the
    target had taken before."""
    apart: list[tuple[str, str]]
    """Layers of the target that got another input than their counterpart in the source, each with the layer that was
    called before it; "" in place of a layer stands for the outputs of the model."""
    open: list[str]
    """Layers of the target for which no counterpart was found."""
    sure: dict[str, str]
    """The entries of `chosen` that are certain: `names=` gives them, or only one layer of the source has the input."""
    run: Run


class _Made(NamedTuple):
    """One call of a layer of the source: its first input and its outputs."""

    given: Given | None
    outputs: Sequence[Array]


class Runs:
    """The source and the target with one input: what the source computes on it, and methods that run the target on
    it."""

    def __init__(self, source: Side, target: Side, inputs: object) -> None:
        self.sides = source, target
        self.arrays = arrays = inference.arrays_of(inputs)
        self.expected = inference.run(source.model, arrays)
        self.theirs = inference.taken_by(target.model, arrays, self.expected)
        self.ends = self.expected.has_channels_last, target.backend.has_channels_last(target.model)
        self.limit = distances.limit([x for call in self.expected.trace.calls for x in call.outputs[:1]])
        self._tries = 0
        self._by_path: dict[str, list[_Made]] = {}
        for call in self.expected.trace.calls:
            self._by_path.setdefault(call.path, []).append(_Made(as_given(call.inputs), call.outputs))

    def calls_of(self, path: str) -> list[_Made]:
        return self._by_path.get(path, [])

    def plain(self) -> Run:
        """Runs the target on the input, without replacing the output of any layer."""
        return inference.run(self.sides[1].model, self.theirs)

    def turn(self, computed: Run) -> list[Array]:
        """The outputs of `computed`, a run of the target, as far as the source has as many, with the channels on the
        axis where the source has them."""
        ours, theirs = computed.outputs, self.expected.outputs
        ends = self.ends[1], self.ends[0]
        return [distances.turned(x, y, ends) for x, y in zip(ours, theirs, strict=False)]

    def outputs_apart(self, computed: Run) -> float:
        """How far the outputs are apart: all that both models return, from the first on."""
        ours, theirs = self.turn(computed), self.expected.outputs
        if bool(ours) != bool(theirs):
            return float("inf")
        return max(map(distances.apart_by_rows, ours, theirs), default=0.0)

    def uncounted(self, computed: Run) -> str:
        """A line that says how many outputs were compared, if one model returns more than the other."""
        ours, theirs = len(self.expected.outputs), len(computed.outputs)
        return f"not compared: outputs behind the first {min(ours, theirs)}; the models return {ours} and {theirs}" * (
            ours != theirs
        )

    def where(self, computed: Run, pairs: Sequence[tuple[Layer, Layer]]) -> str:
        """A text that says which layer's output is the first to differ from the source's in `computed`, a run of the
        target with the weights of the source."""
        source, target = self.sides
        place = layerwise.first_difference(
            Traced(target.backend.name, computed.trace.calls, self.turn(computed)),
            Traced(source.backend.name, self.expected.trace.calls, self.expected.outputs),
            [(theirs, ours) for ours, theirs in pairs],
            strict=True,
        )
        return place.text if place else "no layer differs"

    def settle(
        self, left: Sequence[Layer], right: Sequence[Layer], guess: Mapping[str, str], fixed: Mapping[str, str]
    ) -> Settled:
        """Finds the counterpart in the source of each layer of the target. `guess` and `fixed` give the source's path
        by the target's: `guess` holds unless the inputs of the two layers contradict it, `fixed` in any case."""
        self._tries = 0

        def force(held: Mapping[str, str]) -> Settled:
            self._tries += 1
            return _Forcing(self, left, right, guess, held).settled

        best = force(fixed)
        while best.open and self._tries < _MOST_RUNS:  # each run leaves fewer candidates
            again = force({**best.sure, **fixed})
            if len(again.sure) <= len(best.sure):
                break
            best = again
        best = self._untied(best, fixed, force)
        while best.open and self._tries < _MOST_RUNS:  # among few candidates, likeness tells more
            again = force({**best.chosen, **fixed})
            if _rank(again) >= _rank(best):
                break
            best = again
        return best

    def _untied(
        self, best: Settled, fixed: Mapping[str, str], force: Callable[[Mapping[str, str]], Settled]
    ) -> Settled:
        """Exchanges the counterparts of layers of one kind and input, group by group, as long as that leaves fewer
        layers apart: what is exchanged rightly brings the ties behind it to light."""
        seen: set[frozenset[str]] = set()
        while best.apart and self._tries < _MOST_RUNS:
            groups = _groups(best.ties)
            group = next((group for group in groups if len(group) < 5 and frozenset(group) not in seen), None)
            if group is None:
                break
            seen.add(frozenset(group))
            held = {path: best.chosen[path] for path in chain.from_iterable(groups)}
            for order in permutations([best.chosen[path] for path in group]):
                told = dict(zip(group, order, strict=True))
                if not best.apart or self._tries >= _MOST_RUNS or told.items() <= best.chosen.items():
                    continue
                tried = force({**held, **fixed, **told})
                if _rank(tried) < _rank(best):
                    best = tried._replace(ties=[*(dict(best.ties) | dict(tried.ties)).items()])
        return best


class _Forcing:
    """One run of the target in which each layer's output is replaced by that of its counterpart in the source."""

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
        self._batch_first = tuple(
            {layer.path: layer.settings.get("batch_first") for layer in side} for side in (left, right)
        )
        self._chosen: dict[str, str] = {}
        self._left: dict[str, list[_Made]] = {}
        self._ties: list[tuple[str, frozenset[str]]] = []
        self._apart: list[tuple[str, str]] = []
        self._open: list[str] = []
        self._sure: dict[str, str] = {}
        self._before = ""
        self._same: dict[int, bool] = {}
        try:
            result = inference.run(target.model, runs.theirs, self._give)
        except ArgumentError as error:
            raise StateError(
                f"{target.backend.name} cannot run with what the layers of {source.backend.name} give, behind "
                f"{self._before or 'the beginning'}, so that inputs= tells nothing: "
                f"{inference.told(error.__cause__ or error)}"
            ) from error
        if runs.outputs_apart(result) > runs.limit:
            self._apart.append(("", self._before))
        self.settled = Settled(self._chosen, self._ties, self._apart, self._open, self._sure, result)

    def _give(self, call: Call, result: Any) -> Any:
        if call.path not in self._wanted:
            return result
        backend = self._target.backend
        mine = as_given([_array(self._target, x) for x in call.inputs[:1]])
        self._same.clear()
        own = self._choose(call.path, mine, _sizes(call.outputs))
        expected = self._next_call(call.path, own, mine)
        if not expected:
            return result
        if not self._has(expected[0], mine):
            self._apart.append((call.path, self._before))
        outputs = [_array(self._target, x) for x in call.outputs]
        self._before = call.path
        kind = str(self._wanted[call.path][0])
        new = [_like(x, there, kind, self._runs.ends) for x, there in zip(expected[0].outputs, outputs, strict=False)]
        if len(new) != len(outputs) or len(list(seeing.tensors(backend, result))) != len(new):
            return result
        if self._counts_time_otherwise(own, call.path):
            new = [_time_exchanged(x, there) for x, there in zip(new, outputs, strict=True)]
        if kind not in inference.IMAGES and any(x.shape != y.shape for x, y in zip(new, outputs, strict=True)):
            return result  # for example a recurrent layer that gives one step only, or the sum of both directions
        stand_ins = [
            self._as_tensor(np.array(x.astype(there.dtype), order="C"), own)
            for x, there, own in zip(new, outputs, seeing.tensors(backend, result), strict=True)
        ]
        return seeing.replaced(backend, result, iter(stand_ins))

    def _counts_time_otherwise(self, own: str, path: str) -> bool:
        """Whether, of the source's layer at `own` and the target's at `path`, one takes the time axis first and the
        other the batch. Only recurrent layers and attentions do."""
        ours, theirs = self._batch_first[0].get(own), self._batch_first[1].get(path)
        return None not in (ours, theirs) and ours != theirs

    def _has(self, call: _Made, mine: Given | None) -> bool:
        """Whether `call`, of a layer of the source, had the input `mine`. The answer is kept until the target's next
        call."""
        if id(call) not in self._same:
            self._same[id(call)] = is_same(call.given, mine)
        return self._same[id(call)]

    def _next_call(self, path: str, own: str, mine: Given | None) -> list[_Made]:
        """Takes the call of the source's layer `own` that corresponds to a call of the target's layer at `path`: the
        one with the same input, since two models may call a shared layer in different orders, else the next one. Empty
        if no call is left."""
        left = self._left.setdefault(path, list(self._runs.calls_of(own) if own else ()))
        place = next((n for n, call in enumerate(left) if self._has(call, mine)), 0)
        return [left.pop(place)] if left else []

    def _as_tensor(self, x: Array, own: Any) -> Any:
        """The array `x` as a tensor of the target's framework, of the same class as `own` if the framework has several
        classes of tensors."""
        backend, place = self._target.backend, self._target.backend.device_of(own)
        new = backend.from_numpy(x, place)
        if x.shape != tuple(own.shape) or not backend.can_write(own):
            return new
        copy = backend.copy(own, place)
        backend.write(copy, new)
        return copy

    def _choose(self, path: str, mine: Given | None, sizes: list[int]) -> str:
        """The path of the source's layer that is the counterpart of the target's layer at `path`, which was called with
        `mine` and gave an output of these sizes; "" if nothing tells which layer it is."""
        if path in self._chosen:
            return self._chosen[path]
        found = self._fixed.get(path) or self._pick(path, mine, sizes)
        if found:
            self._chosen[path] = found
            if path in self._fixed:
                self._sure[path] = found
        else:
            self._open.append(path)
        return found

    def _of_sizes(self, sizes: list[int], owns: list[str]) -> list[str]:
        """Those of `owns`, layers of the source, whose outputs have these sizes, or else all: a shortcut may have the
        kind, the shape and the input of the layer beside it, but not its stride."""
        return [own for own in owns if _sizes(self._runs.calls_of(own)[0].outputs) == sizes] or owns

    def _pick(self, path: str, mine: Given | None, sizes: list[int]) -> str:
        taken = {*self._chosen.values(), *self._fixed.values()}
        every = [own for own, kind in self._kinds.items() if kind == self._wanted[path] and self._runs.calls_of(own)]
        every = self._of_sizes(sizes, every)
        same = [own for own in every if any(self._has(call, mine) for call in self._runs.calls_of(own))]
        fitting, close = ([own for own in owns if own not in taken] for owns in (every, same))
        guess = self._guess.get(path, "")
        self._ties.append((path, frozenset(close)))
        if len(same) == len(close) == 1:
            self._sure[path] = close[0]
        if close:
            return guess if guess in close else max(close, key=lambda own: likeness(own, path))
        if guess in fitting:
            return guess
        if len(fitting) < 2:
            return fitting[0] if fitting else ""
        ranked = sorted(((similarity(self._runs.calls_of(own)[0].given, mine), own) for own in fitting), reverse=True)
        (first, best), (second, _) = ranked[:2]
        return best if first > _LIKELY and first - second > (1 - first) / 2 + 0.05 else ""


def _rank(settled: Settled) -> int:
    return len(settled.apart) + len(settled.open)


def _groups(ties: Sequence[tuple[str, frozenset[str]]]) -> list[list[str]]:
    """Groups of the target's layers whose counterparts may be exchanged within a group, because the layers have the
    same kind and input."""
    groups: list[tuple[list[str], frozenset[str]]] = []
    for path, close in ties:
        group = next((paths for paths, known in groups if close & known), None)
        if group is not None:
            group.append(path)
        elif close:
            groups.append(([path], close))
    return [paths for paths, _ in groups if len(paths) > 1]


def _sizes(outputs: Sequence[Any]) -> list[int]:
    """The sizes of the axes of a layer's first output, wherever its channels are."""
    return sorted(outputs[0].shape) if outputs else []


def _array(side: Side, x: Any) -> Array:
    found: Array = side.backend.to_numpy(x)
    return found


def _time_exchanged(x: Array, there: Array) -> Array:
    turned: Array = x.swapaxes(0, 1) if x.ndim > 2 else x
    return turned if turned.shape == there.shape else x


def _like(x: Array, there: Array, kind: str, ends: tuple[bool | None, bool | None]) -> Array:
    """The source's output `x` in the layout of the target's output `there`. `ends` says, first for the source and then
    for the target, whether channels are last."""
    here, last = ends
    if (
        kind == "linear" and x.size == there.size and x.ndim != there.ndim
    ):  # with an axis for heads, or a pooled image's
        return x.reshape(there.shape)
    if kind not in inference.IMAGES and x.shape != there.shape:
        return next((way for way in distances.layouts(x) if way.shape == there.shape), x)
    if x.ndim < 3 or x.ndim != there.ndim or here is None or last is None or here == last:
        return x
    moved = distances.moved(x, last)
    fits = [way for way in (moved, x) if way.shape == there.shape]
    if kind in inference.IMAGES:
        return fits[0] if fits else moved
    return x if not fits or fits[-1] is x else fits[0]
