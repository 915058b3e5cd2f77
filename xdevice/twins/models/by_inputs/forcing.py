"""Finds out which layer of the target corresponds to which layer of the source, by running the target with the outputs
of the source's layers.

The source runs once, and each layer's inputs and outputs are kept. The target then runs with these outputs in place of
those of its own layers: so every layer of the target gets the input that it should have, whatever its weights are, and
a difference between two layers does not reach the layers after them. The counterpart of a layer of the target is the
layer of the source with the same kind, shape and input.

These facts make it harder:
- images may have their channels first on one side and last on the other, so that a flattened image has another order;
- layers of one kind, shape and input, as query and key, can be distinguished only by the inputs of the layers after
  them.
"""

from __future__ import annotations

import math
from itertools import chain, permutations
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from xdevice.errors import ArgumentError, StateError
from xdevice.twins.contract import calls as layer_calls
from xdevice.twins.models.name_likeness import likeness
from xdevice.twins.tracing import distances, model_runs

from .same_inputs import LayerInput, as_input, is_same, similarity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xdevice.twins.contract.calls import Call
    from xdevice.twins.models.reading import Names

    from .runs import Runs

    Array = np.ndarray[Any, Any]

_LIKELY: Final = 0.8
"""If two inputs are more similar than this, they count as the same input, made different only by a setting, such as a
pool's padding."""
_MOST_RUNS: Final = 24
_MOST_EXCHANGED: Final = 4


class _SourceCall(NamedTuple):
    """One call of a layer of the source: its first input and its outputs."""

    input: LayerInput | None
    outputs: Sequence[Array]


def find_counterparts(runs: Runs, guess: Names, fixed: Names) -> ForcedRun:
    """Finds the counterpart in the source of each layer of the target. `guess` and `fixed` give the source's path
    by the target's: `guess` holds unless the inputs of the two layers contradict it, `fixed` in any case."""
    search = _Search(runs, guess, fixed)
    best = search.force({})
    while best.open and search.may_go_on:  # each run leaves fewer candidates
        again = search.force(best.sure)
        # the same sure layers would give the same run again
        if len(again.sure) <= len(best.sure):
            break
        best = again
    best = search.untie(best)
    while best.open and search.may_go_on:  # among few candidates, likeness tells more
        again = search.force(best.chosen)
        if again.faults >= best.faults:
            break
        best = again
    return best


class _Search:
    """The forced runs of one search, and how many there were."""

    def __init__(self, runs: Runs, guess: Names, fixed: Names) -> None:
        self._runs, self._guess, self._fixed = runs, guess, fixed
        self._calls: dict[str, list[_SourceCall]] = {}
        for call in runs.expected.trace.calls:
            self._calls.setdefault(call.path, []).append(
                _SourceCall(as_input(call.inputs), call.outputs)
            )
        self._count = 0

    @property
    def may_go_on(self) -> bool:
        return self._count < _MOST_RUNS

    def force(self, chosen: Names) -> ForcedRun:
        self._count += 1
        # names= comes last, so that what the user says outranks what the inputs suggest
        return ForcedRun(self._runs, self._calls, self._guess, {**chosen, **self._fixed})

    def untie(self, best: ForcedRun) -> ForcedRun:
        """Exchanges the counterparts of layers of one kind and input, group by group, as long as that leaves fewer
        layers apart: each right exchange reveals the ties after it."""
        done: set[frozenset[str]] = set()
        while best.apart and self.may_go_on:
            groups = _groups(best.ties)
            # four layers have 24 orders, and each order costs a run of the target
            small = (
                group
                for group in groups
                if len(group) <= _MOST_EXCHANGED and frozenset(group) not in done
            )
            group = next(small, None)
            if group is None:
                break
            done.add(frozenset(group))
            chosen = {path: best.chosen[path] for path in chain.from_iterable(groups)}
            for order in permutations([best.chosen[path] for path in group]):
                exchanged = dict(zip(group, order, strict=True))
                if (
                    not best.apart
                    or not self.may_go_on
                    or exchanged.items() <= best.chosen.items()
                ):
                    continue
                tried = self.force({**chosen, **exchanged})
                if tried.faults < best.faults:
                    tried.ties = best.ties | tried.ties
                    best = tried
        return best


