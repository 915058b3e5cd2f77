"""Opens the weights of a model as they come: one safetensors file, several with an index, or a file of PyTorch's."""

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
    StateError,
    UnsupportedError,
    listed,
    shown,
)

from . import foreign
from .disk import path_errors, require_plain_file
from .format import FileTensor, Header, OpenedTensor, open_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_INDEX: Final = ".index.json"
_IN_FOLDERS: Final = (".safetensors" + _INDEX, ".safetensors", ".bin" + _INDEX, ".bin")
"""The endings of what a folder may hold, the first of which counts."""


@contextmanager
def open_checkpoint(path: str) -> Iterator[Header]:
    """Yields what the file, the index or the folder at `path` holds. The files stay open in the block."""
    with ExitStack() as files:
        whole = _in_folder(path) if os.path.isdir(path) else path
        yield _of_index(whole, files) if whole.endswith(_INDEX) else _of_file(whole, files)


def _in_folder(path: str) -> str:
    with path_errors(f"{path!r:.1000} cannot be read"):
        names = sorted(os.listdir(path))  # an error that names files is the same on every system
    for ending in _IN_FOLDERS:
        files = [name for name in names if name.endswith(ending)]
        if len(files) == 1:
            return os.path.join(path, files[0])
        if files:
            raise FilePathError(f"{path!r:.1000} is a folder with {listed(files, 4)}: name the one to read")
    raise MissingFileError(
        f"{path!r:.1000} is a folder without weights: expected a file that ends with {', '.join(_IN_FOLDERS)}"
    )


def _of_file(path: str, files: ExitStack) -> Header:
    try:
        return files.enter_context(open_file(path))
    except FileFormatError as error:
        kind = foreign.kind_of(path)
        if kind is None:
            raise
        if kind.framework is None:
            raise FileFormatError(f"{path} is {kind.what}, not safetensors; {kind.advice}") from error
    backend = registry.load(kind.framework)
    state, key = state_in(backend.own_file(path), path)
    for name, value in state.items():
        if not backend.is_dense(value):
            raise UnsupportedError(f"{name} in {path} is sparse, and is not read: save it dense, or take its parts")
    tensors = {
        name: OpenedTensor(dtype_name(value.dtype), tuple(value.shape), value.nbytes, backend, value)
        for name, value in state.items()
    }
    return Header(tensors, {}, key)


def _of_index(path: str, files: ExitStack) -> Header:
    require_plain_file(path)
    with path_errors(f"{path!r:.1000} cannot be read"), open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        places: dict[str, str] = json.loads(text)["weight_map"]
        # a downloaded index must not name files elsewhere on the disk
        if any(os.path.basename(place) != place for place in places.values()):
            raise ValueError("it names a file of another folder")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileFormatError(f"{path} is no index of weights: {shown(error)}") from error
    folder = os.path.dirname(path)
    parts = {place: _of_file(os.path.join(folder, place), files) for place in sorted(set(places.values()))}
    entries: dict[str, FileTensor] = {}
    for place, header in parts.items():
        # a file may hold more than the index says, as leftovers of an earlier one
        entries |= {name: one for name, one in header.entries.items() if places.get(name) == place}
    shared = {name: first for header in parts.values() for name, first in header.shared.items() if first in entries}
    lacking = [name for name in places if name not in entries and name not in shared]
    if lacking:
        raise FileFormatError(f"{path} names {listed(lacking, 3)}, which {places[lacking[0]]} does not hold")
    return Header(entries, shared)


def state_in(saved: Any, where: str) -> tuple[Mapping[str, Any], str]:
    """The state in what a program saved, and the key that it is under: a flat dict of tensors, or the only such dict in
    it ("" is its key in the first case). A training program keeps its optimizer and its counts beside it."""
    if not isinstance(saved, dict):
        raise NotATensorError(f"{where} holds a {type(saved).__qualname__}; expected a dict of tensors by name")
    if is_state(saved):
        return saved, ""
    states = {key: value for key, value in saved.items() if isinstance(value, dict) and value and is_state(value)}
    if len(states) == 1:
        key, state = next(iter(states.items()))
        return state, str(key)
    if not states:
        key = next((key for key, value in saved.items() if not _is_named_tensor(key, value)), "")
        raise NotATensorError(
            f"{shown(key)} is a {type(saved.get(key)).__qualname__}, not a named tensor: expected a flat dict"
        )
    raise StateError(f"{where} holds several states, {listed(map(repr, states), 8)}: give one of them")


def is_state(saved: Mapping[Any, Any]) -> bool:
    return all(_is_named_tensor(key, value) for key, value in saved.items())


def _is_named_tensor(key: Any, value: Any) -> bool:
    owner = registry.kind_of(type(value))
    return isinstance(key, str) and owner is not None and owner.kind != "symbol"
