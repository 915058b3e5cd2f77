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

# files of `paddle.save`, which are pickles

# everything that a pickle of arrays needs; none of these calls a function that the file names
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
    """Reads a pickle without running code from it."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns the class or function that the pickle asks for. Raises `UnpicklingError` unless it is in `_SAFE`."""
        if (module, name) not in _SAFE:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which may run code")
        return super().find_class(module, name)


def read_paddle(path: str) -> Any:
    """Reads a file of `paddle.save`, and returns its contents, usually a dict, with arrays in place of tensors. Raises
    `FileFormatError` if the file is damaged, or cannot be read without running code from it."""
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
                f"read it with paddle.load, and pass the dict to convert_state"
            ) from error


def _with_arrays(value: Any) -> Any:
    """The contents of a Paddle file, with an array in place of each tensor, also in inner dicts, and without the entry
    that has Paddle's own parameter names. Any other object, such as a list, is returned as it is."""
    # a tensor may be a pair of its name and its array
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], np.ndarray):
        value = value[1]
    if isinstance(value, np.ndarray):
        return value.view(host_dtype("bfloat16")) if value.dtype == np.uint16 else value
    if isinstance(value, dict):
        return {key: _with_arrays(inner) for key, inner in value.items() if key != _OWN_NAMES}
    return value


# files of Gluon and `mx.nd.save`, in a binary format of MXNet

# by the codes of dtypes in a file of MXNet
_DTYPES: Final = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool")
_MAGIC: Final = (0xF993FAC9, 0xF993FACA)
"""The number with which an array begins in a file, if it was saved without NumPy's shapes and with them."""


def read_mxnet(path: str) -> Arrays:
    """Reads the arrays in a file of `save_parameters` or `mx.nd.save`, by name. Raises `FileFormatError` if the file is
    damaged, or if its arrays are sparse or have no names."""
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
            f"{path} has {len(arrays)} arrays and {len(keys)} names, so the arrays cannot be told apart; "
            "save them as a dict"
        )
    # MXNet's Module puts "arg:" before the names of learned arrays, and "aux:" before others
    return {
        key.removeprefix("arg:").removeprefix("aux:"): array
        for key, array in zip(keys, arrays, strict=True)
    }


def _numbers(file: BufferedReader, form: str) -> tuple[int, ...]:
    """Reads the next numbers of a file; `form` is their format, as in the module `struct`. Raises `struct.error` if the
    file ends too early."""
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _array(file: BufferedReader) -> np.ndarray[Any, Any]:
    """Reads the next array of an open file of MXNet. Raises `ValueError` if the array is sparse, of an old format or
    cut short, `IndexError` if the code of its dtype is unknown, and `struct.error` if the file ends before the
    numbers."""
    # 0 is the code of dense storage
    magic, storage, axes = _numbers(file, "<Iii")
    if magic not in _MAGIC or storage != 0:
        raise ValueError("an array is sparse, or was written by MXNet before 1.0")
    shape = _numbers(file, f"<{axes}q")
    # the kind and the number of the device, which do not matter here, and the code of the dtype
    _, _, code = _numbers(file, "<iii")
    dtype = np.dtype(_DTYPES[code])
    data = file.read(dtype.itemsize * int(np.prod(shape, dtype=object)))
    # copied, because an array of `frombuffer` is read-only. The size is computed from Python's ints,
    # which do not overflow if a damaged file has a huge shape
    return np.frombuffer(data, dtype).reshape(shape).copy()


def _text(file: BufferedReader) -> str:
    """Reads the next text of an open file of MXNet: its length in bytes, then the bytes."""
    (length,) = _numbers(file, "<Q")
    return file.read(length).decode()


# files of Keras, which are HDF5

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
"""The names of a layer's variables, in their order, by the layer's class in lower case with underscores, or by its name
inside an attention. Only a bias may be missing."""

_DEPTHWISE: Final = re.compile(
    r'"class_name": "DepthwiseConv\dD", "config": \{"name": "([^"]+)"'
)
"""The depthwise convolutions in the config of a whole model, whose kernels have no name of their own there."""
_SIDE: Final = re.compile("/(forward|backward)_[^/]+/[^/]*cell[^/]*/")
"""The path of the cells of a Bidirectional in a whole model."""