class ForcedRun:
    """One run of the target in which each layer's output is replaced by that of its counterpart in the source; and what
    it tells about which layers correspond.

    Attributes:
        chosen: the path of each layer's counterpart in the source, by the layer's path in the target.
        sure: the entries of `chosen` that are certain: `fixed` has them, or only one layer of the source has that
            input.
        open: layers of the target for which no counterpart was found.
        ties: layers of the target, each with the layers of the source that have the same input, and that no other layer
            of the target had taken before.
        apart: layers of the target that got a different input than their counterpart in the source, each with the layer
            that was called before it; "" in place of a layer means the outputs of the model.
        run: the run itself.
    """

    def __init__(
        self, runs: Runs, calls: dict[str, list[_SourceCall]], guess: Names, fixed: Names
    ) -> None:
        self.chosen: dict[str, str] = {}
        self.sure: dict[str, str] = {}
        self.open: list[str] = []
        self.ties: dict[str, frozenset[str]] = {}
        self.apart: list[tuple[str, str]] = []
        self._runs, self._guess, self._fixed, self._calls = runs, guess, fixed, calls
        self._ours, self._theirs = runs.source.by_path, runs.target.by_path
        self._source_signatures = {
            path: runs.source.signature(layer)
            for path, layer in self._ours.items()
            if path in calls
        }
        self._target_signatures = {
            path: runs.target.signature(layer) for path, layer in self._theirs.items()
        }
        # for each layer of the target, the calls of its counterpart that it has not taken yet
        self._remaining_calls: dict[str, list[_SourceCall]] = {}
        # the answers of `_has`, by the `id` of the source's call
        self._had_input_by_id: dict[int, bool] = {}
        # the path of the target's layer that was called last
        self._previous = ""
        try:
            self.run = runs.run(self._give)
        except ArgumentError as error:
            raise StateError(
                f"{runs.target.name} cannot run with what the layers of {runs.source.name} give, behind "
                f"{self._previous or 'the beginning'}, so that inputs= decides nothing: "
                f"{model_runs.message(error.__cause__ or error)}"
            ) from error
        if runs.outputs_apart(self.run) > runs.limit:
            self.apart.append(("", self._previous))

    @property
    def faults(self) -> int:
        return len(self.apart) + len(self.open)

    def _give(self, call: Call, result: Any) -> Any:
        """The values with which the target continues, in place of a layer's result."""
        # only layers with parameters have counterparts
        if call.path not in self._target_signatures:
            return result
        backend = self._runs.target.backend
        own_input = as_input([backend.to_numpy(x) for x in call.inputs[:1]])
        # the answers of the call before were about another input
        self._had_input_by_id.clear()
        own = self._choose(call.path, own_input, _size(call.outputs))
        expected = self._next_call(call.path, own, own_input)
        if expected is None:
            return result
        if not self._has(expected, own_input):
            self.apart.append((call.path, self._previous))
        self._previous = call.path
        tensors = list(layer_calls.tensors(backend, result))
        # such as a state that only one framework returns
        if not len(expected.outputs) >= len(call.outputs) == len(tensors):
            return result
        kind = self._theirs[call.path].kind
        outputs = []
        for x, y in zip(
            expected.outputs, [backend.to_numpy(y) for y in call.outputs], strict=False
        ):
            x = _laid_out(x, y, kind, self._runs.ends)
            if self._counts_time_otherwise(own, call.path):
                x = _time_exchanged(x, y)
            if kind not in model_runs.IMAGES and x.shape != y.shape:
                return result  # for example a recurrent layer that gives one step only, or the sum of both directions
            outputs.append(np.array(x.astype(y.dtype), order="C"))
        stand_ins = [self._as_tensor(x, own) for x, own in zip(outputs, tensors, strict=True)]
        return layer_calls.replaced(backend, result, iter(stand_ins))

    def _counts_time_otherwise(self, own: str, path: str) -> bool:
        """Whether one of the two layers (the source's at `own`, the target's at `path`) takes the time axis first, and
        the other the batch axis. Only recurrent and attention layers do."""
        ours, theirs = (
            layer.settings.get("batch_first") for layer in (self._ours[own], self._theirs[path])
        )
        return None not in (ours, theirs) and ours != theirs

    def _has(self, call: _SourceCall, own_input: LayerInput | None) -> bool:
        """Whether `call`, of a layer of the source, had this input. The answer is kept until the target's next call."""
        if id(call) not in self._had_input_by_id:
            self._had_input_by_id[id(call)] = is_same(call.input, own_input)
        return self._had_input_by_id[id(call)]

    def _next_call(
        self, path: str, own: str, own_input: LayerInput | None
    ) -> _SourceCall | None:
        """Takes the call of the source's layer `own` that corresponds to a call of the target's layer at `path`: the
        one with the same input, since two models may call a shared layer in different orders, else the next one. None
        if no call is left."""
        left = self._remaining_calls.setdefault(
            path, list(self._calls.get(own, ()) if own else ())
        )
        place = next((n for n, call in enumerate(left) if self._has(call, own_input)), 0)
        return left.pop(place) if left else None

    def _as_tensor(self, x: Array, own: Any) -> Any:
        """The array `x` as a tensor of the target's framework, of the same class as `own` if the framework has several
        classes of tensors."""
        backend = self._runs.target.backend
        place = backend.device_of(own)
        new = backend.from_numpy(x, place)
        if x.shape != tuple(own.shape) or not backend.can_write(own):
            return new
        copy = backend.copy(own, place)
        backend.write(copy, new)
        return copy

    # which layer it is

    def _choose(self, path: str, own_input: LayerInput | None, size: int) -> str:
        """The path of the source's layer that is the counterpart of the target's layer at `path`, which was called with
        this input and gave an output of this size; "" if it cannot be determined."""
        if path in self.chosen:
            return self.chosen[path]
        if path in self._fixed:
            own = self.sure[path] = self._fixed[path]
        else:
            own = self._pick(path, own_input, size)
        if own:
            self.chosen[path] = own
        else:
            self.open.append(path)
        return own

    def _pick(self, path: str, own_input: LayerInput | None, size: int) -> str:
        """Chooses among the layers of the source with the kind and shape of the target's layer at `path`: by input,
        then by the guess, then by likeness."""
        alike = [
            own
            for own, signature in self._source_signatures.items()
            if signature == self._target_signatures[path]
        ]
        # a shortcut may have the kind, the shape and the input of the layer that it bypasses, but not its stride
        alike = [own for own in alike if _size(self._calls[own][0].outputs) == size] or alike
        same = [
            own for own in alike if any(self._has(call, own_input) for call in self._calls[own])
        ]
        # a layer of the source is the counterpart of one layer of the target only
        taken = {*self.chosen.values(), *self._fixed.values()}
        free, close = ([own for own in owns if own not in taken] for owns in (alike, same))
        guess = self._guess.get(path, "")
        self.ties[path] = frozenset(close)
        # the only one, and still free: whatever the other layers turn out to be
        if len(same) == len(close) == 1:
            self.sure[path] = close[0]
        if close and guess not in close:
            near = [own for own in self._called_next(same) if own in close]
            return max(near or close, key=lambda own: likeness(own, path))
        if guess in free:  # or in close, which is a part of it
            return guess
        if len(free) < 2:
            return free[0] if free else ""
        ranked = sorted(
            ((similarity(self._calls[own][0].input, own_input), own) for own in free),
            reverse=True,
        )
        (first, best), (second, _) = ranked[:2]
        return best if first > _LIKELY and first - second > (1 - first) / 2 + 0.05 else ""

    def _called_next(self, same: Sequence[str]) -> list[str]:
        """Those of the source's layers `same` that the source calls next to the counterpart of the layer that was
        called last. In a U-Net, for example, each block has a layer that takes the same embedding of the time."""
        order, last = list(self._calls), self.chosen.get(self._previous)
        if last not in self._calls:
            return []
        first = end = order.index(last) + 1
        while end < len(order) and order[end] in same:
            end += 1
        while first and order[first - 1] in same:
            first -= 1
        return order[first:end]


