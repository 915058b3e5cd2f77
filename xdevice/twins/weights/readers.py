"""Reads the checkpoints of Keras, Paddle and Gluon without these frameworks, which are often not installed on the
machine that reads a file.

No code from a file is run. Paddle's files are pickles, from which only dicts and NumPy arrays are read.

Facts on which the code depends:
- Files of Keras 3 number the variables of each layer, under a path made of class names. The layer's own name is an
  attribute. If a layer has all of its usual variables, its class determines which variable each number refers to. HDF5
  lists the layers in alphabetical order. Files of Keras 2 and `.h5` files of a whole model contain the names of the
  variables.
- Paddle writes bfloat16 as uint16, a dtype that Paddle does not use otherwise. It writes a tensor either as an array or
  as a pair (name, array).
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

# all the classes and functions that a pickle of arrays needs; none of them calls a function that the file names
_SAFE: Final = {
    ("collections", "OrderedDict"), ("builtins", "tuple"), ("builtins", "dict"), ("builtins", "list"),
    ("_codecs", "encode"), ("numpy", "ndarray"), ("numpy", "dtype"),
    *((f"numpy.{core}.{module}", name) for core in ("core", "_core") for module, name in (
        ("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer"),
    )),
}  # fmt: skip
# the key under which `paddle.save` adds a dict with Paddle's own names of the parameters
_OWN_NAMES: Final = "StructuredToParameterName@@"


class _Unpickler(pickle.Unpickler):
    """Reads a pickle without running code from it."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns the class or function `name` of the module `module`, to which the pickle refers. Raises
        `UnpicklingError` if the class or function is not in `_SAFE`."""
        if (module, name) not in _SAFE:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which may run code")
        return super().find_class(module, name)


def read_paddle(path: str) -> Any:
    """Reads a file that `paddle.save` wrote. Returns its contents, usually a dict, with arrays in place of tensors.
    Raises `FileFormatError` if the file is damaged, or cannot be read without running code from it."""
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
                f"{path} cannot be read as a file of Paddle without running code from it: {error}; if you trust the "
                f"file, read it with paddle.load, and pass the dict to convert_state"
            ) from error


def _with_arrays(value: Any) -> Any:
    """Returns the contents of a Paddle file with an array in place of each tensor, including tensors in inner dicts.
    The entry with Paddle's own parameter names is left out. Any other object, such as a list, is returned unchanged."""
    # a tensor may be a pair of its name and its array
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], np.ndarray):
        value = value[1]
    if isinstance(value, np.ndarray):
        return value.view(host_dtype("bfloat16")) if value.dtype == np.uint16 else value
    if isinstance(value, dict):
        return {key: _with_arrays(inner) for key, inner in value.items() if key != _OWN_NAMES}
    return value


# files of Gluon and `mx.nd.save`, in a binary format of MXNet

# the position of a dtype is its code in a file of MXNet
_DTYPES: Final = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool")
_MAGIC: Final = (0xF993FAC9, 0xF993FACA)
"""The two numbers with which an array in a file may begin. The array begins with the first number if MXNet's NumPy
shapes were disabled when it was saved, and with the second if they were enabled."""


def read_mxnet(path: str) -> Arrays:
    """Reads a file that `save_parameters` or `mx.nd.save` wrote, and returns its arrays by name. Raises
    `FileFormatError` if the file is damaged, or if its arrays are sparse or have no names."""
    try:
        with open(path, "rb") as file:
            # the file begins with MXNet's magic number and a reserved number
            _, _, count = _numbers(file, "<QQQ")
            arrays = [_array(file) for _ in range(count)]
            (names,) = _numbers(file, "<Q")
            keys = [_text(file) for _ in range(names)]
    except (struct.error, ValueError, IndexError, KeyError, UnicodeDecodeError) as error:
        raise FileFormatError(
            f"{path} is damaged, or is an unsupported kind of MXNet file: {error}"
        ) from error
    if len(keys) != len(arrays):
        raise FileFormatError(
            f"{path} has {len(arrays)} arrays but {len(keys)} names, so the names of the arrays are not known; "
            "save the arrays as a dict"
        )
    # MXNet's Module adds the prefix "arg:" to the names of learned arrays, and "aux:" to other names
    return {
        key.removeprefix("arg:").removeprefix("aux:"): array
        for key, array in zip(keys, arrays, strict=True)
    }


