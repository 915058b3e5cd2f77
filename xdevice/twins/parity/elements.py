"""Compares the elements of two leaves (tensors or numbers). Determines whether they are equal within the tolerance,
which element has the largest error, and how large this error is.

The distance in ULP is reported, but does not affect the result: correct runs of two frameworks may be 10,000 ULP or
more apart.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy

from xdevice.base.dtypes import host_dtype

from .comparison import Comparison, at, difference
from .tolerances import allow, coarser_dtype

if TYPE_CHECKING:
    from .host_leaves import HostLeaf
    from .tolerances import Allowed, Strictness

_ROUNDING: Final = 3.0
"""An error of up to this multiple of the allowed error may be due to rounding alone: correct runs of deep models
reached 2.3."""
_WHOLE: Final = 256
"""The largest factor between two single numbers that is reported. An example is the factor between the sum and the mean
of a batch."""
_DIGITS: Final = {"float16": 5, "bfloat16": 4, "float32": 9, "complex64": 9}
"""The number of digits that distinguish any two numbers of a dtype; 17 for any other dtype."""


def compare_elements(
    actual: HostLeaf, expected: HostLeaf, rule: Strictness, noise: float | None
) -> Comparison:
    """Compares two leaves of the same shape. Returns a `Comparison` that describes the element with the largest error.
    `noise` is the error that rounding alone causes in these leaves; None if it was not measured. Raises `DTypeError`
    for a dtype without a tolerance."""
    if not expected.is_number:
        return _compare_objects(actual, expected)
    # flattened, so that the index of an element is a single number; the shapes are known to agree
    a, b = numpy.ravel(actual.value), numpy.ravel(expected.value)
    # there is nothing to compare, and no largest element
    if a.size == 0:
        return Comparison(True, leaf=expected.path, abs=0.0, rel=0.0, ulp=0)
    dtype = coarser_dtype(actual, expected, rule)
    allowed = allow(dtype, rule, noise)
    error, limit = _errors_of(a, b, allowed, rule.equal_nan)
    excess = _excess(error, limit)
    # if no error is allowed, the excess of every element that differs is infinite, so the largest error determines the
    # worst one
    worst = int(numpy.where(excess == excess.max(), error, -1.0).argmax())
    off = int(numpy.count_nonzero(excess > 1.0))
    mine, its = _python_number(a[worst]), _python_number(b[worst])
    # infinities of the same sign are equal, but their difference is NaN
    distance = 0 if mine == its else abs(mine - its)
    # the relative error of a number that should be 0 is infinite
    relative = distance / abs(its) if its else math.inf
    comparison = Comparison(
        ok=not off,
        problem="values" if off else None,
        leaf=expected.path,
        worst=tuple(int(i) for i in numpy.unravel_index(worst, expected.shape)),
        actual=mine,
        expected=its,
        abs=distance,
        rel=0.0 if mine == its else relative,
        ulp=None if dtype is None else ulp_distance(mine, its, dtype),
        allowed=float(limit[worst]),
        excess=float(excess[worst]),
        off=off,
        total=a.size,
    )
    if not off:
        return comparison
    text = _message(comparison, actual, expected, dtype, allowed)
    # `_ROUNDING` was measured only with the usual tolerances. The note is not for ints, whose `dtype` is None here, and
    # not for float64, the dtype in which --float64 computes
    is_usual = rule.rtol is None and rule.atol is None and rule.noise is None
    if is_usual and dtype not in (None, "float64") and comparison.excess <= _ROUNDING:
        text += (
            f"\n  note      {comparison.excess:.2g} times the allowed error may be rounding alone: "
            f"xdevice parity --float64 shows whether it is, and --calibrate allows for it"
        )
    return comparison._replace(text=text)


def _compare_objects(actual: HostLeaf, expected: HostLeaf) -> Comparison:
    """Returns the `Comparison` of two leaves that are not numbers, such as strings or None. They agree only if they are
    equal."""
    # `is` first, because an object may be unequal to itself
    if actual.value is expected.value or bool(actual.value == expected.value):
        return Comparison(True, leaf=expected.path, total=1)
    text = f"the values differ{at(expected.path)}: actual is {actual.value!r:.100}, expected {expected.value!r:.100}"
    return difference("values", text, expected.path, actual.value, expected.value)._replace(
        off=1, total=1
    )


def note_on_relation(actual: HostLeaf, expected: HostLeaf, rule: Strictness) -> str:
    """Returns a note if two leaves that differ become equal when one of them is transposed, shifted by one place,
    reordered or multiplied by a number. These are the most common mistakes in porting a model or a training script to
    another framework. Otherwise returns "". Both leaves must have the same shape."""
    if not expected.is_number:
        return ""
    # the usual tolerance, also in a calibrated run, whose noise was measured for the leaves as they are. The result is
    # None for ints and bools, which must be equal
    allowed = allow(coarser_dtype(actual, expected, rule), rule, noise=None)
    x, y = numpy.asarray(actual.value), numpy.asarray(expected.value)

    def agree(ours: Any, theirs: Any) -> bool:
        """Whether two parts or views of the leaves are equal within the tolerance."""
        error, limit = _errors_of(ours.ravel(), theirs.ravel(), allowed, rule.equal_nan)
        return not (error > limit).any()

    # both leaves have the same shape here, so a transposed leaf fits only if that shape is a palindrome
    if y.ndim > 1 and y.shape == y.shape[::-1] and agree(x.T, y):
        return "\n  note      they are equal if one is transposed"
    for axis, size in enumerate(y.shape):
        # along an axis with fewer than three places, or with equal slices, a shift fits by chance
        if size < 3 or (y == y.take([0], axis)).all():
            continue
        # the arguments of `take`, indices and axis, for all places but the last, and for all but the first
        but_last, but_first = (range(size - 1), axis), (range(1, size), axis)
        for direction, own_places, other_places in (
            ("ahead of", but_last, but_first),
            ("behind", but_first, but_last),
        ):
            if agree(x.take(*own_places), y.take(*other_places)):
                return (
                    f"\n  note      actual is one place {direction} expected, along axis {axis}"
                )
    # ints and bools have so few different values that another order or a factor may fit by chance
    if allowed is None:
        return ""
    # NaN is unequal to itself, so arrays that contain NaN never match in another order
    if numpy.array_equal(numpy.sort(x, axis=None), numpy.sort(y, axis=None)):
        a, b = x.astype(_common_dtype(x, y)), y.astype(_common_dtype(x, y))
        axes = [
            axis for axis in range(y.ndim) if _sorted_slices(a, axis) == _sorted_slices(b, axis)
        ]
        along = f", along axis {axes[0]}" if axes else ""
        return f"\n  note      both have the same numbers in different orders{along}"
    ratio = _ratio(x, y)
    if ratio is None or not agree(x, ratio * y):
        return ""
    return f"\n  note      actual is {ratio:.6g} times expected"


def _sorted_slices(x: Any, axis: int) -> list[bytes]:
    """Returns the bytes of each slice along an axis, sorted. Two arrays of the same dtype and without NaN return equal
    lists if and only if they have the same slices, in any order."""
    # adding 0.0 turns -0.0 into 0.0: the two are equal but have different bytes
    return sorted(part.tobytes() for part in numpy.moveaxis(x + 0.0, axis, 0))


def _common_dtype(a: Any, b: Any) -> str:
    """Returns the dtype in which two arrays are compared. This dtype represents the numbers of every other dtype
    exactly, except large ints."""
    return "complex128" if "c" in (a.dtype.kind, b.dtype.kind) else "float64"


def _ratio(x: Any, y: Any) -> float | None:
    """Returns the factor by which `y` must be multiplied to come closest to `x`. Returns None for complex arrays, and
    if the factor is 0 or not finite. A factor exists for any two single numbers, so it is meaningful only if simple.
    For single numbers, it is therefore rounded to a whole number or to the inverse of a whole number. Returns None if
    this whole number exceeds `_WHOLE`."""
    if "c" in (x.dtype.kind, y.dtype.kind):
        return None
    ours, theirs = x.astype("float64").ravel(), y.astype("float64").ravel()
    with numpy.errstate(all="ignore"):
        # least squares
        ratio = float(numpy.dot(ours, theirs) / numpy.dot(theirs, theirs))
    if not math.isfinite(ratio) or not ratio:
        return None
    if y.size > 1:
        return ratio
    # for a single number, the whole number that is closest to the ratio or to its inverse
    whole = round(max(abs(ratio), 1 / abs(ratio)))
    return (
        math.copysign(whole if abs(ratio) > 1 else 1 / whole, ratio)
        if whole <= _WHOLE
        else None
    )


# errors of elements, for `compare_elements` and `note_on_relation`


def _errors_of(a: Any, b: Any, allowed: Allowed | None, equal_nan: bool) -> tuple[Any, Any]:
    """Returns two arrays: the absolute error of each element, and the allowed error of each element. If either number
    is not finite, the error is 0 for equal numbers and infinite for different numbers. `allowed` is None for exact
    dtypes."""
    if allowed is None:
        return _exact_errors(a, b), numpy.zeros(a.shape)
    x, y = a.astype(_common_dtype(a, b)), b.astype(_common_dtype(a, b))
    with numpy.errstate(all="ignore"):
        # two infinities of the same sign are equal, but their difference would be NaN
        same = x == y
        if equal_nan:
            same |= numpy.isnan(x) & numpy.isnan(y)
        size = abs(y)
        # the largest finite number, because an infinity would allow any error
        scale = float(size.max(where=numpy.isfinite(size), initial=0.0))
        error = numpy.where(numpy.isfinite(x) & numpy.isfinite(y), abs(x - y), math.inf)
        error[same] = 0.0
        return error, allowed.rtol * numpy.where(
            numpy.isfinite(size), size, 0.0
        ) + allowed.atol(scale)


def _exact_errors(a: Any, b: Any) -> Any:
    """Returns the absolute error of each element of two arrays of ints or bools, as floats."""
    # NumPy 1.24 compares uint64 with int64 in float64, which has 53 bits (https://github.com/numpy/numpy/issues/12525)
    if a.dtype != b.dtype:
        a, b = a.astype(object), b.astype(object)
    off = numpy.asarray(a != b, dtype=bool)
    error = numpy.zeros(a.shape)
    # differences of NumPy's ints may overflow, unlike those of Python's ints
    error[off] = abs(a[off].astype(object) - b[off].astype(object))
    return error


def _excess(error: Any, limit: Any) -> Any:
    """Returns the error of each element as a multiple of the allowed error: 0 if there is no error, and infinity if the
    error is infinite or no error is allowed."""
    with numpy.errstate(all="ignore"):
        excess = error / limit
    # 0 / 0, for an element without an error and with no allowed error, is NaN; this line makes it infinite, and the
    # next one makes it 0
    excess[numpy.isinf(error) | numpy.isnan(excess)] = math.inf
    excess[error == 0] = 0.0
    return excess


def _python_number(x: Any) -> Any:
    """Returns an array element as a Python bool, int, float or complex. An ml_dtypes number, such as a bfloat16,
    becomes a float."""
    x = x.item() if isinstance(x, numpy.generic) else x
    return x if isinstance(x, bool | int | complex) else float(x)


def ulp_distance(actual: Any, expected: Any, dtype: str) -> int | None:
    """Returns the distance between two numbers in ULP. One ULP is the step from one number of the dtype to the next.
    Returns None if either number is not finite.

    For complex numbers, returns the distance of the real parts or of the imaginary parts, whichever is larger.

    Example:
        >>> from xdevice.twins.parity.elements import ulp_distance
        >>> ulp_distance(1.0, 1.0 + 2**-23, "float32"), ulp_distance(0.0, -0.0, "float64")
        (1, 0)
    """
    # complex numbers have no order, so each part is handled separately
    if isinstance(actual, complex) or isinstance(expected, complex):
        a, b = complex(actual), complex(expected)
        real, imaginary = (
            ulp_distance(a.real, b.real, dtype),
            ulp_distance(a.imag, b.imag, dtype),
        )
        return None if real is None or imaginary is None else max(real, imaginary)
    mine, its = _position_of(actual, dtype), _position_of(expected, dtype)
    return None if mine is None or its is None else abs(mine - its)


def _position_of(x: Any, dtype: str) -> int | None:
    """Rounds `x` to the dtype, and returns its position in the sequence of all numbers of the dtype, counted from 0.0.
    Returns None if the rounded number is not finite."""
    # a number beyond the range of the dtype becomes an infinity, which has no position
    with numpy.errstate(over="ignore"):
        rounded = numpy.asarray(x, dtype="float64").astype(host_dtype(dtype))
    if not numpy.isfinite(rounded):
        return None
    bits = 8 * rounded.dtype.itemsize
    # the bit patterns of floats of the same sign are in the same order as the floats
    pattern = int(rounded.view(f"uint{bits}"))
    # the pattern of a negative number has the sign bit in addition; -0.0 is at position 0, like 0.0
    sign = 1 << (bits - 1)
    return pattern if pattern < sign else sign - pattern


# the text of a comparison that failed


def _message(
    result: Comparison,
    actual: HostLeaf,
    expected: HostLeaf,
    dtype: str | None,
    allowed: Allowed | None,
) -> str:
    """Returns the text of a comparison that failed: five lines, with the two numbers of the worst element. `dtype` and
    `allowed` are None for exact dtypes."""
    place = f" at {list(result.worst)}" if result.worst else ""
    elements = "element" if result.total == 1 else "elements"
    verb = "is" if result.off == 1 else "are"
    ulp = f", {result.ulp} ULP of {dtype}" if result.ulp is not None else ""
    mine, its = (
        _number_text(result.actual, actual.dtype),
        _number_text(result.expected, expected.dtype),
    )
    # aligned, so that corresponding digits are below each other
    width = max(len(mine), len(its))
    error = result.abs if isinstance(result.abs, int) else f"{result.abs:.3g}"
    return (
        f"the values differ{at(result.leaf)}: {result.off} of {result.total} {elements} {verb} off\n"
        f"  actual    {mine:<{width}}{place}  ({actual.source}, {actual.dtype})\n"
        f"  expected  {its:<{width}}{place}  ({expected.source}, {expected.dtype})\n"
        f"  error     {error} absolute, {result.rel:.3g} relative{ulp}\n"
        f"  allowed   {'exact, as ints and bools are' if allowed is None else allowed.text}"
    )


def _number_text(value: Any, dtype: str) -> str:
    """Returns the number as a string with as many digits as are needed to distinguish numbers of its dtype."""
    return str(value) if isinstance(value, int) else f"{value:.{_DIGITS.get(dtype, 17)}g}"
