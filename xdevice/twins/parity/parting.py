"""Finds the recorded value, the operation and the layer at which a function and a model, or two functions, start to
differ.

Both run once more without compilation, and each operation is saved with its results
(`xdevice.twins.tracing.operations`). A layer is correct if the operation that computed its output is correct. Values
that both record with `log` under the same name are compared in the order in which they were recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from xdevice.errors import UnsupportedError, listed
from xdevice.twins.tracing import distances
from xdevice.twins.tracing.operations import TwoPrograms
from xdevice.twins.tracing.traces import RECORD, name_of_call

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xdevice.twins.tracing.model_runs import ModelRun
    from xdevice.twins.tracing.operations import Judge, Parting
    from xdevice.twins.tracing.traces import LayerCall

_ADVICE = "record values with xdevice.parity.log(name, value) in both programs to find the first value that differs"


class _Named(NamedTuple):
    """A pair of values that have the same name in both runs. `ours` and `theirs` are NumPy arrays."""

    name: str
    ours: Any
    theirs: Any


def where(actual: ModelRun, expected: ModelRun, names: Mapping[str, str]) -> str:
    """Returns lines that say where two runs with different outputs start to differ. `names` maps names in the actual
    run to names in the expected run."""
    lines = []
    try:
        # the first runs saved no operations, because a run that saves operations takes several times as long
        runs = actual.run_with_operations(), expected.run_with_operations()
    except UnsupportedError as error:
        runs = actual, expected
        lines.append(f"the first operation that differs could not be found: {error}")
    # read from the second runs, if there are any; these record the same values as the first
    named = list(_named(*runs, names))
    lines += _first_named_difference(runs, named)
    if all(run.log is not None for run in runs):
        lines += _by_operations(*runs)
    elif not named:
        lines.append(_ADVICE)
    for run in runs:
        if run.trace.hidden:
            lines.append(
                f"not compared: {listed(dict.fromkeys(run.trace.hidden), 4)} of {run.backend.name}, "
                "which had no values while a compiler traced the function"
            )
    return "\n".join(lines)


# comparing the values that both record with `log`


def _named(actual: ModelRun, expected: ModelRun, names: Mapping[str, str]) -> Iterator[_Named]:
    """Yields the pairs of values that have the same name in both runs. A pair consists of two values recorded with
    `log`, or of a value recorded under the path of a layer and the output of this layer."""
    actual_calls: dict[str, list[LayerCall]] = {}
    for call in actual.trace.calls:
        # `names` maps the actual side's names to the expected side's
        actual_calls.setdefault(names.get(call.path, call.path), []).append(call)
    for call in expected.trace.calls:
        candidates = actual_calls.get(call.path)
        # one of the two must have been recorded by `log`, because `_by_operations` compares two layers
        if candidates and RECORD in (call.type, candidates[0].type):
            # several values with the same name are paired in the order in which they were recorded
            own_call = candidates.pop(0)
            yield _Named(
                f"{call.path}{f', step {call.number}' if call.number else ''}",
                own_call.outputs[0],
                call.outputs[0],
            )


def _first_named_difference(
    runs: tuple[ModelRun, ModelRun], named: list[_Named]
) -> Iterator[str]:
    """Yields a line about the first named value that differs, or about the last named value if all values agree. Yields
    nothing if `named` is empty."""
    limit = distances.limit([value.theirs for value in named])
    previous = ""
    for value in named:
        error = distances.distance_in_any_order(value.ours, value.theirs)
        if error is None or error > limit:
            far = (
                "of a different shape"
                if error in (None, numpy.inf)
                else f"off by {error:.2g} of its largest value"
            )
            agree = f"; {previous}, before it, agrees" if previous else ""
            yield f"the first named value that differs is {value.name}: it is {far}{agree}"
            return
        previous = value.name
    if named:
        yield f"all {len(named)} named values agree, the last of which is {previous}"


# finding the operation and the layers at which the two programs start to differ


def _by_operations(actual: ModelRun, expected: ModelRun) -> Iterator[str]:
    """Yields lines that name the first operation that differs and, for each program, the first layer whose output is
    wrong. Both runs must have a log of operations."""
    assert actual.log is not None
    assert expected.log is not None
    programs = TwoPrograms(actual.log, expected.log)
    for run, log in ((actual, actual.log), (expected, expected.log)):
        # operations that do not contribute to the outputs are not judged
        log.roots = [log.store(x) for x in run.outputs]
    parting = programs.first_parting()
    if parting is None:
        yield (
            "each operation has an equal counterpart on the other side; the difference may come from rounding, or from "
            "another order of axes"
        )
        return
    yield parting_text(parting, actual.backend.name, expected.backend.name)
    for run, judge in zip((actual, expected), programs.judges, strict=True):
        if layer := _first_layer(run, judge, programs.limit * parting.share):
            yield f"the first layer of {run.backend.name} that differs is {layer}"
    # the first difference may be among the operations that were not saved
    for log in (actual.log, expected.log):
        if log.is_full:
            yield f"only the first {len(log.operations)} operations of {log.owner} were saved"


def parting_text(parting: Parting, ours: str, theirs: str) -> str:
    """Returns a message about the operations at which two programs start to differ. `ours` and `theirs` are the names
    of the backends of the actual and of the expected program."""
    # all operations of the expected program are right, so the actual program computes something in addition
    if parting.expected is None:
        return f"the first operation that only {ours} computes is {parting.actual}"
    if parting.actual is None:
        return f"the first operation that only {theirs} computes is {parting.expected}"
    firsts, closest = (parting.actual, parting.expected), parting.closest or (None, None)
    # one operation may correspond to several operations on the other side: the message then names the first of these,
    # and the one whose output is closest
    mine, its = (
        f"{first}" if last in (None, first) else f"one of {first} to {last}"
        for first, last in zip(firsts, closest, strict=True)
    )
    errors = f"; {parting.errors}" if parting.errors else ""
    return f"the first operation that differs is {mine} of {ours}, where {theirs} has {its}{errors}"


def _first_layer(run: ModelRun, judge: Judge, limit: float) -> str:
    """Returns the path and class of the first layer whose output is wrong; "" if the outputs of all layers are correct.
    `limit` is the largest error that is treated as rounding."""
    assert run.log is not None
    layers = (call for call in run.trace.calls if call.type != RECORD and call.outputs)
    for call in layers:
        if not judge.is_right(run.log.store(call.outputs[0]), limit):
            return name_of_call(call)
    return ""
