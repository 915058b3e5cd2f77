"""Pairs each layer of the target with its counterpart in the source. To find it, runs the target with the outputs of
the source's layers.

The source runs once, and the inputs and outputs of each of its layers are recorded. The target then runs with these
outputs in place of the outputs of its own layers. Every layer of the target thus receives the correct input, even if
the target has different weights. A difference between two layers does not affect later layers. The counterpart of a
target layer is the source layer that has the same kind and shape and received the same input.

Two facts make the search harder:
- the channels of images may come first in one model and last in the other; in that case, the pixels of a flattened
  image are in different orders;
- some layers, such as query and key, agree in kind, shape and input; only the inputs of later layers distinguish them.
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

from .same_inputs import LayerInput, as_input, is_same_input, similarity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xdevice.twins.contract.calls import Call
    from xdevice.twins.models.reading import Names

    from .runs import Runs

    Array = np.ndarray[Any, Any]

_LIKELY: Final = 0.8
"""If the similarity of two inputs exceeds this value, the inputs may be the same. They may differ only because a
setting of an earlier layer differs, such as the padding of a pool."""
# how often one search may run the target
_MOST_RUNS: Final = 24
# the orders of a larger group of layers are not tried
_MOST_EXCHANGED: Final = 4


class _SourceCall(NamedTuple):
    """One call of a layer in the source, with the first input and the outputs of the call."""

    input: LayerInput | None
    outputs: Sequence[Array]


def find_counterparts(runs: Runs, preferred: Names, fixed: Names) -> ForcedRun:
    """Pairs each layer of the target with its counterpart in the source, and returns the best run of the target. The
    attribute `chosen` of this run contains the pairs. `preferred` and `fixed` map paths of the target to paths of the
    source. A pair in `fixed` is always used. A pair in `preferred` is used only if the inputs of the two layers do not
    contradict it. Raises `StateError` if the target cannot run with the outputs of the source's layers."""
    search = _Search(runs, preferred, fixed)
    best = search.run_forced(chosen={})
    while best.open and search.may_run_again:  # each run leaves fewer candidates
        next_run = search.run_forced(best.sure)
        # with the same certain layers, the next run would be the same again
        if len(next_run.sure) <= len(best.sure):
            break
        best = next_run
    best = search.untie(best)
    # now that fewer layers are free, the similarity of inputs may decide
    while best.open and search.may_run_again:
        next_run = search.run_forced(best.chosen)
        if next_run.faults >= best.faults:
            break
        best = next_run
    return best


class _Search:
    """Performs and counts the forced runs of one search. In a forced run, the target runs with the outputs of the
    source's layers. `preferred` and `fixed` map paths of the target to paths of the source. A pair in `fixed` is always
    used. A pair in `preferred` is used only if the inputs of the two layers do not contradict it."""

    def __init__(self, runs: Runs, preferred: Names, fixed: Names) -> None:
        self._runs, self._preferred, self._fixed = runs, preferred, fixed
        self._calls: dict[str, list[_SourceCall]] = {}
        for call in runs.expected.trace.calls:
            self._calls.setdefault(call.path, []).append(
                _SourceCall(as_input(call.inputs), call.outputs)
            )
        self._count = 0

    @property
    def may_run_again(self) -> bool:
        """Whether the search may run the target once more."""
        return self._count < _MOST_RUNS

    def run_forced(self, chosen: Names) -> ForcedRun:
        """Performs one forced run with the pairs in `chosen` added to `fixed`. `chosen` maps paths of the target to
        paths of the source."""
        self._count += 1
        # names= comes last, so that the user's pairs override those that the inputs suggest
        return ForcedRun(self._runs, self._calls, self._preferred, {**chosen, **self._fixed})

    def untie(self, best: ForcedRun) -> ForcedRun:
        """Tries to exchange the counterparts of layers that have the same kind and input, one group of such layers at a
        time. Returns the run with the fewest faults, or `best` itself if no exchange reduces the faults. After a
        correct exchange, later layers receive their correct inputs, which may reveal further groups."""
        tried: set[frozenset[str]] = set()
        while best.mismatches and self.may_run_again:
            groups = _groups(best.ties)
            # four layers have 24 orders, and each order costs a run of the target
            small = (
                group
                for group in groups
                if len(group) <= _MOST_EXCHANGED and frozenset(group) not in tried
            )
            group = next(small, None)
            if group is None:
                break
            tried.add(frozenset(group))
            # the counterparts of all tied layers stay fixed, except in the group whose orders are tried
            chosen = {path: best.chosen[path] for path in chain.from_iterable(groups)}
            for order in permutations([best.chosen[path] for path in group]):
                exchanged = dict(zip(group, order, strict=True))
                # no run is needed if all layers agree now, and none is allowed above the limit of runs; the order of
                # `best` is known
                if (
                    not best.mismatches
                    or not self.may_run_again
                    or exchanged.items() <= best.chosen.items()
                ):
                    continue
                attempt = self.run_forced({**chosen, **exchanged})
                if attempt.faults < best.faults:
                    # a run records no ties for layers whose counterparts were fixed before it started
                    attempt.ties = best.ties | attempt.ties
                    best = attempt
        return best


