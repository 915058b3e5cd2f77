"""Reads safetensors files. The safetensors library checks a file's header. This module then reads the header and the
values of the tensors."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from xdevice.base.dtypes import host_dtype
from xdevice.contract.conversion import aligned, copy_in_c_order
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
"""NumPy's names of dtypes by their codes in the header. Dtypes for which NumPy has no name are left out."""
SMALL: Final = 1 << 14
"""A tensor with at most this many bytes is copied into the framework's memory. For such a tensor, copying is cheaper
than letting the framework use the memory into which the file was read."""
_SAFE_AXES: Final = 32
"""The number of axes that an array may have in all versions of NumPy; newer versions allow more."""
RESERVED: Final = "__metadata__"
"""The key in a header under which the metadata is stored; it is not the name of a tensor."""
SHARED: Final = "xdevice.shared"
"""The key of an entry that xdevice adds to a file's metadata for tensors with several names. Its value is a JSON object
that maps every other name of a tensor to the first name."""


ORIGIN: Final = "xdevice.origin"
"""The key of another entry that xdevice adds to the metadata. Its value contains the names of the backends whose
tensors `save` wrote, joined by commas."""
_FORMATS: Final = {"pt": "torch", "pd": "paddle", "tf": "tensorflow", "flax": "jax"}
"""Maps the values of the metadata entry `format` to the names of backends. Other programs record in this entry which
framework wrote a file."""


class Entry(NamedTuple):
    """The dtype and shape of a tensor in an open file, and the position of its values in the file, in bytes."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int
    file: FileIO

    def read(self, buffer: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Reads the values into `buffer`, an array of at least `nbytes` bytes, or into new memory if `buffer` is None.
        Returns the values as an array in that memory."""
        # aligned, because frameworks can use only aligned memory without a copy
        memory = aligned(self.nbytes) if buffer is None else buffer[: self.nbytes]
        return (
            _fill(memory, self.file, self.start)
            .view(host_dtype(self.dtype))
            .reshape(self.shape)
        )


# `eq=False`, because `==` would compare tensors, and because entries are keys of a dict
@dataclass(frozen=True, eq=False)
class OpenedTensor:
    """A tensor from a file in another format than safetensors. The tensor has already been read, by a framework or by a
    function in `readers`."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    backend: Backend
    value: Any

    def read(self, buffer: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Copies the values into `buffer`, an array of at least `nbytes` bytes, or into new memory if `buffer` is None.
        Returns the values as an array in that memory."""
        return copy_in_c_order(self.backend.peek(self.value), buffer)


FileTensor = Entry | OpenedTensor
"""A tensor in a file. Both classes have a dtype, a shape and a size in bytes, and a method `read` that returns the
values."""


class Header(NamedTuple):
    """The contents of a file, or of several files that belong together."""

    entries: Mapping[str, FileTensor]
    """The tensors by name; a tensor with several names is included only under its first name."""
    shared: dict[str, str]
    """Maps the other names of tensors with several names to the first name."""
    key: str = ""
    """The key under which the file contains the tensors; "" if the file contains nothing but the tensors."""
    origin: str = ""
    """The names of the backends that wrote the tensors, joined by commas; "" if they are not known."""
    remarks: Mapping[str, str] = MappingProxyType({})
    """Entries of the metadata that may describe tied weights. Each key is a name without a tensor in the file, and its
    value is the name of a tensor in the file."""

    def by_name(self) -> dict[str, FileTensor]:
        """Returns a dict with every tensor under each of its names."""
        return {
            **self.entries,
            **{name: self.entries[first] for name, first in self.shared.items()},
        }


@contextmanager
def open_file(path: str) -> Iterator[Header]:
    """Yields the header of a safetensors file, which stays open during the block. The header and the values come from
    the same file, even if another process replaces the file at that moment. Raises `MissingFileError` if the file does
    not exist, and `FilePathError` if it cannot be read. Raises `FileFormatError` if it is damaged or is not a
    safetensors file, and `DTypeError` if NumPy lacks one of its dtypes."""
    # repeated if the file was replaced in the meantime
    while True:
        require_plain_file(path)
        with _open(path) as file:
            # the library opens the path itself to check the header, so the path must still name this file afterwards
            header = _header(path, file)
            if _is_same_file(path, file):
                yield header
                return


def _is_same_file(path: str, file: FileIO) -> bool:
    """Whether the path still refers to the open file, rather than to a file that has replaced it. Raises
    `MissingFileError` if there is no longer a file at the path."""
    require_plain_file(path)
    # opened again, because on Windows `os.stat` of a path returns different numbers than `fstat`
    with _open(path) as again:
        return os.path.samestat(os.fstat(file.fileno()), os.fstat(again.fileno()))


def _open(path: str) -> FileIO:
    """Opens a file for reading, and returns it. The file is unbuffered, because values are read directly into their
    arrays. Raises `FilePathError` if the file cannot be opened."""
    with path_errors(f"{path!r:.1000} cannot be read"):
        return open(path, "rb", buffering=0)


