"""Opens the weights of a model in any usual form: one safetensors file, several with an index, or a file or folder in a
format of a framework."""

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
from .nested import state_in

if TYPE_CHECKING:
    from collections.abc import Iterator

# the ending of a file that says which of several files has which tensor
_INDEX: Final = ".index.json"
_IN_FOLDERS: Final = (".safetensors" + _INDEX, ".safetensors", ".bin" + _INDEX, ".bin")
"""The endings of files with weights in a folder, in the order in which they are looked for."""


@contextmanager
def open_checkpoint(path: str) -> Iterator[Header]:
    """Yields the contents of the file, the index or the folder at `path` as a `Header`. The files stay open in the
    block, because each value is read only when the caller needs it.

    Raises:
        MissingFileError: if there is no such file, or no file with weights in the folder. FilePathError: if the folder
            has several such files, or a file cannot be read. FileFormatError: if a file is damaged or of an unknown
            format. UnsupportedError: if a tensor is not dense, or a package is missing.
    """
    with ExitStack() as files:
        names = _names_in(path)
        kind = foreign.of_folder(names)
        # a folder of Orbax is one checkpoint: its files cannot be read one by one
        if kind is not None:
            yield _of_kind(path, kind)
            return
        file = _in_folder(path, names) if os.path.isdir(path) else path
        yield _of_index(file, files) if file.endswith(_INDEX) else _of_file(file, files)


def _names_in(path: str) -> list[str]:
    """The sorted names in a folder; [] if the path is not that of a folder."""
    if not os.path.isdir(path):
        return []
    with path_errors(f"{path!r:.1000} cannot be read"):
        # sorted, so that an error names them in the same order everywhere
        return sorted(os.listdir(path))


def _in_folder(path: str, names: list[str]) -> str:
    """The path of the one file with weights, or of the index of several files, in a folder that holds `names`. Raises
    `MissingFileError` if there is none, and `FilePathError` if several have the same ending."""
    # hubs often have the same weights in both formats: safetensors come first, as they run no code
    for ending in _IN_FOLDERS:
        files = [name for name in names if name.endswith(ending)]
        if len(files) == 1:
            return os.path.join(path, files[0])
        if files:
            raise FilePathError(
                f"{path!r:.1000} is a folder with {listed(files, 4)}; name the one to read"
            )
    raise MissingFileError(
        f"{path!r:.1000} is a folder without weights: expected a file that ends with {', '.join(_IN_FOLDERS)}"
    )


def _of_file(path: str, files: ExitStack) -> Header:
    """The contents of one file, whatever its format. A safetensors file stays open until `files` is closed."""
    try:
        return files.enter_context(open_file(path))
    except FileFormatError as error:
        # not safetensors: the first bytes say what it is
        kind = foreign.kind_of(path)
        if kind is None:
            raise
        # a format that xdevice only recognizes: the error says what to do
        if kind.framework is None:
            raise FileFormatError(
                f"{path} is {kind.what}, not safetensors; {kind.advice}"
            ) from error
    return _of_kind(path, kind)


def _of_kind(path: str, kind: foreign.Kind) -> Header:
    """The contents of a file, or of a folder, of another format that can be read: `kind` says how. Raises
    `FileFormatError` if it holds no tensors, and the errors of its reader."""
    origin = kind.framework or ""
    # our own readers return NumPy arrays, and need no framework
    backend = registry.load("numpy" if kind.read is not None else origin)
    with path_errors(f"{path!r:.1000} cannot be read"):
        saved = (kind.read or backend.own_file)(path)
    try:
        nested = state_in(saved, path)
    except NotATensorError as error:
        raise FileFormatError(f"{error}; the file is {kind.what}") from error
    tensors = {name: _opened(path, name, value) for name, value in nested.state.items()}
    return Header(tensors, {}, nested.key, origin)


def _opened(path: str, name: str, value: Any) -> OpenedTensor:
    """A tensor that a framework has read from the file at `path`, as an entry of a `Header`. Raises `UnsupportedError`
    if it is not dense."""
    owner = registry.kind_of(type(value))
    if owner is None or not owner.backend.is_dense(value):
        raise UnsupportedError(
            f"{name} in {path} is sparse, or made of other tensors; load the file with its framework, and "
            "make the tensor dense"
        )
    return OpenedTensor(
        dtype_name(value.dtype), tuple(value.shape), value.nbytes, owner.backend, value
    )


def _of_index(path: str, files: ExitStack) -> Header:
    """The contents of all files that the index at `path` names, as one `Header`. Raises `FileFormatError` if the index
    or a file is damaged, or if a file lacks a tensor that the index names, and `MissingFileError` if a file is
    missing."""
    require_plain_file(path)
    with path_errors(f"{path!r:.1000} cannot be read"), open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        # for each tensor, the name of the file that has it
        file_of: dict[str, str] = json.loads(text)["weight_map"]
        # an index from elsewhere must not make us read files outside its folder
        if any(os.path.basename(name) != name for name in file_of.values()):
            raise ValueError("it names a file in another folder")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileFormatError(
            f'{path} is not an index of weights, expected JSON whose "weight_map" names the file of each tensor: '
            f"{shown(error)}"
        ) from error
    folder = os.path.dirname(path)
    # each file is opened once, for all of its names
    parts = {
        name: _of_file(os.path.join(folder, name), files)
        for name in sorted(set(file_of.values()))
    }
    entries: dict[str, FileTensor] = {}
    for file_name, header in parts.items():
        # only the tensors for which the index names this file: the file may have others, which
        # an earlier save has left behind
        entries |= {
            name: entry
            for name, entry in header.entries.items()
            if file_of.get(name) == file_name
        }
    # files that name different frameworks count together as one file that names none
    origins = {header.origin for header in parts.values()}
    # a further name counts only if the tensor itself is among the entries
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
    return Header(entries, shared, "", origins.pop() if len(origins) == 1 else "", remarks)
