"""Reads safetensors files: the header, which the safetensors library checks, and the values of tensors."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from xdevice.base.dtypes import host_dtype
from xdevice.contract.conversion import aligned, owned
from xdevice.errors import DTypeError, FileFormatError, shown

from . import collector
from .disk import path_errors, require_plain_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from io import FileIO

    from xdevice.contract import Backend

DTYPES: Final = {
    "BOOL": "bool", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
"""The dtypes of the format for which NumPy has a name, by their code in the header."""
SMALL: Final = 1 << 14
"""Tensors of at most this many bytes are copied by the framework, which is cheaper than letting the framework take
over their memory."""
_SAFE_AXES: Final = 32
"""The number of axes that an array may have in all versions of NumPy; newer versions allow more."""
RESERVED: Final = "__metadata__"
"""The key of the metadata in a header, which is not a tensor."""
SHARED: Final = "xdevice.shared"
"""The key of xdevice's own entry in a file's metadata. Its value is a JSON object with the further names of tensors
that have several names."""


ORIGIN: Final = "xdevice.origin"
"""The key of another entry of xdevice's own: the names of the backends whose tensors `save` has written, joined by
commas."""
_FORMATS: Final = {"pt": "torch", "pd": "paddle", "tf": "tensorflow", "flax": "jax"}
"""The names of backends by the values of the metadata's entry `format`, in which other programs name the framework of
a file."""


class Entry(NamedTuple):
    """The dtype and shape of a tensor in an open file, and the position of its values there, in bytes."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int
    file: FileIO

    def read(self, buffer: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Reads the values into `buffer`, an array of at least `nbytes` bytes, or, without one, into new memory.
        Returns the values as an array in that memory."""
        # frameworks take over only aligned memory without a copy
        memory = aligned(self.nbytes) if buffer is None else buffer[: self.nbytes]
        return (
            _fill(memory, self.file, self.start)
            .view(host_dtype(self.dtype))
            .reshape(self.shape)
        )


# `eq=False`, because `==` would compare tensors, and because entries are keys of a dict
@dataclass(frozen=True, eq=False)
class OpenedTensor:
    """A tensor of a file that was not safetensors: a framework, or one of our readers, has read it already."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    backend: Backend
    value: Any

    def read(self, buffer: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Copies the values into `buffer`, an array of at least `nbytes` bytes, or, without one, into new memory.
        Returns the values as an array in that memory."""
        return owned(self.backend.peek(self.value), buffer)


FileTensor = Entry | OpenedTensor
"""A tensor in a file. Both classes have a dtype, a shape and a size in bytes, and a method `read` that returns the
values."""


class Header(NamedTuple):
    """The contents of a file, or of several that belong together."""

    entries: Mapping[str, FileTensor]
    """The tensors by name; a shared tensor only by its first name."""
    shared: dict[str, str]
    """Maps each further name of a shared tensor to the tensor's first name."""
    key: str = ""
    """The key under which the file has the tensors, if it holds anything else; "" if it holds only tensors."""
    origin: str = ""
    """The names of the backends whose tensors these are, joined by commas; "" if the file does not say."""
    remarks: Mapping[str, str] = MappingProxyType({})
    """Entries of the metadata that may be about tied weights: each maps a name that the file lacks to one that it
    has."""

    def by_name(self) -> dict[str, FileTensor]:
        """The tensors by all of their names."""
        return {
            **self.entries,
            **{name: self.entries[first] for name, first in self.shared.items()},
        }


@contextmanager
def open_file(path: str) -> Iterator[Header]:
    """Yields the header of a safetensors file. The file stays open in the block. The header and the values come from
    the same file, even if another process replaces it at that moment. Raises `FileFormatError` if the file is damaged
    or not a safetensors file, `DTypeError` if NumPy lacks a dtype in it, `MissingFileError` if it does not exist, and
    `FilePathError` if it cannot be read."""
    # tried again if the file was replaced meanwhile
    while True:
        require_plain_file(path)
        with _open(path) as file:
            # the library reads the header by the path, so the path must name this file before and after
            header = _header(path, file)
            if _is_same_file(path, file):
                yield header
                return


def _is_same_file(path: str, file: FileIO) -> bool:
    """Whether the path still names the open file, and not another one that has replaced it. Raises `MissingFileError`
    if there is no file at the path any more."""
    require_plain_file(path)
    # opened again, because `os.stat` of a path gives other numbers than `fstat` on Windows
    with _open(path) as again:
        return os.path.samestat(os.fstat(file.fileno()), os.fstat(again.fileno()))


def _open(path: str) -> FileIO:
    """Opens a file for reading, and returns it. The file has no buffer: values are read directly into their arrays.
    Raises `FilePathError` if the file cannot be opened."""
    with path_errors(f"{path!r:.1000} cannot be read"):
        return open(path, "rb", buffering=0)


def _header(path: str, file: FileIO) -> Header:
    """Reads the header of an open file, after the library has checked it. Raises `FileFormatError` or `DTypeError` as
    `open_file` does."""
    from safetensors import SafetensorError, safe_open

    try:
        # the library raises an error unless the whole file follows the format
        with safe_open(path, framework="numpy"):
            length = int.from_bytes(file.read(8), "little")
        with collector.paused():
            header = json.loads(file.read(length).decode(), object_pairs_hook=_with_unique_keys)
            metadata = header.pop(RESERVED, None) or {}
            entries = _entries(header, 8 + length, file)
        origin = metadata.get(ORIGIN) or _FORMATS.get(metadata.get("format", ""), "")
        # the library's `save_model` records tied weights in this form; other programs may mean
        # something else by such entries
        remarks = {
            name: first
            for name, first in metadata.items()
            if first in entries and name not in entries
        }
        return Header(entries, _read_shared(metadata, entries), origin=origin, remarks=remarks)
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        size = os.fstat(file.fileno()).st_size
        raise FileFormatError(
            f"{os.fspath(path)} of {size:,} bytes is not a safetensors file, or is damaged: {error}"
        ) from error


def _with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, given as pairs, as a dict. Raises `ValueError` if a key comes twice, because programs disagree on
    which of the two counts."""
    # checked here, because the library's own message blames the offsets
    # (https://github.com/safetensors/safetensors/issues/401)
    header = dict(pairs)
    if len(header) < len(pairs):
        twice = next(
            name for number, (name, _) in enumerate(pairs) if name in dict(pairs[:number])
        )
        raise ValueError(f"its header has {shown(twice)} twice")
    return header


def _entries(header: Mapping[str, Any], start: int, file: FileIO) -> dict[str, Entry]:
    """The tensors of a header by name, in the order of their values in the file. The values begin at byte `start`.
    Raises `DTypeError` or `ValueError` for a dtype or a shape that NumPy lacks."""
    entries: dict[str, Entry] = {}
    for name, about in header.items():
        code, shape = about["dtype"], tuple(about["shape"])
        if code not in DTYPES:
            raise DTypeError(
                f"{name} is {code}, for which NumPy has no dtype; expected one of {', '.join(DTYPES)}"
            )
        # any other shape is possible, because it has no more bytes than the file
        if len(shape) > _SAFE_AXES or 0 in shape:
            _require_array(name, host_dtype(DTYPES[code]), shape)
        # the offsets are counted from the end of the header
        begin, end = about["data_offsets"]
        entries[name] = Entry(DTYPES[code], shape, start + begin, end - begin, file)
    # a header sorted by names may have the values in another order
    starts = [entry.start for entry in entries.values()]
    if starts == sorted(starts):
        return entries
    return dict(sorted(entries.items(), key=lambda item: item[1].start))


def _require_array(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Raises `ValueError` for a shape that NumPy's arrays cannot have."""
    try:
        # it checks NumPy's limits of axes and sizes, and allocates nothing
        np.broadcast_to(np.zeros((), dtype), shape)
    except ValueError as error:
        raise ValueError(
            f"{name} has {len(shape)} axes and a shape that no array can have: {error}"
        ) from error


def _read_shared(metadata: Mapping[str, str], entries: Mapping[str, Entry]) -> dict[str, str]:
    """The further names that `save` has given to shared tensors, each with the tensor's first name; {} for files of
    other programs. Raises `ValueError` if a first name is not the name of a tensor in the file, or if a further name
    is."""
    shared = json.loads(metadata.get(SHARED, "{}"))
    if not isinstance(shared, dict) or not all(
        isinstance(other, str) and other in entries and name not in entries
        for name, other in shared.items()
    ):
        raise ValueError(
            f"{SHARED} in its metadata must map names that the file lacks to names of its tensors"
        )
    return shared


def read_all(
    entries: Collection[FileTensor], *, reuse: bool = False
) -> Iterator[np.ndarray[Any, Any]]:
    """Yields the values of tensors, one array after the other. With `reuse`, all except small tensors use the
    same buffer, each overwriting the one before, because the first use of new memory takes as long as reading."""
    buffer = aligned(max((entry.nbytes for entry in entries), default=0)) if reuse else None
    for entry in entries:
        yield entry.read(buffer if entry.nbytes > SMALL else None)


def _fill(buffer: np.ndarray[Any, Any], file: FileIO, start: int) -> np.ndarray[Any, Any]:
    """Reads the bytes of a file from `start` on into a buffer, until it is full, and returns the buffer. Raises
    `FileFormatError` if the file ends before that."""
    file.seek(start)
    rest = buffer.data
    while rest:
        with path_errors(f"{file.name!r:.1000} cannot be read"):
            got = file.readinto(rest)  # Linux reads 2 GB at most in one call
        if not got:
            raise FileFormatError(
                f"{file.name!r:.1000} was cut off while it was read; load it again"
            )
        rest = rest[got:]
    return buffer
