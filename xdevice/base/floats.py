"""The float dtype that xdevice uses if none is named: float32, unless `xdevice parity` sets XDEVICE_FLOATS.

| XDEVICE_FLOATS | |
|---|---|
| `float64` | float64 instead of float32, with the same value; the frameworks' own default is float64 too |
| `jitter:1` | `tensor`, `random`, `load` and `convert_state` move each number by an ULP, up or down; 1 is the seed |

Jitter does not change whole numbers, because zeros, ones, masks and labels are exact on every framework.
"""

from __future__ import annotations

import os

from xdevice.base.requested import FLOATS
from xdevice.errors import SettingError, shown

TYPE_CHECKING = False  # typing takes longer to import than this module
if TYPE_CHECKING:
    from typing import Any, Final

    import numpy as np

FLOAT64: Final = "float64"
JITTER: Final = "jitter:"

# for each dtype, the wider dtype that replaces it under XDEVICE_FLOATS=float64
_WIDE: Final = {"float32": "float64", "complex64": "complex128"}
PARTS: Final = {"complex64": "float32", "complex128": "float64"}
"""For each complex dtype, the dtype of the real and the imaginary part of its numbers."""
_JITTERED: Final = ("float32", "float64", *PARTS)


def _check(text: str) -> str:
    """Returns `text`, the value of XDEVICE_FLOATS, unchanged. Raises `SettingError` unless it is "", "float64", or
    "jitter:" followed by an int."""
    number = text.removeprefix(JITTER)
    is_jitter = number != text and number.isascii() and number.isdigit()
    if text not in ("", FLOAT64) and not is_jitter:
        raise SettingError(
            f"{FLOATS} must be {FLOAT64} or {JITTER}1, not {shown(text)}; unset this variable, which only `xdevice "
            f"parity` should set"
        )
    return text


# read once, at import, because a change in the middle of a program would mix two dtypes
_setting = _check(os.environ.get(FLOATS, "").strip())


def setting() -> str:
    """Returns the value of XDEVICE_FLOATS; "" if it is not set."""
    return _setting


def is_float64() -> bool:
    """Whether XDEVICE_FLOATS requests float64 in place of float32."""
    return _setting == FLOAT64


def effective_dtype(name: str = "float32") -> str:
    """Returns the dtype to use where the default dtype is `name`. This is `name` itself, unless XDEVICE_FLOATS=float64
    replaces it by a wider dtype.

    Example:
        >>> from xdevice.base import floats
        >>> floats.effective_dtype(), floats.effective_dtype("int64")
        ('float32', 'int64')
    """
    return _WIDE.get(name, name) if _setting == FLOAT64 else name


def take(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Changes an array from the program as XDEVICE_FLOATS requests, and returns the result. The array is converted to
    float64, or each number is changed by one ULP, to the next larger or smaller float. Without XDEVICE_FLOATS, returns
    the array unchanged."""
    if _setting == FLOAT64:
        name = array.dtype.name
        return array.astype(_WIDE[name]) if name in _WIDE else array
    return jitter_if_requested(array)


def jitter_if_requested(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the array. If XDEVICE_FLOATS requests jitter, each number in the result is changed by one ULP, except
    whole numbers.

    Equal arrays get equal changes, whatever the order of the calls, so tied weights stay equal.
    """
    return _jitter(array) if _setting.startswith(JITTER) else array


def _jitter(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns a copy of an array of floats. Each number that is not whole is replaced by the next larger or the next
    smaller float, chosen at random. The choice depends only on the setting and on the numbers, so a run can be
    repeated. Returns an array of any other dtype unchanged."""
    name = array.dtype.name
    if name not in _JITTERED or array.size == 0:
        return array
    import zlib

    import numpy

    # in C order, so that `reshape` below returns a view of the copy, not another copy
    jittered = numpy.array(array, order="C")
    # each complex number is viewed as two floats
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
