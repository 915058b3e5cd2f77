"""Defines `capture_intermediates`, which records the calls of a model's layers in a block, with copies of their inputs
and outputs on the host."""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy

from xdevice.twins.contract.calls import Call, Watch, symbols

from . import functions, named_values
from .distances import to_double

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdevice.contract import Backend

    Array = numpy.ndarray[Any, Any]

_SHOWN: Final = 60
"""The maximum number of calls in a table. For a longer trace, the table shows only the first and the last calls."""
# the last line of the table of an empty trace
_NOTHING: Final = (
    "no layer was called in this thread or task, or a compiler has hidden the calls"
)
RECORD: Final = "log"
"""The type of an entry for a value that the program recorded with `xdevice.parity.log`."""
# the headings of the table's columns; mean and std are computed from the first output
_HEADINGS: Final = ("layer", "type", "output", "mean", "std", "gradient")


class LayerCall(NamedTuple):
    """One call of a layer. Its tensors are NumPy arrays with the framework's own layouts and dtypes.

    Experimental: it may change in a minor version.
    """

    path: str
    """The path from the model to the layer, as in the names of the layer's variables: `features.0`."""
    number: int
    """The number of earlier calls of the same layer in the trace."""
    type: str
    """The name of the layer's class. For the activation inside a Keras layer, which is a function, this is the name of
    the function. For a value that the program records with `xdevice.parity.log`, it is `log`."""
    inputs: tuple[Array, ...]
    """The tensors among the arguments of the call, including those in containers."""
    outputs: tuple[Array, ...]
    gradients: tuple[Array | None, ...]
    """The gradient of each output; None for an output that no gradient has reached."""


