"""Runs two models on the same inputs, reads the outputs, and finds the first layer in which the two models differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from xdevice.errors import StateError
from xdevice.twins.models.pairing import pair_layers
from xdevice.twins.models.reading import read_model
from xdevice.twins.tracing import distances, layerwise
from xdevice.twins.tracing.model_runs import ModelRun, run_both

from . import readings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xdevice.twins.models.twin import Pairs

    from .readings import Reading


class Both(NamedTuple):
    """The outputs of two models for the same inputs, and the traces of the two runs. Made by `run_pair`."""

    actual: list[Reading]
    expected: list[Reading]
    runs: tuple[ModelRun, ModelRun]
    names: Mapping[str, str]

    def where(self) -> str:
        """A text that names the first layer whose output differs between the models. Called when the models' outputs
        differ."""
        try:
            pairs = _pairs(self.runs, self.names)
        except StateError as error:
            return f"nothing says which layer is which, so none is named: {error}"
        ours, theirs = (_trace_of(run, side) for run, side in zip(self.runs, (self.actual, self.expected), strict=True))
        both = layerwise.TwoRuns(ours, theirs, pairs)
        place = both.first_difference()
        if place is not None:
            return place.text
        if len(self.actual) != len(self.expected):
            return f"all layers agree; the models return {len(self.actual)} and {len(self.expected)} tensors"
        place = both.first_difference(strict=True)
        most = f"no layer is off by more than {both.limit:g} of its largest value"
        return f"{most}, so that rounding alone may do this; at its greatest step {place.text if place else 'nothing'}"


def run_pair(actual: Any, expected: Any, inputs: Any, names: Mapping[str, str]) -> Both:
    """Runs both models and reads their outputs to the host. The axes of `actual`'s outputs are put into the order that
    `expected` has: channels last, or first.

    Raises:
        NotATensorError: an argument is not a model, or `inputs` holds no tensors. UnsupportedError: a framework whose
            layers cannot be traced.
    """
    runs = run_both(actual, expected, inputs)
    ours, theirs = (_read_outputs(run.result) for run in runs)
    if len(ours) == len(theirs):
        ends = runs[0].has_channels_last, runs[1].has_channels_last
        ours = [
            one._replace(path=other.path, value=distances.turned(one.value, other.value, ends))
            for one, other in zip(ours, theirs, strict=True)
        ]
    return Both(ours, theirs, runs, names)


def _read_outputs(outputs: Any) -> list[Reading]:
    """The tensors among the outputs of a model, read to the host. Outputs that are not tensors are left out."""
    return [one for one in readings.read(outputs) if one.owner != "Python"]


def _pairs(runs: tuple[ModelRun, ModelRun], names: Mapping[str, str]) -> Pairs:
    ours, theirs = (read_model(run.backend, run.trace.model) for run in runs)
    return pair_layers(ours, theirs, names)


def _trace_of(run: ModelRun, outputs: list[Reading]) -> layerwise.TracedRun:
    return layerwise.TracedRun(run.trace.backend, run.trace.calls, [reading.value for reading in outputs])
