"""Reads the traces of a run, and compares them with those of the reference backend: one result for each traced call of
a model."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from xdevice.errors import StateError
from xdevice.twins.contract import layouts
from xdevice.twins.contract.layouts import Layer, Part
from xdevice.twins.models.pairing import pair_layers
from xdevice.twins.models.twin import Twin
from xdevice.twins.tracing import distances, layerwise
from xdevice.twins.tracing.traces import LayerCall

from . import recording
from .comparison import Comparison, of_structure
from .traced import FOLDER, RUNS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from xdevice.twins.tracing.layerwise import TracedRun

    from .recording import RecordedCall


class ModelRun(NamedTuple):
    """One traced call of a model. Its arrays stay in the file until `arrays` reads them."""

    model: int
    run: int
    type: str
    time: float
    layers: list[dict[str, Any]]
    calls: list[list[Any]]
    channels_last: bool | None
    entries: dict[str, RecordedCall]

    @property
    def key(self) -> str:
        return f"{self.model}.{self.run}"

    def arrays(self, key: str, name: str) -> list[Any]:
        """Reads the arrays of one kind, `name`: "inputs", "outputs" or "gradients". `key` says of which call: of the
        model itself, or of one of its layers. A gradient that the layer never got is None."""
        start = f"['{name}']"
        return [leaf.value for leaf in self.entries[key].read() if leaf.path.startswith(start)]

    def as_traced(self, owner: str) -> TracedRun:
        """This call of a model as a `Traced`, the form that is compared layer by layer, with all its arrays read.
        `owner` is the backend's name."""
        calls = [
            LayerCall(
                path, number, kind,
                *(tuple(self.arrays(f"{self.key}.{place}", name)) for name in ("inputs", "outputs", "gradients")),
            )
            for place, (path, number, kind) in enumerate(self.calls)
        ]  # fmt: skip
        return layerwise.TracedRun(owner, calls, self.arrays(self.key, "outputs"))


class Traces(NamedTuple):
    """The traced calls of all models on one backend, and the models that could not be traced."""

    backend: str
    version: str | None
    runs: list[ModelRun]
    refusals: list[str]


def read(folder: Path, backend: str) -> Traces | None:
    """Reads the traces in a backend's folder; returns None if the folder has none.

    Raises:
        RecordingError: the files are damaged.
    """
    path = folder / FOLDER / RUNS
    if not path.exists():
        return None
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
        runs = [line for line in lines if "run" in line]
        recorded = recording.Recording(path.parent) if runs else None
        entries = {entry.name: entry for entry in recorded.entries} if recorded else {}
        return Traces(
            backend,
            recorded.header["versions"].get(backend) if recorded else None,
            [ModelRun(**{"channels_last": None, **line}, entries=entries) for line in runs],
            [f"{line['type']} was not traced on {backend}: {line['refusal']}" for line in lines if "refusal" in line],
        )
    except recording.DAMAGES as error:
        raise recording.file_error(path, error) from error


def hold(actual: Traces, expected: Traces) -> Iterator[tuple[str, ModelRun, Comparison]]:
    """Compares each traced call of the reference with the call of the same model that had the same inputs. The models
    of the two backends are paired by their order in the program. Yields a name, the reference's call, and the
    result."""
    for model in sorted({run.model for run in expected.runs}):
        theirs = [run for run in expected.runs if run.model == model]
        ours = [run for run in actual.runs if run.model == model]
        name = f"model {model + 1}, {theirs[0].type}"
        if not ours:
            yield name, theirs[0], of_structure(f"{actual.backend} has traced no call of such a model")
            continue
        matched = list(_pair_runs(ours, theirs))
        if not matched:
            yield name, theirs[0], of_structure(_other_inputs(ours[0], theirs[0]))
        for mine, other in matched:
            yield name, other, _compare(*_turn(mine, actual.backend, other, expected.backend), mine, other)


def _turn(ours: ModelRun, owner: str, theirs: ModelRun, expected_owner: str) -> tuple[TracedRun, TracedRun]:
    """Both calls as `Traced`. The outputs of the first get their channels on the axis where the outputs of the second
    have them."""
    mine, other = ours.as_traced(owner), theirs.as_traced(expected_owner)
    ends = ours.channels_last, theirs.channels_last
    if len(mine.outputs) != len(other.outputs):
        return mine, other
    turned = [distances.turned(x, y, ends) for x, y in zip(mine.outputs, other.outputs, strict=True)]
    return mine._replace(outputs=turned), other


def _pair_runs(ours: list[ModelRun], theirs: list[ModelRun]) -> Iterator[tuple[ModelRun, ModelRun]]:
    """Yields pairs of calls that had the same inputs, in their order. Calls without a partner are skipped: some
    frameworks need one more call than others, to build the model."""
    start = 0
    for other in theirs:
        for place in range(start, len(ours)):
            if _distance(ours[place], other) <= distances.OFF["float32"]:
                yield ours[place], other
                start = place + 1
                break


def _distance(one: ModelRun, other: ModelRun) -> float:
    pairs = zip(one.arrays(one.key, "inputs"), other.arrays(other.key, "inputs"), strict=False)
    errors = [error for x, y in pairs if (error := distances.error_of(x, y)) is not None]
    return max(errors, default=math.inf)


def _other_inputs(one: ModelRun, other: ModelRun) -> str:
    shapes = [[tuple(x.shape) for x in run.arrays(run.key, "inputs")] for run in (one, other)]
    return (
        f"no call is given what one of the reference is given; the first have the shapes {shapes[0]} and {shapes[1]}; "
        "numbers drawn by xdevice.random or NumPy are the same everywhere"
    )


def _compare(ours: TracedRun, theirs: TracedRun, mine: ModelRun, other: ModelRun) -> Comparison:
    try:
        pairs = pair_layers(_side(mine, ours.owner), _side(other, theirs.owner), {})
    except StateError as error:
        return of_structure(f"nothing says which layer is which, so none is compared: {error}")
    both = layerwise.TwoRuns(ours, theirs, pairs)
    most = both.limit
    place = both.first_difference() or both.first_gradient()
    if place is None and len(ours.outputs) != len(theirs.outputs):
        counts = f"{len(ours.outputs)} and {len(theirs.outputs)}"
        return of_structure(f"all layers agree, and the models return {counts} tensors")
    if place is None:
        worst = both.worst()
        return Comparison(True, abs=worst, rel=worst, allowed=most, excess=worst / most, total=len(pairs))
    off = place.error if math.isfinite(place.error) else None
    return Comparison(
        False, "values" if off is not None else "shape", place.path,
        abs=off, rel=off, allowed=most, excess=place.error / most, off=1, total=len(pairs), text=place.text,
    )  # fmt: skip


def _side(run: ModelRun, owner: str) -> Twin:
    """The layers of a traced model, for pairing. In place of its variables stand arrays that have only their shapes."""
    layers, variables = [], {}
    for line in run.layers:
        parts = []
        for name, shape in line["shapes"].items():
            full = layouts.join(line["path"], name)
            parts.append(Part(full, (name,), layouts.SAME))
            variables[full] = numpy.broadcast_to(numpy.zeros((), "bool"), tuple(shape))
        settings = {
            name: tuple(value) if isinstance(value, list) else value for name, value in line["settings"].items()
        }
        layers.append(Layer(line["path"], line["kind"], tuple(parts), settings))
    backend: Any = SimpleNamespace(name=owner)  # the framework itself is not needed here
    return Twin(backend, layers, variables, [])
