"""Finds the first layer whose output differs between two runs of a model, or the gap between two layers where the
difference arises.

Layers are paired in the same way as in `convert_state`. The calls of a layer are paired by their inputs or, if the
inputs do not determine the pairs, by their order. If two paired layers receive different inputs, the cause lies in the
gap before them, which contains only functions and layers without parameters. If two paired layers return different
outputs for the same input, the layer itself is the cause.

In deep models, correct runs differ by more than `assert_parity` allows for a single operation. Therefore a layer is
treated as different only if the error of its output exceeds 1e-4 of the largest value (`distances`). A fault may begin
with a smaller error that grows later, so the cause is assumed to be the step at which the error grows most, among the
steps up to the first layer that differs.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy

from xdevice.twins.contract import layouts

from . import distances
from .distances import distance_between, distance_in_any_order, distance_without_padding
from .traces import name_of_call

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from xdevice.twins.contract.layouts import Layer

    from .traces import LayerCall

    Arrays = Sequence[numpy.ndarray[Any, Any]]
    Calls = Sequence[LayerCall]

_ROUNDING: Final = 1 / 500
"""Errors below this fraction of the limit are treated as rounding errors in the search for the step where the error
grows most."""
_GRADIENTS: Final = 10
"""The limit for errors of gradients, as a multiple of the limit for outputs."""
_LISTED: Final = 6
"""The maximum number of calls in a gap that a message names."""


class TracedRun(NamedTuple):
    """One run of a model: the calls of its layers, and the tensors that it returned."""

    owner: str
    """The name of the backend, such as `torch`."""
    calls: Calls
    outputs: Arrays
    """The tensors that the model returned, with the channels moved to the same axis as in the other run."""


class FirstDifference(NamedTuple):
    """The first place where two runs differ: a layer, or a gap between layers."""

    path: str
    """The path of the layer, or of the layer after the gap, in the expected model; "" for a gap at the end of the
    model."""
    text: str
    """A description of the place and of the difference."""
    error: float
    """The error of the values, as a fraction of the largest expected value; infinite if shapes, NaNs, infinities or
    whole numbers differ."""
    is_of_shapes: bool = False
    """Whether the shapes differ. If the shapes differ, no values were compared."""


class CallPair(NamedTuple):
    """A call of a layer in one run, and the corresponding call in the other run."""

    actual: LayerCall
    expected: LayerCall


class _Step(NamedTuple):
    """The inputs or the outputs of a call of a layer, in both runs."""

    calls: CallPair
    is_input: bool
    error: float | None
    """The distance between the arrays of the two runs (`distances`); None if they cannot be compared."""


class TwoRuns:
    """Compares two runs of models whose layers are paired. In each pair, the layer of the actual model comes first."""

    def __init__(
        self, actual: TracedRun, expected: TracedRun, pairs: Sequence[tuple[Layer, Layer]]
    ) -> None:
        self._actual, self._expected, self._pairs = actual, expected, pairs
        # of the first output of each call, because the others are not compared (`_error_of_first`)
        self.limit = distances.limit([x for call in expected.calls for x in call.outputs[:1]])
        """The largest error of a layer's output that is still attributed to rounding, as a fraction of the output's
        largest value."""
        self.gradient_limit = _GRADIENTS * self.limit
        """The same as `limit`, but for the gradient of a layer's output."""

    def first_difference(self, *, strict: bool = False) -> FirstDifference | None:
        """Returns the first place where the runs differ, or None if they agree. `strict` is for runs whose outputs are
        known to differ. With `strict`, returns the place where the error grows most, however small the error is."""
        steps = []
        for step in self._steps():
            steps.append(step)
            if step.error is not None and step.error > self.limit:
                break  # later errors are consequences of this error
        # no step exceeds the limit, but the outputs of the model may
        else:
            end = self._end_error()
            if not strict and (end is None or end <= self.limit):
                return None
            return self._greatest_step(steps, [*(step.error for step in steps), end])
        return self._greatest_step(steps, [step.error for step in steps])

    def worst(self) -> float:
        """Returns the largest error of the inputs and outputs of all layers and of the models' outputs. Each error is a
        fraction of the largest expected value. Returns 0 if nothing can be compared."""
        errors = [*(step.error for step in self._steps()), self._end_error()]
        return max((error for error in errors if error is not None), default=0.0)

    def first_gradient(self) -> FirstDifference | None:
        """Returns the first paired layer, in the order of the backward pass, whose output has different gradients in
        the two runs. Returns None if there is no such layer."""
        # the layer that was compared last; the description of the difference ends with its name
        last_compared = "the loss"
        # from the last layer to the first, the order in which gradients are computed
        for calls, is_input, _ in reversed(list(self._steps())):
            ours, theirs = calls.actual.gradients[:1], calls.expected.gradients[:1]
            if is_input or not ours or not theirs or ours[0] is None or theirs[0] is None:
                continue
            arrays = [ours[0]], [theirs[0]]
            error = _error_of_first(*arrays)
            if error is not None and error > self.gradient_limit:
                text = (
                    f"all layers agree in the forward pass; in the backward pass, the first gradient that differs is "
                    f"the gradient of the output of {self._name(calls)}, which is {_error_text(error, *arrays)}; the "
                    f"cause is between this layer and {last_compared}"
                )
                return FirstDifference(
                    calls.expected.path,
                    text,
                    error,
                    is_of_shapes=_have_other_shapes(*arrays),
                )
            last_compared = self._name(calls)
        return None

    # the steps: pairing the calls of both runs, and the error of each pair

    def _steps(self) -> Iterator[_Step]:
        """Yields two steps for each call of a paired layer, first its inputs and then its outputs, in the order of the
        expected run. A call without a corresponding call in the other run is left out."""
        unpaired_calls: dict[str, list[LayerCall]] = {}
        for call in self._actual.calls:
            # by path, the calls of the actual run that have not been paired yet
            unpaired_calls.setdefault(call.path, []).append(call)
        pairs = {theirs.path: (ours, theirs) for ours, theirs in self._pairs}
        for call in self._expected.calls:
            if call.path not in pairs:
                continue
            our_layer, their_layer = pairs[call.path]
            candidates = unpaired_calls.get(our_layer.path)
            if not candidates:
                continue
            # the two runs may call a shared layer in different orders, so its calls are paired by their inputs or, if
            # no inputs agree, by their order
            matching = (
                index
                for index, candidate in enumerate(candidates)
                if self._first_arrays_agree(candidate.inputs, call.inputs)
            )
            # a single candidate is used whatever its input, because a different input is a difference to be reported
            index = next(matching, 0) if len(candidates) > 1 else 0
            calls = CallPair(candidates.pop(index), call)
            # one model may pad the input in a separate layer, and the other model in the convolution
            compare = (
                distance_without_padding if our_layer.kind == "conv" else distance_in_any_order
            )
            input_error = self._error_of_pixels(calls.actual.inputs, call.inputs, compare)
            yield _Step(calls, is_input=True, error=input_error)
            # if only one of the two layers includes an activation, their outputs cannot be compared
            has_other_activation = our_layer.kind == "batch_norm" and our_layer.settings.get(
                "activation"
            ) != their_layer.settings.get("activation")
            yield _Step(
                calls,
                is_input=False,
                error=None
                if has_other_activation
                else _error_of_first(calls.actual.outputs, call.outputs),
            )

    def _error_of_pixels(
        self, ours: Arrays, theirs: Arrays, compare: Any = distance_in_any_order
    ) -> float | None:
        """Returns the same as `_error_of_first`, but compares the first arrays in any order if they may be flattened
        images with their pixels in different orders."""
        error = _error_of_first(ours, theirs, compare)
        if error is None or error <= self.limit:
            return error
        actual, expected = ours[0], theirs[0]
        if actual.ndim != 2 or actual.shape != expected.shape or not self._moves_channels:
            return error
        return min(error, distance_between(numpy.sort(actual), numpy.sort(expected)))

    @cached_property
    def _moves_channels(self) -> bool:
        """Whether a paired layer returns images with the channels on another axis in one of the runs. The numbers of a
        flattened image are then in another order."""
        our_calls, their_calls = (
            {call.path: call for call in run.calls} for run in (self._actual, self._expected)
        )
        outputs = (
            (our_calls[ours.path].outputs[:1], their_calls[theirs.path].outputs[:1])
            for ours, theirs in self._pairs
            if ours.path in our_calls and theirs.path in their_calls
        )
        return any(
            self._has_moved_channels(actual, expected)
            for pair in outputs
            for actual, expected in zip(*pair, strict=False)
        )

    def _has_moved_channels(
        self, actual: numpy.ndarray[Any, Any], expected: numpy.ndarray[Any, Any]
    ) -> bool:
        """Whether two arrays are images of one size that differ, perhaps only by the axis of the channels."""
        if actual.ndim < 3 or sorted(actual.shape) != sorted(expected.shape):
            return False
        # images of three channels and three rows have one shape, wherever the channels are
        return actual.shape != expected.shape or distance_between(actual, expected) > self.limit

    def _end_error(self) -> float | None:
        """Returns the largest distance between the outputs of the models; None if they return no tensors."""
        return max(
            map(distance_between, self._actual.outputs, self._expected.outputs), default=None
        )

    def _first_arrays_agree(self, ours: Arrays, theirs: Arrays) -> bool:
        """Whether the first arrays of both sides are equal within rounding; False if they cannot be
        compared."""
        error = _error_of_first(ours, theirs)
        return error is not None and error <= self.limit

    def _greatest_step(self, steps: list[_Step], errors: list[float | None]) -> FirstDifference:
        """Returns the difference at the step where the error grows most. The growth is the error of the step, divided
        by the largest error of all earlier steps. `errors` contains the error of each of `steps`, and may end with the
        error of the models' outputs. An error is None if nothing could be compared. If all errors are None, returns the
        last step, with an error of 0."""
        # `largest_before` begins with a minimum, because growth from exactly 0 to 1e-9 would otherwise be infinite
        largest_before, greatest_growth, place = self.limit * _ROUNDING, 0.0, len(errors) - 1
        for index, error in enumerate(errors):
            if error is None:
                continue
            if error / largest_before > greatest_growth:
                greatest_growth, place = error / largest_before, index
            # the largest error so far, because an error that shrinks and grows again is not a new error
            largest_before = max(largest_before, error)
        error = errors[place] or 0.0
        # the inputs of a layer, and the models' outputs, are computed in the gap before them
        if place == len(steps) or steps[place].is_input:
            return self._difference_in_gap(
                steps[:place], steps[place].calls if place < len(steps) else None, error
            )
        return self._difference_in_layer(steps[place].calls, error)

    # the description of the difference

    def _difference_in_layer(self, calls: CallPair, error: float) -> FirstDifference:
        """Returns the difference if a layer is the cause: the first inputs of its call agree, but its outputs differ by
        `error`. Only the first inputs have been compared, because other inputs, such as a mask or an initial state, may
        have no counterpart in the other framework. The description lists the inputs without a counterpart."""
        far = _error_text(error, calls.actual.outputs, calls.expected.outputs)
        # the other inputs that have no equal in the other run
        unmatched = [
            f"{x.dtype} {x.shape} of {run.owner}"
            for run, call, other_call in (
                (self._actual, calls.actual, calls.expected),
                (self._expected, calls.expected, calls.actual),
            )
            for x in call.inputs[1:]
            if not any(self._first_arrays_agree([x], [y]) for y in other_call.inputs)
        ]
        subject = (
            f"its first input agrees, but the other run has no input equal to {' and '.join(unmatched)}, and"
            if unmatched
            else "its inputs agree, but"
        )
        text = f"the first layer that differs is {self._name(calls)}: {subject} its output is {far}"
        if settings := self._settings(calls.expected.path):
            text += f"; {settings}"
        other_shapes = _have_other_shapes(calls.actual.outputs, calls.expected.outputs)
        return FirstDifference(calls.expected.path, text, error, is_of_shapes=other_shapes)

    def _settings(self, path: str) -> str:
        """Returns the settings in which the two layers of a pair differ, with both values, as text for a message; "" if
        no setting differs. `path` is the path of the layer in the expected model."""
        ours, theirs = next(
            (
                (our_layer.settings, their_layer.settings)
                for our_layer, their_layer in self._pairs
                if their_layer.path == path
            ),
            ({}, {}),
        )
        return ", ".join(
            f"{name} is {value} in {self._actual.owner}, {theirs[name]} in {self._expected.owner}"
            for name, value in ours.items()
            if name in theirs and not layouts.same_setting(value, theirs[name])
        )

    def _difference_in_gap(
        self, steps: list[_Step], following: CallPair | None, error: float
    ) -> FirstDifference:
        """Returns the difference if its cause lies in a gap. The gap begins after the last call of `steps` and ends
        before the call `following`, or at the end of the models if `following` is None. `error` is the error of the
        values after the gap. If calls in the gap can be paired, returns a difference in a smaller gap, or in the layer
        of a paired call."""
        # `steps` may end with the input of `following`
        earlier = [
            step.calls
            for step in steps
            if following is None or step.calls.expected is not following.expected
        ]
        preceding = earlier[-1] if earlier else None
        for calls in self._pair_by_class(preceding, following):
            # the errors of this call's inputs and outputs
            input_error, output_error = (
                self._error_of_pixels(calls.actual.inputs, calls.expected.inputs),
                self._error_of_pixels(calls.actual.outputs, calls.expected.outputs),
            )
            if input_error is not None and input_error > self.limit:
                following, error = calls, input_error
                break
            if output_error is not None and output_error > self.limit:
                return self._difference_in_layer(calls, output_error)
            preceding = calls
        start = f"after {self._name(preceding)}" if preceding else "at the beginning"
        path, value_in_words = "", "the output of the model"
        arrays: tuple[Arrays, Arrays] = self._actual.outputs, self._expected.outputs
        if following:
            path, value_in_words = (
                following.expected.path,
                f"the input of {self._name(following)}",
            )
            arrays = following.actual.inputs, following.expected.inputs
        far = _error_text(error, *arrays)
        ours, theirs = self._suspected_calls(preceding, following)
        return FirstDifference(
            path,
            f"the first difference is {start}: {value_in_words} is {far}; in between, "
            f"{_listed(self._actual, ours)}, and {_listed(self._expected, theirs)}",
            error,
            is_of_shapes=_have_other_shapes(*arrays),
        )

    def _unpaired_calls(
        self, preceding: CallPair | None, following: CallPair | None
    ) -> list[list[LayerCall]]:
        """Returns the calls of unpaired layers in a gap, as two lists: one for the actual run, and one for the expected
        run. The gap begins after the calls `preceding`, and ends before the calls `following`."""
        return [
            _calls_between(
                run,
                # None if the gap begins at the start, or ends at the end
                preceding and preceding[side],
                following and following[side],
                paired={pair[side].path for pair in self._pairs},
            )
            for side, run in enumerate((self._actual, self._expected))
        ]

    def _pair_by_class(
        self, preceding: CallPair | None, following: CallPair | None
    ) -> list[CallPair]:
        """Returns pairs of calls of unpaired layers, such as activations, if the calls of both runs in the gap have the
        same class names in the same order. Otherwise returns an empty list."""
        # in lowercase, because a layer is called `ReLU`, and the activation of a Keras layer `relu`
        ours, theirs = self._unpaired_calls(preceding, following)
        types = [[call.type.lower() for call in calls] for calls in (ours, theirs)]
        return list(map(CallPair, ours, theirs)) if types[0] == types[1] else []

    def _suspected_calls(
        self, preceding: CallPair | None, following: CallPair | None
    ) -> tuple[Calls, Calls]:
        """Returns, for each of the two runs, the calls in a gap that may be the cause of the difference. These are the
        calls after the last pair of calls with equal outputs."""
        ours, theirs = self._unpaired_calls(preceding, following)
        their_calls: Calls = theirs
        for number, their_call in enumerate(theirs):
            same = (
                index
                for index, our_call in enumerate(ours)
                if self._first_arrays_agree(our_call.outputs, their_call.outputs)
            )
            index = next(same, None)
            # all calls up to this pair are right
            if index is not None:
                ours, their_calls = ours[index + 1 :], theirs[number + 1 :]
        return ours, their_calls

    def _name(self, calls: CallPair) -> str:
        """Returns the name of a call of a layer, or the names in both models if they differ."""
        ours, theirs = map(name_of_call, calls)
        return (
            ours
            if ours == theirs
            else f"{ours} of {self._actual.owner} with {theirs} of {self._expected.owner}"
        )