def _numbers(file: BufferedReader, form: str) -> tuple[int, ...]:
    """Reads the next numbers of a file and returns them. `form` is their format in the notation of the module `struct`.
    Raises `struct.error` if the file ends too early."""
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _array(file: BufferedReader) -> np.ndarray[Any, Any]:
    """Reads the next array of an open MXNet file and returns it. Raises `ValueError` if the array is sparse, in an old
    format or incomplete, and `IndexError` if the code of its dtype is unknown. Raises `struct.error` if the file ends
    before the array's values begin."""
    # 0 is the code of dense storage
    magic, storage, axes = _numbers(file, "<Iii")
    if magic not in _MAGIC or storage != 0:
        raise ValueError("an array is sparse, or was written by MXNet before 1.0")
    shape = _numbers(file, f"<{axes}q")
    # the kind and the number of the device, which are ignored, and the code of the dtype
    _, _, code = _numbers(file, "<iii")
    dtype = np.dtype(_DTYPES[code])
    data = file.read(dtype.itemsize * int(np.prod(shape, dtype=object)))
    # copied, because the array that `frombuffer` returns is read-only. The size above is computed with Python's ints,
    # which do not overflow if a damaged file has a huge shape
    return np.frombuffer(data, dtype).reshape(shape).copy()


def _text(file: BufferedReader) -> str:
    """Reads the next string of an open MXNet file and returns it. In the file, the length of the string in bytes
    precedes the bytes."""
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
"""The names of a layer's variables, in the order of their numbers in the file. A key is the name of the layer's class
in lower case with underscores, or the name of a layer inside an attention layer. A file may lack only a bias."""

_DEPTHWISE: Final = re.compile(
    r'"class_name": "DepthwiseConv\dD", "config": \{"name": "([^"]+)"'
)
"""Matches the depthwise convolutions in the config of a whole model. In such a file, their kernels are named `kernel`,
like the kernels of other layers."""
_SIDE: Final = re.compile("/(forward|backward)_[^/]+/[^/]*cell[^/]*/")
"""Matches the path of a cell inside a Bidirectional layer, in a file that stores a whole model."""


def read_keras(path: str) -> Arrays:
    """Reads a `.weights.h5`, `.keras` or `.h5` file of Keras. Returns its variables by the names that they have in a
    Keras model. Raises `UnsupportedError` if h5py is not installed, and `FileFormatError` if the file is damaged."""
    try:
        h5py: Any = importlib.import_module("h5py")  # which has no types
    except ImportError:
        raise UnsupportedError(
            f"{path} is an HDF5 file, and reading it requires h5py: pip install h5py"
        ) from None
    try:
        # a `.keras` file is a zip archive that contains a `.weights.h5` file
        if zipfile.is_zipfile(path):
            with (
                zipfile.ZipFile(path) as archive,
                archive.open("model.weights.h5") as inside,
                h5py.File(inside) as file,
            ):
                return dict(_variables_of_layers(file, path=""))
        with h5py.File(path) as file:
            # a file of a whole model contains the weights in a group of this name
            weights = file.get("model_weights", file)
            return (
                dict(_variables_of_keras_2(weights))
                if "layer_names" in weights.attrs
                else dict(_variables_of_layers(file, path=""))
            )
    except (OSError, KeyError, ValueError) as error:
        raise FileFormatError(
            f"{path} is damaged, or not in Keras's format: {error}"
        ) from error


