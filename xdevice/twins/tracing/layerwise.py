"""Finds the first layer whose output differs between two runs of a model, or the gap where the difference arises.

Layers are paired as `convert_state` pairs them, and the calls of a layer by their inputs, or else by their order. If
two paired layers get different inputs, the cause lies in the gap before them, which has only functions and layers
without parameters. If they give different outputs for the same input, the layer itself is the cause.

Two runs of deep models are further apart than `assert_parity` allows for one operation, so a layer counts as different
if its output is off by more than 1e-4 of its largest value (`distances`). A fault may begin below that, and grow. So
the cause is taken to be where the error grows most, up to the first layer that is different.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice.contract import layouts

from . import distances
from .distances import apart, error_of, error_of_padded

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    import numpy

    from xdevice.contract.layouts import Layer

    from .traces import LayerCall

    Array = numpy.ndarray[Any, Any]

_ROUNDING: Final = 1 / 500
"""In the search for the step where the error grows most, errors below this share of the limit count as rounding."""
_GRADIENTS: Final = 10
"""A gradient may be off by this many times the limit for outputs."""
_LISTED: Final = 6


class Traced(NamedTuple):
    """One run of a model: the calls of its layers, and what it returned."""

    owner: str
    """The name of the backend, such as `torch`."""
    calls: Sequence[LayerCall]
    outputs: Sequence[Array]
    """The tensors that the model returned, with their channels on the axis where the other run has them."""


class Divergence(NamedTuple):
    """The first place where two runs differ: a layer, or a gap between layers."""

    path: str
    """The path, in the expected model, of the layer, or of the layer behind the gap; empty for a gap at the end."""
    text: str
    error: float
    """How far off the values are, as a share of the largest expected value; infinite if the shapes differ."""


class Step(NamedTuple):
    """One input or output of a layer's call, with the same call in the other run."""

    actual: LayerCall
    expected: LayerCall
    is_input: bool
    error: float | None
    """The distance between the arrays of the two runs (`distances`); None if they cannot be compared."""


class _Gap(NamedTuple):
    before: tuple[LayerCall, LayerCall] | None
    behind: tuple[LayerCall, LayerCall] | None
    actual: list[LayerCall]
    expected: list[LayerCall]


def first_difference(
    actual: Traced, expected: Traced, pairs: Sequence[tuple[Layer, Layer]], *, strict: bool = False
) -> Divergence | None:
    """Finds the first place where two runs differ; returns None if they agree. With `strict`, for runs whose outputs
    are known to differ, returns the place where the error grows most, however small the error is."""
    most = limit(expected)
    found, errors = [], []
    for step in steps(actual, expected, pairs):
        found.append(step)
        errors.append(step.error)
        if step.error is not None and step.error > most:
            break  # later errors follow from this one
    else:
        errors.append(_end_error(actual, expected))
        if not strict and (errors[-1] is None or errors[-1] <= most):
            return None
    number = _greatest_step(errors, most * _ROUNDING)
    settings = {theirs.path: _settings(ours, theirs, actual, expected) for ours, theirs in pairs}
    if number == len(found) or found[number].is_input:
        gap = _gap(actual, expected, found, number, pairs)
        return _gap_place(actual, expected, gap, errors[number] or 0.0, most)
    step = found[number]
    return _layer_place(actual, expected, step, settings.get(step.expected.path, ""))


def steps(actual: Traced, expected: Traced, pairs: Sequence[tuple[Layer, Layer]]) -> Iterator[Step]:
    """Yields the inputs and outputs of the paired layers, in the order of the expected run."""
    ours: dict[str, list[LayerCall]] = {}
    for call in actual.calls:
        ours.setdefault(call.path, []).append(call)
    most = limit(expected)
    paired = {theirs.path: (mine, theirs) for mine, theirs in pairs}
    for call in expected.calls:
        if call.path not in paired:
            continue
        mine, theirs = paired[call.path]
        left = ours.get(mine.path, [])
        if not left:
            continue
        # a layer that is shared may be called in another order
        place = next((n for n, one in enumerate(left) if _is_same(one.inputs, call.inputs, most)), 0) if left[1:] else 0
        other = left.pop(place)
        yield Step(other, call, True, _error(other.inputs, call.inputs, padded=mine.kind == "conv"))
        # one of the two layers includes its activation, which is no call of its own: their outputs are not comparable
        hidden = mine.kind == "batch_norm" and mine.settings.get("activation") != theirs.settings.get("activation")
        yield Step(other, call, False, None if hidden else _error(other.outputs, call.outputs))