class ForcedRun:
    """One run of the target. In this run, the output of each layer is replaced by the output of the layer's counterpart
    in the source. The object also contains the pairs of layers that the run reveals.

    Attributes:
        chosen: a dict from the path of each layer in the target to the path of its counterpart in the source.
        sure: the entries of `chosen` that are certain. An entry is certain if it is in `fixed`, or if only one layer of
            the source had the same kind, shape and input.
        open: the paths of the target's layers for which no counterpart was found.
        ties: a dict from the path of a layer in the target to the paths of the layers in the source that had the same
            kind, shape and input, and were not yet paired with another layer.
        mismatches: pairs of paths in the target. The first path belongs to a layer that received a different input from
            its counterpart; it is "" if the outputs of the model differ. The second path belongs to the layer that was
            called just before; it is "" if no layer was.
        run: the recorded run.
    """

    def __init__(
        self, runs: Runs, calls: dict[str, list[_SourceCall]], preferred: Names, fixed: Names
    ) -> None:
        """Runs the target. `calls` contains the calls of the source's layers, by the path of the layer. `preferred` and
        `fixed` map paths of the target to paths of the source. A pair in `fixed` is always used. A pair in `preferred`
        is used only if the inputs of the two layers do not contradict it. Raises `StateError` if the target cannot run
        with the outputs of the source's layers."""
        self.chosen: dict[str, str] = {}
        self.sure: dict[str, str] = {}
        self.open: list[str] = []
        self.ties: dict[str, frozenset[str]] = {}
        self.mismatches: list[tuple[str, str]] = []
        self._runs, self._preferred, self._fixed, self._calls = runs, preferred, fixed, calls
        self._ours, self._theirs = runs.source.by_path, runs.target.by_path
        # only layers that the source called can be counterparts
        self._source_signatures = {
            path: runs.source.signature(layer)
            for path, layer in self._ours.items()
            if path in calls
        }
        self._target_signatures = {
            path: runs.target.signature(layer) for path, layer in self._theirs.items()
        }
        # for each layer of the target, the calls of its counterpart that have not been used yet
        self._remaining_calls: dict[str, list[_SourceCall]] = {}
        # the results of `_had_input` for the input of the target's latest call, by the `id` of the source's call
        self._had_input_by_id: dict[int, bool] = {}
        # the path of the target's layer with a counterpart that was called last
        self._previous = ""
        try:
            self.run = runs.run(self._substitute)
        except ArgumentError as error:
            raise StateError(
                f"inputs= cannot pair the layers: the model of {runs.target.name} failed "
                f"{f'after {self._previous}' if self._previous else 'before its first layer'} when it ran with the "
                f"outputs of the layers of {runs.source.name}: "
                f"{model_runs.message(error.__cause__ or error)}"
            ) from error
        if runs.distance_of_outputs(self.run) > runs.limit:
            self.mismatches.append(("", self._previous))

    @property
    def faults(self) -> int:
        """The number of layers that have no counterpart or received a different input from their counterpart, plus 1 if
        the outputs differ. Fewer is better."""
        return len(self.mismatches) + len(self.open)

    def _substitute(self, call: Call, result: Any) -> Any:
        """Returns the value that replaces `result`, the result of a layer, in the rest of the target's run. This value
        is the outputs of the layer's counterpart, in the layout of `result`. Returns `result` itself if these outputs
        cannot replace it. Also records the counterpart, and a mismatch if the counterpart received another input."""
        # only layers with parameters have counterparts
        if call.path not in self._target_signatures:
            return result
        backend = self._runs.target.backend
        own_input = as_input([backend.to_numpy(x) for x in call.inputs[:1]])
        # the results of `_had_input` so far are for the input of the previous call
        self._had_input_by_id.clear()
        source_path = self._choose(call.path, own_input, _size(call.outputs))
        source_call = self._next_call(call.path, source_path, own_input)
        if source_call is None:
            return result
        if not self._had_input(source_call, own_input):
            self.mismatches.append((call.path, self._previous))
        self._previous = call.path
        tensors = list(layer_calls.tensors(backend, result))
        # some layers return a state in one framework only. There must be an output of the source for each output of the
        # target (the source's additional outputs are ignored), and each tensor in the result must be an output
        if not len(source_call.outputs) >= len(call.outputs) == len(tensors):
            return result
        kind = self._theirs[call.path].kind
        outputs = []
        for x, y in zip(
            source_call.outputs, [backend.to_numpy(y) for y in call.outputs], strict=False
        ):
            x = _laid_out(x, y, kind, self._runs.channels_last)
            if self._time_axes_differ(source_path, call.path):
                x = _time_exchanged(x, y)
            # an image may have another size if an earlier layer pads differently: the target then continues with the
            # source's image
            if kind not in model_runs.IMAGES and x.shape != y.shape:
                return result  # for example a recurrent layer that returns one step only, or the sum of both directions
            # a copy in C order, because `x` may be a transposed view of the source's recorded output
            outputs.append(np.array(x.astype(y.dtype), order="C"))
        stand_ins = [self._as_tensor(x, y) for x, y in zip(outputs, tensors, strict=True)]
        return layer_calls.replace_tensors(backend, result, iter(stand_ins))

    def _time_axes_differ(self, source_path: str, path: str) -> bool:
        """Whether one layer expects the time axis first, and its counterpart expects the batch axis first.
        `source_path` is the path of the layer in the source, and `path` is the path of the layer in the target. Only
        recurrent and attention layers have a setting for this."""
        ours, theirs = (
            layer.settings.get("batch_first")
            for layer in (self._ours[source_path], self._theirs[path])
        )
        return None not in (ours, theirs) and ours != theirs

    def _had_input(self, call: _SourceCall, own_input: LayerInput | None) -> bool:
        """Whether the first input of `call` is the same as `own_input`. `call` is a call of a layer in the source, and
        `own_input` is the first input of the target's current call. The result is cached until the target's next call,
        because it is needed several times."""
        if id(call) not in self._had_input_by_id:
            self._had_input_by_id[id(call)] = is_same_input(call.input, own_input)
        return self._had_input_by_id[id(call)]

    def _next_call(
        self, path: str, source_path: str, own_input: LayerInput | None
    ) -> _SourceCall | None:
        """Returns the call of the source's layer at `source_path` that corresponds to the current call of the target's
        layer at `path`. Each call is returned only once for a layer of the target. Prefers a call with the same input,
        because two models may call a shared layer in different orders. If no remaining call had that input, returns the
        next call. Returns None if no call remains, or if `source_path` is ""."""
        remaining = self._remaining_calls.setdefault(
            path, list(self._calls.get(source_path, ()) if source_path else ())
        )
        # 0 means the next call, for the case that no call had the same input
        index = next(
            (n for n, call in enumerate(remaining) if self._had_input(call, own_input)), 0
        )
        return remaining.pop(index) if remaining else None

    def _as_tensor(self, x: Array, replaced: Any) -> Any:
        """Returns the array `x` as a tensor of the target's framework that can take the place of the tensor `replaced`.
        The result is on the device of `replaced`. Some frameworks have several classes of tensors. The result has the
        class of `replaced` if both have the same shape and `replaced` is writable. Returns `x` itself if `replaced` is
        a NumPy array."""
        if isinstance(replaced, np.ndarray):
            return x
        backend = self._runs.target.backend
        place = backend.device_of(replaced)
        new = backend.from_numpy(x, place)
        if x.shape != tuple(replaced.shape) or not backend.can_write(replaced):
            return new
        copy = backend.copy(replaced, place)
        backend.write(copy, new)
        return copy

    # choosing the counterpart of a layer

    def _choose(self, path: str, own_input: LayerInput | None, size: int) -> str:
        """Returns the path of the source's layer that is the counterpart of the target's layer at `path`; "" if it
        cannot be determined. The result is also recorded in `chosen`, `sure` or `open`. `own_input` is the first input
        of the target's layer, and `size` is the number of elements in its output."""
        # a layer that is called twice keeps its counterpart
        if path in self.chosen:
            return self.chosen[path]
        if path in self._fixed:
            source_path = self.sure[path] = self._fixed[path]
        else:
            source_path = self._pick(path, own_input, size)
        if source_path:
            self.chosen[path] = source_path
        else:
            self.open.append(path)
        return source_path

    def _pick(self, path: str, own_input: LayerInput | None, size: int) -> str:
        """Returns the path of the source's layer that best matches the target's layer at `path`; "" if no layer is
        clearly the best. Only layers with the same kind and shape are considered. The criteria are, in this order: the
        same input, the preferred pair, and the similarity of the inputs. Also records the layer in `ties` and, if its
        counterpart is certain, in `sure`."""
        fitting = [
            source
            for source, signature in self._source_signatures.items()
            if signature == self._target_signatures[path]
        ]
        # the output must have the same size too: a shortcut may have the same kind, shape and input as the layer that
        # it bypasses, but another stride. If no output has this size, a setting such as a padding may differ, so the
        # size is ignored
        fitting = [
            source for source in fitting if _size(self._calls[source][0].outputs) == size
        ] or fitting
        with_input = [
            source
            for source in fitting
            if any(self._had_input(call, own_input) for call in self._calls[source])
        ]
        # a layer of the source can be the counterpart of only one layer of the target
        taken = {*self.chosen.values(), *self._fixed.values()}
        # the layers that are still free: among the fitting layers, and among the layers with this input
        free, free_with_input = (
            [source for source in paths if source not in taken]
            for paths in (fitting, with_input)
        )
        preferred = self._preferred.get(path, "")
        self.ties[path] = frozenset(free_with_input)
        # if only one layer has this input and is not yet paired, it is certain, whatever layers the others are paired
        # with
        if len(with_input) == len(free_with_input) == 1:
            self.sure[path] = free_with_input[0]
        if free_with_input and preferred not in free_with_input:
            # among the free layers with this input, layers that the source calls next to the counterpart of the
            # previous layer are preferred, and then the layer with the most similar name
            nearby = [
                source for source in self._called_next(with_input) if source in free_with_input
            ]
            return max(nearby or free_with_input, key=lambda source: likeness(source, path))
        # here no free layer has the input, or the preferred layer is one of the free layers with the input
        if preferred in free:
            return preferred
        # the only free layer of this kind and shape is the counterpart, whatever its input was
        if len(free) < 2:
            return free[0] if free else ""
        ranked = sorted(
            ((similarity(self._calls[source][0].input, own_input), source) for source in free),
            reverse=True,
        )
        (highest, likeliest), (second, _) = ranked[:2]
        # the best similarity must exceed the second by half of its own distance from 1 plus 0.05, or the second layer
        # might be the right one: the less similar the best input is, the larger its lead must be
        is_clear = highest > _LIKELY and highest - second > (1 - highest) / 2 + 0.05
        return likeliest if is_clear else ""

    def _called_next(self, same: Sequence[str]) -> list[str]:
        """Returns the layers in `same` (paths of the source) that the source calls directly before or after one
        particular layer: the counterpart of the layer that the target called last. Returns [] if there is no such
        counterpart. The order of calls matters in a U-Net, for example: one layer of every block receives the same
        input, the time embedding."""
        order, last = list(self._calls), self.chosen.get(self._previous)
        if last not in self._calls:
            return []
        # in both directions, because that counterpart may itself be in `same`, and not as its first layer
        first = end = order.index(last) + 1
        while end < len(order) and order[end] in same:
            end += 1
        while first and order[first - 1] in same:
            first -= 1
        return order[first:end]


