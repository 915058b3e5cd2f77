"""Runs models and functions on inputs of any framework, in evaluation mode, and traces the calls of their layers and
the values that they record with `xdevice.parity.log`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy

from xdevice.core import registry
from xdevice.errors import ArgumentError, NotATensorError, UnsupportedError, XDeviceError, shown
from xdevice.tensors.refusals import require_dtype
from xdevice.twins.contract import calls as layer_calls

from . import distances
from .functions import Subject, name_of, subject_of
from .operations import Log, LogWriter
from .traces import trace_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.contract import Backend
    from xdevice.twins.contract.calls import Call

    from .traces import Trace

    Array = numpy.ndarray[Any, Any]
    Arrays = Mapping[int | str, Array]
    """The inputs of a model, by their places among its arguments or by keyword."""

_MOST = 300
"""How many characters of a framework's error message are quoted."""
_CHANNELS = (1, 3, 4)
"""The usual numbers of channels of an image that is given to a model."""
IMAGES = ("conv", "conv_transpose", "batch_norm", "prelu", "instance_norm", "group_norm")
"""Kinds of layers that take images: an input with three axes to such a layer has an axis of channels, and is not a
sequence."""


@dataclass(frozen=True)
class ModelRun:
    """One run of a model or of a function: its result, and the trace of its layers' calls."""

    backend: Backend
    trace: Trace
    result: Any
    """The value that it returned, with tensors of its framework."""
    model: Any
    """The model whose layers are traced; None if a function holds none, or if a compiler hides its layers."""
    subject: Subject
    """The model or function that was run."""
    arrays: Arrays
    """The inputs that it was run on."""
    log: Log | None = None
    """The operations of the run; None if they were not kept."""

    def again(self) -> ModelRun:
        """Runs the model or function once more on the same inputs, uncompiled, and returns that run, with its
        operations in `log`. Raises `UnsupportedError` if the backend cannot show operations."""
        log = Log(self.backend.name)
        writer = LogWriter(self.backend, log)
        # a block in which nothing is compiled, because a compiler would hide the operations
        with self.backend.operation_calls(writer.run, writer.leaf):
            run = _run_even_if_hidden(self.subject, self.arrays)
        return replace(run, log=log)

    # cached, because it is asked for each output
    @cached_property
    def has_channels_last(self) -> bool | None:
        """Whether the model takes images with their channels last; None if that is not known, as in
        `Subject.has_channels_last`."""
        return self.subject.has_channels_last

    @cached_property
    def outputs(self) -> list[Array]:
        """The tensors in the result and in the containers inside it, as NumPy arrays."""
        return [
            numpy.asarray(self.backend.to_numpy(x))
            for x in layer_calls.tensors(self.backend, self.result)
        ]


def run_both(first: Any, second: Any, inputs: Any) -> tuple[ModelRun, ModelRun]:
    """Runs two models or functions on the same inputs, and returns both runs. `inputs` has a form that `arrays_of`
    takes, with the channels on the axis where `first` takes them; for `second`, they are moved to its axis."""
    arrays = arrays_of(inputs)
    first_subject, second_subject = subject_of(first), subject_of(second)
    # the first model runs before the inputs of the second are made, because the calls of its
    # layers show which inputs are images
    first_run = _run_even_if_hidden(first_subject, arrays)
    return first_run, _run_even_if_hidden(
        second_subject, taken_by(second_subject, arrays, first_run)
    )


def arrays_of(inputs: Any) -> Arrays:
    """Copies the inputs of a model to the host, and returns them as NumPy arrays. `inputs` is one tensor of any
    framework, a tuple of tensors, which are the model's arguments, or a dict of its keyword arguments. Raises
    `NotATensorError` for anything else, and `ArgumentError` for a dict with a key that is not a string."""
    # the arguments by their names or numbers
    is_named = isinstance(inputs, Mapping)
    arguments = (
        inputs
        if is_named
        else dict(enumerate(inputs if isinstance(inputs, tuple) else (inputs,)))
    )
    arrays: dict[int | str, Array] = {}
    for name, x in arguments.items():
        if is_named and not isinstance(name, str):
            raise ArgumentError(
                f"inputs= as a dict must have the names of the model's arguments as keys, got {shown(name)}"
            )
        owner = registry.kind_of(type(x))
        if owner is None or owner.kind != "tensor":
            raise NotATensorError(
                f"inputs= expects a tensor, a tuple of tensors, or a dict of keyword arguments, got {shown(x, 60)} "
                f"of type {type(x).__qualname__}"
            )
        arrays[name] = numpy.asarray(owner.backend.to_numpy(x))
    return arrays


