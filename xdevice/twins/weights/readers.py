"""Reads the checkpoints of Keras, Paddle and Gluon without these frameworks: often there is only the file.

No code from a file is run: Paddle's files are pickles, from which only dicts and NumPy arrays are read.

Facts that the code depends on:
- Keras 3 numbers the variables of a layer, under a path made of class names. The layer's name is an attribute, and the
  class tells what the numbers mean, if a layer has all of its usual variables. HDF5 has the layers in alphabetical
  order. Keras 2, and `.h5` files of a whole model, have names.
- Paddle writes bfloat16 as uint16, a dtype that it lacks otherwise, and a tensor as an array or as (name, array).
"""

from __future__ import annotations

import importlib
import pickle
import re
import struct
import zipfile
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from xdevice.base.dtypes import host_dtype
from xdevice.errors import FileFormatError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

    Arrays = dict[str, np.ndarray[Any, Any]]

# Paddle

# all that the pickle of an array needs; none of these calls anything that the file names
_SAFE: Final = {
    ("collections", "OrderedDict"), ("builtins", "tuple"), ("builtins", "dict"), ("builtins", "list"),
    ("_codecs", "encode"), ("numpy", "ndarray"), ("numpy", "dtype"),
    *((f"numpy.{core}.{module}", name) for core in ("core", "_core") for module, name in (
        ("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer"),
    )),
}  # fmt: skip
# under this key `paddle.save` adds a dict of its own names of the parameters
_OWN_NAMES: Final = "StructuredToParameterName@@"


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _SAFE:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which may run code")
        return super().find_class(module, name)


def read_paddle(path: str) -> Any:
    """The dict in a file of `paddle.save`, with arrays in place of tensors."""
    with open(path, "rb") as file:
        try:
            return _with_arrays(_Unpickler(file).load())
        except (
            pickle.UnpicklingError,
            EOFError,
            ValueError,
            TypeError,
            AttributeError,
            ImportError,
            IndexError,
        ) as error:
            raise FileFormatError(
                f"{path} cannot be read as a file of Paddle without running code from it: {error}; if you trust it, "
                "paddle.load reads it: give convert_state its dict"
            ) from error


def _with_arrays(value: Any) -> Any:
    """The contents of a file with an array in place of each tensor."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], np.ndarray):
        value = value[1]
    if isinstance(value, np.ndarray):
        return value.view(host_dtype("bfloat16")) if value.dtype == np.uint16 else value
    if isinstance(value, dict):
        return {key: _with_arrays(one) for key, one in value.items() if key != _OWN_NAMES}
    return value


# Gluon

_DTYPES: Final = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool")
_MAGIC: Final = (0xF993FAC9, 0xF993FACA)
"""The first bytes of a dense array, without and with NumPy's shapes."""


def read_mxnet(path: str) -> Arrays:
    """The arrays in a file of `save_parameters` or `mx.nd.save`, by name."""
    try:
        with open(path, "rb") as file:
            # the file begins with MXNet's magic number and a reserved one
            _, _, count = _numbers(file, "<QQQ")
            arrays = [_array(file) for _ in range(count)]
            (names,) = _numbers(file, "<Q")
            keys = [_text(file) for _ in range(names)]
    except (struct.error, ValueError, IndexError, KeyError, UnicodeDecodeError) as error:
        raise FileFormatError(
            f"{path} is damaged, or of an unsupported kind: {error}"
        ) from error
    if len(keys) != len(arrays):
        raise FileFormatError(
            f"{path} has {len(arrays)} arrays and {len(keys)} names: arrays without names cannot be matched"
        )
    # the Module of MXNet says so which are learned
    return {
        key.removeprefix("arg:").removeprefix("aux:"): array
        for key, array in zip(keys, arrays, strict=True)
    }


def _numbers(file: BufferedReader, form: str) -> tuple[int, ...]:
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _array(file: BufferedReader) -> np.ndarray[Any, Any]:
    """Reads the next array of an open file of MXNet."""
    magic, storage, axes = _numbers(file, "<Iii")
    if magic not in _MAGIC or storage != 0:
        raise ValueError("an array is sparse, or of MXNet before 1.0")
    shape = _numbers(file, f"<{axes}q")
    # the type and the number of the device come before the dtype; a file is read on the host anyway
    _, _, code = _numbers(file, "<iii")
    dtype = np.dtype(_DTYPES[code])
    data = file.read(dtype.itemsize * int(np.prod(shape, dtype=object)))
    # `frombuffer` gives an array that cannot be written
    return np.frombuffer(data, dtype).reshape(shape).copy()


def _text(file: BufferedReader) -> str:
    (length,) = _numbers(file, "<Q")
    return file.read(length).decode()


# Keras