def worst(actual: Traced, expected: Traced, pairs: Sequence[tuple[Layer, Layer]]) -> float:
    """The largest error of any layer or of the outputs, as a share of the largest expected value there."""
    errors = [*(step.error for step in steps(actual, expected, pairs)), _end_error(actual, expected)]
    return max((error for error in errors if error is not None), default=0.0)


def first_gradient(actual: Traced, expected: Traced, pairs: Sequence[tuple[Layer, Layer]]) -> Divergence | None:
    """Finds, going backward, the first paired layer whose output gets different gradients in the two runs; None if
    there is none."""
    outputs = [step for step in steps(actual, expected, pairs) if not step.is_input]
    behind = None
    for step in reversed(outputs):
        ours, theirs = step.actual.gradients[:1], step.expected.gradients[:1]
        if not ours or not theirs or ours[0] is None or theirs[0] is None:
            continue
        error = error_of(ours[0], theirs[0])
        if error is not None and error > _GRADIENTS * limit(expected):
            end = f"{_pair(actual, expected, behind.actual, behind.expected)}" if behind else "the loss"
            text = (
                f"forward all layers agree; going backward, the first gradient that differs is that of the output of "
                f"{_pair(actual, expected, step.actual, step.expected)}, off by {error:.2g} of its largest value: the "
                f"cause lies between it and {end}"
            )
            return Divergence(step.expected.path, text, error)
        behind = step
    return None


def limit(run: Traced) -> float:
    """The error that rounding alone may make in a layer, as a share of the largest value of the layer's output."""
    return distances.limit([x for call in run.calls for x in call.outputs[:1]])


def _end_error(actual: Traced, expected: Traced) -> float | None:
    return max(map(apart, actual.outputs, expected.outputs), default=None)


def _greatest_step(errors: Sequence[float | None], floor: float) -> int:
    """The index of the error that exceeds the largest error before it by the greatest factor."""
    before, found, most = floor, len(errors) - 1, 0.0
    for number, error in enumerate(errors):
        if error is None:
            continue
        if error / before > most:
            found, most = number, error / before
        before = max(before, error)
    return found


# errors


def _error(ours: Sequence[Array], theirs: Sequence[Array], *, padded: bool = False) -> float | None:
    way = error_of_padded if padded else error_of
    return way(ours[0], theirs[0]) if ours and theirs else None


# words


def _layer_place(actual: Traced, expected: Traced, step: Step, settings: str) -> Divergence:
    error = step.error or 0.0
    text = (
        f"the first layer that differs is {_pair(actual, expected, step.actual, step.expected)}: it is given the same, "
        f"and its output is {_far(error, step.actual.outputs, step.expected.outputs)}"
    )
    return Divergence(step.expected.path, f"{text}{f'; {settings}' if settings else ''}", error)


def _gap(
    actual: Traced, expected: Traced, found: Sequence[Step], number: int, pairs: Sequence[tuple[Layer, Layer]]
) -> _Gap:
    """The gap before the step `number`: the calls, in both runs, between its paired layer and the paired layer before
    it."""
    behind = (found[number].actual, found[number].expected) if number < len(found) else None
    earlier = [step for step in found[:number] if behind is None or step.expected is not behind[1]]
    before = (earlier[-1].actual, earlier[-1].expected) if earlier else None
    paired = [{pair[side].path for pair in pairs} for side in range(2)]
    between = [
        _between(run, before and before[side], behind and behind[side], paired[side])
        for side, run in enumerate((actual, expected))
    ]
    return _Gap(before, behind, between[0], between[1])


