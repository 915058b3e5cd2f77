"""Determines the dtype of a result by the promotion rules of the Python Array API standard. If the standard has no
rule for a case, a rule of xdevice applies, which is the same for all backends. Functions of this module accept and
return the names of dtypes, such as "float32"."""

from __future__ import annotations

from typing import Final, NamedTuple

from xdevice.base import floats as float_dtypes
from xdevice.base.dtypes import DTYPES, FLOATS, host_dtype
from xdevice.errors import DTypeError, shown

# the order of promotion: if two kinds are combined, the result has the kind with the higher
# number
_KINDS: Final = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}

# sets of kinds that a function may accept. Each kind is a letter that `kind_of` returns: "b"
# for bool, "i" for signed integers, "u" for unsigned integers, "f" for floats, "c" for complex
# numbers
BOOL: Final = "b"
BITS: Final = "biu"
INTEGER: Final = "iu"
NUMERIC: Final = "iufc"
REAL: Final = "iuf"
FLOATING: Final = "fc"
REAL_FLOATING: Final = "f"
COMPLEX: Final = "c"
ANY: Final = "biufc"

WORDS: Final = {
    BOOL: "bool",
    BITS: "integers or bool",
    INTEGER: "integers",
    NUMERIC: "numbers",
    REAL: "real numbers",
    FLOATING: "floats",
    REAL_FLOATING: "real floats",
    COMPLEX: "complex numbers",
    ANY: "numbers or bool",
}
"""Maps each set of kinds to the words that errors use for it."""


def kind_of(name: str) -> str:
    """Returns the letter of a dtype's kind: "b", "i", "u", "f" or "c"."""
    # not simply the first letter of the name, which would be wrong for bfloat16
    return "f" if name in FLOATS else name[0]


def promoted(first: str, second: str) -> str:
    """Returns the dtype of a result that is computed from tensors of the dtypes `first` and `second`. If the standard
    does not define this dtype, the result is the dtype of the higher kind, in the order bool, integer, float, complex.
    Raises `DTypeError` for the combination of uint64 and a signed integer dtype."""
    if first == second:
        return first
    kinds = kind_of(first), kind_of(second)
    low, high = sorted((first, second), key=lambda name: (_KINDS[kind_of(name)], _bits(name)))
    if "c" in kinds:
        # the result has double precision if one of the two dtypes has double precision
        return "complex128" if "float64" in (low, high) or "complex128" in (low, high) else high
    if _KINDS[kinds[0]] != _KINDS[kinds[1]]:
        return high
    if kinds == ("f", "f"):
        # for float16 and bfloat16 the result is float32, because neither can represent all
        # values of the other
        return "float32" if _bits(low) == _bits(high) else high
    return _common_integer(low, high)


def promoted_with_number(name: str, value: complex) -> str:
    """Returns the dtype of a result that is computed from a tensor of dtype `name` and a Python number. Only the kind
    of the number matters: for a tensor of ints and a float, the result is float32."""
    kind = _KINDS[kind_of(name)]
    # a number of the same kind or a lower kind does not change the dtype; in `_KINDS`, 1 stands
    # for integers, and 2 for floats
    if (
        isinstance(value, bool)
        or (isinstance(value, int) and kind >= 1)
        or (isinstance(value, float) and kind >= 2)
    ):
        return name
    # for a tensor of bool and an int, the result has the standard's default dtype for integers
    if isinstance(value, int):
        return "int64"
    # `effective_dtype` is float32, or float64 in a run with `--float64`
    if isinstance(value, float):
        return float_dtypes.effective_dtype()
    # the number is complex: its parts have double precision if the tensor has double precision
    return (
        "complex128"
        if name in ("float64", "complex128")
        else float_dtypes.effective_dtype("complex64")
    )


def require_fits(value: complex, name: str) -> None:
    """Raises `DTypeError` if a tensor of dtype `name` cannot contain the number. An integer dtype accepts only ints
    and bools within its limits. Any other dtype accepts all numbers except ints that are too large for a float64."""
    if kind_of(name) not in INTEGER:
        _require_float(value, name)
        return
    if not isinstance(value, int):
        raise DTypeError(
            f"{value} is not an integer, but the dtype of the tensor is {name}; "
            "round the number, or use a floating-point dtype"
        )
    limits = integer_limits(name)
    if not limits.min <= value <= limits.max:
        raise DTypeError(
            f"{value} does not fit in {name}, the dtype of the tensor; use a wider dtype"
        )


