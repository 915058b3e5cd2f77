"""One run of a model on inputs of any framework, with the calls of its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from xdevice.core import registry
from xdevice.errors import NotATensorError, shown
from xdevice.tensors.conversion import convert
from xdevice.tensors.verbs import to_device

from .traces import trace

if TYPE_CHECKING:
    from xdevice.contract import Backend

    from .traces import Trace

__all__ = ["Run", "run_both"]


class Run(NamedTuple):
    """What a model computed of some inputs."""

    trace: Trace
    outputs: Any


def run_both(first: Any, second: Any, inputs: Any) -> tuple[Run, Run]:
    """Runs two models on the same inputs, in evaluation mode: a tensor of any framework, or a tuple of them, as the
    first model takes them. Where one has its channels last and the other has not, the second one's are moved."""
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    for x in arguments:
        found = registry.kind_of(type(x))
        if found is None or found.kind != "tensor":
            raise NotATensorError(
                f"inputs= takes a tensor, or a tuple of them, not {shown(x, 60)} of type {type(x).__qualname__}"
            )
    ours, theirs = _owner(first), _owner(second)
    moved = arguments
    ends = ours.has_channels_last(first), theirs.has_channels_last(second)
    if None not in ends and ends[0] != ends[1]:
        moved = tuple(_channels_moved(x, last=bool(ends[1])) for x in arguments)
    return _run(ours, first, arguments), _run(theirs, second, moved)


def _owner(model: Any) -> Backend:
    found = registry.kind_of(type(model))
    if found is None or found.kind != "model":
        raise NotATensorError(
            f"with inputs= both values are models, not {shown(model, 60)} of type {type(model).__qualname__}"
        )
    return found.backend


def _channels_moved(x: Any, last: bool) -> Any:
    host = numpy.asarray(convert(x, "numpy"))
    if host.ndim < 3 or host.dtype.kind not in "fc":
        return x
    return numpy.ascontiguousarray(numpy.moveaxis(host, 1, -1) if last else numpy.moveaxis(host, -1, 1))


def _run(backend: Backend, model: Any, inputs: tuple[Any, ...]) -> Run:
    place = next((device for _, device in backend.model_devices(model)), None)
    given = tuple(convert(x, backend) for x in inputs)
    if place is not None:
        given = tuple(to_device(x, place) for x in given)
    with trace(model) as seen:
        outputs = backend.infer(model, given)
    return Run(seen, outputs)
