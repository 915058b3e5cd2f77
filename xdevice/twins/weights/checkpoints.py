"""Opens the weights of a model in any common form. The weights may be in a safetensors file, in several files with an
index, or in a file or folder in a framework's own format."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from xdevice.base.dtypes import dtype_name
from xdevice.core import registry
from xdevice.errors import (
    FileFormatError,
    FilePathError,
    MissingFileError,
    NotATensorError,
    UnsupportedError,
    listed,
    shown,
)

from . import foreign
from .disk import path_errors, require_plain_file
from .format import FileTensor, Header, OpenedTensor, open_file
from .nested import find_state

if TYPE_CHECKING:
    from collections.abc import Iterator

# the ending of the name of an index, which says which of several files contains each tensor
_INDEX: Final = ".index.json"
_IN_FOLDERS: Final = (".safetensors" + _INDEX, ".safetensors", ".bin" + _INDEX, ".bin")
"""The endings of the names of weight files in a folder, in the order of precedence."""


@contextmanager
def open_checkpoint(path: str) -> Iterator[Header]:
    """Yields the contents of the file, the index or the folder at `path` as a `Header`. The files stay open during the
    block, because each value is read only when the caller needs it.

    Raises:
        MissingFileError: if there is no such file, or the folder contains no file with weights.
        FilePathError: if the folder contains several files with weights, or a file cannot be read.
        FileFormatError: if a file is damaged, or its format is unknown.
        UnsupportedError: if a tensor is not dense, or if a package that is needed to read the file is missing.
    """
    with ExitStack() as files:
        names = _names_in(path)
        kind = foreign.kind_of_folder(names)
        # a folder of Orbax is a single checkpoint, whose files cannot be read one by one
        if kind is not None:
            yield _read_other_format(path, kind)
            return
        file = _path_in_folder(path, names) if os.path.isdir(path) else path
        yield _open_index(file, files) if file.endswith(_INDEX) else _open_file(file, files)


def _names_in(path: str) -> list[str]:
    """Returns the sorted names of the files and folders in a folder; [] if there is no folder at the path."""
    if not os.path.isdir(path):
        return []
    with path_errors(f"{path!r:.1000} cannot be read"):
        # sorted, so that an error message lists the names in the same order everywhere
        return sorted(os.listdir(path))


def _path_in_folder(path: str, names: list[str]) -> str:
    """Returns the path of the file with the weights in a folder, or of the index if the weights are split over several
    files. `names` are the names in the folder. Raises `MissingFileError` if there is no file with weights and no index.
    Raises `FilePathError` if there are several with the same ending."""
    # a folder from a hub often contains the same weights in both formats; safetensors comes first, because reading it
    # runs no code
    for ending in _IN_FOLDERS:
        files = [name for name in names if name.endswith(ending)]
        if len(files) == 1:
            return os.path.join(path, files[0])
        if files:
            raise FilePathError(
                f"{path!r:.1000} is a folder that contains {listed(files, 4)}; pass the path of one of these files"
            )
    raise MissingFileError(
        f"{path!r:.1000} is a folder without weights: expected a file whose name ends with one of "
        f"{', '.join(_IN_FOLDERS)}"
    )


def _open_file(path: str, files: ExitStack) -> Header:
    """Returns the contents of one file in any supported format. A safetensors file stays open until `files` is
    closed."""
    try:
        return files.enter_context(open_file(path))
    except FileFormatError as error:
        # not a safetensors file, so its kind is determined from its first bytes or the ending of its name
        kind = foreign.kind_of_file(path)
        if kind is None:
            raise
        # xdevice recognizes the format, but cannot read it; the error advises what to do
        if kind.framework is None:
            raise FileFormatError(
                f"{path} is {kind.what}, not a safetensors file; {kind.advice}"
            ) from error
    return _read_other_format(path, kind)


def _read_other_format(path: str, kind: foreign.Kind) -> Header:
    """Returns the contents of a file or folder in a format other than safetensors. `kind` contains the function that
    reads it, whose errors are not caught. Raises `FileFormatError` if the file or folder contains no tensors."""
    origin = kind.framework or ""
    # the functions in `readers` return NumPy arrays, and need no framework
    backend = registry.load("numpy" if kind.read is not None else origin)
    with path_errors(f"{path!r:.1000} cannot be read"):
        saved = (kind.read or backend.own_file)(path)
    try:
        nested = find_state(saved, path)
    except NotATensorError as error:
        raise FileFormatError(f"{error}; the file is {kind.what}") from error
    tensors = {name: _opened(path, name, value) for name, value in nested.state.items()}
    # `nested.state` has the same tensor under each of its names, so there are no other names
    return Header(tensors, shared={}, key=nested.key, origin=origin)


def _opened(path: str, name: str, value: Any) -> OpenedTensor:
    """Returns a tensor from the file at `path` as an entry of a `Header`. The tensor has already been read. Raises
    `UnsupportedError` if the tensor is not dense."""
    owner = registry.owner_and_kind(type(value))
    if owner is None or not owner.backend.is_dense(value):
        raise UnsupportedError(
            f"{name} in {path} is sparse, or made up of other tensors; load the file with its framework, and "
            "make the tensor dense"
        )
    return OpenedTensor(
        dtype_name(value.dtype), tuple(value.shape), value.nbytes, owner.backend, value
    )


def _open_index(path: str, files: ExitStack) -> Header:
    """Returns the contents of all files that the index at `path` names, as a single `Header`. The files stay open until
    `files` is closed. Raises `FileFormatError` if the index or a file is damaged, or if a file lacks a tensor that the
    index lists for it. Raises `MissingFileError` if a file is missing."""
    require_plain_file(path)
    with path_errors(f"{path!r:.1000} cannot be read"), open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        # for each tensor, the name of the file that contains it
        file_of: dict[str, str] = json.loads(text)["weight_map"]
        # an index from an untrusted source must not cause files outside its folder to be read
        if any(os.path.basename(name) != name for name in file_of.values()):
            raise ValueError("it names a file in another folder")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileFormatError(
            f'{path} is not an index of weights; expected JSON whose "weight_map" names the file of each tensor: '
            f"{shown(error)}"
        ) from error
    folder = os.path.dirname(path)
    # each file is opened only once, for all its tensors
    parts = {
        name: _open_file(os.path.join(folder, name), files)
        for name in sorted(set(file_of.values()))
    }
    entries: dict[str, FileTensor] = {}
    for file_name, header in parts.items():
        # only the tensors for which the index names this file. The file may contain other tensors, left behind by an
        # earlier save
        entries |= {
            name: entry
            for name, entry in header.entries.items()
            if file_of.get(name) == file_name
        }
    # if the files name different frameworks, the framework of the whole is treated as unknown
    origins = {header.origin for header in parts.values()}
    # maps other names of tensors to first names. Another name is used only if its tensor is among the entries
    shared = {
        name: first
        for header in parts.values()
        for name, first in header.shared.items()
        if first in entries
    }
    lacking = [name for name in file_of if name not in entries and name not in shared]
    if lacking:
        raise FileFormatError(
            f"{path} names {listed(lacking, 3)}, which {file_of[lacking[0]]} does not contain"
        )
    remarks = {
        name: first for header in parts.values() for name, first in header.remarks.items()
    }
    origin = origins.pop() if len(origins) == 1 else ""
    return Header(entries, shared, origin=origin, remarks=remarks)
