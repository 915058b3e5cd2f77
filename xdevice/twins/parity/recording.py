"""`record`: keeps values of a program in a folder, so that its runs on two frameworks or machines can be compared.

A recording is a folder of two files that are only appended to, so that a crash loses nothing recorded before it:

- `arrays.npy`: the values, one array after another in NumPy's own format, without pickle. bfloat16, which the format
  lacks, is kept as uint16.
- `index.jsonl`: a line of JSON with the versions of xdevice, Python and the backends that wrote the recording, then a
  line for each call of `record`, written after its values.

A line that a crash has cut short is not read.
"""

from __future__ import annotations

import os
from contextlib import contextmanager

from xdevice.errors import DTypeError, NotATensorError, RecordingError, shown

TYPE_CHECKING = False  # outside of a parity run this module is all that `record` imports
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from io import BufferedReader, BufferedWriter, TextIOWrapper
    from pathlib import Path
    from types import FrameType
    from typing import Any, Final

    from xdevice.containers.trees import Leaf

    from .readings import Reading

VARIABLE: Final = "XDEVICE_RECORD"
"""The environment variable with the folder to record into; `xdevice parity` sets it for each backend's process."""
FORMAT: Final = 1
INDEX: Final = "index.jsonl"
ARRAYS: Final = "arrays.npy"

_STORED_AS: Final = {"bfloat16": "uint16"}
DAMAGES: Final = (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError)
"""The errors that reading a file raises if it is missing, cut short, or of another format."""


def record(name: str, value: object) -> None:
    """Records a value under a name, to be compared with the value that the program records there on another framework.

    Young: it may change in a minor version.

    In a script that `xdevice parity` runs, or if the environment variable XDEVICE_RECORD names a folder, the value is
    written into that folder, with the line that called `record`. Calls with the same name are numbered as steps, from
    0. Otherwise `record` does nothing. docs/reference/parity.md says under which names the parts of models are kept.

    Args:
        name: the value's name in the report, such as "loss".
        value: a tensor, a model, a Python number, or a container of them. The program may change it afterwards.

    Raises:
        RecordingError: the name is empty or not a string, or the folder holds another process's recording already.
        NotATensorError: the value, or a leaf of it, is not a tensor, number, string or None.
        DTypeError: an 8-bit float, or another dtype that cannot be compared. UnsupportedError: a symbolic tensor.
        Also any error of a pending asynchronous computation of the value.

    Costs 0.1 us if nothing is recorded. Otherwise it waits for the value, copies it to the host and writes it, which
    takes 0.2 ms, and more for large values.

    Example:
        >>> for step in range(3):
        ...     xdevice.record("loss", xdevice.ones(1) * step)
    """
    if _recorder is not None:
        _recorder.add(name, value)


@contextmanager
def recording_to(folder: str | Path) -> Iterator[Recorder]:
    """A block in which `record` writes into a new recording in this folder, and nowhere else.

    Raises:
        RecordingError: the folder has a recording already.

    Example:
        >>> import tempfile
        >>> from xdevice.twins.parity.recording import Recording, recording_to
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with recording_to(folder):
        ...         xdevice.record("loss", 0.5)
        ...     Recording(folder).entries[0].name
        'loss'
    """
    global _recorder
    before, recorder = _recorder, Recorder(folder)
    if (recorder.folder / INDEX).exists():
        raise _is_taken(recorder.folder)
    _recorder = recorder
    try:
        yield recorder
    finally:
        _recorder = before
        recorder.close()