class Trace:
    """The calls of a model's layers, in the order in which `capture_intermediates` recorded them. `print` shows a table
    of the calls.

    Experimental: it may change in a minor version.

    Attributes:
        model: the model or function that was passed to `capture_intermediates`.
        backend: the name of the model's framework.
        calls: a list of `LayerCall`: path, number, type, inputs, outputs, gradients.
    """

    def __init__(self, model: Any, backend: Backend, recorded: list[Call]) -> None:
        self.model = model
        self.backend = backend.name
        self._backend = backend
        # the list to which the backend appends calls while the block is open
        self._recorded = recorded
        self.hidden: list[str] = []
        """The names under which the program recorded tensors without values, because a compiler was tracing the
        function."""
        self._read: list[LayerCall] = []
        """The calls as they were last copied to the host."""
        self._is_open = True

    @property
    def calls(self) -> list[LayerCall]:
        """The calls that have ended so far, in order. Reading this attribute copies the tensors to the host."""
        # read again while the block is open, because gradients may still arrive. If there are no calls, reading again
        # costs nothing
        if self._is_open or not self._read:
            self._read = self._read_calls()
        return self._read

    def _read_calls(self) -> list[LayerCall]:
        """Copies all recorded calls to the host and returns them. The calls of each layer are numbered."""
        counts: dict[str, int] = {}
        calls = []
        for call in self._recorded:
            # the first call of a layer has the number 0
            counts[call.path] = number = counts.get(call.path, -1) + 1
            calls.append(self._read_call(call, number))
        return calls

    def _read_call(self, call: Call, number: int) -> LayerCall:
        """Copies one call to the host and returns it. `number` is the number of earlier calls of the same layer."""
        # an entry for a recorded value has `RECORD` in place of a layer. For a function, its own name is used; for a
        # layer, the name of its class
        name = (
            call.layer
            if call.layer is RECORD
            else getattr(call.layer, "__name__", type(call.layer).__name__)
        )
        inputs, outputs = (
            tuple(map(self._array, tensors)) for tensors in (call.inputs, call.outputs)
        )
        gradients = tuple(None if dy is None else self._array(dy) for dy in call.gradients)
        return LayerCall(call.path, number, name, inputs, outputs, gradients)

    def _array(self, x: Any) -> Array:
        """Returns a tensor of the framework as a NumPy array."""
        return numpy.asarray(self._backend.to_numpy(x))

    def add(self, call: Call) -> None:
        """Adds an entry for a value that the program recorded, after all previous calls."""
        self._recorded.append(call)

    def finish(self) -> None:
        """Marks the trace as complete, at the end of the block of `capture_intermediates`. From then on, `calls` copies
        the tensors to the host only once."""
        self._is_open = False

    def __len__(self) -> int:
        return len(self._recorded)

    def __str__(self) -> str:
        rows = [_HEADINGS, *self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        calls = f"{len(self)} call{'' if len(self) == 1 else 's'} of layers"
        title = f"{functions.name_of(self.model)} of {self.backend}: {calls}"
        return "\n".join([title, *(lines if len(self) else [_NOTHING])])

    __repr__ = __str__

    def _rows(self) -> list[tuple[str, ...]]:
        """Returns the rows of the table, without the headings. The table of a long trace has a row with "..." in the
        middle."""
        calls, half = self.calls, _SHOWN // 2
        if len(calls) <= _SHOWN:
            return list(map(_row, calls))
        gap = ("...", *[""] * (len(_HEADINGS) - 1))
        return [*map(_row, calls[:half]), gap, *map(_row, calls[-half:])]


@contextmanager
def capture_intermediates(model: Any) -> Iterator[Trace]:
    """Records the inputs and outputs of a model's layers while the block runs, in the order of the calls. Also records
    the values that the program passes to `xdevice.parity.log`.

    Experimental: it may change in a minor version.

    Yields a `Trace`. Its attribute `calls` contains the path, the inputs and the outputs of each call of a layer. If
    the block also runs the backward pass, `calls` contains the gradients of the outputs too. docs/reference/tracing.md
    lists the calls that are recorded. Traces may be nested. The model is not changed.

    Args:
        model: a built model of PyTorch, Paddle, Gluon, Keras or Flax; or a function that calls one model.

    Raises:
        NotATensorError: if `model` is not a model or function. ArgumentError: if a function's framework is unclear.
        NotBuiltError: if the model has no variables yet; call it once before tracing.
        UnsupportedError: if a compiler hides the layers (torch.compile, TorchScript, a hybridized Gluon block,
            paddle.jit.to_static, tf.function), or the model is a DataParallel over several devices.

    Every input and output is copied: a traced pass takes 1.2 to 2.6 times the CPU time of a pass without the trace.

    Example:
        >>> with xdevice.parity.capture_intermediates(xdevice.ones(2)):
        ...     pass
        Traceback (most recent call last):
        xdevice.errors.NotATensorError: capture_intermediates expects a model or a function, not ...
    """
    subject = functions.subject_of(model, "capture_intermediates expects a model or a function")
    with trace_of(subject.itself, subject.backend, subject.model) as traced:
        yield traced


@contextmanager
def trace_of(itself: Any, backend: Backend, model: Any) -> Iterator[Trace]:
    """Traces `itself`, a model or a function, while the block is open. Yields the `Trace`. The trace contains the
    values that this thread records with `xdevice.parity.log` and, unless `model` is None, the calls of the layers of
    `model`."""
    # without a model, nothing but the listener adds to the list
    with nullcontext([]) if model is None else backend.calls(model) as recorded:
        traced = Trace(itself, backend, recorded)
        with named_values.listening(_listener_to_log(backend, traced)):
            try:
                yield traced
            finally:
                traced.finish()


def _listener_to_log(backend: Backend, traced: Trace) -> Callable[[str, object], None]:
    """Returns a listener for `xdevice.parity.log`. It adds each value that this thread records to the trace, as if the
    value were the output of a layer of that name."""
    # a watch without layers, which only copies tensors
    watch, thread = Watch(backend, {}), threading.get_ident()

    def note(name: str, value: object) -> None:
        """Adds a value to the trace if this thread records it. `name` is the name under which it is recorded."""
        # values from other threads are ignored, because their place among this thread's calls is not defined
        if threading.get_ident() != thread:
            return
        if next(symbols(backend, value), None) is not None:
            # a compiler is tracing the function, with tensors that have no values
            traced.hidden.append(name)
            return
        copies = watch.copies(value)
        # numbers and strings are ignored, because a trace contains only tensors
        if copies:
            traced.add(
                Call(name, RECORD, inputs=(), outputs=copies, gradients=[None] * len(copies))
            )

    return note


def name_of_call(call: LayerCall) -> str:
    """Returns the layer's path and class and, from its second call on, the number of the call:
    `features.0 (Conv2d, call 2)`."""
    again = f", call {call.number + 1}" if call.number else ""
    return f"{call.path or 'the model'} ({call.type}{again})"


def _row(call: LayerCall) -> tuple[str, ...]:
    """Returns the row of the table for one call. The last cell is the largest absolute value of the first gradient, or
    "-" if there is no gradient."""
    name = call.path or "(the model)"
    name += f" #{call.number + 1}" if call.number else ""
    shapes = ", ".join(str(tuple(x.shape)) for x in call.outputs)
    # an empty output has no mean
    first = call.outputs[0] if call.outputs and call.outputs[0].size else None
    gradient = next((dy for dy in call.gradients if dy is not None), None)
    mean, std = (
        ("-", "-")
        if first is None
        else (f"{to_double(first).mean():.4g}", f"{to_double(first).std():.4g}")
    )
    return (
        name,
        call.type,
        shapes,
        mean,
        std,
        "-" if gradient is None else f"{numpy.abs(to_double(gradient)).max():.4g}",
    )
