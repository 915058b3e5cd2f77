"""Arrays whose values show whether a copy went through a narrower dtype, lost a sign, or was never made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xdevice.base.dtypes import host_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

    Array = np.ndarray[Any, Any]

FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
_REAL = {"complex64": "float32", "complex128": "float64"}
"""The dtype of the parts of each complex dtype."""
_TOP = {
    "float16": 65504.0,
    "bfloat16": 3.3e38,
    "float32": 3.4028235e38,
    "float64": 1.7976931348623157e308,
}
"""The largest number of each dtype, or nearly the largest."""


def extreme_values(name: str) -> Array:
    """Returns a 3x4 array of the dtype `name` with values that an inexact copy would change. For floats, these are 0.0
    and -0.0, infinities, extremes, and NaNs with a sign and with a payload. For ints, these are the limits of the
    dtype, and numbers with many bits set."""
    # without a regular pattern, so that a shifted row is detected
    if name == "bool":
        return np.array([[0, 1, 1, 0], [1, 1, 0, 1], [0, 0, 0, 1]], dtype="bool")
    if name in FLOATS:
        return _floats(name)
    limits = np.iinfo(name)
    # a copy through a narrower or a signed dtype would change the limits
    top, low = int(limits.max), int(limits.min)
    # an integer that float64 cannot hold
    middle = (1 << 53) + 1 if limits.bits == 64 else top // 3
    # unsigned ints have no negative numbers, so other numbers take the places of these two
    next_to_low, minus_one = (low + 1, -1) if low else (3, 5)
    numbers = [
        0,
        1,
        7,
        middle,
        top,
        top - 1,
        top // 2 + 2,
        low,
        next_to_low,
        minus_one,
        100,
        top // 5,
    ]
    return np.array(numbers, dtype=name).reshape(3, 4)


def _floats(name: str) -> Array:
    """Returns a 3x4 array of the float or complex dtype `name`: 0.0 and -0.0, fractions, the largest numbers,
    infinities, the smallest number above zero, and two NaNs."""
    if name in _REAL:
        real = _floats(_REAL[name])
        both = np.empty(real.shape, dtype=name)
        # the two parts are assigned, because `real + 1j * imag` turns infinities into NaNs
        both.real, both.imag = real, real[::-1, ::-1]
        return both
    kind = host_dtype(name)
    bits = np.dtype(f"uint{kind.itemsize * 8}")
    top = _TOP[name]
    # the last three numbers are replaced below
    numbers = np.array(
        [0.0, -0.0, 1.5, -2.25, 1 / 3, top, -top, np.inf, -np.inf, 0, 0, 0]
    ).astype(kind)
    # the bits are set directly, because arithmetic produces only one kind of NaN
    raw = numbers.view(bits)
    one = bits.type(1)
    sign = one << bits.type(bits.itemsize * 8 - 1)
    # the bits of a NaN without a sign
    nan = np.array(np.nan).astype(kind).view(bits)[()] & ~sign
    raw[9] = one  # the smallest number above zero
    raw[10] = nan | one  # a NaN with a payload
    raw[11] = nan | sign
    shaped: Array = numbers.reshape(3, 4)
    return shaped


def without_nans(array: Array) -> Array:
    """Returns a copy of the array in which each NaN is replaced by 1, because arithmetic does not preserve the bits of
    a NaN."""
    numbers = array.copy()
    if numbers.dtype.name == "bfloat16" or numbers.dtype.kind in "fc":
        numbers[np.isnan(numbers)] = 1
    return numbers


def small_numbers(name: str) -> Array:
    """Returns a 3x4 array of small numbers for computations. It contains fractions and negative numbers if the dtype
    `name` can represent them."""
    numbers: Any = np.arange(12).reshape(3, 4)
    if name == "bool":
        numbers = numbers % 3 == 1
    elif name in FLOATS:
        numbers = (numbers - 5) * 0.25
        numbers = numbers + 1j * numbers[::-1] if name in _REAL else numbers
    # a signed int, whose smallest number is not 0
    elif np.iinfo(name).min:
        numbers = numbers - 5
    array: Array = numbers.astype(host_dtype(name))
    return array


def unusual_arrays() -> Iterator[tuple[str, Array]]:
    """Yields names and NumPy arrays with an unusual memory layout: transposed, backwards, with gaps, misaligned,
    read-only, without elements, or without axes."""
    base = np.arange(24, dtype="float32").reshape(4, 6) / 3 - 2
    yield "transposed", base.T
    yield "backwards", base[::-1]
    yield "gaps backwards", base[:, ::-2]
    yield "inner", base[1:3, 2:4]
    yield "no rows", base[:0]
    yield "0-d", np.array(-2.5, "float32")
    yield "column", base[:, :1]
    frozen = base.copy()
    # some frameworks refuse an array that cannot be written, or warn
    frozen.setflags(write=False)
    yield "read-only", frozen
    yield from zip(("at 64 bytes", "at 4 bytes"), aligned_and_misaligned(), strict=True)


def aligned_and_misaligned() -> Iterator[Array]:
    """Yields two NumPy arrays of 64 floats. The memory of the first array begins at a multiple of 64 bytes; the memory
    of the second array does not. JAX shares memory with the first array only."""
    # longer than the two arrays, so that an aligned part can be cut out
    raw = np.zeros(64 * 4 + 64, dtype="float32")
    start = (-raw.ctypes.data % 64) // 4
    for offset in (start, start + 1):
        source = raw[offset : offset + 64]
        source[:] = np.arange(64)
        yield source