class Recorder:
    """Writes a recording. The first value that is added creates the files, and the folder if it does not exist.

    A process that the program spawns inherits XDEVICE_RECORD, and so has a recorder for the same folder. That does no
    harm until the child process records something.
    """

    def __init__(self, folder: str | Path) -> None:
        import threading
        from pathlib import Path

        self.folder = Path(folder)
        self._steps: dict[str, int] = {}
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._files: tuple[TextIOWrapper, BufferedWriter] | None = None

    def add(self, name: str, value: object) -> None:
        """Writes a value as the next step of its name."""
        from xdevice.contract import patching

        from . import readings

        if not isinstance(name, str) or not name:
            raise RecordingError(f"record takes a name and a value: record('loss', loss), not the name {shown(name)}")
        if os.getpid() != self._process:
            raise RecordingError(
                f"this process was forked from one that records into {self.folder}, and both would write there; "
                f"record in the first one"
            )
        with patching.unseen():
            leaves = [reading for leaf in readings.leaves(value) for reading in _read(leaf)]
        _refuse_unknown(name, leaves)
        where = _user_line()
        with self._lock:
            self._write(name, leaves, where)

    def close(self) -> None:
        """Closes the files, if any value has opened them."""
        for file in self._files or ():
            file.close()
        self._files = None

    def _write(self, name: str, leaves: list[Reading], where: str) -> None:
        import json
        import time

        index, arrays = self._files = self._files or self._open()
        step = self._steps.get(name, 0)
        line = {
            "name": name, "step": step, "time": time.time(), "where": where,
            "leaves": [_write_leaf(arrays, leaf) for leaf in leaves],
        }  # fmt: skip
        arrays.flush()
        index.write(json.dumps(line) + "\n")
        index.flush()
        self._steps[name] = step + 1

    def _open(self) -> tuple[TextIOWrapper, BufferedWriter]:
        import json

        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            index = (self.folder / INDEX).open("x", encoding="utf-8")
        except FileExistsError:
            raise _is_taken(self.folder) from None
        arrays = (self.folder / ARRAYS).open("wb")
        index.write(json.dumps(_header()) + "\n")
        index.flush()
        return index, arrays


def _read(leaf: Leaf) -> Iterable[Reading]:
    from xdevice.core import registry
    from xdevice.errors import XDeviceError
    from xdevice.twins.models.converting import convert_state

    from . import readings

    found = registry.kind_of(type(leaf.value))
    if found is None or found.kind != "model":
        return readings.read_leaf(leaf.path, leaf.value)
    try:
        state = convert_state(leaf.value, "numpy")
    except XDeviceError:  # not convertible, such as an optimizer; if it cannot be read, the next line raises
        return readings.read_leaf(leaf.path, leaf.value)
    whole = list(readings.read_leaf(leaf.path, leaf.value))
    if state.unmapped or not state:
        return whole
    places = {reading.device for reading in whole}
    place = places.pop() if len(places) == 1 else "several devices"
    tensors = [
        readings.read_tensor(registry.load("numpy"), f"{leaf.path}.{name}".lstrip("."), x) for name, x in state.items()
    ]
    return [reading._replace(device=place, owner=whole[0].owner) for reading in tensors]


def _user_line() -> str:
    """The file and line of the innermost stack frame that is not xdevice's own: `/home/ann/train.py:41`."""
    import sys

    frame: FrameType | None = sys._getframe(2)
    while frame is not None and _is_ours(frame.f_globals.get("__name__") or ""):
        frame = frame.f_back
    return f"{os.path.abspath(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""


def _is_ours(module: str) -> bool:
    root = module.partition(".")[0]
    return root == "xdevice" or root.startswith("xdevice_")


def _is_taken(folder: Path) -> RecordingError:
    return RecordingError(
        f"{folder} has a recording already, of an earlier run or of the process that started this one; "
        f"name another folder, or record in one process only"
    )


def _header() -> dict[str, Any]:
    import platform

    from xdevice.base import floats
    from xdevice.base.version import __version__
    from xdevice.core import registry

    return {
        "format": FORMAT,
        "xdevice": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "backend": _backend_name(),
        "floats": floats.setting(),
        "versions": {backend.name: backend.version for backend in registry.list_loaded()},
    }


def _backend_name() -> str | None:
    from xdevice.core import selection

    chosen = selection.explicit_choice()
    return chosen.name if chosen is not None else os.environ.get(selection.VARIABLE) or None


def _refuse_unknown(name: str, leaves: list[Reading]) -> None:
    from xdevice.base.dtypes import DTYPES

    for leaf in leaves:
        if leaf.owner != "Python":
            if leaf.dtype not in DTYPES:
                raise DTypeError(
                    f"cannot record {name}{leaf.path}: there is no rule for comparing {leaf.dtype}; "
                    f"convert it to one of {', '.join(DTYPES)}"
                )
        elif not leaf.is_number and not isinstance(leaf.value, str | None):
            raise NotATensorError(
                f"cannot record {name}{leaf.path}, {shown(leaf.value)} of type {leaf.dtype}; "
                f"expected tensors, models, numbers, texts or None, and containers of them"
            )


def _write_leaf(arrays: BufferedWriter, leaf: Reading) -> dict[str, Any]:
    import numpy

    line = {"path": leaf.path, "dtype": leaf.dtype, "device": leaf.device, "owner": leaf.owner}
    if not isinstance(leaf.value, numpy.ndarray):
        return {**line, "value": repr(leaf.value) if leaf.is_number else leaf.value}
    stored = numpy.ascontiguousarray(leaf.value).reshape(leaf.value.shape)
    if leaf.dtype in _STORED_AS:
        stored = stored.view(_STORED_AS[leaf.dtype])
    place = arrays.tell()
    numpy.save(arrays, stored, allow_pickle=False)
    return {**line, "shape": list(leaf.shape), "at": place}


