"""`python -m xdevice.twins.parity.tracing_script script.py` runs a script as Python does. It saves the values that the
layers of the script's models compute.

The traces are written into the folder `trace` next to the recording. The arrays are stored in the format of `log`. Each
traced call of a model has a line in the file `runs.jsonl`. The line lists the model's layers with their kinds, shapes
and settings, and the calls of these layers. For a model that cannot be traced, a line gives the reason.

A model is traced only if no other model calls it and `convert_state` knows its parameters. Two groups of its calls are
traced: the first three calls for each shape of inputs, and the 1st, 2nd, 4th, 8th, ... call. A call is written only
when the model is called again or the program ends, because the gradients of the call may be computed until then.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice.contract.private import AbsentNameError
from xdevice.core import registry, selection
from xdevice.errors import NotBuiltError, UnsupportedError, XDeviceError
from xdevice.twins.contract import calls as layer_calls
from xdevice.twins.models.reading import read_model
from xdevice.twins.tracing.traces import Trace

from . import recording
from .record_files import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from xdevice.contract import Backend
    from xdevice.twins.contract.calls import Call

# the name of the folder next to the recording, and the name of the file with the lines
FOLDER: Final = "trace"
RUNS: Final = "runs.jsonl"
FIRST: Final = 3
"""The number of calls that are always traced for each set of input shapes."""


class _OpenCall(NamedTuple):
    """A call of a model that has not been written yet, because gradients of this call may still be computed. Its layers
    are still being watched."""

    block: AbstractContextManager[Any]
    """The open block of `Backend.calls`."""
    line: dict[str, Any]
    """The entry of the call in the file `runs.jsonl`, without the layers and their calls."""
    inputs: tuple[Any, ...]
    """Copies of the tensors that were passed to the model."""
    outputs: tuple[Any, ...] = ()
    """Copies of the tensors that the model returned."""
    trace: Trace | None = None
    """The calls of the model's layers during this call; None until the model has returned."""


class _TracedModel:
    """The tracer's record of one model of the program: the model's number, its calls so far and, if the model cannot be
    traced, the reason."""

    def __init__(self, number: int, itself: Any) -> None:
        self.number = number
        self.itself = itself  # kept alive, because the tracer identifies models by their id
        self.count = 0
        """The number of calls so far, whether traced or not."""
        self.shapes: dict[Any, int] = {}
        """The number of calls, by the shapes of their inputs."""
        self.refusal = ""
        """The reason why the model cannot be traced; empty if it can."""
        self.open: dict[int, _OpenCall] = {}
        """The last traced call of each thread, by the thread's id. The entry is removed when the call is written."""