_KERNEL: Final = ("kernel", "bias")
_CLASSES: Final = {
    "dense": _KERNEL, "einsum_dense": _KERNEL, "embedding": ("embeddings",), "p_re_lu": ("alpha",),
    "batch_normalization": ("gamma", "beta", "moving_mean", "moving_variance"),
    "layer_normalization": ("gamma", "beta"), "group_normalization": ("gamma", "beta"), "rms_normalization": ("scale",),
    **{f"conv{axes}d{end}": _KERNEL for axes in (1, 2, 3) for end in ("", "_transpose")},
    **{f"depthwise_conv{axes}d": ("depthwise_kernel", "bias") for axes in (1, 2)},
    **{f"{kind}_cell": ("kernel", "recurrent_kernel", "bias") for kind in ("lstm", "gru", "simple_rnn")},
    **dict.fromkeys(("query", "key", "value", "attention_output"), _KERNEL),
}  # fmt: skip
"""The variables of a layer by its class, or in an attention by the layer's name. Only a bias may be missing."""

_DEPTHWISE: Final = re.compile(
    r'"class_name": "DepthwiseConv\dD", "config": \{"name": "([^"]+)"'
)
"""The depthwise convolutions in the config of a whole model, whose kernels have no name of their own there."""
_SIDE: Final = re.compile("/(forward|backward)_[^/]+/[^/]*cell[^/]*/")
"""The path of the cells of a Bidirectional in a whole model."""


def read_keras(path: str) -> Arrays:
    """The variables in a `.weights.h5`, `.keras` or `.h5` file of Keras, by the names that they have in a Keras
    model."""
    try:
        h5py: Any = importlib.import_module("h5py")  # which has no types
    except ImportError:
        raise UnsupportedError(f"{path} is HDF5, which needs h5py: pip install h5py") from None
    try:
        if zipfile.is_zipfile(path):
            with (
                zipfile.ZipFile(path) as archive,
                archive.open("model.weights.h5") as inside,
                h5py.File(inside) as file,
            ):
                return dict(_of_layers(file, ""))
        with h5py.File(path) as file:
            whole = file.get("model_weights", file)
            return (
                dict(_of_keras_2(whole))
                if "layer_names" in whole.attrs
                else dict(_of_layers(file, ""))
            )
    except (OSError, KeyError, ValueError) as error:
        raise FileFormatError(
            f"{path} is damaged, or not in Keras's format: {error}"
        ) from error


def _of_keras_2(group: Any) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yields the variables in a file of Keras 2 with their names, in the order of the layers."""
    depthwise = _DEPTHWISE.findall(_decoded(group.file.attrs.get("model_config", "")))
    for layer in map(_decoded, group.attrs["layer_names"]):
        for name in map(_decoded, group[layer].attrs["weight_names"]):
            pieces = name.partition(":")[0].split("/")
            # the model's own name comes first, and a layer's may be there twice
            start = pieces.index(layer) if layer in pieces else 0
            if pieces[-1] == "kernel" and pieces[-2:-1] and pieces[-2] in depthwise:
                pieces[-1] = "depthwise_kernel"
            yield (
                _SIDE.sub(r"/\1_layer/cell/", "/".join(pieces[start:])),
                group[layer][name][()],
            )


def _decoded(text: Any) -> str:
    return text.decode() if isinstance(text, bytes) else str(text)


def _of_layers(group: Any, path: str) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yields the variables in a group of an HDF5 file of Keras 3, with the paths of their layers as names."""
    own = group.get("vars")
    if own is not None:
        yield from _of_layer(own, group.name.rpartition("/")[2], path)
    for name in sorted((name for name in group if name != "vars"), key=_by_number):
        child = group[name]
        # a container of layers, which has no variables, is no layer
        is_layer = "vars" in child
        yield from _of_layers(
            child,
            "/".join(filter(None, (path, _name_of(child, name))) if is_layer else (path,)),
        )


def _name_of(group: Any, name: str) -> str:
    # an attribute of a model of one's own has the name in the file as its path, and a name by its class
    own = _decoded(group["vars"].attrs.get("name", name))
    return name if name in ("cell", "forward_layer", "backward_layer") else own


def _of_layer(
    variables: Any, name: str, path: str
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yields the variables of one layer, with the names that they have by its class."""
    # as texts "10" would come before "2"
    keys = sorted(variables, key=int)
    own = _decoded(variables.attrs.get("name", name))
    # Keras numbers the names of a class's layers from the second on: dense, dense_1
    class_name = re.sub(r"_\d+$", "", name)
    names = next(
        (
            _CLASSES[word]
            for word in (class_name, re.sub(r"_\d+$", "", own))
            if word in _CLASSES
        ),
        (),
    )
    # without one of several of one shape, which it is cannot be told
    is_whole = len(keys) == len(names) or (
        names[-1:] == ("bias",) and len(keys) == len(names) - 1
    )
    for number, key in enumerate(keys):
        last = names[number] if is_whole else key
        yield "/".join(filter(None, (path, last))), variables[key][()]


def _by_number(name: str) -> tuple[str, int]:
    base, _, number = name.rpartition("_")
    return (base, int(number)) if number.isdigit() else (name, 0)