def _between(
    run: Traced, before: LayerCall | None, behind: LayerCall | None, paired: Container[str]
) -> list[LayerCall]:
    """The calls of unpaired layers between two calls. If there are none, because branches are called in another order,
    the call of an unpaired layer that made the input of `behind`."""
    end = _index(run, behind, -1)
    found = [call for call in run.calls[_index(run, before) + 1 : end] if call.path not in paired]
    if found or behind is None or not behind.inputs:
        return found
    makers = (
        call for call in reversed(run.calls[:end]) if call.outputs and _is_equal(call.outputs[0], behind.inputs[0])
    )
    maker = next(makers, None)
    return [] if maker is None or maker.path in paired else [maker]


def _is_equal(one: Array, other: Array) -> bool:
    return one.shape == other.shape and bool((one == other).all())


def _index(run: Traced, call: LayerCall | None, none: int = 0) -> int:
    """The position of a call in the run. If `call` is None: -1, or with `none` the number of calls."""
    if call is None:
        return len(run.calls) if none else -1
    return next(number for number, one in enumerate(run.calls) if one is call)


def _gap_place(actual: Traced, expected: Traced, gap: _Gap, error: float, most: float) -> Divergence:
    start = f"behind {_pair(actual, expected, *gap.before)}" if gap.before else "at the beginning"
    if gap.behind:
        what = f"what {_pair(actual, expected, *gap.behind)} is given"
        far = _far(error, gap.behind[0].inputs, gap.behind[1].inputs)
        path = gap.behind[1].path
    else:
        what, path = "what the model returns", ""
        far = _far(error, actual.outputs, expected.outputs)
    ours, theirs = _narrowed(gap, most)
    text = f"the first difference lies {start}: {what} is {far}; between them are {_listed(actual, ours)}, "
    return Divergence(path, text + f"and {_listed(expected, theirs)}", error)


def _narrowed(gap: _Gap, most: float) -> tuple[list[LayerCall], list[LayerCall]]:
    """The calls of a gap that come after the last calls in it whose outputs agree."""
    ours, theirs = gap.actual, gap.expected
    for number, call in enumerate(gap.expected):
        same = next((place for place, other in enumerate(ours) if _is_same(other.outputs, call.outputs, most)), None)
        if same is not None:
            ours, theirs = ours[same + 1 :], gap.expected[number + 1 :]
    return ours, theirs


def _is_same(ours: Sequence[Array], theirs: Sequence[Array], most: float) -> bool:
    error = _error(ours, theirs)
    return error is not None and error <= most


def _pair(actual: Traced, expected: Traced, ours: LayerCall, theirs: LayerCall) -> str:
    mine, other = _named(ours), _named(theirs)
    if mine == other:
        return f"{mine}"
    return f"{mine} of {actual.owner} with {other} of {expected.owner}"


def _named(call: LayerCall) -> str:
    again = f", call {call.number + 1}" if call.number else ""
    return f"{call.path or 'the model'} ({call.type}{again})"


def _listed(run: Traced, calls: Sequence[LayerCall]) -> str:
    names = [_named(call) for call in calls[:_LISTED]] + [f"{len(calls) - _LISTED} more"] * (len(calls) > _LISTED)
    return f"in {run.owner} {', '.join(names) or 'functions only'}"


def _far(error: float, ours: Sequence[Array], theirs: Sequence[Array]) -> str:
    if math.isfinite(error):
        return f"off by {error:.2g} of its largest value"
    shapes = [tuple(x.shape) for side in (ours, theirs) for x in side[:1]]
    if len(set(shapes)) == 1:
        return "different, and not finite or a whole number"
    return f"of the shape {shapes[0]}, expected {shapes[1]}" if len(shapes) == 2 else "something else"


def _settings(ours: Layer, theirs: Layer, actual: Traced, expected: Traced) -> str:
    """A text that names the settings in which the two layers differ, with both values."""
    both = {name: (value, theirs.settings[name]) for name, value in ours.settings.items() if name in theirs.settings}
    told = {name: pair for name, pair in both.items() if not layouts.same_setting(*pair)}
    return ", ".join(f"{name} is {x} in {actual.owner}, {y} in {expected.owner}" for name, (x, y) in told.items())
