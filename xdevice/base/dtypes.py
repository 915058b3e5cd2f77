"""Names of dtypes. Each dtype has the same name in every framework: NumPy's name."""

from __future__ import annotations

from xdevice.errors import DTypeError, shown

from . import floats

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Final

    import numpy as np

DTYPES: Final = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
"""Every dtype with which xdevice computes."""

FLOATS: Final = ("float16", "bfloat16", "float32", "float64")
"""The dtypes of random numbers, of tensors that can have gradients, and of numbers that can be NaN."""

SHORT_FLOATS: Final = (
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
)
"""8-bit floats, by their names in ml_dtypes. If a framework has such a dtype, tensors of that dtype can be moved, saved
and loaded, but xdevice does not compute with them."""

NARROWER: Final = {
    "float64": "float32", "complex128": "complex64", "int64": "int32", "uint64": "uint32",
    **dict.fromkeys(SHORT_FLOATS, "float32"),
}  # fmt: skip
"""For each dtype that a device may lack, the dtype to use in its place."""

BITS_AS: Final = {"bfloat16": "int16", **dict.fromkeys(SHORT_FLOATS, "uint8")}
"""For each float dtype that NumPy itself lacks, an integer dtype of the same size. Arrays of this integer dtype carry
the bits of the floats between NumPy and a framework."""

# the dtype of each of Python's own types; and NumPy's name for each dtype that has other names too
_PYTHON_DTYPES: Final = {bool: "bool", int: "int64", float: "float32", complex: "complex64"}
_OTHER_NAMES: Final = {
    "float": "float32", "int": "int64", "half": "float16", "double": "float64", "bool_": "bool",
    "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64",  # Paddle 2.6
}  # fmt: skip

_framework_names: dict[type, dict[object, str]] = {}
"""The names of the frameworks' own dtype objects. Each type of dtype object has a separate dict, because TensorFlow's
dtypes have a hash function in C++. torch.compile cannot look up an object in a dict with such keys."""
# the empty dict in which a dtype is looked up if its type is not in `_framework_names` yet
_NONE: Final[dict[object, str]] = {}
# two caches: dtypes by their names, and names by their dtypes
_host_dtypes: dict[str, np.dtype[Any]] = {}
_names: dict[np.dtype[Any], str] = {}


def name_of(dtype: np.dtype[Any]) -> str:
    """Returns the name of a NumPy dtype, from a cache: `dtype.name` takes 5 us each time."""
    name = _names.get(dtype)
    if name is None:
        name = _names[dtype] = str(dtype.name)
    return name


def register_names(names: Mapping[Any, str]) -> None:
    """Registers the names of a framework's own dtype objects: `names` maps each object to its name. Called once for
    each backend, when the backend is loaded."""
    for dtype, name in names.items():
        _framework_names.setdefault(type(dtype), {})[dtype] = name


def dtype_name(dtype: object) -> str:
    """Returns NumPy's name for a dtype of any framework.

    All of these are "float32": `"float32"`, `np.float32`, `torch.float32`, `tf.float32`,
    `paddle.float32`, `jnp.float32` and `float`.

    Raises:
        DTypeError: if `dtype` is not a dtype.
    """
    import numpy

    try:
        name_of_object = _framework_names.get(type(dtype), _NONE).get(dtype)
    except TypeError:  # an unhashable object is not a dtype: the check below raises the error
        name_of_object = None
    if name_of_object is not None:
        return name_of_object
    # Python's `float` is the default dtype, which XDEVICE_FLOATS may change to float64
    if isinstance(dtype, type) and dtype in _PYTHON_DTYPES:
        return floats.effective_dtype(_PYTHON_DTYPES[dtype])
    if isinstance(dtype, type) and issubclass(dtype, numpy.generic):
        return numpy.dtype(dtype).name
    inner = getattr(dtype, "dtype", dtype)  # jnp.float32 is a class that has the dtype
    # a NumPy dtype has a `name`; torch.float32 has none, and its `str` is "torch.float32"
    name = str(getattr(inner, "name", None) or inner).lower().rpartition(".")[2]
    name = _OTHER_NAMES.get(name, name)
    if name not in DTYPES and name not in SHORT_FLOATS:
        raise DTypeError(f"{shown(dtype)} is not a dtype; expected one of {', '.join(DTYPES)}")
    # cached, because Paddle takes 10 us to name a dtype; strings and classes are not cached
    if inner is dtype and not isinstance(dtype, str):
        _framework_names.setdefault(type(dtype), {})[dtype] = name
    return name


def host_dtype(name: str) -> np.dtype[Any]:
    """Returns the NumPy dtype of this name. For "bfloat16" and 8-bit floats, the dtype comes from the package
    ml_dtypes."""
    dtype = _host_dtypes.get(name)
    if dtype is None:
        dtype = _host_dtypes[name] = _host_dtype(name)
    return dtype


def _host_dtype(name: str) -> np.dtype[Any]:
    """Returns the same as `host_dtype`, but without its cache."""
    import numpy

    if name == "bfloat16" or name in SHORT_FLOATS:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, name))
    return numpy.dtype(name)