class RecordedCall:
    """One call of `record`, read from a recording: its name and step, and its values, which stay in the file until
    `read` reads them."""

    def __init__(
        self, name: str, step: int, time: float, leaves: list[dict[str, Any]], arrays: Path, where: str = ""
    ) -> None:
        self.name = name
        self.step = step
        self.time = time
        """The time of the call, in seconds since 1970."""
        self.where = where
        """The line that called `record`, such as `/home/ann/train.py:41`; empty if an earlier version of xdevice, which
        did not store it, wrote the recording."""
        self._leaves = leaves
        self._arrays = arrays

    def dtypes(self) -> dict[str, str]:
        """The dtype of each leaf by the leaf's path. The values are not read for this."""
        return {str(leaf["path"]): str(leaf["dtype"]) for leaf in self._leaves}

    def read(self) -> list[Reading]:
        """Reads the leaves of the recorded value, as `readings.read` gave them when it was recorded.

        Raises:
            RecordingError: the files are damaged, or one is missing.
        """
        try:
            if not any("at" in leaf for leaf in self._leaves):
                return [_plain(leaf) for leaf in self._leaves]
            with self._arrays.open("rb") as file:
                return [_tensor(leaf, file) if "at" in leaf else _plain(leaf) for leaf in self._leaves]
        except DAMAGES as error:
            raise file_error(self._arrays, error, f" at {self.name}, step {self.step}") from error


class Recording:
    """A recording read from its folder: a header that says which versions wrote it, and the recorded calls in program
    order.

    Raises:
        RecordingError: the folder has no recording, a damaged one, or one of a newer format.
    """

    def __init__(self, folder: str | Path) -> None:
        import json
        from pathlib import Path

        self.folder = Path(folder)
        path, arrays = self.folder / INDEX, self.folder / ARRAYS
        if not path.exists():
            raise RecordingError(
                f"{self.folder} has no recording: there is no {INDEX}. xdevice parity --save writes one for each "
                f"backend that calls xdevice.record"
            )
        try:
            text = path.read_text(encoding="utf-8")
            # a crash may have cut the last line short, so what is behind the last newline is not read
            header, *lines = [json.loads(line) for line in text.split("\n")[:-1]]
            if header["format"] != FORMAT:
                raise ValueError(f"its format is {header['format']!r}, this xdevice reads {FORMAT}")
            self.header: dict[str, Any] = {**header, "versions": dict(header["versions"]), "backend": header["backend"]}
            """What wrote the recording: the versions of xdevice, Python and the loaded backends, and the name of the
            selected backend."""
            self.entries: list[RecordedCall] = [
                RecordedCall(
                    str(line["name"]),
                    int(line["step"]),
                    float(line["time"]),
                    list(line["leaves"]),
                    arrays,
                    str(line.get("where", "")),
                )
                for line in lines
            ]
        except DAMAGES as error:
            raise file_error(path, error) from error


def file_error(path: Path, error: Exception, where: str = "") -> RecordingError:
    """The `RecordingError` for a file that cannot be read. `error` is the reason; `where` says at which recorded
    value."""
    return RecordingError(f"{path} is damaged{where}, or of another version of xdevice: {error!r}; record it again")


def _plain(line: dict[str, Any]) -> Reading:
    from .readings import NUMBERS, Reading

    kinds = {kind.__name__: kind for kind in NUMBERS if kind is not bool}
    value: Any = line["value"]
    if line["dtype"] == "bool":
        value = value == "True"
    elif line["dtype"] in kinds:
        value = kinds[line["dtype"]](value)
    return Reading(line["path"], value, line["dtype"], None, line["owner"])


def _tensor(line: dict[str, Any], file: BufferedReader) -> Reading:
    import numpy

    from xdevice.base.dtypes import host_dtype

    from .readings import Reading

    file.seek(line["at"])
    array: Any = numpy.load(file, allow_pickle=False)
    if line["dtype"] in _STORED_AS:
        array = array.view(host_dtype(line["dtype"]))
    return Reading(line["path"], array, line["dtype"], line["device"], line["owner"])


def _from_environment() -> Recorder | None:
    folder = os.environ.get(VARIABLE)
    return Recorder(folder) if folder else None


_recorder: Recorder | None = _from_environment()
"""The recorder that `record` writes with; None if nothing is to be recorded."""
