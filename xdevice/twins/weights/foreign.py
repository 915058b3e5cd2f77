"""Recognizes a file that is not in the safetensors format by its first bytes or its ending, and says how to read it or
what to do with it."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from . import readers
from .disk import path_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

_CONVERT: Final = "then xdevice.models.convert_state(model, ...)"


class Kind(NamedTuple):
    """A kind of file, and how it is read, if it can be read."""

    what: str
    """The kind in words, for messages."""
    advice: str = ""
    """The advice in the error, if the file cannot be read."""
    framework: str | None = None
    """The name of the backend whose tensors these are; None if the file cannot be read. The backend reads such a file
    with its method `own_file`, if there is no `read`."""
    read: Callable[[str], Any] | None = None
    """A function that reads the file at a path without the framework, as NumPy arrays; None if there is none."""


_PYTORCH: Final = Kind("a checkpoint of PyTorch", framework="torch")
_KERAS: Final = Kind(
    "HDF5, as Keras writes it", framework="tensorflow", read=readers.read_keras
)
_PICKLE: Final = Kind(
    "a pickle, as Paddle writes it", framework="paddle", read=readers.read_paddle
)
_MXNET: Final = Kind("a file of MXNet", framework="mxnet", read=readers.read_mxnet)
# the first bytes of the files of each kind; the first entry that fits counts
_STARTS: Final = (
    (b"\x89HDF\r\n\x1a\n", _KERAS),
    # a pickle of the magic number with which files of PyTorch before 1.6 begin
    (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19", _PYTORCH),
    # the magic number of MXNet's lists of arrays
    (b"\x12\x01\0\0\0\0\0\0", _MXNET),
    (b"\x93NUMPY", Kind("an array of NumPy", "read it with numpy.load")),
    (
        b"GGUF",
        Kind(
            "GGUF, whose tensors are mostly quantized",
            "convert the checkpoint from which it was made",
        ),
    ),
    (
        b"version https://git-lfs",
        Kind("a pointer of Git LFS, without the weights", "fetch the weights: git lfs pull"),
    ),
    (
        b"<",
        Kind(
            "a web page or XML",
            "it may be a server's answer instead of the file: download it again",
        ),
    ),
    (b"\x1f\x8b", Kind("compressed by gzip", "unpack it first")),
    # the second byte of a pickle is its protocol. Last, because PyTorch's old files are pickles too
    *((bytes((0x80, number)), _PICKLE) for number in range(2, 6)),
)
# the names of files that only a checkpoint of Orbax has in its folder
_ORBAX: Final = ("_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt", "_sharding")
# for formats without a signature in their first bytes
_ENDINGS: Final = {
    ".onnx": Kind("ONNX, a graph", "convert the model from which it was exported"),
    ".msgpack": Kind("msgpack, as Flax writes it", framework="jax"),
    ".tflite": Kind("TensorFlow Lite, a graph", "convert the model from which it was exported"),
    ".index": Kind(
        "a checkpoint of TensorFlow", f"load it there: model.load_weights(...), {_CONVERT}"
    ),
    ".json": Kind("JSON", "an index of weights ends with .index.json"),
}


def of_folder(names: Collection[str]) -> Kind | None:
    """The kind of a folder that is a checkpoint as a whole, by the names in it; None for any other folder."""
    is_orbax = any(name in _ORBAX for name in names)
    return Kind("a checkpoint of Orbax", framework="jax") if is_orbax else None


def kind_of(path: str) -> Kind | None:
    """The kind of a file that is not in the safetensors format, by its first bytes or its ending; None if it is
    unknown. Raises `FilePathError` if the file cannot be read."""
    with path_errors(f"{path!r:.1000} cannot be read"), open(path, "rb") as file:
        start = file.read(32)
    # PyTorch, Keras, TorchScript and NumPy all write zip archives, which differ in their names
    if start.startswith(b"PK\x03\x04") and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return _of_names(archive.namelist())
    by_start = next((kind for signature, kind in _STARTS if start.startswith(signature)), None)
    return by_start or next(
        (kind for ending, kind in _ENDINGS.items() if path.lower().endswith(ending)), None
    )


def _of_names(names: Sequence[str]) -> Kind:
    """The kind of a zip archive, by the names in it."""
    # first, because an archive of TorchScript has a data.pkl too
    if any("/code/" in name for name in names):
        return Kind(
            "a program of TorchScript", f"use torch.jit.load; build the model, {_CONVERT}"
        )
    if any(name.endswith("/data.pkl") for name in names):
        return _PYTORCH
    if any(name.endswith(".weights.h5") for name in names):
        return _KERAS._replace(what="a model of Keras")
    if names and all(name.endswith(".npy") for name in names):
        return Kind(
            "NumPy's .npz", "pass its arrays: convert_state(dict(numpy.load(...)), ...)"
        )
    return Kind("a zip archive", "unpack it first")
