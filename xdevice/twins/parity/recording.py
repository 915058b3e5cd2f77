"""Defines `log`, which saves values of a program in a folder. Two runs of the program on different frameworks or
machines can then be compared. The module `record_files` describes the contents of the folder."""

from __future__ import annotations

import os
from contextlib import contextmanager

from xdevice.twins.tracing.named_values import listeners

# not imported from `typing`, because that import takes time even in a program that calls `log` but records nothing
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Final

    from .record_files import Recorder

VARIABLE: Final = "XDEVICE_RECORD"
"""The environment variable that names the folder to record into; `xdevice parity` sets it for each backend's
process."""


def log(name: str, value: object) -> None:
    """Records a value under a name, so that it can be compared with the value of the same name on another framework.

    Experimental: it may change in a minor version.

    If XDEVICE_RECORD names a folder, the value is written into it, with the line that called `log`. `xdevice parity`
    sets this environment variable. Calls with the same name are numbered as steps, from 0. Without the variable, `log`
    does nothing. docs/reference/parity.md explains how models are recorded.

    Args:
        name: the value's name in the report, such as "loss".
        value: a tensor, a model, a Python number, or a container of these. The program may change it afterwards.

    Raises:
        RecordingError: if the name is empty or not a string, or if the folder has another process's recording.
        NotATensorError: if the value, or a leaf of it, is not a tensor, number, string or None.
        DTypeError: if a dtype cannot be compared, such as an 8-bit float. UnsupportedError: if a tensor is symbolic.
        NotBuiltError: if a model has no variables yet. ContainerError: if the contents of a container cannot be listed.
        Errors of a pending asynchronous computation of the value are raised too.

    Takes 0.1 us if nothing is recorded. Otherwise waits for the value, copies it to the host and writes it, which takes
    0.2 ms, or more for large values.

    Example:
        >>> for step in range(3):
        ...     xdevice.parity.log("loss", xdevice.ones(1) * step)
    """
    # blocks in this process, such as `capture_intermediates`, receive each value too
    for listener in listeners:
        listener(name, value)
    if _recorder is not None:
        _recorder.add(name, value)


@contextmanager
def recording_to(folder: str | Path) -> Iterator[Recorder]:
    """Opens a block in which `log` writes into a new recording in `folder`, instead of the folder in XDEVICE_RECORD.
    Yields the `Recorder`.

    Raises:
        RecordingError: if the folder has a recording already.

    Example:
        >>> import tempfile
        >>> from xdevice.twins.parity.record_files import Recording
        >>> from xdevice.twins.parity.recording import recording_to
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with recording_to(folder):
        ...         xdevice.parity.log("loss", 0.5)
        ...     Recording(folder).entries[0].name
        'loss'
    """
    from .record_files import INDEX, Recorder, already_recorded_error

    global _recorder
    # the folder is checked before the block, so that the error is raised before the program computes anything
    previous, recorder = _recorder, Recorder(folder)
    if (recorder.folder / INDEX).exists():
        raise already_recorded_error(recorder.folder)
    _recorder = recorder
    try:
        yield recorder
    finally:
        _recorder = previous
        recorder.close()


def _from_environment() -> Recorder | None:
    """Returns the recorder for the folder in XDEVICE_RECORD; None if the variable is not set."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    # imported only here, because it loads most of xdevice
    from .record_files import Recorder

    return Recorder(folder)


_recorder: Recorder | None = _from_environment()
"""The recorder that `log` uses; None if nothing is to be recorded."""