def _error_of_first(
    ours: Arrays, theirs: Arrays, compare: Any = distance_in_any_order
) -> float | None:
    """Returns the distance between the first arrays of both sides, computed by `compare`. Returns None if a side has no
    array, or if the two arrays cannot be compared."""
    return compare(ours[0], theirs[0]) if ours and theirs else None


def _calls_between(
    run: TracedRun, preceding: LayerCall | None, following: LayerCall | None, paired: set[str]
) -> list[LayerCall]:
    """Returns the calls of a run between the calls `preceding` and `following`, except the calls of layers with a path
    in `paired`. `preceding` is None for the start of the run, and `following` is None for its end. There may be no such
    calls, because branches are called in a different order. In that case, returns the call that computed the input of
    `following`, if it exists and its layer is not in `paired`."""
    # found by identity, because `==` would compare the arrays in the calls
    numbers = {id(call): number for number, call in enumerate(run.calls)}
    start = numbers[id(preceding)] + 1 if preceding else 0
    end = numbers[id(following)] if following else len(run.calls)
    calls = [call for call in run.calls[start:end] if call.path not in paired]
    if calls or following is None or not following.inputs:
        return calls
    wanted = following.inputs[0]
    # the last call before `following` whose output equals the input of `following`
    for call in reversed(run.calls[:end]):
        if (
            call.outputs
            and call.outputs[0].shape == wanted.shape
            and (call.outputs[0] == wanted).all()
        ):
            return [] if call.path in paired else [call]
    return []