def _groups(ties: dict[str, frozenset[str]]) -> list[list[str]]:
    """Returns groups of two or more layers of the target. The layers of a group have the same kind and input, so their
    counterparts may be exchanged. `ties` maps each layer of the target to the layers of the source that have the same
    kind, shape and input and were not yet paired. The result is empty if there are no ties."""
    # each group with the candidates of its first layer; a later layer of the group has only those that are still free
    groups: list[tuple[list[str], frozenset[str]]] = []
    for path, candidates in ties.items():
        group = next(
            (
                paths
                for paths, candidates_of_first in groups
                if candidates & candidates_of_first
            ),
            None,
        )
        if group is not None:
            group.append(path)
        elif candidates:
            groups.append(([path], candidates))
    return [paths for paths, _ in groups if len(paths) > 1]


def _size(outputs: Sequence[Any]) -> int:
    """Returns the number of elements in the first output of a layer; 0 for a layer without outputs."""
    return math.prod(outputs[0].shape) if outputs else 0


def _time_exchanged(x: Array, output: Array) -> Array:
    """Returns `x` with its first two axes (batch and time) exchanged if `x` has three or more axes and then has the
    shape of `output`. Otherwise returns `x` unchanged."""
    exchanged = x.swapaxes(0, 1) if x.ndim > 2 else x
    return exchanged if exchanged.shape == output.shape else x


