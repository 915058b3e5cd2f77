"""Recognizes files in formats other than safetensors by their first bytes or by the ending of their name. For each kind
of file, defines how it is read or, if xdevice cannot read it, what the user can do instead."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from . import readers
from .disk import path_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

_CONVERT: Final = "then xdevice.models.convert_state(model, ...)"


class Kind(NamedTuple):
    """A kind of file, with the way to read it if xdevice can read it."""

    what: str
    """A description of the file, which follows the words "the file is" in a message."""
    advice: str = ""
    """The advice in the error message if xdevice cannot read the file."""
    framework: str | None = None
    """The name of the backend that wrote the file's tensors; None if xdevice cannot read the file. If `read` is None,
    the backend reads the file with its method `own_file`."""
    read: Callable[[str], Any] | None = None
    """A function that reads the file at a path without the framework, and returns its tensors as NumPy arrays; None if
    there is no such function."""


_PYTORCH: Final = Kind("a checkpoint of PyTorch", framework="torch")
_KERAS: Final = Kind("an HDF5 file of Keras", framework="tensorflow", read=readers.read_keras)
_PICKLE: Final = Kind("a pickle file of Paddle", framework="paddle", read=readers.read_paddle)
_MXNET: Final = Kind("a file of MXNet", framework="mxnet", read=readers.read_mxnet)
# the first bytes of the files of each kind; the first entry that matches is used
_STARTS: Final = (
    (b"\x89HDF\r\n\x1a\n", _KERAS),
    # the pickled magic number with which files of PyTorch before 1.6 begin
    (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19", _PYTORCH),
    # the magic number of MXNet's lists of arrays
    (b"\x12\x01\0\0\0\0\0\0", _MXNET),
    (b"\x93NUMPY", Kind("an array of NumPy", "read it with numpy.load")),
    (
        b"GGUF",
        Kind(
            "a GGUF file, whose tensors are mostly quantized",
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
            "it may be a server's response in place of the file: download the file again",
        ),
    ),
    (b"\x1f\x8b", Kind("compressed by gzip", "unpack it first")),
    # the second byte of a pickle is its protocol. These entries come last, because PyTorch's old files are pickles too
    *((bytes((0x80, number)), _PICKLE) for number in range(2, 6)),
)
# the names of files that only the folder of an Orbax checkpoint contains
_ORBAX: Final = ("_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt", "_sharding")
# by the ending of the name: formats without a signature in their first bytes
_ENDINGS: Final = {
    ".onnx": Kind("an ONNX graph", "convert the model from which it was exported"),
    ".msgpack": Kind("a msgpack file of Flax", framework="jax"),
    ".tflite": Kind("a TensorFlow Lite graph", "convert the model from which it was exported"),
    ".index": Kind(
        "a checkpoint of TensorFlow",
        f"load it in TensorFlow: model.load_weights(...), {_CONVERT}",
    ),
    ".json": Kind("a JSON file", "the name of an index of weights ends with .index.json"),
}


def kind_of_folder(names: Collection[str]) -> Kind | None:
    """Returns the kind of a folder that forms a single checkpoint; None for any other folder. `names` are the names in
    the folder."""
    is_orbax = any(name in _ORBAX for name in names)
    return Kind("a checkpoint of Orbax", framework="jax") if is_orbax else None


def kind_of_file(path: str) -> Kind | None:
    """Returns the kind of a file in another format than safetensors, recognized by its first bytes or the ending of its
    name. Returns None if the kind is unknown. Raises `FilePathError` if the file cannot be read."""
    with path_errors(f"{path!r:.1000} cannot be read"), open(path, "rb") as file:
        start = file.read(32)  # at least as long as each signature
    # PyTorch, Keras, TorchScript and NumPy all write zip archives, which differ in the names of their files
    if start.startswith(b"PK\x03\x04") and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return _kind_of_archive(archive.namelist())
    by_start = next((kind for signature, kind in _STARTS if start.startswith(signature)), None)
    return by_start or next(
        (kind for ending, kind in _ENDINGS.items() if path.lower().endswith(ending)), None
    )


def _kind_of_archive(names: Sequence[str]) -> Kind:
    """Returns the kind of a zip archive. `names` are the names of the files in the archive."""
    # checked first, because an archive of TorchScript contains a data.pkl too
    if any("/code/" in name for name in names):
        return Kind(
            "a TorchScript program",
            f"load it with torch.jit.load, and its state into a model; {_CONVERT}",
        )
    if any(name.endswith("/data.pkl") for name in names):
        return _PYTORCH
    if any(name.endswith(".weights.h5") for name in names):
        return _KERAS._replace(what="a model of Keras")
    if names and all(name.endswith(".npy") for name in names):
        return Kind(
            "NumPy's .npz archive", "pass its arrays: convert_state(dict(numpy.load(...)), ...)"
        )
    return Kind("a zip archive", "unpack it first")