def _listed(run: TracedRun, calls: Calls) -> str:
    """Returns a clause that names the calls in a gap of one run."""
    names = list(map(name_of_call, calls[:_LISTED]))
    if len(calls) > _LISTED:
        names.append(f"{len(calls) - _LISTED} more")
    return f"{run.owner} calls {', '.join(names) or 'only functions'}"


def _error_text(error: float, ours: Arrays, theirs: Arrays) -> str:
    """Returns a description of an error: its size or, if it is infinite, the reason. The reason is that the shapes of
    the first arrays differ or, if the shapes are equal, that a NaN, an infinity or an integer differs."""
    if math.isfinite(error):
        return f"off by {error:.2g} of its largest value"
    if not (ours and theirs):
        return "different: one of the two runs has no tensors"
    if _have_other_shapes(ours, theirs):
        return f"of the shape {tuple(ours[0].shape)}, expected {tuple(theirs[0].shape)}"
    return "different: a NaN, an infinity or an integer differs"


def _have_other_shapes(ours: Arrays, theirs: Arrays) -> bool:
    """Whether the first arrays differ in shape. Shapes with the same sizes in another order are treated as
    equal, because arrays with such shapes have been compared."""
    return bool(ours and theirs) and sorted(ours[0].shape) != sorted(theirs[0].shape)