def _laid_out(
    x: Array, output: Array, kind: str, channels_last: tuple[bool | None, bool | None]
) -> Array:
    """Returns the source's output `x` in the layout of the target's `output`, or unchanged if the layout cannot be
    determined. `kind` is the kind of the layer. `channels_last` contains one value for the source and one for the
    target: True if channels are last, False if they are not, and None if that is not known."""
    ours, theirs = channels_last
    is_image = kind in model_runs.IMAGES
    # one of the two arrays has the pixels along one axis, the other along two; `x` itself if it cannot be regrouped
    if is_image and x.ndim != output.ndim:
        return next(distances.reshaped_images(x, output.shape), x)
    if kind == "linear" and x.size == output.size and x.ndim != output.ndim:
        # the output has an axis for heads, or the axes of a pooled image
        return x.reshape(output.shape)
    # for anything but an image, a layout with the right shape is chosen; for images, even the sizes may differ
    if not is_image and x.shape != output.shape:
        return next((y for y in distances.channel_orders(x) if y.shape == output.shape), x)
    # there are no channels to move, or their axis is not known, or they are on the same axis already
    if x.ndim < 3 or x.ndim != output.ndim or ours is None or theirs is None or ours == theirs:
        return x
    moved = distances.move_channels(x, to_end=theirs)
    # the channels of an image are moved unless only the unmoved array fits; the channels of any other array are
    # moved only if just the moved array fits
    if is_image:
        return x if x.shape == output.shape != moved.shape else moved
    return moved if moved.shape == output.shape != x.shape else x
