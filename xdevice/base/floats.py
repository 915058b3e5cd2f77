"""Which floats xdevice makes where no dtype is named: float32, unless a parity run sets XDEVICE_FLOATS.

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

_WIDE: Final = {"float32": "float64", "complex64": "complex128"}
PARTS: Final = {"complex64": "float32", "complex128": "float64"}
"""The dtype of the real and the imaginary part of a complex number."""
_JITTERED: Final = ("float32", "float64", *PARTS)


def _check(text: str) -> str:
    number = text.removeprefix(JITTER)
    is_jitter = number != text and number.isascii() and number.isdigit()
    if text not in ("", FLOAT64) and not is_jitter:
        raise SettingError(
            f"{VARIABLE} must be {FLOAT64} or {JITTER}1, not {shown(text)}; unset it: xdevice parity sets it"
        )
    return text


_asked = _check(os.environ.get(VARIABLE, "").strip())


def setting() -> str:
    """Returns the value of XDEVICE_FLOATS; "" if it is not set."""
    return _asked


def is_float64() -> bool:
    """Whether XDEVICE_FLOATS asks for float64 in place of float32."""
    return _asked == FLOAT64


def usual(name: str = "float32") -> str:
    """Returns the dtype to use where a program would get `name`: `name` itself, or under XDEVICE_FLOATS=float64 a wider
    one.

    Example:
        >>> from xdevice.base import floats
        >>> floats.usual(), floats.usual("int64")
        ('float32', 'int64')
    """
    return _WIDE.get(name, name) if _asked == FLOAT64 else name


def take(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the array that a program passed in, changed as XDEVICE_FLOATS asks: to float64, or each number by an
    ULP."""
    if _asked == FLOAT64:
        name = array.dtype.name
        return array.astype(_WIDE[name]) if name in _WIDE else array
    return jitter(array)


def jitter(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the array, each number changed by an ULP if XDEVICE_FLOATS asks for that; whole numbers stay.

    Equal arrays are changed alike, in any order of calls, so that tied weights stay equal.
    """
    return _jitter(array) if _asked.startswith(JITTER) else array


def _jitter(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns a copy of an array of floats in which each number that is not whole is moved to a neighbouring one,
    randomly up or down. The direction depends on the setting and on the numbers, so that a run can be repeated."""
    name = array.dtype.name
    if name not in _JITTERED or array.size == 0:
        return array
    import zlib

    import numpy

    jittered = numpy.array(array, order="C")
    parts = jittered.reshape(-1).view(PARTS.get(name, name))
    numbers = numpy.random.Generator(
        numpy.random.Philox([int(_asked.removeprefix(JITTER)), zlib.crc32(jittered.data)])
    )
    ways = numpy.where(
        numbers.integers(0, 2, parts.shape, "int8") == 1, numpy.inf, -numpy.inf
    ).astype(parts.dtype)
    is_moved = numpy.isfinite(parts) & (parts != numpy.trunc(parts))
    parts[is_moved] = numpy.nextafter(parts, ways)[is_moved]
    return jittered
