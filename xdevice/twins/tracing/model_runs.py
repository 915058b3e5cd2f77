"""Runs models and functions in evaluation mode, on inputs from any framework. Traces the calls of their layers, and the
values that they record with `xdevice.parity.log`."""

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
    """The inputs of a model, by the index of the positional argument or by keyword."""

_MOST = 300
"""The maximum number of characters quoted from a framework's error message."""
_CHANNELS = (1, 3, 4)
"""The usual numbers of channels in images."""
IMAGES = ("conv", "conv_transpose", "batch_norm", "prelu", "instance_norm", "group_norm")
"""The kinds of layers that expect images. Their inputs with three axes are treated as images with a channel axis, not
as sequences."""


@dataclass(frozen=True)
class ModelRun:
    """One run of a model or of a function: its result, and the trace of its layers' calls."""

    backend: Backend
    trace: Trace
    result: Any
    """The value that the model or function returned, with tensors of its framework."""
    model: Any
    """The model whose layers are traced; None if a function contains no model, or if a compiler hides the layers."""
    subject: Subject
    """The model or function that was run."""
    arrays: Arrays
    """The inputs of the run."""
    log: Log | None = None
    """The operations of the run; None if they were not recorded."""

    def run_with_operations(self) -> ModelRun:
        """Runs the model or function once more on the same inputs, without compiling it. Returns the new run, with its
        operations in `log`. Raises `UnsupportedError` if the backend cannot record operations."""
        log = Log(self.backend.name)
        writer = LogWriter(self.backend, log)
        # in this block nothing is compiled, because a compiler would hide the operations
        with self.backend.operation_calls(writer.run, writer.add_gradient):
            run = _run_even_if_hidden(self.subject, self.arrays)
        return replace(run, log=log)

    # cached, because it is read for each output
    @cached_property
    def has_channels_last(self) -> bool | None:
        """Whether the model expects images with the channels last; None if this is not known. See
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
    """Runs two models or functions on the same inputs, and returns both runs. `inputs` may have any form that
    `arrays_of` accepts, with the channels on the axis that `first` expects. For `second`, the channels are moved to the
    axis that `second` expects."""
    arrays = arrays_of(inputs)
    first_subject, second_subject = subject_of(first), subject_of(second)
    # the first model runs before the inputs of the second model are prepared, because the calls of the first model's
    # layers show which inputs are images
    first_run = _run_even_if_hidden(first_subject, arrays)
    return first_run, _run_even_if_hidden(
        second_subject, inputs_for(second_subject, arrays, first_run)
    )


def arrays_of(inputs: Any) -> Arrays:
    """Copies the inputs of a model to the host, and returns them as NumPy arrays. `inputs` is a single tensor of any
    framework, a tuple of tensors (the model's positional arguments), or a dict of keyword arguments. Raises
    `NotATensorError` for anything else, and `ArgumentError` for a dict with a key that is not a string."""
    # the arguments by their names or indices
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
                f"the keys of a dict passed as inputs= must be the names of the model's arguments, got {shown(name)}"
            )
        owner = registry.owner_and_kind(type(x))
        if owner is None or owner.kind != "tensor":
            raise NotATensorError(
                f"inputs= expects a tensor, a tuple of tensors, or a dict of keyword arguments, got {shown(x, 60)} "
                f"of type {type(x).__qualname__}"
            )
        arrays[name] = numpy.asarray(owner.backend.to_numpy(x))
    return arrays


def inputs_for(second: Any, arrays: Arrays, first: ModelRun) -> Arrays:
    """Returns the inputs of the run `first` in the layout that the model or function `second` expects. Moves the
    channels of images to the axis where `second` expects them. Returns the inputs unchanged if this axis is not known
    for `first` or for `second`."""
    first_is_last, second_is_last = (
        first.has_channels_last,
        subject_of(second).has_channels_last,
    )
    if first_is_last is None or second_is_last is None or first_is_last == second_is_last:
        return arrays
    return {
        name: distances.move_channels(x, to_end=second_is_last) if _is_image(x, first) else x
        for name, x in arrays.items()
    }


def _is_image(x: Array, first: ModelRun) -> bool:
    """Whether an input is a batch of images, not of sequences. An array with four or more axes is treated as
    images. An array with three axes is treated as images if the kind of the layer that received it in the run `first`
    is in `IMAGES`. If no layer received it, returns False."""
    if x.ndim != 3:
        return x.ndim > 3
    kinds = {layer.path: layer.kind for layer in first.backend.layers(first.model)}
    for call in first.trace.calls:
        shape = call.inputs[0].shape if call.inputs else ()
        # it is assumed that the array was passed to the first layer with parameters whose first input has three axes,
        # the first two as long as the array's
        if call.path in kinds and len(shape) == 3 and shape[:2] == x.shape[:2]:
            return kinds[call.path] in IMAGES
    return False


def message(error: BaseException) -> str:
    """Returns an error's message as a single line, truncated after `_MOST` characters, and without codes for colours on
    a terminal."""
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())
    return text if len(text) <= _MOST else f"{text[:_MOST]} ..."


def _where(error: BaseException, traced: Trace) -> str:
    """Returns text for a message that says in which layer, or after which layer, an error was raised."""
    # the path that `Watch.run` has stored in the error; "" is the model itself
    path = getattr(error, layer_calls.FAILED, None)
    if path is not None:
        return f"in {path or 'its own code'}"
    return f"after {traced.calls[-1].path}" if len(traced) else "before its first layer"


def _channels_hint(arrays: Arrays, is_last: bool | None) -> str:
    """Returns a hint to be added to an error message if an input looks like images with the channels on the wrong axis;
    otherwise "". `is_last` says whether the model expects the channels last; None if this is not known."""
    if is_last is None:
        return ""
    # the axis where the channels should not be, and the axis where they should be
    wrong, right = (1, -1) if is_last else (-1, 1)
    for x in arrays.values():
        if x.ndim in (4, 5) and x.shape[wrong] in _CHANNELS and x.shape[right] not in _CHANNELS:
            place = "first" if is_last else "last"
            return (
                f"; {x.shape} looks like images with the channels {place}; move the axis of the channels, or swap the "
                f"two models"
            )
    return ""


def _run_even_if_hidden(subject: Subject, arrays: Arrays) -> ModelRun:
    """Runs a model or a function with `run`, and returns the run. If `run` raises `UnsupportedError` because a compiler
    hides the layers, calls `run` again without tracing layers. Does not catch the error if there is no model to
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
    substitute: Callable[[Call, Any], Any] | None = None,
    has_layers: bool = True,
) -> ModelRun:
    """Runs the model or function `x`, which may also be a `Subject`, on copies of the inputs, and returns the run with
    its trace.

    If `substitute` is not None, the model continues with `substitute(call, result)` in place of the result of each call
    of a layer. If `has_layers` is False, no layers are traced, as if there were no model.

    Raises:
        ArgumentError: if the model fails on the inputs; the message says in which layer.
        DTypeError: if the backend does not support the dtype of an input.
    """
    subject = subject_of(x)
    backend, model = subject.backend, subject.model if has_layers else None
    # checked before the run, because JAX would narrow float64 without an error
    for array in arrays.values():
        require_dtype(
            backend,
            array.dtype.name,
            "inputs=",
            "pass inputs of another dtype",
            place=subject.device,
        )
    tensors = {
        # copies, because a model may write into its inputs, which are also the inputs of the other model
        name: backend.from_numpy(numpy.array(array, order="C"), subject.device)
        for name, array in arrays.items()
    }
    named = {name: tensor for name, tensor in tensors.items() if isinstance(name, str)}
    # the names are either all strings, for keyword arguments, or all indices, for positional arguments
    with ExitStack() as stack:
        if substitute is not None:
            stack.enter_context(layer_calls.replacing_results(substitute))
        traced = stack.enter_context(trace_of(subject.itself, backend, model))
        try:
            result = subject.infer(() if named else tuple(tensors.values()), named)
        # the messages of these errors need no explanation
        except (XDeviceError, TimeoutError):
            raise
        except Exception as error:  # each framework and layer raises its own types of errors
            shapes = ", ".join(
                f"{name} {array.shape}" if named else str(array.shape)
                for name, array in arrays.items()
            )
            kind = "function " if subject.is_function else ""
            raise ArgumentError(
                f"a {kind}{name_of(subject.itself)} of {backend.name} failed {_where(error, traced)} on inputs= of the "
                f"shape {shapes}; inputs= must have the layout that the first model, the source, expects"
                f"{_channels_hint(arrays, subject.has_channels_last)}: {type(error).__name__}: {message(error)}"
            ) from error
    return ModelRun(backend, traced, result, model, subject, arrays)
