"""Which floats xdevice makes if no dtype is named: float32, unless `xdevice parity` sets
XDEVICE_FLOATS.

| XDEVICE_FLOATS | |
|---|---|
| `float64` | float64 instead of float32, with the same value; the frameworks' own default is float64 too |
| `jitter:1` | `tensor`, `random`, `load` and `convert_state` move each number by an ULP, up or down; 1 is the seed |

Jitter leaves whole numbers as they are: zeros, ones, masks and labels are exact on every framework.
"""

from __future__ import annotations

import os

from xdevice.errors import SettingError, shown

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any, Final

    import numpy as np

VARIABLE: Final = "XDEVICE_FLOATS"
FLOAT64: Final = "float64"
JITTER: Final = "jitter:"

# for each dtype, the wider one that XDEVICE_FLOATS=float64 puts in its place
_WIDE: Final = {"float32": "float64", "complex64": "complex128"}
PARTS: Final = {"complex64": "float32", "complex128": "float64"}
"""The dtype of the real and the imaginary part of a complex number."""
_JITTERED: Final = ("float32", "float64", *PARTS)


def _check(text: str) -> str:
    """Returns `text`, a value of XDEVICE_FLOATS. Raises `SettingError` unless it is "", "float64", or
    "jitter:" with an int."""
    number = text.removeprefix(JITTER)
    is_jitter = number != text and number.isascii() and number.isdigit()
    if text not in ("", FLOAT64) and not is_jitter:
        raise SettingError(
            f"{VARIABLE} must be {FLOAT64} or {JITTER}1, not {shown(text)}. Do not set it yourself: `xdevice parity` "
            f"sets it"
        )
    return text


# read once, at import: changing the floats in the middle of a program would mix two dtypes
_setting = _check(os.environ.get(VARIABLE, "").strip())


def setting() -> str:
    """Returns the value of XDEVICE_FLOATS; "" if it is not set."""
    return _setting


def is_float64() -> bool:
    """Whether XDEVICE_FLOATS asks for float64 in place of float32."""
    return _setting == FLOAT64


def effective(name: str = "float32") -> str:
    """Returns the dtype that is in effect where the default dtype is `name`: `name` itself, or a wider one under
    XDEVICE_FLOATS=float64.

    Example:
        >>> from xdevice.base import floats
        >>> floats.effective(), floats.effective("int64")
        ('float32', 'int64')
    """
    return _WIDE.get(name, name) if _setting == FLOAT64 else name


def take(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns an array that a program passed in, changed as XDEVICE_FLOATS asks: converted to
    float64, or with each number changed by an ULP (to the next float). By default it is
    unchanged."""
    if _setting == FLOAT64:
        name = array.dtype.name
        return array.astype(_WIDE[name]) if name in _WIDE else array
    return jitter(array)


def jitter(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the array, with each number changed by an ULP if XDEVICE_FLOATS asks for that;
    whole numbers stay as they are.

    Equal arrays get equal changes, in any order of calls, so tied weights stay equal.
    """
    return _jitter(array) if _setting.startswith(JITTER) else array


def _jitter(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns a copy of an array of floats in which each number that is not whole is replaced
    by the next larger or the next smaller float, chosen at random. The choice depends only on
    the setting and on the numbers, so a run can be repeated. An array of another dtype is
    returned as it is."""
    name = array.dtype.name
    if name not in _JITTERED or array.size == 0:
        return array
    import zlib

    import numpy

    # in C order, so that the view below is one of the copy itself
    jittered = numpy.array(array, order="C")
    # a complex number as two floats
    parts = jittered.reshape(-1).view(PARTS.get(name, name))
    # seeded by the values, so that equal arrays draw equal numbers
    numbers = numpy.random.Generator(
        numpy.random.Philox([int(_setting.removeprefix(JITTER)), zlib.crc32(jittered.data)])
    )
    directions = numpy.where(
        numbers.integers(0, 2, parts.shape, "int8") == 1, numpy.inf, -numpy.inf
    ).astype(parts.dtype)
    # zeros, ones, masks and labels must stay exact
    is_moved = numpy.isfinite(parts) & (parts != numpy.trunc(parts))
    parts[is_moved] = numpy.nextafter(parts, directions)[is_moved]
    return jittered
