"""`python -m xdevice.twins.parity.in_float64 script.py`: runs a script in float64. If an error ends it, the variables
of the script that are float32 all the same are named, with the lines that made them.

A framework's own function keeps the float32 of a NumPy array, and the framework's error about two dtypes names neither
the variable nor the line.
"""

from __future__ import annotations

import ast
import linecache
import runpy
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice.base.dtypes import dtype_name
from xdevice.core import registry, selection
from xdevice.errors import XDeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType

_NARROW: Final = ("float32", "complex64")
_NAMED: Final = 3
"""How many variables are named at most. The report of a run shows the last six lines that a process wrote."""
_ADVICE: Final = "float32 in a run in float64; xdevice.tensor(array) makes float64 of it, array.astype('float64') too:"


class _NarrowVariable(NamedTuple):
    name: str
    frame: FrameType


def run(script: str) -> None:
    """Runs a script as Python does; an error that ends it is followed by the variables that are float32."""
    folder = Path(script).resolve().parent

    def explain(cls: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.__excepthook__(cls, error, trace)
        with suppress(Exception):  # the script's own error has been shown, and no other one may take its place
            print(*describe(trace, folder), sep="\n", file=sys.stderr)

    # not `except`: the traceback is to look as it does without xdevice
    sys.excepthook = explain
    runpy.run_path(script, run_name="__main__")


def describe(trace: TracebackType | None, folder: Path) -> list[str]:
    """Says which variables are float32 in the functions of the program, in `folder`, that an error has left; the
    variables of the innermost function come first. Nothing if there are none."""
    frames = [
        frame for frame, _ in traceback.walk_tb(trace) if folder in Path(frame.f_code.co_filename).resolve().parents
    ]
    variables: dict[int, _NarrowVariable] = {}
    for frame in reversed(frames):
        for name, value in frame.f_locals.items():
            if _is_narrow(value):
                # an outer function made what an inner one was given
                inner = variables.get(id(value))
                variables[id(value)] = _NarrowVariable(inner.name if inner else name, frame)
    lines = [_line(one, key) for key, one in list(variables.items())[:_NAMED]]
    return [_ADVICE, *lines] if lines else []


def _is_narrow(value: Any) -> bool:
    kind = registry.kind_of(type(value))
    if kind is None or kind.backend is not selection.current():
        return False
    if kind.kind == "tensor":
        return dtype_name(value.dtype) in _NARROW
    try:
        return any(dtype_name(x.dtype) in _NARROW for _, x in kind.backend.variables(value))
    except XDeviceError:
        return False


def _line(one: _NarrowVariable, key: int) -> str:
    """One variable as text: its name, and the line that made it."""
    name = next(name for name, value in one.frame.f_locals.items() if id(value) == key)
    file = one.frame.f_code.co_filename
    number = max(_assignments(file, name, one.frame), default=one.frame.f_code.co_firstlineno)
    return f"  {one.name}: {Path(file).name}:{number}: {linecache.getline(file, number).strip()}"


def _assignments(file: str, name: str, frame: FrameType) -> Iterator[int]:
    """The lines of a frame's code that give a value to a variable, up to the line where the frame is."""
    code = frame.f_code
    is_module = code.co_name == "<module>"
    names = (node for node in ast.walk(ast.parse("".join(linecache.getlines(file)))) if isinstance(node, ast.Name))
    for node in names:
        is_set = isinstance(node.ctx, ast.Store) and node.id == name
        if is_set and (is_module or node.lineno >= code.co_firstlineno) and node.lineno <= frame.f_lineno:
            yield node.lineno


def script_to_run() -> str:
    """Returns the script that the command-line arguments name, for which they then are what they are under Python."""
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    return sys.argv[0]


if __name__ == "__main__":
    run(script_to_run())
