"""Runs two models on the same inputs, reads the outputs, and finds the first layer in which the two models differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from xdevice.errors import StateError
from xdevice.twins.models.pairing import pair_layers
from xdevice.twins.models.reading import read_model
from xdevice.twins.tracing import distances, model_runs
from xdevice.twins.tracing.layerwise import TracedRun, TwoRuns

from . import host_leaves

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xdevice.twins.tracing.model_runs import ModelRun

    from .host_leaves import HostLeaf


class ModelOutputs(NamedTuple):
    """The outputs of two models for the same inputs, and the traces of the two runs. Made by `run_pair`."""

    actual: list[HostLeaf]
    expected: list[HostLeaf]
    runs: tuple[ModelRun, ModelRun]
    names: Mapping[str, str]

    def where(self) -> str:
        """A text that names the first layer whose output differs between the models. Called when the models' outputs
        differ."""
        try:
            source, target = (read_model(run.backend, run.trace.model) for run in self.runs)
            pairs = pair_layers(source, target, self.names)
        except StateError as error:
            return f"nothing says which layer is which, so none is named: {error}"
        ours, theirs = (
            TracedRun(run.trace.backend, run.trace.calls, [leaf.value for leaf in outputs])
            for run, outputs in zip(self.runs, (self.actual, self.expected), strict=True)
        )
        runs = TwoRuns(ours, theirs, pairs)
        if place := runs.first_difference():
            return place.text
        if len(self.actual) != len(self.expected):
            return f"all layers agree; the models return {len(self.actual)} and {len(self.expected)} tensors"
        place = runs.first_difference(strict=True)
        most = f"no layer is off by more than {runs.limit:g} of its largest value"
        return f"{most}, so that rounding alone may do this; at its greatest step {place.text if place else 'nothing'}"


def run_pair(actual: Any, expected: Any, inputs: Any, names: Mapping[str, str]) -> ModelOutputs:
    """Runs both models and reads their outputs to the host. The axes of `actual`'s outputs are put into the order that
    `expected` has: channels last, or first.

    Raises:
        NotATensorError: an argument is not a model, or `inputs` holds no tensors. UnsupportedError: a framework whose
            layers cannot be traced.
    """
    runs = model_runs.run_both(actual, expected, inputs)
    # outputs that are not tensors are left out
    ours, theirs = ([leaf for leaf in host_leaves.read(run.result) if leaf.owner != host_leaves.PYTHON] for run in runs)
    # otherwise the structures differ, which the comparison says
    if len(ours) == len(theirs):
        ends = runs[0].has_channels_last, runs[1].has_channels_last
        ours = [
            one._replace(path=other.path, value=distances.turned(one.value, other.value, ends))
            for one, other in zip(ours, theirs, strict=True)
        ]
    return ModelOutputs(ours, theirs, runs, names)
