"""Whether a batch tells two models apart: the outputs of a deep model at initial weights may not depend on its inputs,
and close to zero gelu and its tanh form give equal numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from xdevice.errors import ArgumentError
from xdevice.twins.contract import calls as layer_calls
from xdevice.twins.models.reading import some_of
from xdevice.twins.tracing import distances, model_runs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdevice.twins.contract.calls import Call

    from .runs import Runs

    Array = np.ndarray[Any, Any]


def is_blind(runs: Runs) -> bool:
    """Whether the source's outputs on zeros are, but for rounding, those on its inputs, so that equal outputs of the
    target tell nothing. The source runs once more."""
    try:
        blank = model_runs.run(runs.source.model, {name: np.zeros_like(x) for name, x in runs.arrays.items()})
    except ArgumentError:
        return False
    apart = map(distances.apart, blank.outputs, runs.expected.outputs)
    # a tenth, so that an honest model with a small answer is not called blind
    return max(apart, default=math.inf) < runs.limit / 10


def unexercised(runs: Runs) -> Iterator[str]:
    """A line for a batch on which gelu in place of its tanh form would change the source's outputs by no more than
    rounding; none for any other, and for a model without layers that widen their input. The source runs once more."""
    paths = set(_widening(runs))
    if not paths:
        return
    backend = runs.source.backend

    def give(call: Call, result: Any) -> Any:
        if call.path not in paths or len(call.outputs) != 1:
            return result
        (output,) = call.outputs
        other = backend.from_numpy(_off_by_gelu(backend.to_numpy(output)), backend.device_of(output))
        return layer_calls.replaced(backend, result, iter([other]))

    changed = model_runs.run(runs.source.model, runs.arrays, give)
    apart = max(map(distances.apart_by_rows, changed.outputs, runs.expected.outputs), default=0.0)
    if apart <= runs.limit:
        yield (
            f"not compared: the functions behind {some_of(sorted(paths))}; on inputs=, gelu in place of its tanh form "
            f"would change the outputs by {apart:.1g}, and {runs.limit:.1g} counts as rounding. Give trained weights, "
            "or compare the functions in the code"
        )


def _widening(runs: Runs) -> Iterator[str]:
    """The linear layers of the source that give more numbers than they take, to the linear layer called next."""
    linear = {layer.path for layer in runs.source.layers if layer.kind == "linear"}
    before = None
    for call in runs.expected.trace.calls:
        if call.path not in linear or not call.inputs or not call.outputs:
            continue
        if before is not None and before.inputs[0].shape[-1] < before.outputs[0].shape[-1] == call.inputs[0].shape[-1]:
            yield before.path
        before = call


def _off_by_gelu(x: Array) -> Array:
    """`x`, off by as much as gelu is from its tanh form there."""
    wide = x.astype("float64")
    exact = np.vectorize(math.erf)(wide / math.sqrt(2))
    near = np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))
    moved: Array = (wide + wide * (near - exact) / 2).astype(x.dtype)
    return moved