def _require_float(value: complex, name: str) -> None:
    """Raises `DTypeError` for an int that is too large for a float64. The frameworks raise different errors for such
    an int."""
    try:
        complex(value)
    except OverflowError:
        raise DTypeError(
            f"an int of {int(value.real).bit_length()} bits does not fit in {name}; pass a smaller number"
        ) from None


def can_cast(source: str, target: str) -> bool:
    """Whether values of dtype `source` may be cast to dtype `target` by the standard's `can_cast`. This is the case if
    the common dtype of `source` and `target` is `target`."""
    try:
        return promoted(source, target) == target
    # uint64 and signed integers have no common dtype
    except DTypeError:
        return False


class FInfo(NamedTuple):
    """The limits of a float dtype, as Python floats. The standard's `finfo` returns this object."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: object


class IInfo(NamedTuple):
    """The limits of an integer dtype. The standard's `iinfo` returns this object."""

    bits: int
    max: int
    min: int
    dtype: object


def float_limits(name: str, dtype: object = None) -> FInfo:
    """Returns the limits of the float dtype `name`, or of the real and imaginary parts if `name` is a complex dtype.
    `dtype` is the framework's own dtype, which is stored in the result."""
    import ml_dtypes
    import numpy

    # the parts of complex64 are float32, and those of complex128 are float64
    real = float_dtypes.PARTS.get(name, name)
    # NumPy itself has no bfloat16
    limits = (ml_dtypes.finfo if real == "bfloat16" else numpy.finfo)(host_dtype(real))
    eps, largest, least, smallest = map(
        float, (limits.eps, limits.max, limits.min, limits.smallest_normal)
    )
    return FInfo(limits.bits, eps, largest, least, smallest, dtype)


def integer_limits(name: str, dtype: object = None) -> IInfo:
    """Returns the limits of the integer dtype `name`. `dtype` is the framework's own dtype, which is stored in the
    result."""
    bits = _bits(name)
    low = 0 if name.startswith("u") else -(2 ** (bits - 1))
    return IInfo(bits, low + 2**bits - 1, low, dtype)


def _common_integer(low: str, high: str) -> str:
    """Returns the common dtype of the integer dtypes `low` and `high`, where `high` has at least as many bits as
    `low`. If both are signed or both are unsigned, this is `high`. Otherwise it is a signed dtype that can represent
    all values of both. Raises `DTypeError` if there is no such dtype."""
    if kind_of(low) == kind_of(high):
        return high
    is_low_unsigned = kind_of(low) == "u"
    unsigned_bits = _bits(low if is_low_unsigned else high)
    signed_bits = _bits(high if is_low_unsigned else low)
    # a signed dtype needs twice as many bits as an unsigned dtype, and there is no signed integer of
    # 128 bits
    if unsigned_bits == 64:
        raise DTypeError(
            f"{low} and {high} have no common integer dtype; cast one of the tensors with xp.astype(x, xp.int64)"
        )
    return f"int{max(signed_bits, 2 * unsigned_bits)}"


def _bits(name: str) -> int:
    """Returns the number of bits of an element."""
    return 8 * host_dtype(name).itemsize


def is_dtype(name: str, kind: str) -> bool:
    """Whether the dtype `name` belongs to one of the standard's kinds: "integral", "real
    floating", and so on. Raises `DTypeError` for a word that is not in the standard."""
    kinds = {
        "bool": "b",
        "signed integer": "i",
        "unsigned integer": "u",
        "integral": INTEGER,
        "real floating": "f",
        "complex floating": "c",
        "numeric": NUMERIC,
    }
    if kind not in kinds:
        names = ", ".join(map(repr, kinds))
        raise DTypeError(
            f"{shown(kind)} is not a kind of dtype; expected one of {names}, or a dtype"
        )
    # 8-bit floats belong to no kind, because xdevice does not compute with them; they are not
    # in `DTYPES`
    return name in DTYPES and kind_of(name) in kinds[kind]
