"""The standard's elementwise functions. Tensors of the same dtype are passed to the kernel directly; other arguments
are promoted to a common dtype first."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from xdevice.errors import DTypeError, XDeviceError, shown

from . import dtypes
from .checks import NUMBERS, Checks
from .dtypes import ANY, BITS, BOOL, COMPLEX, FLOATING, INTEGER, NUMERIC, REAL, REAL_FLOATING

if TYPE_CHECKING:
    from collections.abc import Callable

UNARY: Final = {
    **dict.fromkeys(("abs", "negative", "sign", "square"), NUMERIC),
    "bitwise_invert": BITS,
    "logical_not": BOOL,
    "signbit": REAL_FLOATING,
    **dict.fromkeys((
        "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "log", "log10", "log1p",
        "log2", "reciprocal", "sin", "sinh", "sqrt", "tan", "tanh",
    ), FLOATING),
}  # fmt: skip
"""The functions of one tensor, each with the kinds of dtypes that it accepts."""

ROUNDING: Final = ("ceil", "floor", "round", "trunc")
"""Functions that return integers unchanged."""

TESTING: Final = {"isfinite": True, "isinf": False, "isnan": False}
"""Functions that test each element. Each is mapped to its result for integers."""

# the functions of two tensors, or of a tensor and a number, each with the kinds of dtypes that
# it accepts
BINARY: Final = {
    **dict.fromkeys(("add", "multiply", "pow", "subtract"), NUMERIC),
    **dict.fromkeys(("floor_divide", "maximum", "minimum", "remainder"), REAL),
    **dict.fromkeys(("greater", "greater_equal", "less", "less_equal"), REAL),
    **dict.fromkeys(("equal", "not_equal"), ANY),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), BOOL),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), BITS),
    **dict.fromkeys(("bitwise_left_shift", "bitwise_right_shift"), INTEGER),
    **dict.fromkeys(("atan2", "copysign", "hypot", "logaddexp", "nextafter"), REAL_FLOATING),
    "divide": FLOATING,
}


def functions(checks: Checks) -> dict[str, Callable[..., Any]]:
    """Returns the elementwise functions of a namespace, by name."""
    kernels = checks.kernels
    table = {name: _unary(checks, name, kinds) for name, kinds in UNARY.items()}
    # integers need no rounding, so they are only copied
    for name in ROUNDING:
        table[name] = _unary(
            checks, name, REAL, special_kinds=INTEGER, special_kernel=kernels.copy
        )
    for name, value in TESTING.items():
        # the result is the same for all integers, so it is not computed
        table[name] = _unary(
            checks,
            name,
            NUMERIC,
            special_kinds=INTEGER,
            special_kernel=partial(_filled_with, kernels, value),
        )
    table |= {name: _binary(checks, name, kinds) for name, kinds in BINARY.items()}
    table["pow"] = _pow_refusing_fractions(checks, table["pow"])
    table["clip"] = _clip(checks)
    table["positive"] = _unary(checks, "positive", NUMERIC, kernel=_itself)
    # the conjugate and the real part of a real number are the number itself. Only complex
    # numbers need a kernel, which an adapter may lack
    for name in ("conj", "real"):
        table[name] = _unary(
            checks,
            name,
            NUMERIC,
            kernel=_itself,
            special_kinds=COMPLEX,
            special_kernel=getattr(kernels, name, None),
        )
    table["imag"] = _unary(checks, "imag", COMPLEX)
    return table


def _itself(x: Any) -> Any:
    """Returns `x`. This is the kernel of functions that return some tensors unchanged."""
    return x


def _filled_with(kernels: Any, value: bool, x: Any) -> Any:
    """Returns a bool tensor of the shape of `x`, filled with `value`. `kernels` contains the adapter's kernels."""
    return kernels.full_like(x, value, "bool")


def _unary(
    checks: Checks,
    name: str,
    kinds: str,
    kernel: Callable[[Any], Any] | None = None,
    special_kinds: str = "",
    special_kernel: Any = None,
) -> Callable[..., Any]:
    """Returns the function `name` of one tensor, which accepts the kinds of dtypes in `kinds`. For dtypes of the
    kinds in `special_kinds`, the function computes with `special_kernel`. For all other dtypes, it computes with
    `kernel`, or, if that is None, with the adapter's kernel `name`."""
    # the kernel for each dtype with which the function has been called. No lock is needed,
    # because all threads store the same kernel for a dtype
    kernels: dict[Any, Callable[[Any], Any]] = {}

    def unary(x: Any, /) -> Any:
        # the fast case: a plain tensor of a dtype whose kernel is stored
        if checks.needs_no_check(x):
            cached = kernels.get(x.dtype)
            if cached is not None:
                try:
                    return cached(x)
                # the tensor is checked only after an error, because a check before each call
                # would take as long as a small operation
                except Exception:
                    checks.raise_if_misfit(name, x)
                    raise
        x = checks.tensor_of_kinds(x, kinds, name)
        kernels[x.dtype] = chosen = choose(x)
        return chosen(x)

    # returns the kernel for tensors with the dtype of `x`
    def choose(x: Any) -> Callable[[Any], Any]:
        if dtypes.kind_of(checks.dtype_of(x)) in special_kinds:
            return special_kernel  # type: ignore[no-any-return]
        return kernel or checks.kernel(name, x.dtype)

    return unary


