"""Runs two models on the same inputs, and determines whether these inputs can reveal a difference between the models.
Not all inputs can. The outputs of a deep model with initial weights, for example, may not depend on the inputs. For
inputs close to zero, gelu and its tanh form return equal numbers."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from xdevice.base.dtypes import dtype_name
from xdevice.errors import ArgumentError
from xdevice.twins.contract import calls as layer_calls
from xdevice.twins.models.reading import some_of
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
    """Runs two models on the same inputs. The source runs once, when the object is created. The target runs in each
    call of `run` or `run_with`."""

    def __init__(self, source: Twin, target: Twin, inputs: object) -> None:
        self.source, self.target = source, target
        self.arrays = model_runs.arrays_of(inputs)
        self.expected = model_runs.run(source.model, self.arrays)
        # the inputs in the form that the target accepts: its images may have their channels on another axis
        self._target_inputs = model_runs.inputs_for(target.model, self.arrays, self.expected)
        self.channels_last = (
            self.expected.has_channels_last,
            target.backend.has_channels_last(target.model),
        )
        """Whether channels are last, for the source and for the target; None if that is not known."""
        self.limit = distances.limit(
            [x for call in self.expected.trace.calls for x in call.outputs[:1]]
        )

    def run(self, substitute: Callable[[Call, Any], Any] | None = None) -> ModelRun:
        """Runs the target and returns the run. `substitute` is a function that is called with each layer's call and its
        result, and returns the value that replaces this result."""
        return model_runs.run(self.target.model, self._target_inputs, substitute)

    def run_with(self, values: Mapping[str, Any]) -> ModelRun:
        """Runs the target with the given values of its variables (by name), then restores the target's own values.
        Returns the run."""
        with self.temporary_values(values):
            return self.run()

    @contextmanager
    def temporary_values(self, values: Mapping[str, Any]) -> Iterator[None]:
        """Writes `values` into the target's variables for the duration of the block, and restores the target's own
        values afterwards. Values that do not match a variable in name, dtype and shape are ignored."""
        backend, variables = self.target.backend, self.target.variables
        # wrong pairings are tried too, and their values may not fit
        fitting = {
            name: value
            for name, value in values.items()
            if name in variables and _fits(variables[name], value)
        }
        # copied, because `to_numpy` may return the variable's own memory, which changes when the variable is written
        own_values = {
            name: backend.from_numpy(
                backend.to_numpy(variables[name]).copy(), backend.device_of(variables[name])
            )
            for name in fitting
        }
        try:
            write_variables(backend, self.target.model, variables, fitting)
            yield
        finally:
            write_variables(backend, self.target.model, variables, own_values)

    # the outputs

    def distance_of_outputs(self, computed: ModelRun) -> float:
        """Returns the largest distance between the outputs of `computed`, a run of the target, and the outputs of the
        source. The distance is relative to the largest value in the source's output, or to the spread of that output's
        rows (see `distances.distance_by_spread`). It is infinite if only one model has outputs, and 0 if neither has
        any. If one model returns more outputs than the other, the additional outputs are not compared."""
        ours, theirs = self._outputs_in_layout_of_source(computed), self.expected.outputs
        if bool(ours) != bool(theirs):
            return float("inf")
        return max(map(distances.distance_by_spread, ours, theirs), default=0.0)

    def _outputs_in_layout_of_source(self, computed: ModelRun) -> list[Array]:
        """Returns the outputs of a run of the target, with the channels on the same axis as in the source. If the
        target has more outputs than the source, the additional outputs are left out."""
        # the target comes first, because its outputs are rearranged
        channels_last = self.channels_last[1], self.channels_last[0]
        pairs = zip(computed.outputs, self.expected.outputs, strict=False)
        return [distances.aligned(x, y, channels_last) for x, y in pairs]

    def outputs_not_compared(self, computed: ModelRun) -> Iterator[str]:
        """If one model returns more outputs than the other, yields a message that says how many outputs were
        compared."""
        ours, theirs = len(self.expected.outputs), len(computed.outputs)
        # one model may return a state in addition, for example
        if ours != theirs:
            few = min(ours, theirs)
            yield f"not compared: outputs after the first {few}; the models return {ours} and {theirs} outputs"

    def where(self, computed: ModelRun, pairs: Pairs) -> str:
        """Returns a message that names the first layer of the target whose output differs from the output of its
        counterpart in the source. `computed` is a run of the target with the source's weights. `pairs` contains the
        pairs of corresponding layers."""
        # the target's run comes first, because it is compared with the source's run
        runs = TwoRuns(
            TracedRun(
                self.target.name,
                computed.trace.calls,
                self._outputs_in_layout_of_source(computed),
            ),
            TracedRun(self.source.name, self.expected.trace.calls, self.expected.outputs),
            [(theirs, ours) for ours, theirs in pairs],
        )
        place = runs.first_difference(strict=True)
        return place.text if place else "no layer differs"

    # whether the inputs can show a difference

    def outputs_ignore_inputs(self) -> bool:
        """Whether the source's outputs on zeros equal its outputs on the inputs, up to rounding. In that case, it
        proves nothing if the target's outputs are equal to them. False if the source cannot run on zeros. The source
        runs once more."""
        try:
            blank = model_runs.run(
                self.source.model, {name: np.zeros_like(x) for name, x in self.arrays.items()}
            )
        # a model may not accept zeros, for example as the lengths of sequences
        except ArgumentError:
            return False
        distances_to_blank = map(
            distances.distance_between, blank.outputs, self.expected.outputs
        )
        # a tenth of the limit, because the outputs of some models depend only slightly on their inputs
        return max(distances_to_blank, default=math.inf) < self.limit / 10

    def doubts_about_gelu(self) -> Iterator[str]:
        """Yields a message if these inputs cannot show whether a model uses gelu or its tanh form. That is the case if
        exchanging the two forms changes the source's outputs by no more than rounding does. Yields nothing if the
        source has no linear layers that widen their input. The source runs once more."""
        # the function may be a call in the code of the model, so any layer that may precede a gelu counts
        paths = set(self._widening())
        if not paths:
            return
        backend = self.source.backend

        def substitute(call: Call, result: Any) -> Any:
            """Adds the difference between the two forms of gelu to the output of a layer that widens its input, and
            returns the sum. Returns the result of any other layer unchanged."""
            # a linear layer has one output
            if call.path not in paths or len(call.outputs) != 1:
                return result
            (output,) = call.outputs
            other = backend.from_numpy(
                _off_by_gelu(backend.to_numpy(output)), backend.device_of(output)
            )
            return layer_calls.replace_tensors(backend, result, iter([other]))

        changed = model_runs.run(self.source.model, self.arrays, substitute)
        distance = max(
            map(distances.distance_by_spread, changed.outputs, self.expected.outputs),
            default=0.0,
        )
        if distance <= self.limit:
            yield (
                f"not compared: the functions after {some_of(sorted(paths))}; on inputs=, exchanging gelu and its tanh "
                f"approximation would change the outputs by only {distance:.1g}, which may be rounding (up to "
                f"{self.limit:.1g}). Pass trained weights, or compare the functions in the code"
            )

    def _widening(self) -> Iterator[str]:
        """Yields the paths of the source's linear layers that widen their input. Such a layer has more output features
        than input features, and the next linear layer accepts all these output features. An example is the first layer
        of an MLP in a Transformer."""
        linear = {layer.path for layer in self.source.layers if layer.kind == "linear"}
        # the linear layer that was called previously
        before = None
        for call in self.expected.trace.calls:
            if call.path not in linear or not call.inputs or not call.outputs:
                continue
            if before is not None:
                narrow, wide = before.inputs[0].shape[-1], before.outputs[0].shape[-1]
                if narrow < wide == call.inputs[0].shape[-1]:
                    yield before.path
            before = call


def _off_by_gelu(x: Array) -> Array:
    """Returns x + gelu_tanh(x) - gelu(x), where gelu_tanh is the tanh form of gelu."""
    # in float64, because the two forms share most of their digits
    x64 = x.astype("float64")
    # NumPy has no error function
    exact = np.vectorize(math.erf)(x64 / math.sqrt(2))
    tanh_form = np.tanh(math.sqrt(2 / math.pi) * (x64 + 0.044715 * x64**3))
    moved: Array = (x64 + x64 * (tanh_form - exact) / 2).astype(x.dtype)
    return moved


def _fits(variable: Any, value: Any) -> bool:
    """Whether a value has the dtype and shape of a variable."""
    return dtype_name(variable.dtype) == dtype_name(value.dtype) and tuple(
        variable.shape
    ) == tuple(value.shape)
