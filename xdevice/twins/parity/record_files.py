"""Writes and reads recordings. A recording is a folder with two files. Data is only ever appended to them, so a crash
loses nothing that was recorded before it:

- `arrays.npy` contains the values, one array after another in NumPy's own format, without pickle. bfloat16, which the
  format lacks, is stored as uint16.
- `index.jsonl` begins with a line of JSON with the versions of xdevice, Python and the backends that wrote the
  recording. A line for each call of `log` follows, written after the values of the call. An incomplete line, left by a
  crash, is ignored.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy

from xdevice.base import floats
from xdevice.base.dtypes import DTYPES, host_dtype
from xdevice.base.version import __version__
from xdevice.contract import patching
from xdevice.core import registry, selection
from xdevice.errors import DTypeError, NotATensorError, RecordingError, XDeviceError, shown
from xdevice.twins.models.converting import convert_state
from xdevice.twins.tracing.operations import program_line

from .host_leaves import NUMBERS, PYTHON, HostLeaf, joined_path, leaves, read_leaf, read_tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from io import BufferedReader, BufferedWriter, TextIOWrapper

    from xdevice.containers.trees import Leaf

FORMAT: Final = 1
"""The version of the format. Recordings in any other version are rejected."""
INDEX: Final = "index.jsonl"
ARRAYS: Final = "arrays.npy"
_STORED_AS: Final = {"bfloat16": "uint16"}
"""The dtypes that NumPy's format lacks, each with the dtype of the same size that replaces it in the file."""
_DAMAGES: Final = (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError)
"""The errors raised by reading a file that is missing, cut short, or in another format."""


@contextmanager
def refusing_damage(path: Path, where: str = "") -> Iterator[None]:
    """Opens a block for code that reads the file at `path`. Raises `RecordingError` if the file is missing, damaged or
    in another format. `where` names the recorded value in the error message, such as " at loss, step 3"."""
    try:
        yield
    except _DAMAGES as error:
        raise RecordingError(
            f"{path} is damaged{where}, or comes from another version of xdevice: {error!r}; record it again"
        ) from error


def already_recorded_error(folder: Path) -> RecordingError:
    """Returns the error for a folder that already contains a recording. No second recording can be written into it."""
    return RecordingError(
        f"{folder} already contains a recording, from an earlier run or from the process that started this one; use "
        f"another folder, or record in only one process"
    )


# writing a recording


class Recorder:
    """Writes a recording. The first value that is added creates the files, and the folder if it does not exist.

    A child process inherits XDEVICE_RECORD, and therefore has a recorder for the same folder. Its recorder is harmless
    until the child process records something.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._steps: dict[str, int] = {}
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._files: tuple[TextIOWrapper, BufferedWriter] | None = None
        """The open files `INDEX` and `ARRAYS`; None before the first value and after `close`."""

    def add(self, name: str, value: object) -> None:
        """Writes a value as the next step of `name`.

        Raises:
            RecordingError: if the name is empty or not a string, if this process was forked from the process that
                created the recorder, or if the folder already has a recording.
            NotATensorError, DTypeError: if it would be impossible to compare a leaf later.
            UnsupportedError, NotBuiltError, ContainerError: if the value cannot be read.
        """
        if not isinstance(name, str) or not name:
            raise RecordingError(
                f"the name passed to parity.log must be a non-empty string, as in "
                f"`parity.log('loss', loss)`; got the name {shown(name)}"
            )
        # a forked child shares the open files, and the lines of both processes would mix
        if os.getpid() != self._process:
            raise RecordingError(
                f"this process was forked from a process that records into {self.folder}, so both would write into "
                f"that folder; record only in the parent process"
            )
        # it is not the program that reads the value here, so `transfers` must not count this transfer
        with patching.unreported():
            recorded = [
                host_leaf for leaf in leaves(value) for host_leaf in _read_recorded(leaf)
            ]
        for leaf in recorded:
            _refuse_unknown(f"{name}{leaf.path}", leaf)
        where = program_line()
        # several threads may record at once, and the bytes of a value must stay together
        with self._lock:
            self._write(name, recorded, where)

    def close(self) -> None:
        """Closes the files if they are open."""
        for file in self._files or ():
            file.close()
        self._files = None

    def _write(self, name: str, recorded: list[HostLeaf], where: str) -> None:
        """Appends the arrays of a value to the file of arrays, and then a line about the value to the index. `where` is
        the line of the program that called `log`."""
        self._files = self._files or self._open()
        index, arrays = self._files
        # the steps of each name are counted separately, so two programs may record their names in different orders
        step = self._steps.get(name, 0)
        line = {
            "name": name, "step": step, "time": time.time(), "where": where,
            "leaves": [_write_leaf(arrays, leaf) for leaf in recorded],
        }  # fmt: skip
        arrays.flush()  # flushed before the line about these values is written
        index.write(json.dumps(line) + "\n")
        index.flush()
        self._steps[name] = step + 1

    def _open(self) -> tuple[TextIOWrapper, BufferedWriter]:
        """Creates the files, writes the header, and returns the open files. Raises `RecordingError` if the folder
        already contains a recording."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            # "x" fails if the file exists, even if another process has just created it
            index = (self.folder / INDEX).open("x", encoding="utf-8")
        except FileExistsError:
            raise already_recorded_error(self.folder) from None
        # opened after the index, so that "w" cannot truncate the arrays of another recording
        arrays = (self.folder / ARRAYS).open("wb")
        index.write(json.dumps(_header()) + "\n")
        index.flush()
        return index, arrays


