"""Two models with one input: what the source computes on it, and runs of the target."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from xdevice.base.dtypes import dtype_name
from xdevice.twins.models.state import write_variables
from xdevice.twins.tracing import distances, model_runs
from xdevice.twins.tracing.layerwise import TracedRun, TwoRuns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from xdevice.twins.contract.calls import Call
    from xdevice.twins.models.reading import Pairs, Twin
    from xdevice.twins.tracing.model_runs import ModelRun

    Array = np.ndarray[Any, Any]


class Runs:
    """The run of the source on the inputs, and methods that run the target on them."""

    def __init__(self, source: Twin, target: Twin, inputs: object) -> None:
        self.source, self.target = source, target
        self.arrays = model_runs.arrays_of(inputs)
        self.expected = model_runs.run(source.model, self.arrays)
        self._taken = model_runs.taken_by(target.model, self.arrays, self.expected)
        self.ends = self.expected.has_channels_last, target.backend.has_channels_last(target.model)
        """Whether channels are last, for the source and for the target."""
        self.limit = distances.limit([x for call in self.expected.trace.calls for x in call.outputs[:1]])

    def run(self, give: Callable[[Call, Any], Any] | None = None) -> ModelRun:
        """Runs the target. It goes on with what `give` returns in place of each layer's result."""
        return model_runs.run(self.target.model, self._taken, give)

    def run_with(self, values: Mapping[str, Any]) -> ModelRun:
        """Runs the target with these values of its variables."""
        with self.lending(values):
            return self.run()

    @contextmanager
    def lending(self, values: Mapping[str, Any]) -> Iterator[None]:
        """Inside the block the target has those of `values` that fit its variables in name, dtype and shape; afterwards
        it has its own values again."""
        backend, variables = self.target.backend, self.target.variables
        fitting = {name: value for name, value in values.items() if name in variables and _fits(variables[name], value)}
        # copied, because writing into a variable may write into what `to_numpy` shares with it
        own = {
            name: backend.from_numpy(backend.to_numpy(variables[name]).copy(), backend.device_of(variables[name]))
            for name in fitting
        }
        try:
            write_variables(backend, self.target.model, variables, fitting)
            yield
        finally:
            write_variables(backend, self.target.model, variables, own)

    # the outputs

    def outputs_apart(self, computed: ModelRun) -> float:
        """How far the outputs are apart: all that both models return, from the first on."""
        ours, theirs = self._turned_outputs(computed), self.expected.outputs
        if bool(ours) != bool(theirs):
            return float("inf")
        return max(map(distances.apart_by_rows, ours, theirs), default=0.0)

    def _turned_outputs(self, computed: ModelRun) -> list[Array]:
        """The outputs of a run of the target, as far as the source has as many, with the channels on the axis where the
        source has them."""
        ends = self.ends[1], self.ends[0]
        pairs = zip(computed.outputs, self.expected.outputs, strict=False)
        return [distances.turned(x, y, ends) for x, y in pairs]

    def not_compared(self, computed: ModelRun) -> Iterator[str]:
        """A line that says how many outputs were compared, if one model returns more than the other."""
        ours, theirs = len(self.expected.outputs), len(computed.outputs)
        if ours != theirs:
            few = min(ours, theirs)
            yield f"not compared: outputs behind the first {few}; the models return {ours} and {theirs}"

    def where(self, computed: ModelRun, pairs: Pairs) -> str:
        """A text that says which layer's output is the first to differ from the source's in `computed`, a run of the
        target with the weights of the source."""
        runs = TwoRuns(
            TracedRun(self.target.name, computed.trace.calls, self._turned_outputs(computed)),
            TracedRun(self.source.name, self.expected.trace.calls, self.expected.outputs),
            [(theirs, ours) for ours, theirs in pairs],
        )
        place = runs.first_difference(strict=True)
        return place.text if place else "no layer differs"


def _fits(variable: Any, value: Any) -> bool:
    return dtype_name(variable.dtype) == dtype_name(value.dtype) and tuple(variable.shape) == tuple(value.shape)
