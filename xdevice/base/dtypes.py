"""Names of dtypes: each dtype has one name, which is NumPy's, whatever a framework calls it."""

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
"""Every dtype that xdevice knows."""

FLOATS: Final = ("float16", "bfloat16", "float32", "float64")
"""The dtypes in which random numbers are drawn, which can have gradients, and which can be NaN."""

SHORT_FLOATS: Final = (
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
)
"""8-bit floats, by ml_dtypes's names: where a framework has them they can be moved, saved and loaded, and nothing
else."""

NARROWER: Final = {
    "float64": "float32", "complex128": "complex64", "int64": "int32", "uint64": "uint32",
    **dict.fromkeys(SHORT_FLOATS, "float32"),
}  # fmt: skip
"""The dtype to use in place of one that a device lacks."""

BITS_AS: Final = {"bfloat16": "int16", **dict.fromkeys(SHORT_FLOATS, "uint8")}
"""For each float that NumPy itself does not know, the dtype under which its bits are passed between NumPy and a
framework."""

_PYTHON: Final = {bool: "bool", int: "int64", float: "float32", complex: "complex64"}
_OTHER_NAMES: Final = {
    "float": "float32", "int": "int64", "half": "float16", "double": "float64", "bool_": "bool",
    "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64",  # Paddle 2.6
}  # fmt: skip

_stated: dict[type, dict[object, str]] = {}
"""The names of the frameworks' own dtype objects, by their types: torch.compile cannot look for one among TensorFlow's,
whose hash is written in C++."""
_NONE: Final[dict[object, str]] = {}
_host_dtypes: dict[str, np.dtype[Any]] = {}
_names: dict[np.dtype[Any], str] = {}


def name_of(dtype: np.dtype[Any]) -> str:
    """Returns the name of a NumPy dtype, which is cached: `dtype.name` takes 5 us each time."""
    name = _names.get(dtype)
    if name is None:
        name = _names[dtype] = str(dtype.name)
    return name


def state(names: Mapping[Any, str]) -> None:
    """Tells xdevice the names of a framework's own dtype objects; each adapter calls it once."""
    for dtype, name in names.items():
        _stated.setdefault(type(dtype), {})[dtype] = name


def dtype_name(dtype: object) -> str:
    """Returns NumPy's name of a dtype in any framework's form.

    `"float32"`, `np.float32`, `torch.float32`, `tf.float32`, `paddle.float32`, `jnp.float32`, `float`.

    Raises:
        DTypeError: it is not a dtype.
    """
    import numpy

    try:
        stated = _stated.get(type(dtype), _NONE).get(dtype)
    except TypeError:  # what cannot be hashed is not a dtype, as is said below
        stated = None
    if stated is not None:
        return stated
    if isinstance(dtype, type) and dtype in _PYTHON:
        return floats.usual(_PYTHON[dtype])
    if isinstance(dtype, type) and issubclass(dtype, numpy.generic):
        return numpy.dtype(dtype).name
    inner = getattr(dtype, "dtype", dtype)  # jnp.float32 is a class that holds its dtype
    name = str(getattr(inner, "name", None) or inner).lower().rpartition(".")[2]
    name = _OTHER_NAMES.get(name, name)
    if name not in DTYPES and name not in SHORT_FLOATS:
        raise DTypeError(f"{shown(dtype)} is not a dtype; expected one of {', '.join(DTYPES)}")
    if inner is dtype and not isinstance(dtype, str):
        _stated.setdefault(type(dtype), {})[dtype] = name  # Paddle takes 10 us for one
    return name


def host_dtype(name: str) -> np.dtype[Any]:
    """Returns NumPy's dtype for a name; for "bfloat16" and 8-bit floats it is that of ml_dtypes."""
    dtype = _host_dtypes.get(name)
    if dtype is None:
        dtype = _host_dtypes[name] = _host_dtype(name)
    return dtype


def _host_dtype(name: str) -> np.dtype[Any]:
    import numpy

    if name == "bfloat16" or name in SHORT_FLOATS:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, name))
    return numpy.dtype(name)