def _groups(ties: dict[str, frozenset[str]]) -> list[list[str]]:
    """Groups of the target's layers whose counterparts may be exchanged within a group, because the layers have the
    same kind and input."""
    groups: list[tuple[list[str], frozenset[str]]] = []
    for path, close in ties.items():
        group = next((paths for paths, inputs in groups if close & inputs), None)
        if group is not None:
            group.append(path)
        elif close:
            groups.append(([path], close))
    return [paths for paths, _ in groups if len(paths) > 1]


def _size(outputs: Sequence[Any]) -> int:
    """How many numbers a layer's first output has, regardless of its axes."""
    return math.prod(outputs[0].shape) if outputs else 0


def _time_exchanged(x: Array, there: Array) -> Array:
    exchanged = x.swapaxes(0, 1) if x.ndim > 2 else x
    return exchanged if exchanged.shape == there.shape else x


def _laid_out(
    x: Array, there: Array, kind: str, ends: tuple[bool | None, bool | None]
) -> Array:
    """The source's output `x` in the layout of the target's output `there`. `ends` says, first for the source and then
    for the target, whether channels are last."""
    here, last = ends
    is_image = kind in model_runs.IMAGES
    if is_image and x.ndim != there.ndim:
        return next(distances.regrouped(x, there.shape), x)
    if kind == "linear" and x.size == there.size and x.ndim != there.ndim:
        return x.reshape(there.shape)  # with an axis for heads, or a pooled image's
    if not is_image and x.shape != there.shape:
        return next((way for way in distances.layouts(x) if way.shape == there.shape), x)
    if x.ndim < 3 or x.ndim != there.ndim or here is None or last is None or here == last:
        return x
    moved = distances.moved(x, last)
    if is_image:
        return x if x.shape == there.shape != moved.shape else moved
    return moved if moved.shape == there.shape != x.shape else x
