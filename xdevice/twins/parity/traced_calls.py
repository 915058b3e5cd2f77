"""Reads the traces that `tracing_script` saved in a run, and compares them with the traces of the reference backend.
There is one result for each traced call of a model."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from xdevice.errors import StateError
from xdevice.twins.contract import layouts
from xdevice.twins.contract.layouts import Layer, Part
from xdevice.twins.models.pairing import pair_layers
from xdevice.twins.models.reading import Twin
from xdevice.twins.tracing import distances
from xdevice.twins.tracing.layerwise import TracedRun, TwoRuns
from xdevice.twins.tracing.traces import LayerCall

from .comparison import Comparison, difference
from .record_files import Recording, read_lines, refusing_damage
from .tracing_script import FOLDER, RUNS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .record_files import RecordedCall


class TracedCall(NamedTuple):
    """One traced call of a model. Its arrays stay in the file until `arrays` reads them."""

    model: int
    """The index of the model in the order in which the program first called its models."""
    run: int
    """The index of this call among all calls of the model."""
    type: str
    """The name of the model's class."""
    time: float
    """The time when the call began, in seconds since 1970."""
    layers: list[dict[str, Any]]
    """The path, kind, parameter shapes and settings of each layer."""
    calls: list[list[Any]]
    """For each call of a layer: the path of the layer, the index of the call among all calls of this layer, and the
    name of the layer's class."""
    entries: dict[str, RecordedCall]
    """All recorded arrays. A key such as `0.2.5` consists of `model`, `run` and an index in `calls`."""
    channels_last: bool | None = None
    """Whether the model expects images with the channels last; None if this is not known."""

    def arrays(self, name: str, layer: int | None = None) -> list[Any]:
        """Reads and returns the arrays of one kind, `name` ("inputs", "outputs" or "gradients"). Returns the arrays of
        the call of a layer if `layer`, an index in `calls`, is passed. Otherwise returns the arrays of the model. A
        missing gradient is None."""
        key = f"{self.model}.{self.run}" + ("" if layer is None else f".{layer}")
        return [
            leaf.value
            for leaf in self.entries[key].read()
            # a path is, for example, "['inputs'][0]"
            if leaf.path.startswith(f"['{name}']")
        ]

    def as_run(self, owner: str) -> TracedRun:
        """Returns this call with all of its arrays, for a layer-by-layer comparison. `owner` is the backend's name."""
        calls = []
        for index, (path, number, class_name) in enumerate(self.calls):
            inputs, outputs, gradients = (
                tuple(self.arrays(name, index)) for name in ("inputs", "outputs", "gradients")
            )
            calls.append(LayerCall(path, number, class_name, inputs, outputs, gradients))
        return TracedRun(owner, calls, self.arrays("outputs"))

    def as_twin(self, owner: str) -> Twin:
        """Returns the layers of the model as a `Twin`, which can be paired with another `Twin`. The model's variables
        are replaced by arrays with the same shapes, but with meaningless values."""
        layers, variables = [], {}
        for line in self.layers:
            parts = []
            for name, shape in line["shapes"].items():
                full_name = layouts.join(line["path"], name)
                # the rule is never applied, because there are no values
                parts.append(Part(full_name, (name,), layouts.SAME))
                # an array of any shape has only one element in memory
                variables[full_name] = numpy.broadcast_to(numpy.zeros((), "bool"), tuple(shape))
            # JSON has turned tuples into lists
            settings = {
                name: tuple(x) if isinstance(x, list) else x
                for name, x in line["settings"].items()
            }
            layers.append(Layer(line["path"], line["kind"], tuple(parts), settings))
        backend: Any = SimpleNamespace(name=owner)  # pairing uses only the name of the backend
        # []: no variables outside the known layers, because the trace does not contain any
        return Twin(backend, layers, variables, singles=[])


class Traces(NamedTuple):
    """The traced calls of all models on one backend, and the models that could not be traced."""

    backend: str
    version: str | None
    """The version of the framework; None if no call was traced."""
    calls: list[TracedCall]
    refusals: list[str]
    """The reasons why models could not be traced, one sentence for each of these models."""


def read(folder: Path, backend: str) -> Traces | None:
    """Reads the traces in a backend's folder; returns None if the folder has none.

    Raises:
        RecordingError: if the files are damaged.
    """
    path = folder / FOLDER / RUNS
    if not path.exists():
        return None
    with refusing_damage(path):
        lines = read_lines(path)
        refusals = [
            f"{line['type']} was not traced on {backend}: {line['refusal']}"
            for line in lines
            if "refusal" in line
        ]
        # all remaining lines are traced calls
        lines = [line for line in lines if "run" in line]
        if not lines:
            return Traces(backend, None, [], refusals)
        recording = Recording(path.parent)
        entries = {call.name: call for call in recording.entries}
        calls = [TracedCall(**line, entries=entries) for line in lines]
        return Traces(backend, recording.header["versions"].get(backend), calls, refusals)