def _binary(checks: Checks, name: str, kinds: str) -> Callable[..., Any]:
    """Returns the function `name` of two tensors, or of a tensor and a number. The function accepts the kinds of
    dtypes in `kinds`, and computes with the adapter's kernel `name`."""
    # converts a kernel's result to a tensor, for frameworks whose kernels may return another
    # type; for example, NumPy's kernels may return scalars
    as_tensor = checks.kernels.settled or _itself
    takes_number = name in checks.kernels.TAKE_NUMBERS
    # the kernel for each dtype with which the function has been called. No lock is needed,
    # because all threads store the same kernel for a dtype
    kernels: dict[Any, Callable[[Any, Any], Any]] = {}

    def binary(x1: Any, x2: Any, /) -> Any:
        try:
            # the fast case: the first operand is a plain tensor of a dtype whose kernel is
            # stored, and the second operand is a tensor of that dtype or a float. The dtype is
            # read only once, because this takes 0.4 us on Paddle. It is None for any other first
            # operand, and no kernel is stored for None
            dtype = x1.dtype if checks.needs_no_check(x1) else None
            kernel = kernels.get(dtype)
            if kernel is not None:
                if checks.needs_no_check(x2) and x2.dtype is dtype:
                    if checks.compares_devices:
                        checks.require_one_device(name, x1, x2)
                    return as_tensor(kernel(x1, x2))
                # only a tensor of floats, because a float changes the dtype of a tensor of integers
                if (
                    takes_number
                    and type(x2) is float
                    and dtypes.kind_of(checks.dtype_of(x1)) == "f"
                ):
                    # `as_tensor` is not needed here, because only NumPy's kernels need it, and
                    # they do not accept numbers
                    return kernel(x1, x2)
            # all other operands are checked, and promoted to a common dtype
            x1, x2 = checks.operands(name, kinds, (x1, x2))
            kernels[x1.dtype] = kernel = checks.kernel(name, x1.dtype)
            return as_tensor(kernel(x1, x2))
        # an error that the checks raised; its message already says what is wrong
        except XDeviceError:
            raise
        # the kernel's own error: if devices or shapes do not match, `raise_if_misfit` raises a
        # clearer error
        except Exception:
            checks.raise_if_misfit(name, x1, x2)
            raise

    return binary


def _pow_refusing_fractions(checks: Checks, power: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that computes `power`, but raises `DTypeError` if a tensor of integers or bools is raised to
    the power of a negative Python int. Exponents in a tensor are not checked, because reading their values would wait
    for the device."""

    def pow(x1: Any, x2: Any, /) -> Any:
        # the results are fractions, which an integer dtype cannot represent, and the frameworks
        # return different numbers
        if (
            type(x2) is int
            and x2 < 0
            and dtypes.kind_of(checks.dtype_of(checks.checked_tensor(x1, "pow"))) in BITS
        ):
            raise DTypeError(
                f"pow: integers to the power of {x2} are not integers; cast the tensor with xp.astype(x, xp.float32) "
                f"first"
            )
        return power(x1, x2)

    return pow


def _clip(checks: Checks) -> Callable[..., Any]:
    """Returns the standard's `clip`. The function computes with the adapter's kernel `clip` if
    the adapter has one and the bounds are numbers, and otherwise with `maximum` and
    `minimum`."""
    kernels = checks.kernels

    def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
        x = checks.tensor_of_kinds(x, REAL, "clip")
        if min is None and max is None:
            return kernels.copy(x)
        name = checks.dtype_of(x)
        low, high = _bound(checks, min, name), _bound(checks, max, name)
        # those bounds that are tensors rather than numbers or None
        tensors = [bound for bound in (low, high) if hasattr(bound, "dtype")]
        if kernels.clip is not None and not tensors:
            return kernels.clip(x, low, high)
        if checks.compares_devices:
            checks.require_one_device("clip", x, *tensors)
        low, high = (
            checks.number_as_tensor(bound, name, x) if type(bound) in NUMBERS else bound
            for bound in (low, high)
        )
        try:
            x = x if low is None else kernels.maximum(x, low)
            return x if high is None else kernels.minimum(x, high)
        except Exception:
            checks.raise_if_misfit("clip", x, *tensors)
            raise

    return clip


def _bound(checks: Checks, value: Any, name: str) -> Any:
    """Returns the bound `value` of `clip` for a tensor of dtype `name`: None, a number that fits into that dtype, or
    a tensor that was cast to that dtype. Raises `DTypeError` for a bound of a different kind, such as a float for a
    tensor of integers, and for an int that does not fit into the dtype."""
    kind = dtypes.kind_of(name)
    if value is None:
        return None
    if type(value) in NUMBERS:
        # an int may be a bound for any tensor, and a float only for a tensor of floats; a
        # complex number is never a bound
        if type(value) is not int and (kind != "f" or type(value) is complex):
            raise DTypeError(
                f"clip: the tensor has dtype {name}, so a bound must be "
                f"{'an int or a float' if kind == 'f' else 'an int'}, not the {type(value).__name__} {shown(value)}"
                f"{'' if kind == 'f' else '; for other bounds, cast the tensor with xp.astype(x, xp.float32)'}"
            )
        dtypes.require_fits(value, name)
        # every float dtype in which xdevice computes can represent 65504, the largest number of
        # float16
        if kind != "f" or abs(value) <= 65504:
            return value
        # torch.clamp refuses a number that is too large for the dtype, so an infinity with the
        # same sign replaces the number
        is_too_large = abs(value) > dtypes.float_limits(name).max
        return math.copysign(math.inf if is_too_large else value, value)
    value = checks.checked_tensor(value, "clip")
    if dtypes.kind_of(checks.dtype_of(value)) != kind:
        raise DTypeError(
            f"clip: the tensor has dtype {name}, but a bound has dtype {checks.dtype_of(value)}; cast the bound with "
            f"xp.astype(bound, xp.{name})"
        )
    return checks.cast(value, name)