def read_keras(path: str) -> Arrays:
    """Reads the variables in a `.weights.h5`, `.keras` or `.h5` file of Keras, by the names that they have in a Keras
    model. Raises `UnsupportedError` without h5py, and `FileFormatError` if the file is damaged."""
    try:
        h5py: Any = importlib.import_module("h5py")  # which has no types
    except ImportError:
        raise UnsupportedError(f"{path} is HDF5, which needs h5py: pip install h5py") from None
    try:
        # a `.keras` file is a zip archive, which has a `.weights.h5` file in it
        if zipfile.is_zipfile(path):
            with (
                zipfile.ZipFile(path) as archive,
                archive.open("model.weights.h5") as inside,
                h5py.File(inside) as file,
            ):
                return dict(_of_layers(file, ""))
        with h5py.File(path) as file:
            # a file of a whole model has the weights in a group
            weights = file.get("model_weights", file)
            return (
                dict(_of_keras_2(weights))
                if "layer_names" in weights.attrs
                else dict(_of_layers(file, ""))
            )
    except (OSError, KeyError, ValueError) as error:
        raise FileFormatError(
            f"{path} is damaged, or not in Keras's format: {error}"
        ) from error


def _of_keras_2(group: Any) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yields the name and the values of each variable in an HDF5 file of Keras 2, in the order of the layers."""
    depthwise = _DEPTHWISE.findall(_decoded(group.file.attrs.get("model_config", "")))
    for layer in map(_decoded, group.attrs["layer_names"]):
        for name in map(_decoded, group[layer].attrs["weight_names"]):
            pieces = name.partition(":")[0].split("/")
            # names such as `model/dense/dense/kernel:0` lose what is before the layer's own name
            start = pieces.index(layer) if layer in pieces else 0
            # Keras 3 has another name for this kernel; `pieces[-2:-1]` is empty for a name without a layer
            if pieces[-1] == "kernel" and pieces[-2:-1] and pieces[-2] in depthwise:
                pieces[-1] = "depthwise_kernel"
            yield (
                _SIDE.sub(r"/\1_layer/cell/", "/".join(pieces[start:])),
                group[layer][name][()],
            )


def _decoded(text: Any) -> str:
    """A text of an HDF5 file, where it may be bytes, as a string."""
    return text.decode() if isinstance(text, bytes) else str(text)


def _of_layers(group: Any, path: str) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yields the name and the values of each variable in a group of an HDF5 file of Keras 3. `path` is the path of the
    layer that the group stands for, with which the names begin."""
    variables = group.get("vars")
    if variables is not None:
        yield from _of_layer(variables, group.name.rpartition("/")[2], path)
    for name in sorted((name for name in group if name != "vars"), key=_by_number):
        child = group[name]
        # a group without `vars` is a list of layers, whose name is no part of their paths
        is_layer = "vars" in child
        yield from _of_layers(
            child,
            "/".join(filter(None, (path, _name_of(child, name))) if is_layer else (path,)),
        )


def _name_of(group: Any, name: str) -> str:
    """The part of a path for the layer that a group stands for; `name` is the name of the group in the file."""
    # HDF5 keeps the layer's own name with the group. Keras's paths name the three below by the attribute of the outer
    # layer that holds them, which is the group's name
    layer_name = _decoded(group["vars"].attrs.get("name", name))
    return name if name in ("cell", "forward_layer", "backward_layer") else layer_name


def _of_layer(
    variables: Any, name: str, path: str
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yields the name and the values of each variable of one layer. The variable's name is `path`, followed by the name
    that the layer's class has for the variable, or by its number if that is not known. `name` is the name of the
    layer's group in the file."""
    # by number, because as texts "10" would come before "2"
    keys = sorted(variables, key=int)
    layer_name = _decoded(variables.attrs.get("name", name))
    # Keras adds numbers to the names of a class from its second layer on: dense, dense_1
    class_name = re.sub(r"_\d+$", "", name)
    names = next(
        (
            _CLASSES[word]
            for word in (class_name, re.sub(r"_\d+$", "", layer_name))
            if word in _CLASSES
        ),
        (),
    )
    # if a variable other than the bias is missing, it is unclear which ones are there, and they
    # keep their numbers. So do the variables of a class that is not known, which has no `names`
    is_whole = len(keys) == len(names) or (
        names[-1:] == ("bias",) and len(keys) == len(names) - 1
    )
    for number, key in enumerate(keys):
        last = names[number] if is_whole else key
        yield "/".join(filter(None, (path, last))), variables[key][()]


def _by_number(name: str) -> tuple[str, int]:
    """A key for `sorted`, by which dense_2 comes before dense_10."""
    base, _, number = name.rpartition("_")
    return (base, int(number)) if number.isdigit() else (name, 0)