def _variables_of_keras_2(group: Any) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yields the name and the values of each variable in an HDF5 file of Keras 2, in the order of the layers."""
    depthwise = _DEPTHWISE.findall(_decoded(group.file.attrs.get("model_config", "")))
    for layer in map(_decoded, group.attrs["layer_names"]):
        for name in map(_decoded, group[layer].attrs["weight_names"]):
            pieces = name.partition(":")[0].split("/")
            # in a name such as `model/dense/dense/kernel:0`, the pieces before the layer's own name are dropped
            start = pieces.index(layer) if layer in pieces else 0
            # Keras 3 names this kernel differently; `pieces[-2:-1]` is empty for a name without a layer
            if pieces[-1] == "kernel" and pieces[-2:-1] and pieces[-2] in depthwise:
                pieces[-1] = "depthwise_kernel"
            # a cell gets the path that it has in Keras 3, such as `bidirectional/forward_layer/cell/kernel`;
            # `[()]` reads all values into an array
            yield (
                _SIDE.sub(r"/\1_layer/cell/", "/".join(pieces[start:])),
                group[layer][name][()],
            )


def _decoded(text: Any) -> str:
    """Returns a string from an HDF5 file as a `str`. The file may store the string as bytes."""
    return text.decode() if isinstance(text, bytes) else str(text)


def _variables_of_layers(group: Any, path: str) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yields the name and the values of each variable in a group of an HDF5 file of Keras 3. `path` is the path of the
    layer that the group represents; the names of the variables begin with this path."""
    variables = group.get("vars")
    if variables is not None:
        yield from _variables_of_layer(variables, group.name.rpartition("/")[2], path)
    for name in sorted((name for name in group if name != "vars"), key=_by_number):
        child = group[name]
        # a group without `vars` is a list of layers, and its name is not part of the layers' paths
        is_layer = "vars" in child
        child_path = "/".join(filter(None, (path, _name_of(child, name)))) if is_layer else path
        yield from _variables_of_layers(child, child_path)


def _name_of(group: Any, name: str) -> str:
    """Returns the name of a layer for use in a path. `group` represents the layer in the file, and `name` is the name
    of the group."""
    # the layer's own name is an attribute of the group. The three inner layers below are named in Keras's paths after
    # the attribute of the outer layer that contains them, and this is also the name of their group
    layer_name = _decoded(group["vars"].attrs.get("name", name))
    return name if name in ("cell", "forward_layer", "backward_layer") else layer_name


def _variables_of_layer(
    variables: Any, name: str, path: str
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yields the name and the values of each variable of one layer. The variable's name begins with `path`, followed by
    the variable's name in its class, or by its number if that name is not known. `name` is the name of the layer's
    group in the file."""
    # sorted by number, because the string "10" would come before "2"
    keys = sorted(variables, key=int)
    layer_name = _decoded(variables.attrs.get("name", name))
    # from the second layer of a class on, Keras adds a number to the name: dense, dense_1
    class_name = re.sub(r"_\d+$", "", name)
    names = next(
        (
            _CLASSES[word]
            for word in (class_name, re.sub(r"_\d+$", "", layer_name))
            if word in _CLASSES
        ),
        (),
    )
    # if a variable other than the bias is missing, it is unclear which variables the others are, so they keep their
    # numbers. The variables of an unknown class also keep their numbers, because `names` is empty
    is_whole = len(keys) == len(names) or (
        names[-1:] == ("bias",) and len(keys) == len(names) - 1
    )
    for number, key in enumerate(keys):
        last = names[number] if is_whole else key
        yield "/".join(filter(None, (path, last))), variables[key][()]


def _by_number(name: str) -> tuple[str, int]:
    """Returns a sort key with which dense_2 comes before dense_10."""
    base, _, number = name.rpartition("_")
    return (base, int(number)) if number.isdigit() else (name, 0)