def compare(actual: Traces, expected: Traces) -> Iterator[tuple[str, TracedCall, Comparison]]:
    """Compares each traced call of the reference, `expected`, with the call of the corresponding model with the same
    inputs on the other backend. The models of the two backends are matched by the order in which the program first
    called them. Each item is a tuple of the model's name in the report, the reference's call, and the result. If no
    call of a model had the same inputs, yields a single difference for the model."""
    # paired by the models' numbers, because the names of classes differ between frameworks
    for model in sorted({call.model for call in expected.calls}):
        ours, theirs = (
            [call for call in side.calls if call.model == model] for side in (actual, expected)
        )
        # never empty, because the numbers are those of the expected calls
        first = theirs[0]
        name = f"model {model + 1}, {first.type}"
        pairs = list(_pair_calls(ours, theirs))
        if not pairs:
            no_call = f"no call of a corresponding model was traced on {actual.backend}"
            why = _other_inputs_text(ours[0], first) if ours else no_call
            yield name, first, difference("structure", why)
        for mine, its in pairs:
            yield name, its, _compare_calls(mine, actual.backend, its, expected.backend)


def _pair_calls(
    ours: list[TracedCall], theirs: list[TracedCall]
) -> Iterator[tuple[TracedCall, TracedCall]]:
    """Yields pairs of calls that had the same inputs, in the order in which both backends made the calls. Calls without
    a match are skipped, because some frameworks need an additional call that builds the model."""
    start = 0
    for its in theirs:
        for index in range(start, len(ours)):
            # equal within rounding, because the inputs may be results of computations
            if _distance_of_inputs(ours[index], its) <= distances.OFF["float32"]:
                yield ours[index], its
                start = index + 1
                break


def _distance_of_inputs(one: TracedCall, other: TracedCall) -> float:
    """Returns the largest distance between an input of one call and the corresponding input of the other call. Inputs
    that only one call has, or that cannot be compared, are ignored. Returns infinity if no inputs can be compared."""
    errors = map(distances.distance_in_any_order, one.arrays("inputs"), other.arrays("inputs"))
    return max((error for error in errors if error is not None), default=math.inf)


def _other_inputs_text(one: TracedCall, other: TracedCall) -> str:
    """Returns the message for a model of which no call has the inputs of a call of the reference. The message gives the
    shapes of the inputs of `one`, the first call on the other backend, and of `other`, the first call of the
    reference."""
    ours, theirs = ([tuple(x.shape) for x in call.arrays("inputs")] for call in (one, other))
    return (
        f"no call has the same inputs as a call of the reference (the first inputs have the shapes {ours} and "
        f"{theirs}); draw numbers with xdevice.random or NumPy, which give the same numbers on every backend"
    )


def _compare_calls(
    mine: TracedCall, owner: str, its: TracedCall, expected_owner: str
) -> Comparison:
    """Returns the `Comparison` of two calls of a model: `mine` is the call on the backend `owner`, and `its` is the
    call on the reference backend `expected_owner`. The text of the comparison names the first layer that differs or, if
    all layers agree, the first gradient that differs. The errors are fractions of the largest expected value (see
    `distances`)."""
    ours, theirs = mine.as_run(owner), its.as_run(expected_owner)
    if len(ours.outputs) == len(theirs.outputs):
        # the channels may be last on one side, and before the rows on the other
        channels_last = mine.channels_last, its.channels_last
        outputs = [
            distances.aligned(x, y, channels_last)
            for x, y in zip(ours.outputs, theirs.outputs, strict=True)
        ]
        ours = ours._replace(outputs=outputs)
    try:
        # the user has passed no names that would help to pair the layers
        pairs = pair_layers(mine.as_twin(owner), its.as_twin(expected_owner), names={})
    except StateError as error:
        return difference(
            "structure", f"the layers could not be paired, so no layer is compared: {error}"
        )
    runs = TwoRuns(ours, theirs, pairs)
    allowed, total = runs.limit, len(pairs)
    first = runs.first_difference()
    # gradients are compared only if all outputs agree, because wrong outputs lead to wrong gradients
    if first is None and (first := runs.first_gradient()):
        allowed = runs.gradient_limit
    if first is None and len(ours.outputs) != len(theirs.outputs):
        counts = f"{len(ours.outputs)} and {len(theirs.outputs)}"
        return difference(
            "structure", f"all layers agree, but the models return {counts} tensors"
        )
    # the errors are fractions, so the absolute and the relative error are the same
    if first is None:
        worst = runs.worst()
        return Comparison(
            True, abs=worst, rel=worst, allowed=allowed, excess=worst / allowed, total=total
        )
    # the error is infinite if the shapes differ, or if only one side has NaN or an infinity
    finite_error = first.error if math.isfinite(first.error) else None
    # 1 of `total` layers is off: the layers after the first difference are not judged
    return Comparison(
        False, "shape" if first.is_of_shapes else "values", first.path,
        abs=finite_error, rel=finite_error, allowed=allowed, excess=first.error / allowed, off=1, total=total,
        text=first.text,
    )  # fmt: skip