def _header(path: str, file: FileIO) -> Header:
    """Lets the library check the header of an open file, then reads the header and returns it. Raises `FileFormatError`
    if the file is damaged or is not a safetensors file, and `DTypeError` if NumPy lacks one of its dtypes."""
    from safetensors import SafetensorError, safe_open

    try:
        # raises an error unless the whole file follows the format
        with safe_open(path, framework="numpy"):
            length = int.from_bytes(file.read(8), "little")
        with collector.paused():
            header = json.loads(file.read(length).decode(), object_pairs_hook=_with_unique_keys)
            metadata = header.pop(RESERVED, None) or {}
            entries = _entries(header, 8 + length, file)
        origin = metadata.get(ORIGIN) or _FORMATS.get(metadata.get("format", ""), "")
        # the library's `save_model` records tied weights in this form; entries of other programs may have another
        # meaning
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
    """Returns a JSON object as a dict. `pairs` are its keys and values. Raises `ValueError` if a key occurs twice,
    because programs disagree on which of the two values is valid."""
    # checked here, because the library's own message wrongly blames the offsets
    # (https://github.com/safetensors/safetensors/issues/401)
    header = dict(pairs)
    if len(header) < len(pairs):
        twice = next(
            name for number, (name, _) in enumerate(pairs) if name in dict(pairs[:number])
        )
        raise ValueError(f"its header contains the key {shown(twice)} twice")
    return header


def _entries(header: Mapping[str, Any], start: int, file: FileIO) -> dict[str, Entry]:
    """Returns the tensors of a header by name, in the order of their values in the file. The values begin at byte
    `start`. Raises `DTypeError` for a dtype that NumPy lacks, and `ValueError` for a shape that NumPy's arrays cannot
    have."""
    entries: dict[str, Entry] = {}
    for name, about in header.items():
        code, shape = about["dtype"], tuple(about["shape"])
        if code not in DTYPES:
            raise DTypeError(
                f"{name} has the dtype {code}, which NumPy does not support; expected one of {', '.join(DTYPES)}"
            )
        # any other shape is possible, because its values have at most as many bytes as the file
        if len(shape) > _SAFE_AXES or 0 in shape:
            _require_array(name, host_dtype(DTYPES[code]), shape)
        # the offsets are relative to the end of the header
        begin, end = about["data_offsets"]
        entries[name] = Entry(DTYPES[code], shape, start + begin, end - begin, file)
    # a header that is sorted by names may list the values in another order than the file contains them
    starts = [entry.start for entry in entries.values()]
    if starts == sorted(starts):
        return entries
    return dict(sorted(entries.items(), key=lambda item: item[1].start))


def _require_array(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Raises `ValueError` for a shape that NumPy's arrays cannot have."""
    try:
        # checks NumPy's limits for axes and sizes without allocating memory
        np.broadcast_to(np.zeros((), dtype), shape)
    except ValueError as error:
        raise ValueError(
            f"{name} has a shape with {len(shape)} axes, which NumPy does not support: {error}"
        ) from error


def _read_shared(metadata: Mapping[str, str], entries: Mapping[str, Entry]) -> dict[str, str]:
    """Returns the dict that `save` recorded for tensors with several names, which maps their other names to the first
    name. Returns {} for files from other programs. Raises `ValueError` if a first name is not the name of a tensor in
    the file, or if another name already is."""
    shared = json.loads(metadata.get(SHARED, "{}"))
    if not isinstance(shared, dict) or not all(
        isinstance(first, str) and first in entries and other not in entries
        for other, first in shared.items()
    ):
        raise ValueError(
            f"{SHARED} in its metadata must map names without a tensor to names of tensors in the file"
        )
    return shared


def read_tensors(
    entries: Collection[FileTensor], *, reuse: bool = False
) -> Iterator[np.ndarray[Any, Any]]:
    """Yields the values of each tensor as an array. With `reuse`, the values of all but small tensors are read into the
    same buffer, so each array overwrites the previous one. This is faster, because the first use of new memory takes as
    long as reading."""
    buffer = aligned(max((entry.nbytes for entry in entries), default=0)) if reuse else None
    for entry in entries:
        yield entry.read(buffer if entry.nbytes > SMALL else None)


def _fill(buffer: np.ndarray[Any, Any], file: FileIO, start: int) -> np.ndarray[Any, Any]:
    """Reads a file, beginning at the byte `start`, until `buffer` is full, and returns `buffer`. Raises
    `FileFormatError` if the file ends before the buffer is full."""
    file.seek(start)
    unfilled = buffer.data
    while unfilled:
        with path_errors(f"{file.name!r:.1000} cannot be read"):
            count = file.readinto(unfilled)  # Linux reads at most 2 GB in one call
        if not count:
            raise FileFormatError(
                f"{file.name!r:.1000} became shorter while it was being read; load it again"
            )
        unfilled = unfilled[count:]
    return buffer
