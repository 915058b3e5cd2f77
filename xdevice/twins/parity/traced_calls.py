"""Reads the traces that `tracing_script` has saved from a run, and compares them with those of the reference backend:
one result for each traced call of a model."""

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
from .record_files import Recording, read_lines, reading
from .tracing_script import FOLDER, RUNS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .record_files import RecordedCall


class TracedCall(NamedTuple):
    """One traced call of a model. Its arrays stay in the file until `arrays` reads them."""

    model: int
    run: int
    type: str
    time: float
    layers: list[dict[str, Any]]
    calls: list[list[Any]]
    entries: dict[str, RecordedCall]
    channels_last: bool | None = None

    def arrays(self, name: str, layer: int | None = None) -> list[Any]:
        """Reads the arrays of one kind, `name`: "inputs", "outputs" or "gradients", of the model itself, or of the call
        of one of its layers. A gradient that never reached the layer is None."""
        key = f"{self.model}.{self.run}" + ("" if layer is None else f".{layer}")
        return [
            leaf.value
            for leaf in self.entries[key].read()
            if leaf.path.startswith(f"['{name}']")
        ]

    def as_run(self, owner: str) -> TracedRun:
        """This call as it is compared layer by layer, with all its arrays read. `owner` is the backend's name."""
        calls = []
        for place, (path, number, kind) in enumerate(self.calls):
            inputs, outputs, gradients = (
                tuple(self.arrays(name, place)) for name in ("inputs", "outputs", "gradients")
            )
            calls.append(LayerCall(path, number, kind, inputs, outputs, gradients))
        return TracedRun(owner, calls, self.arrays("outputs"))

    def as_twin(self, owner: str) -> Twin:
        """The layers of the model, for pairing. In place of its variables it has arrays with only their shapes."""
        layers, variables = [], {}
        for line in self.layers:
            parts = []
            for name, shape in line["shapes"].items():
                full_name = layouts.join(line["path"], name)
                parts.append(Part(full_name, (name,), layouts.SAME))
                # one element in memory, whatever the shape
                variables[full_name] = numpy.broadcast_to(numpy.zeros((), "bool"), tuple(shape))
            settings = {
                name: tuple(x) if isinstance(x, list) else x
                for name, x in line["settings"].items()
            }
            layers.append(Layer(line["path"], line["kind"], tuple(parts), settings))
        backend: Any = SimpleNamespace(name=owner)  # the framework itself is not needed here
        return Twin(backend, layers, variables, [])


class Traces(NamedTuple):
    """The traced calls of all models on one backend, and the models that could not be traced."""

    backend: str
    version: str | None
    calls: list[TracedCall]
    refusals: list[str]


def read(folder: Path, backend: str) -> Traces | None:
    """Reads the traces in a backend's folder; returns None if the folder has none.

    Raises:
        RecordingError: the files are damaged.
    """
    path = folder / FOLDER / RUNS
    if not path.exists():
        return None
    with reading(path):
        lines = read_lines(path)
        refusals = [
            f"{line['type']} was not traced on {backend}: {line['refusal']}"
            for line in lines
            if "refusal" in line
        ]
        lines = [line for line in lines if "run" in line]
        if not lines:
            return Traces(backend, None, [], refusals)
        recording = Recording(path.parent)
        entries = {call.name: call for call in recording.entries}
        calls = [TracedCall(**line, entries=entries) for line in lines]
        return Traces(backend, recording.header["versions"].get(backend), calls, refusals)


def compare(actual: Traces, expected: Traces) -> Iterator[tuple[str, TracedCall, Comparison]]:
    """Compares each traced call of the reference with the call of the same model that had the same inputs. The models
    of the two backends are paired by their order in the program. Yields a name, the reference's call, and the
    result."""
    # the numbers that the tracer gave them: names of classes differ between frameworks
    for model in sorted({call.model for call in expected.calls}):
        ours, theirs = (
            [call for call in side.calls if call.model == model] for side in (actual, expected)
        )
        first = theirs[0]
        name = f"model {model + 1}, {first.type}"
        pairs = list(_pair_calls(ours, theirs))
        if not pairs:
            none = f"{actual.backend} has traced no call of such a model"
            why = _other_inputs(ours[0], first) if ours else none
            yield name, first, difference("structure", why)
        for mine, its in pairs:
            yield name, its, _compare(mine, actual.backend, its, expected.backend)


def _pair_calls(
    ours: list[TracedCall], theirs: list[TracedCall]
) -> Iterator[tuple[TracedCall, TracedCall]]:
    """Yields pairs of calls that had the same inputs, in their order. Calls without a partner are skipped: some
    frameworks need one more call than others, to build the model."""
    start = 0
    for its in theirs:
        for place in range(start, len(ours)):
            # rounding in what came before must not make two calls strangers
            if _inputs_apart(ours[place], its) <= distances.OFF["float32"]:
                yield ours[place], its
                start = place + 1
                break


def _inputs_apart(one: TracedCall, other: TracedCall) -> float:
    errors = map(distances.error_of, one.arrays("inputs"), other.arrays("inputs"))
    return max((error for error in errors if error is not None), default=math.inf)


def _other_inputs(one: TracedCall, other: TracedCall) -> str:
    ours, theirs = ([tuple(x.shape) for x in call.arrays("inputs")] for call in (one, other))
    return (
        f"no call has the inputs of a call of the reference; the first have the shapes {ours} and {theirs}; "
        "numbers drawn by xdevice.random or NumPy are the same everywhere"
    )


def _compare(mine: TracedCall, owner: str, its: TracedCall, expected_owner: str) -> Comparison:
    ours, theirs = mine.as_run(owner), its.as_run(expected_owner)
    if len(ours.outputs) == len(theirs.outputs):
        ends = mine.channels_last, its.channels_last
        outputs = [
            distances.aligned(x, y, ends)
            for x, y in zip(ours.outputs, theirs.outputs, strict=True)
        ]
        ours = ours._replace(outputs=outputs)
    try:
        pairs = pair_layers(mine.as_twin(owner), its.as_twin(expected_owner), {})
    except StateError as error:
        return difference(
            "structure", f"the layers could not be paired, so none is compared: {error}"
        )
    runs = TwoRuns(ours, theirs, pairs)
    allowed, total = runs.limit, len(pairs)
    # wrong outputs lead to wrong gradients, so gradients are looked at only where all outputs agree
    place = runs.first_difference() or runs.first_gradient()
    if place is None and len(ours.outputs) != len(theirs.outputs):
        counts = f"{len(ours.outputs)} and {len(theirs.outputs)}"
        return difference(
            "structure", f"all layers agree, and the models return {counts} tensors"
        )
    if place is None:
        worst = runs.worst()
        return Comparison(
            True, abs=worst, rel=worst, allowed=allowed, excess=worst / allowed, total=total
        )
    off = place.error if math.isfinite(place.error) else None
    return Comparison(
        False, "shape" if off is None else "values", place.path,
        abs=off, rel=off, allowed=allowed, excess=place.error / allowed, off=1, total=total, text=place.text,
    )  # fmt: skip
