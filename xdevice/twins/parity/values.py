"""Compares the elements of two leaves: whether they are equal within the tolerance, which is furthest off, and by how
much.

The distance in ULP is reported, but decides nothing: correct runs of two frameworks are 10,000 ULP and more apart.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy

from xdevice.base.dtypes import host_dtype

from .comparison import Comparison, at, difference, source
from .tolerances import allow, coarser

if TYPE_CHECKING:
    from .readings import Reading
    from .tolerances import Allowed, Rule

_ROUNDING: Final = 3.0
"""An error of up to this multiple of what is allowed may be due to rounding alone: correct runs of deep models reached
2.3."""
_DIGITS: Final = {"float16": 5, "bfloat16": 4, "float32": 9, "complex64": 9, "error": 3}


def compare_values(actual: Reading, expected: Reading, rule: Rule, noise: float | None) -> Comparison:
    if not expected.is_number:
        return _things(actual, expected)
    a, b = numpy.ravel(actual.value), numpy.ravel(expected.value)
    if a.size == 0:
        return Comparison(True, leaf=expected.path, abs=0.0, rel=0.0, ulp=0)
    dtype = coarser(actual, expected, rule.pythons)
    allowed = allow(dtype, rule, noise)
    error, limit = _errors_of(a, b, allowed, rule.equal_nan)
    excess = _excess(error, limit)
    # if no error is allowed, the excess of all elements that differ is infinite: then the largest error decides
    place = int(numpy.where(excess == excess.max(), error, -1.0).argmax())
    index = tuple(int(i) for i in numpy.unravel_index(place, expected.shape))
    off = int(numpy.count_nonzero(excess > 1.0))
    mine, theirs = _number(a[place]), _number(b[place])
    absolute, relative = _errors(mine, theirs)
    found = Comparison(
        ok=not off, problem="values" if off else None, leaf=expected.path, worst=index,
        actual=mine, expected=theirs, abs=absolute, rel=relative,
        ulp=None if dtype is None else ulp_distance(mine, theirs, dtype),
        allowed=float(limit[place]), excess=float(excess[place]), off=off, total=a.size,
    )  # fmt: skip
    if not off:
        return found
    hint = _hint(actual, expected, allowed, rule.equal_nan) + _maybe_rounding(found, dtype, rule)
    return found._replace(text=_message(found, actual, expected, dtype, allowed) + hint)


def _things(actual: Reading, expected: Reading) -> Comparison:
    """Compares two leaves that are not numbers, such as strings or None: they must be equal."""
    if actual.value is expected.value or bool(actual.value == expected.value):
        return Comparison(True, leaf=expected.path, total=1)
    text = f"the values differ{at(expected.path)}: actual is {actual.value!r:.100}, expected {expected.value!r:.100}"
    found = difference("values", expected.path, actual.value, expected.value, text)
    return found._replace(off=1, total=1)


def _maybe_rounding(found: Comparison, dtype: str | None, rule: Rule) -> str:
    """A note that an error so close to the tolerance may be rounding alone; "" if the error is larger, or if the
    tolerance is not the usual one of the dtype."""
    is_usual = rule.rtol is None and rule.atol is None and rule.noise is None
    if not is_usual or dtype in (None, "float64") or found.excess > _ROUNDING:
        return ""
    return (
        f"\n  note      {found.excess:.2g} times what is allowed may be rounding alone: "
        f"xdevice parity --float64 tells, and --calibrate allows for it"
    )


def _hint(actual: Reading, expected: Reading, allowed: Allowed | None, equal_nan: bool) -> str:
    """A note if two leaves, such as square matrices, are equal once one of them is transposed: the commonest fault in
    moving a model to another framework. Otherwise ""."""
    if len(expected.shape) < 2 or expected.shape != expected.shape[::-1]:
        return ""
    error, limit = _errors_of(actual.value.T.ravel(), expected.value.ravel(), allowed, equal_nan)
    return "" if (error > limit).any() else "\n  note      they are equal where one is transposed"


def _errors_of(a: Any, b: Any, allowed: Allowed | None, equal_nan: bool) -> tuple[Any, Any]:
    """For each element its absolute error, and the largest error that it may have."""
    return _exactly(a, b) if allowed is None else _nearly(a, b, allowed, equal_nan)


def _nearly(a: Any, b: Any, allowed: Allowed, equal_nan: bool) -> tuple[Any, Any]:
    wide = "complex128" if "c" in (a.dtype.kind, b.dtype.kind) else "float64"
    x, y = a.astype(wide), b.astype(wide)
    with numpy.errstate(all="ignore"):
        same = x == y
        if equal_nan:
            same |= numpy.isnan(x) & numpy.isnan(y)
        size = abs(y)
        scale = float(size.max(where=numpy.isfinite(size), initial=0.0))
        error = numpy.where(numpy.isfinite(x) & numpy.isfinite(y), abs(x - y), math.inf)
        error[same] = 0.0
        return error, allowed.rtol * numpy.where(numpy.isfinite(size), size, 0.0) + allowed.atol(scale)


def _exactly(a: Any, b: Any) -> tuple[Any, Any]:
    if a.dtype != b.dtype:  # NumPy 1.24 compares uint64 with int64 in float64, which has 53 bits
        a, b = a.astype(object), b.astype(object)
    off = numpy.asarray(a != b, dtype=bool)
    error = numpy.zeros(a.shape)
    # Python's ints do not overflow
    error[off] = abs(a[off].astype(object) - b[off].astype(object))
    return error, numpy.zeros(a.shape)


def _excess(error: Any, limit: Any) -> Any:
    with numpy.errstate(all="ignore"):
        excess = error / limit
    excess[numpy.isinf(error) | numpy.isnan(excess)] = math.inf
    excess[error == 0] = 0.0
    return excess


def _number(x: Any) -> Any:
    """An array's element as a Python bool, int, float or complex."""
    if isinstance(x, bool | numpy.bool_):
        return bool(x)
    if isinstance(x, complex | numpy.complexfloating):
        return complex(x)
    return int(x) if isinstance(x, int | numpy.integer) else float(x)