def taken_by(second: Any, arrays: Arrays, first: ModelRun) -> Arrays:
    """The inputs of the run `first` as the model or function `second` takes them: images have their channels on the
    axis where `second` expects them. If the axis of either is not known, the inputs stay as they are."""
    first_is_last, second_is_last = (
        first.has_channels_last,
        subject_of(second).has_channels_last,
    )
    if first_is_last is None or second_is_last is None or first_is_last == second_is_last:
        return arrays
    return {
        name: distances.moved(x, second_is_last) if _is_image(x, first) else x
        for name, x in arrays.items()
    }


def _is_image(x: Array, first: ModelRun) -> bool:
    """Whether an input is a batch of images, and not of sequences. An array of four axes or more counts as images. For
    three axes, the kind of the layer that took the array in the run `first` decides; False if none took it."""
    if x.ndim != 3:
        return x.ndim > 3
    kinds = {layer.path: layer.kind for layer in first.backend.layers(first.model)}
    for call in first.trace.calls:
        taken = call.inputs[0].shape if call.inputs else ()
        # the first layer with parameters whose first input has three axes, of which the first two have the same
        # lengths, got this array
        if call.path in kinds and len(taken) == 3 and taken[:2] == x.shape[:2]:
            return kinds[call.path] in IMAGES
    return False


def message(error: BaseException) -> str:
    """An error's message in one line, cut to `_MOST` characters, without the codes that color it on a terminal."""
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())
    return text if len(text) <= _MOST else f"{text[:_MOST]} ..."


def _where(error: BaseException, traced: Trace) -> str:
    """The words that say in which layer, or after which layer, an error was raised."""
    # the path that `Watch.run` has set on the error; "" is the model itself
    path = getattr(error, layer_calls.FAILED, None)
    if path is not None:
        return f"in {path or 'itself'}"
    return f"after {traced.calls[-1].path}" if len(traced) else "before its first layer"


def _channels_hint(arrays: Arrays, is_last: bool | None) -> str:
    """A hint to be added to an error if an input looks like images whose channels are at the wrong end; otherwise "".
    `is_last` says whether the model takes the channels last; None if that is not known."""
    if is_last is None:
        return ""
    # the axis where the channels should not be, and the one where they should
    wrong, right = (1, -1) if is_last else (-1, 1)
    for x in arrays.values():
        if x.ndim in (4, 5) and x.shape[wrong] in _CHANNELS and x.shape[right] not in _CHANNELS:
            came = "first" if is_last else "last"
            return f"; {x.shape} looks like channels {came}; move this axis, or swap the two models"
    return ""


def _run_even_if_hidden(subject: Subject, arrays: Arrays) -> ModelRun:
    """Runs a model or a function with `run`, and returns the run. If `run` raises `UnsupportedError`, because a
    compiler hides the layers, runs it again without tracing layers; but raises the error if there is no model to
    trace."""
    try:
        return run(subject, arrays)
    except UnsupportedError:
        if subject.model is None:
            raise
        return run(subject, arrays, has_layers=False)


def run(
    x: Any,
    arrays: Arrays,
    give: Callable[[Call, Any], Any] | None = None,
    has_layers: bool = True,
) -> ModelRun:
    """Runs the model or function `x`, or a `Subject`, on copies of the inputs, and returns the run with its trace.

    With `give`, the model continues with `give(call, result)` in place of the result of each call of a layer. If
    `has_layers` is False, no layers are traced. Raises `ArgumentError` if the model fails on the inputs; the message
    says in which layer. Raises `DTypeError` if the backend lacks the dtype of an input.
    """
    subject = subject_of(x)
    backend, model = subject.backend, subject.model if has_layers else None
    # before the run, because JAX would narrow float64 without an error
    for array in arrays.values():
        require_dtype(
            backend,
            array.dtype.name,
            "inputs=",
            "pass inputs of another dtype",
            place=subject.device,
        )
    tensors = {
        # copies, because a model may write into its inputs, and the other model gets the same ones
        name: backend.from_numpy(numpy.array(array, order="C"), subject.device)
        for name, array in arrays.items()
    }
    named = {name: x for name, x in tensors.items() if isinstance(name, str)}
    with ExitStack() as stack:
        if give is not None:
            stack.enter_context(layer_calls.standing_in(give))
        traced = stack.enter_context(trace_of(subject.itself, backend, model))
        try:
            result = subject.infer(() if named else tuple(tensors.values()), named)
        # they have a message of their own, which needs no explanation
        except (XDeviceError, TimeoutError):
            raise
        except Exception as error:  # each framework and layer raises errors of its own
            shapes = ", ".join(
                f"{name} {x.shape}" if named else str(x.shape) for name, x in arrays.items()
            )
            kind = "function " if subject.is_function else ""
            raise ArgumentError(
                f"a {kind}{name_of(subject.itself)} of {backend.name} failed {_where(error, traced)} on inputs= of the "
                f"shape {shapes}; inputs= must have the layout that the first model, the source, takes"
                f"{_channels_hint(arrays, subject.has_channels_last)}: {type(error).__name__}: {message(error)}"
            ) from error
    return ModelRun(backend, traced, result, model, subject, arrays)