def _read_recorded(leaf: Leaf) -> Iterable[HostLeaf]:
    """Returns a list with the leaf, with its value in host memory. For a model, the list contains a leaf for each
    variable. If `convert_state` knows all layers of the model, these leaves have PyTorch's names and layouts, so that
    models of different frameworks can be compared."""
    owner = registry.owner_and_kind(type(leaf.value))
    own_leaves = list(read_leaf(leaf.path, leaf.value))
    if owner is None or owner.kind != "model":
        return own_leaves
    try:
        state = convert_state(leaf.value, "numpy")
    except XDeviceError:  # it cannot be converted, for example because it is an optimizer
        return own_leaves
    # either all leaves are renamed or none: a model with only some of its leaves under PyTorch's names could not be
    # compared with another model
    if state.unmapped or not state:
        return own_leaves
    devices = {variable.device for variable in own_leaves}
    device = devices.pop() if len(devices) == 1 else "several devices"
    # `convert_state` has returned NumPy arrays, so NumPy's backend reads these
    backend = registry.load("numpy")
    tensors = [
        read_tensor(backend, joined_path(leaf.path, name), x) for name, x in state.items()
    ]
    # the device and the framework are those of the model; all its leaves have the same framework
    return [tensor._replace(device=device, owner=own_leaves[0].owner) for tensor in tensors]


def _header() -> dict[str, Any]:
    """Returns the first line of the index, with the versions and settings of this process. The entry `backend` is the
    selected backend, or None if neither the program nor XDEVICE_BACKEND selected one."""
    chosen = selection.explicit_choice()
    return {
        "format": FORMAT,
        "xdevice": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "backend": chosen.name
        if chosen is not None
        else os.environ.get(selection.VARIABLE) or None,
        # a run in float64 is compared with smaller tolerances
        "floats": floats.setting(),
        "versions": {backend.name: backend.version for backend in registry.list_loaded()},
    }


def _refuse_unknown(name: str, leaf: HostLeaf) -> None:
    """Raises an error if it would be impossible to compare a leaf later: `DTypeError` for a tensor, `NotATensorError`
    for any other object. The error is raised when the leaf is recorded, so that the traceback shows the line that
    records it."""
    if leaf.owner != PYTHON:
        if leaf.dtype not in DTYPES:
            raise DTypeError(
                f"cannot record {name}: there is no rule for comparing {leaf.dtype}; "
                f"convert the value to one of {', '.join(DTYPES)}"
            )
    elif not leaf.is_number and not isinstance(leaf.value, str | None):
        raise NotATensorError(
            f"cannot record {name}, {shown(leaf.value)} of type {leaf.dtype}; expected a tensor, model, "
            f"number, string or None, or a container of these"
        )


def _write_leaf(arrays: BufferedWriter, leaf: HostLeaf) -> dict[str, Any]:
    """Appends the leaf's array to the open file `arrays`, and returns the leaf's entry for the index. A value that is
    not an array is stored in the entry itself."""
    line = {"path": leaf.path, "dtype": leaf.dtype, "device": leaf.device, "owner": leaf.owner}
    if not isinstance(leaf.value, numpy.ndarray):
        return {**line, "value": repr(leaf.value) if leaf.is_number else leaf.value}
    # reshaped, because `ascontiguousarray` adds an axis to a 0-d array
    stored = numpy.ascontiguousarray(leaf.value).reshape(leaf.shape)
    # NumPy's format lacks bfloat16, which would be read back as raw bytes
    if leaf.dtype in _STORED_AS:
        stored = stored.view(_STORED_AS[leaf.dtype])
    # the position in the file is stored, so that a reader need not read the earlier arrays
    position = arrays.tell()
    numpy.save(arrays, stored, allow_pickle=False)
    return {**line, "shape": list(leaf.shape), "at": position}


