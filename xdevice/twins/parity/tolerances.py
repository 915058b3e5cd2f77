"""Determines how far apart two numbers may be, given their dtype and the arguments of a comparison.

In a test, correct runs of the same training on several frameworks stayed within the tolerance of each dtype, and faulty
runs did not (docs/reference/parity.md).
"""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Final, NamedTuple

from xdevice.base.floats import PARTS
from xdevice.errors import ArgumentError, DTypeError

from .host_leaves import PYTHON

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .host_leaves import HostLeaf


class Tolerance(NamedTuple):
    """How far apart two numbers of a dtype may be: `|actual - expected| <= relative * |expected| + absolute *
    max(least, max|expected|)`."""

    relative: float
    absolute: float
    least: float
    """The lower limit of max|expected| in the absolute part: if max|expected| is smaller than `least`, the absolute
    part is `absolute * least`."""

    def __str__(self) -> str:
        """Returns the formula for use in messages."""
        size = f"max({self.least:g}, max|expected|)" if self.least else "max|expected|"
        return f"{self.relative:g} * |expected| + {self.absolute:g} * {size}"


# the order matters, because `coarser_dtype` chooses the last dtype
TOLERANCES: Final = {
    "float64": Tolerance(1e-10, 1e-12, 1.0),
    "float32": Tolerance(1e-5, 1e-6, 1.0),
    "float16": Tolerance(8e-3, 2e-3, 0.0),
    "bfloat16": Tolerance(6e-2, 1.6e-2, 0.0),
}
"""The tolerance of each float dtype, from the finest dtype to the coarsest. A complex dtype has the tolerance of the
dtype of its real and imaginary parts; ints and bools must be equal."""

_NOISE_FACTOR: Final = 8.0
"""If the noise of a leaf was measured, an error of up to this multiple of the noise is allowed. In our test runs, 4 was
the smallest factor without false alarms."""
_FLOOR: Final = 2 * 2.0**-23
"""The error that is allowed in addition to the multiple of the noise, as a fraction of max|expected|."""


class Strictness(NamedTuple):
    """The strictness of a comparison: the arguments of `assert_parity`, and other settings that are used in reports on
    whole runs."""

    rtol: float | None = None
    atol: float | None = None
    check_device: bool = False
    check_dtype: bool = True
    equal_nan: bool = False
    float64_step: int | None = None
    """The step of the value in a float64 run; None in any other run. In step 0, the tolerance for float64 applies; in
    later steps, the tolerance for float32 applies. Two Python floats are treated as float64 in a float64 run, and as
    float32 otherwise."""
    noise: Mapping[str, float] | None = None
    """The error that rounding alone caused in each leaf, by the leaf's path, as measured by `noise.measure_noise`; None
    if it was not measured."""

    def check(self) -> Strictness:
        """Returns the object itself. Raises `ArgumentError` if a tolerance is not a non-negative number."""
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            if value is None:
                continue
            # not `value < 0`, which is false for NaN. A bool is excluded because Python treats it as a number
            if isinstance(value, bool) or not isinstance(value, Real) or not value >= 0:
                raise ArgumentError(
                    f"{name} must be a non-negative number, got {value!r:.100}; the default depends on the dtype"
                )
        return self


class Allowed(NamedTuple):
    """The tolerance for one pair of leaves. `allow` computes it from the dtype of the leaves and the `Strictness`."""

    rtol: float
    """The relative part of the tolerance, as a fraction of |expected|."""
    atol: Callable[[float], float]
    """The absolute part of the tolerance, as a function of max|expected|."""
    text: str
    """The formula, for messages."""


def allow(dtype: str | None, rule: Strictness, noise: float | None) -> Allowed | None:
    """Returns the tolerance for two leaves. Returns None if the leaves must be equal. Ints and bools must be equal
    unless `noise` is above 0.

    `dtype` is the result of `coarser_dtype`, which is None for ints and bools. `noise` is the error that rounding alone
    causes in these leaves; None if it was not measured. If the noise was measured, the tolerance of ints, bools and
    float32 depends only on the noise, and callers reject `rtol` and `atol`.
    """
    # the noise was measured for float32, so other float dtypes have their usual tolerance
    if noise is not None and dtype in (None, "float32"):
        words = (
            f"{_NOISE_FACTOR:g} * {noise:.3g} (the effect of rounding alone up to this step)"
        )
        if dtype is None:
            # rounding may change ints that depend on floats, such as the number of correct predictions; if the noise is
            # 0, they must be equal
            return Allowed(0.0, lambda size: _NOISE_FACTOR * noise, words) if noise else None
        text = f"{words} + {_FLOOR:.2g} * max|expected|"
        return Allowed(0.0, lambda size: _NOISE_FACTOR * noise + _FLOOR * size, text)
    if dtype is None:
        return None
    # from step 1 on, float64 has the tolerance of float32, because some optimizers store their learning rate in float32
    tolerance = TOLERANCES["float32" if dtype == "float64" and rule.float64_step else dtype]
    rtol = tolerance.relative if rule.rtol is None else float(rule.rtol)
    if rule.atol is None:
        text = str(tolerance._replace(relative=rtol))
        return Allowed(rtol, lambda size: tolerance.absolute * max(tolerance.least, size), text)
    atol = float(rule.atol)
    return Allowed(rtol, lambda size: atol, f"{rtol:g} * |expected| + {atol:g}")


def coarser_dtype(actual: HostLeaf, expected: HostLeaf, rule: Strictness) -> str | None:
    """Returns the coarser of the float dtypes of two leaves, which determines their tolerance; None if both are ints or
    bools. A complex dtype is treated as the dtype of its real and imaginary parts. A Python number adopts the dtype of
    the other leaf. Two Python floats adopt the run's default dtype. Raises `DTypeError` for a dtype without a
    tolerance."""
    names = {leaf.dtype for leaf in (actual, expected) if leaf.owner != PYTHON}
    # all names except "bool" and those of ints, such as "int8" and "uint8"
    float_dtypes = {
        PARTS.get(name, name)
        for name in names
        if name != "bool" and not name.lstrip("u").startswith("int")
    }
    # two Python floats, such as losses, were computed in the default dtype of the frameworks
    if not float_dtypes and {actual.dtype, expected.dtype} & {"float", "complex"}:
        float_dtypes = {"float32" if rule.float64_step is None else "float64"}
    unknown = float_dtypes - TOLERANCES.keys()
    if unknown:
        raise DTypeError(
            f"there is no rule for comparing {', '.join(sorted(unknown))}; convert the values to float32 first"
        )
    # reversed, so that the coarsest dtype comes first
    return next((name for name in reversed(TOLERANCES) if name in float_dtypes), None)
