"""One run of a model on inputs of any framework, with the calls of its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from xdevice.core import registry
from xdevice.errors import ArgumentError, NotATensorError, XDeviceError, shown
from xdevice.tensors.conversion import convert
from xdevice.tensors.creation import to_numpy
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
    host = numpy.asarray(to_numpy(x))
    if host.ndim < 3 or host.dtype.kind not in "fc":
        return x
    return numpy.ascontiguousarray(numpy.moveaxis(host, 1, -1) if last else numpy.moveaxis(host, -1, 1))


def _run(backend: Backend, model: Any, inputs: tuple[Any, ...]) -> Run:
    place = next((device for _, device in backend.model_devices(model)), None)
    given = tuple(_own(backend, x) for x in inputs)
    if place is not None:
        given = tuple(to_device(x, place) for x in given)
    with trace(model) as seen:
        try:
            outputs = backend.infer(model, given)
        except XDeviceError:
            raise
        except Exception as error:  # each framework and layer has its own
            shapes = ", ".join(str(tuple(x.shape)) for x in given)
            raise ArgumentError(
                f"a {type(model).__name__} of {backend.name} failed on inputs= of the shape {shapes}, which are as the "
                f"first model takes them: {shown(error, 200)}"
            ) from error
    return Run(seen, outputs)


def _own(backend: Backend, x: Any) -> Any:
    """By way of the host, for the device of `x` may be none of the other framework's."""
    found = registry.kind_of(type(x))
    return x if found is not None and found.backend is backend else convert(to_numpy(x), backend)
