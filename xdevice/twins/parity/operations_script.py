"""`python -m xdevice.twins.parity.operations_script script.py` runs a script as Python does. It saves the operations
that the script runs and the gradients that it computes, with their numbers (`xdevice.twins.tracing.operations`).

The operations and gradients are written into the folder `operations` next to the recording when the program ends. The
file `operations.json` contains names, lines and keys, and `arrays.npz` contains the numbers by their keys.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy

from xdevice.core import registry, selection
from xdevice.errors import XDeviceError
from xdevice.twins.tracing import named_values
from xdevice.twins.tracing.operations import Gradient, Log, LogWriter, Operation

from . import recording
from .record_files import refusing_damage
from .tracing_script import enter_supported, script_to_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.contract import Backend

# the names of the folder and of its two files
FOLDER: Final = "operations"
_LISTS: Final = "operations.json"
_ARRAYS: Final = "arrays.npz"


def read(folder: Path) -> Log | None:
    """Reads the operations that a backend's process saved in its folder. Returns None if no operations were saved.

    Raises:
        RecordingError: if the files are damaged.
    """
    path = folder / FOLDER / _LISTS
    if not path.exists():
        return None
    with refusing_damage(path):
        about = json.loads(path.read_text(encoding="utf-8"))
        log = Log(about["owner"])
        log.operations = [
            Operation(name, line, tuple(inputs), tuple(outputs), is_backward)
            for name, line, inputs, outputs, is_backward in about["operations"]
        ]
        # JSON has turned tuples into lists, so the named tuples are created again
        log.gradients = [Gradient(*row) for row in about["gradients"]]
        log.roots, log.is_full = about["roots"], about["is_full"]
        with numpy.load(path.with_name(_ARRAYS), allow_pickle=False) as arrays:
            # `savez` numbers the arrays, so each array is matched with its key by order
            log.arrays = dict(
                zip(about["keys"], (arrays[name] for name in arrays.files), strict=True)
            )
    return log


def _write(log: Log, folder: Path) -> None:
    """Writes the operations into `folder`, which is the folder `operations` inside the backend's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _ARRAYS).open("wb") as file:
        numpy.savez(file, *log.arrays.values())
    about = {
        "owner": log.owner, "operations": log.operations, "gradients": log.gradients, "roots": log.roots,
        "is_full": log.is_full, "keys": list(log.arrays),
    }  # fmt: skip
    (folder / _LISTS).write_text(json.dumps(about), encoding="utf-8")


def _naming(backend: Backend, writer: LogWriter) -> Callable[..., Any]:
    """Returns a function that is called in place of each call of a model. It calls the model, and passes the names of
    the model's parameters to the writer."""
    done: dict[int, Any] = {}

    def around(model: Any, arguments: Any, call: Callable[[], Any]) -> Any:
        """Returns the result of `call`, which calls the model. After the model's first call, passes the names of its
        parameters to the writer."""
        # the call comes first, because a Keras model may have no parameters before its first call builds them
        result = call()
        # each model is handled once, and is kept alive because another object could otherwise get its id
        if id(model) not in done:
            done[id(model)] = model
            try:
                writer.name_tensors(backend.variables(model))
            except XDeviceError:
                # the object has no parameters; it may be a loss function
                return result
        return result

    return around


def main() -> None:
    """Runs the script at the path in the first command-line argument, and saves its operations."""
    script = script_to_run()
    backend = registry.load(os.environ[selection.VARIABLE])
    log = Log(backend.name)
    writer, process = LogWriter(backend, log), os.getpid()

    def close() -> None:
        """Writes the operations of this process. Called when the process ends."""
        # nothing is written in a forked child, which would overwrite the file of its parent, or if the backend cannot
        # report its operations
        if os.getpid() == process and log.operations:
            _write(log, Path(os.environ[recording.VARIABLE]) / FOLDER)

    with ExitStack() as stack:
        enter_supported(
            stack,
            lambda: backend.operation_calls(writer.run, writer.add_gradient),
            lacking="no operations are saved",
        )
        enter_supported(
            stack,
            lambda: backend.outermost(_naming(backend, writer)),
            lacking="parameters have no names",
        )
        # the values that the script logs are its results: operations that do not lead to them are not judged
        stack.enter_context(named_values.listening(writer.add_roots))
        # registered for exit, because a script may end with `sys.exit` or an error
        atexit.register(close)
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
