"""The standard's elementwise functions. Tensors of one dtype go to the kernel at once; other arguments are promoted
first."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from xdevice.core import registry
from xdevice.errors import DTypeError, XDeviceError, shown
from xdevice.math.contract.arithmetic import SETTLED

from . import dtypes
from .dtypes import ANY, BITS, BOOL, COMPLEX, FLOATING, INTEGER, NUMERIC, REAL, REAL_FLOATING
from .ground import NUMBERS, Ground

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
"""The functions of one tensor, with the kinds of dtypes that each takes."""

ROUNDING: Final = ("ceil", "floor", "round", "trunc")
"""Functions that leave integers as they are."""

TESTING: Final = {"isfinite": True, "isinf": False, "isnan": False}
"""Functions that test each element, and the answer that each gives for any integer."""

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


def functions(ground: Ground) -> dict[str, Callable[..., Any]]:
    """The elementwise functions, by name."""
    kernels = ground.kernels
    made = {name: _unary(ground, name, kinds, getattr(kernels, name)) for name, kinds in UNARY.items()}
    for name in ROUNDING:
        made[name] = _unary(ground, name, REAL, getattr(kernels, name), INTEGER, kernels.copy)
    for name, told in TESTING.items():
        answer = partial(_all_alike, kernels, told)
        made[name] = _unary(ground, name, NUMERIC, getattr(kernels, name), INTEGER, answer)
    made |= {name: _binary(ground, name, kinds, getattr(kernels, name)) for name, kinds in BINARY.items()}
    made["pow"] = _pow(ground, made["pow"])
    made["clip"] = _clip(ground)
    made["positive"] = _unary(ground, "positive", NUMERIC, _itself)
    for name in ("conj", "real"):
        made[name] = _unary(ground, name, NUMERIC, _itself, COMPLEX, getattr(kernels, name, None))
    made["imag"] = _unary(ground, "imag", COMPLEX, getattr(kernels, "imag", _itself))
    return made


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    return function


def _itself(x: Any) -> Any:
    return x


def _all_alike(kernels: Any, value: bool, x: Any) -> Any:
    return kernels.full_like(x, value, "bool")


def _unary(
    ground: Ground, name: str, kinds: str, kernel: Callable[[Any], Any], apart: str = "", other: Any = None
) -> Callable[..., Any]:
    """A function of one tensor: `kernel`, but `other` for dtypes of the kinds that `apart` names."""
    mine, layout, dense = ground.mine, ground.layout, ground.dense
    usual: Any = None
    aside: Any = None  # the dtypes of the last calls of `kernel` and of `other`

    def unary(x: Any, /) -> Any:
        nonlocal usual, aside
        if type(x) in mine and (not layout or getattr(x, layout) is dense):
            dtype = x.dtype
            try:
                if dtype is usual:
                    return kernel(x)
                if dtype is aside:
                    return other(x)
            except Exception:
                ground.require_fit(name, x)
                raise
        x = ground.require(x, kinds, name)
        if dtypes.kind_of(ground.name(x)) in apart:
            aside = x.dtype
            return other(x)
        usual = x.dtype
        return kernel(x)

    return _named(unary, name)


def _binary(ground: Ground, name: str, kinds: str, kernel: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    places = registry.probes
    mine, looks, allowed = ground.mine, ground.looks, set[Any]()
    layout, dense = ground.layout, ground.dense
    settled = getattr(ground.kernels, SETTLED, _itself)
    takes_number = name in ground.kernels.TAKE_NUMBERS
    # type and dtype of the last call, and the kernel for them: looking for a dtype in a set takes Paddle and TensorFlow
    # a microsecond; one tuple, because threads call this at once
    last: tuple[Any, Any, Callable[[Any, Any], Any]] = None, None, kernel

    def binary(x1: Any, x2: Any, /) -> Any:
        nonlocal last
        cls, (kind, usual, direct) = type(x1), last
        try:
            if (
                cls is kind is type(x2)
                and x1.dtype is usual is x2.dtype
                and (not layout or getattr(x1, layout) is dense is getattr(x2, layout))
            ):
                if looks and ((place := places.get(cls)) is None or place(x1) is not place(x2)):
                    ground.require_one_device(name, x1, x2)
                made = direct(x1, x2)
                return made if type(made) is cls else settled(made)
            if cls in mine and (dtype := x1.dtype) in allowed and ground.is_dense(x1):
                if type(x2) in mine and x2.dtype is dtype and ground.is_dense(x2):
                    if looks:
                        ground.require_one_device(name, x1, x2)
                    return settled(kernel(x1, x2))
                if takes_number and type(x2) is float and dtypes.kind_of(ground.dtype(dtype)) == "f":
                    return kernel(x1, x2)
            x1, x2 = ground.operands(name, kinds, (x1, x2))
            last = type(x1), x1.dtype, ground.kernel(name, x1.dtype)
            allowed.add(x1.dtype)
            return settled(kernel(x1, x2))
        except XDeviceError:
            raise
        except Exception:
            ground.require_fit(name, x1, x2)
            raise

    return _named(binary, name)


def _pow(ground: Ground, power: Callable[..., Any]) -> Callable[..., Any]:
    def pow(x1: Any, x2: Any, /) -> Any:
        if type(x2) is int and x2 < 0 and dtypes.kind_of(ground.name(ground.tensor(x1, "pow"))) != "f":
            raise DTypeError(f"pow of integers to the power of {x2} is not an integer; xp.astype(x, xp.float32) first")
        return power(x1, x2)

    return pow


def _clip(ground: Ground) -> Callable[..., Any]:
    kernels, own = ground.kernels, getattr(ground.kernels, "clip", None)

    def bound(value: Any, name: str) -> Any:
        if value is None:
            return None
        if type(value) in NUMBERS:
            kind = dtypes.kind_of(name)
            if (kind == "f" and type(value) is not complex) or type(value) is int:
                dtypes.require_fits(value, name)
                return value
            raise DTypeError(
                f"clip of {name} at {shown(value)}: bounds must be of the kind of the tensor; cast it first"
            )
        value = ground.tensor(value, "clip")
        if dtypes.kind_of(ground.name(value)) != dtypes.kind_of(name):
            raise DTypeError(f"clip of {name} at bounds of {ground.name(value)}: they must be of one kind; cast one")
        return ground.cast(value, name)

    def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
        x = ground.require(x, REAL, "clip")
        if min is None and max is None:
            return kernels.copy(x)
        name = ground.name(x)
        low, high = bound(min, name), bound(max, name)
        if own is not None and not hasattr(low, "dtype") and not hasattr(high, "dtype"):
            return own(x, low, high)
        x = x if low is None else bounded(kernels.maximum, x, low, name)
        return x if high is None else bounded(kernels.minimum, x, high, name)

    def bounded(kernel: Callable[[Any, Any], Any], x: Any, value: Any, name: str) -> Any:
        if type(value) in NUMBERS:
            value = ground.number(value, name, x)
        elif ground.looks:
            ground.require_one_device("clip", x, value)
        try:
            return kernel(x, value)
        except Exception:
            ground.require_fit("clip", x, value)
            raise

    return clip