# reading a recording


class RecordedCall:
    """One call of `log`, read from a recording. It has a name and a step; its values stay in the file until `read`
    reads them.

    Attributes:
        time: the time of the call, in seconds since 1970.
        where: the line that called `log`, such as `/home/ann/train.py:41`; empty if the recording was written by an
            earlier version of xdevice that did not store this line.
    """

    def __init__(self, line: dict[str, Any], arrays: Path) -> None:
        self.name, self.step, self.time = (
            str(line["name"]),
            int(line["step"]),
            float(line["time"]),
        )
        self.where = str(line.get("where", ""))
        # these are only descriptions; `read` reads the numbers from the file
        self._leaves: list[dict[str, Any]] = list(line["leaves"])
        self._arrays = arrays

    @property
    def key(self) -> tuple[str, int]:
        """The name and the step, which identify the value in its recording."""
        return self.name, self.step

    def dtypes(self) -> dict[str, str]:
        """Returns the dtype of each leaf by the leaf's path. The dtypes are in the index, so no values are read."""
        return {str(leaf["path"]): str(leaf["dtype"]) for leaf in self._leaves}

    def read(self) -> list[HostLeaf]:
        """Returns the leaves of the recorded value, as they were when the value was recorded.

        Raises:
            RecordingError: if a file is damaged or missing.
        """
        with refusing_damage(self._arrays, f" at {self.name}, step {self.step}"):
            # all leaves are numbers and strings, which are in the index, so the file of arrays is not needed
            if not any("at" in leaf for leaf in self._leaves):
                return list(map(_leaf_of_object, self._leaves))
            with self._arrays.open("rb") as file:
                return [
                    _leaf_of_array(leaf, file) if "at" in leaf else _leaf_of_object(leaf)
                    for leaf in self._leaves
                ]


class Recording:
    """A recording that was read from its folder. It has a header with the versions that wrote the recording, and the
    recorded calls in program order.

    Raises:
        RecordingError: if the folder has no recording, or if the recording is damaged or in another format.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        path, arrays = self.folder / INDEX, self.folder / ARRAYS
        if not path.exists():
            raise RecordingError(
                f"{self.folder} contains no recording: there is no {INDEX}. xdevice parity --save writes a recording "
                f"for each backend on which the script calls xdevice.parity.log"
            )
        with refusing_damage(path):
            header, *lines = read_lines(path)
            # `refusing_damage` turns this error, and an error about a missing entry, into a `RecordingError`
            if header["format"] != FORMAT:
                raise ValueError(
                    f"its format is {header['format']!r}, but this version of xdevice reads {FORMAT}"
                )
            self.header: dict[str, Any] = {
                **header,
                "versions": dict(header["versions"]),
                "backend": header["backend"],
            }
            """Facts about the program that wrote the recording: the versions of xdevice, Python and the loaded
            backends, and the name of the selected backend."""
            self.entries = [RecordedCall(line, arrays) for line in lines]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a JSON Lines file as dicts. Anything after the last newline is ignored: it is a line that
    the program could not complete before a crash."""
    # the last item that `split` returns is "" or the incomplete line, and is dropped
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def _leaf_of_object(line: dict[str, Any]) -> HostLeaf:
    """Returns the leaf for a number, a string or None, given its entry in the index. Numbers are stored as their
    `repr`, which is exact and can also express NaN and complex numbers."""
    dtype, value = line["dtype"], line["value"]
    if dtype == "bool":
        # not `bool(value)`, because `bool("False")` is True
        value = value == "True"
    else:
        number_type = next(
            (number_type for number_type in NUMBERS if number_type.__name__ == dtype), None
        )
        value = value if number_type is None else number_type(value)
    return HostLeaf(line["path"], value, dtype, None, line["owner"])


def _leaf_of_array(line: dict[str, Any], file: BufferedReader) -> HostLeaf:
    """Returns the leaf for an array. Its numbers are read from the open file of arrays, and everything else from
    `line`, its entry in the index."""
    file.seek(line["at"])
    # a pickle in a recording from an untrusted source could run code
    array: Any = numpy.load(file, allow_pickle=False)
    if line["dtype"] in _STORED_AS:
        array = array.view(host_dtype(line["dtype"]))
    return HostLeaf(line["path"], array, line["dtype"], line["device"], line["owner"])