class Tracer:
    """Traces the calls of a program's models, and writes the traces into a folder. `main` creates it."""

    def __init__(self, backend: Backend, folder: Path) -> None:
        self._backend = backend
        self._folder = folder
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._models: dict[int, _TracedModel | None] = {}
        """The record of each model, by the model's id; None for a model that is not traced."""
        self._recorder = Recorder(folder)

    def around(self, model: Any, arguments: Any, call: Callable[[], Any]) -> Any:
        """Returns the result of `call`, which calls `model` with `arguments`. Traces the call if it is one of those to
        trace. The backend passes every call of a model to this method, except for calls made by other models."""
        # a forked child shares the open files, so it must not write anything
        traced = self._model_of(model) if os.getpid() == self._process else None
        if traced is None:
            return call()
        thread = threading.get_ident()
        # no more gradients will be computed for the thread's previous call of this model
        with self._lock:
            self._write(traced, thread)
        if not self._count_and_choose(traced, arguments):
            return call()
        # entered without `with`, because the block stays open after this method returns; `_write` closes it
        block = self._backend.calls(model)
        try:
            calls: list[Call] = block.__enter__()
        except XDeviceError as error:
            self._refuse(traced, str(error))
            return call()
        # the tensors are copied, because the program may write into them; a watch without layers makes the copies
        copies = layer_calls.Watch(self._backend, {}).copies
        line = {
            "model": traced.number, "type": type(model).__name__, "run": traced.count - 1, "time": time.time(),
        }  # fmt: skip
        # stored before the call, so that `_write` closes the block if the model raises an error
        opened = traced.open[thread] = _OpenCall(block, line, copies(arguments))
        result = call()
        # `list` makes a copy, because the block stays open and adds later calls, which are not part of this one
        trace = Trace(model, self._backend, list(calls))
        traced.open[thread] = opened._replace(outputs=copies(result), trace=trace)
        return result

    def close(self) -> None:
        """Writes the calls that have not been written yet, and closes the files. Does nothing in a forked child of the
        process that created the tracer."""
        if os.getpid() != self._process:
            return
        with self._lock:
            for traced in filter(None, self._models.values()):
                for thread in list(traced.open):
                    self._write(traced, thread)
            self._recorder.close()

    def _model_of(self, model: Any) -> _TracedModel | None:
        """Returns the tracer's record of a model. Returns None if the model is not built yet, or if it has no
        parameters that can be paired with another model's parameters (a loss function, for example)."""
        with self._lock:
            if id(model) not in self._models:
                try:
                    has_layers = bool(list(self._backend.layers(model)))
                except NotBuiltError:
                    # this is the first call, which builds the model; before that, the model has no layers
                    return None
                # this is an `UnsupportedError` too, but it is about a private name that this version of the framework
                # lacks, and not about the model
                except AbsentNameError:
                    raise
                except UnsupportedError:
                    has_layers = False
                number = len([traced for traced in self._models.values() if traced is not None])
                self._models[id(model)] = _TracedModel(number, model) if has_layers else None
            return self._models[id(model)]

    def _count_and_choose(self, traced: _TracedModel, arguments: Any) -> bool:
        """Counts a call of a model, and returns whether the call is to be traced (see the module's docstring)."""
        if traced.refusal:
            return False
        if self._backend.tracing():
            self._refuse(
                traced,
                f"it is called inside {self._backend.tracing()}, where layers have no values",
            )
            return False
        shapes = tuple(tuple(x.shape) for x in layer_calls.tensors(self._backend, arguments))
        with self._lock:
            traced.count += 1
            traced.shapes[shapes] = traced.shapes.get(shapes, 0) + 1
            # n & (n - 1) is 0 if n is a power of two, because such a number has a single bit set: of a million calls,
            # 20 are traced
            return traced.shapes[shapes] <= FIRST or traced.count & (traced.count - 1) == 0

    def _refuse(self, traced: _TracedModel, why: str) -> None:
        """Stops tracing a model permanently, and writes the reason into the file."""
        traced.refusal = why
        self._append_line(
            {"model": traced.number, "type": type(traced.itself).__name__, "refusal": why}
        )

    def _layers(self, model: Any) -> list[dict[str, Any]]:
        """Returns the layers of a model for JSON: path, kind, shapes of the parameters, and settings."""
        twin = read_model(self._backend, model)
        return [
            {
                "path": layer.path,
                "kind": layer.kind,
                "shapes": {name: list(shape) for name, shape in twin.shapes(layer).items()},
                "settings": {name: _for_json(value) for name, value in layer.settings.items()},
            }
            for layer in twin.layers
        ]

    def _write(self, traced: _TracedModel, thread: int) -> None:
        """Ends the model's last traced call in a thread, if there is one, and writes the call unless the call raised an
        error."""
        opened = traced.open.pop(thread, None)
        if opened is None:
            return
        opened.block.__exit__(None, None, None)
        # the call has raised an error
        if opened.trace is None:
            return
        # a gradient may still be computed asynchronously
        self._backend.synchronize(None)
        key = f"{traced.number}.{opened.line['run']}"
        inputs, outputs = (
            [self._backend.to_numpy(x) for x in tensors]
            for tensors in (opened.inputs, opened.outputs)
        )
        self._recorder.add(key, {"inputs": inputs, "outputs": outputs})
        calls = []
        for number, call in enumerate(opened.trace.calls):
            # the path and the type of a call are emptied here, because they are in the call's line
            self._recorder.add(f"{key}.{number}", call._asdict() | {"path": "", "type": ""})
            calls.append([call.path, call.number, call.type])
        more = {
            "layers": self._layers(traced.itself), "calls": calls,
            "channels_last": self._backend.has_channels_last(traced.itself),
        }  # fmt: skip
        self._append_line(opened.line | more)

    def _append_line(self, line: dict[str, Any]) -> None:
        """Appends a line of JSON to `runs.jsonl`."""
        # opened for each line, so that a later crash loses nothing
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / RUNS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _for_json(value: object) -> Any:
    """Returns a setting in a form that JSON can express. Numbers, strings, None and lists of these are unchanged;
    anything else is converted to a string."""
    if isinstance(value, list | tuple):
        return [_for_json(x) for x in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def main() -> None:
    """Runs the script at the path in the first command-line argument, and traces its models."""
    script = script_to_run()
    backend = registry.load(os.environ[selection.VARIABLE])
    tracer = Tracer(backend, Path(os.environ[recording.VARIABLE]) / FOLDER)
    atexit.register(tracer.close)
    with ExitStack() as stack:
        enter_supported(
            stack, lambda: backend.outermost(tracer.around), lacking="nothing is traced"
        )
        runpy.run_path(script, run_name="__main__")


def enter_supported(
    stack: ExitStack, block: Callable[[], AbstractContextManager[Any]], lacking: str
) -> None:
    """Enters the block that `block()` returns. If the backend does not support the block, prints `lacking` and the
    reason to standard error instead. The script then runs without the block, because the values that it records can
    still be compared."""
    try:
        stack.enter_context(block())
    except UnsupportedError as error:
        print(f"{lacking}: {error}", file=sys.stderr)


def script_to_run() -> str:
    """Returns the path of the script, which is the first command-line argument. Changes `sys.argv` and `sys.path` to
    the values that they would have if Python ran the script directly."""
    # removes the path of this module
    del sys.argv[0]
    # Python puts the script's folder first, so that the script can import modules from that folder
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    return sys.argv[0]


if __name__ == "__main__":
    main()