def _errors(actual: Any, expected: Any) -> tuple[float | int, float]:
    """The absolute and the relative error of one element. For unequal numbers the relative error is infinite if
    `expected` is 0."""
    if actual == expected:
        return 0, 0.0
    error = abs(actual - expected)
    return error, error / abs(expected) if expected else math.inf


def ulp_distance(actual: Any, expected: Any, dtype: str) -> int | None:
    """The distance of two numbers in ULP, steps from one number of the dtype to the next; None if one is not finite.

    For complex numbers, the larger of the distances of the real and the imaginary parts.

    Example:
        >>> from xdevice.twins.parity.values import ulp_distance
        >>> ulp_distance(1.0, 1.0 + 2**-23, "float32"), ulp_distance(0.0, -0.0, "float64")
        (1, 0)
    """
    if isinstance(actual, complex) or isinstance(expected, complex):
        a, b = complex(actual), complex(expected)
        parts = ulp_distance(a.real, b.real, dtype), ulp_distance(a.imag, b.imag, dtype)
        return None if None in parts else max(part for part in parts if part is not None)
    places = _place_among(actual, dtype), _place_among(expected, dtype)
    return None if places[0] is None or places[1] is None else abs(places[0] - places[1])


def _place_among(x: Any, dtype: str) -> int | None:
    """The place of `x`, rounded to the dtype, in the sequence of all its numbers, counted from 0.0; None if it is not
    finite."""
    with numpy.errstate(over="ignore"):
        rounded = numpy.asarray(x, dtype="float64").astype(host_dtype(dtype))
    if not numpy.isfinite(rounded):
        return None
    bits = 8 * rounded.dtype.itemsize
    pattern = int(rounded.view(f"uint{bits}"))
    sign = 1 << (bits - 1)
    return pattern if pattern < sign else sign - pattern


def _message(found: Comparison, actual: Reading, expected: Reading, dtype: str | None, allowed: Allowed | None) -> str:
    place = f" at {list(found.worst)}" if found.worst else ""
    verb = "is" if found.off == 1 else "are"
    number = f"1 of {found.total} element" if found.off == 1 else f"{found.off} of {found.total} element"
    ulp = f", {found.ulp} ULP of {dtype}" if found.ulp is not None else ""
    limit = "exact, as ints and bools are" if allowed is None else allowed.text
    shown = [_text(value, reading.dtype) for value, reading in ((found.actual, actual), (found.expected, expected))]
    width = max(map(len, shown))
    return (
        f"the values differ{at(found.leaf)}: {number}{'s' * (found.total > 1)} {verb} off\n"
        f"  actual    {shown[0]:<{width}}{place}  ({source(actual)}, {actual.dtype})\n"
        f"  expected  {shown[1]:<{width}}{place}  ({source(expected)}, {expected.dtype})\n"
        f"  error     {_text(found.abs, 'error')} absolute, {found.rel:.3g} relative{ulp}\n"
        f"  allowed   {limit}"
    )


def _text(value: Any, dtype: str) -> str:
    """The number as text, with as many digits as are needed to tell numbers of its dtype apart."""

    return str(value) if isinstance(value, int) else f"{value:.{_DIGITS.get(dtype, 17)}g}"
