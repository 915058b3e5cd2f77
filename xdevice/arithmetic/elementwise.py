"""The standard's elementwise functions. Tensors of one dtype go to the kernel at once; other arguments are promoted
first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from xdevice.contract.arithmetic import SETTLED
from xdevice.core import registry
from xdevice.errors import DTypeError, XDeviceError, shown

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
    made |= {name: _rounding(ground, name, getattr(kernels, name)) for name in ROUNDING}
    made |= {name: _testing(ground, name, getattr(kernels, name), told) for name, told in TESTING.items()}
    made |= {name: _binary(ground, name, kinds, getattr(kernels, name)) for name, kinds in BINARY.items()}
    made["pow"] = _pow(ground, made["pow"])
    made["clip"] = _clip(ground)
    made |= {name: _unchanged(ground, name, kernels.copy) for name in ("conj", "positive", "real")}
    if "complex64" in ground.backend.dtypes:
        made |= {name: _of_complex(ground, made[name], getattr(kernels, name)) for name in ("conj", "real")}
        made["imag"] = _unary(ground, "imag", COMPLEX, kernels.imag)
    else:
        made["imag"] = _unary(ground, "imag", COMPLEX, _itself)  # every dtype is refused by name
    return made


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    return function


def _itself(x: Any) -> Any:
    return x


def _unary(ground: Ground, name: str, kinds: str, kernel: Callable[[Any], Any]) -> Callable[..., Any]:
    mine = ground.mine
    usual: Any = None

    def unary(x: Any, /) -> Any:
        nonlocal usual
        if type(x) in mine and x.dtype is usual:
            return kernel(x)
        x = ground.require(x, kinds, name)
        usual = x.dtype
        return kernel(x)

    return _named(unary, name)


def _rounding(ground: Ground, name: str, kernel: Callable[[Any], Any]) -> Callable[..., Any]:
    def rounding(x: Any, /) -> Any:
        x = ground.require(x, REAL, name)
        return kernel(x) if dtypes.kind_of(ground.name(x)) == "f" else ground.kernels.copy(x)

    return _named(rounding, name)


def _testing(ground: Ground, name: str, kernel: Callable[[Any], Any], told: bool) -> Callable[..., Any]:
    def testing(x: Any, /) -> Any:
        x = ground.require(x, NUMERIC, name)
        if dtypes.kind_of(ground.name(x)) in "iu":
            return ground.kernels.full_like(x, told, "bool")
        return kernel(x)

    return _named(testing, name)


def _binary(ground: Ground, name: str, kinds: str, kernel: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    places = registry.probes
    mine, looks, allowed = ground.mine, ground.looks, set[Any]()
    settled = getattr(ground.kernels, SETTLED, _itself)
    takes_number = name in ground.kernels.TAKE_NUMBERS
    kind: Any = None
    usual: Any = (
        None  # the dtype of the last call: looking for a dtype in a set takes Paddle and TensorFlow a microsecond
    )

    def binary(x1: Any, x2: Any, /) -> Any:
        nonlocal kind, usual
        cls = type(x1)
        try:
            if cls is kind is type(x2) and x1.dtype is usual is x2.dtype:
                if looks and ((place := places.get(cls)) is None or place(x1) is not place(x2)):
                    ground.require_one_device(name, x1, x2)
                made = kernel(x1, x2)
                return made if type(made) is cls else settled(made)
            if cls in mine and (dtype := x1.dtype) in allowed:
                if type(x2) in mine and x2.dtype is dtype:
                    if looks:
                        ground.require_one_device(name, x1, x2)
                    return settled(kernel(x1, x2))
                if takes_number and type(x2) is float and dtypes.kind_of(ground.dtype(dtype)) == "f":
                    return kernel(x1, x2)
            x1, x2 = ground.operands(name, kinds, (x1, x2))
            kind, usual = type(x1), x1.dtype
            allowed.add(usual)
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


def _unchanged(ground: Ground, name: str, copy: Callable[[Any], Any]) -> Callable[..., Any]:
    def unchanged(x: Any, /) -> Any:
        return copy(ground.require(x, NUMERIC, name))

    return _named(unchanged, name)


def _of_complex(ground: Ground, real: Callable[[Any], Any], kernel: Callable[[Any], Any]) -> Callable[..., Any]:
    """A function that has work to do for complex numbers alone."""

    def of_complex(x: Any, /) -> Any:
        x = ground.tensor(x, real.__name__)
        return kernel(x) if dtypes.kind_of(ground.name(x)) == "c" else real(x)

    return _named(of_complex, real.__name__)


def _clip(ground: Ground) -> Callable[..., Any]:
    kernels = ground.kernels

    def bound(value: Any, name: str, like: Any) -> Any:
        if type(value) in NUMBERS:
            kind = dtypes.kind_of(name)
            if (kind == "f" and type(value) is not complex) or type(value) is int:
                return ground.number(value, name, like)
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
        if min is not None:
            x = bounded(kernels.maximum, x, bound(min, name, x))
        return x if max is None else bounded(kernels.minimum, x, bound(max, name, x))

    def bounded(kernel: Callable[[Any, Any], Any], x: Any, value: Any) -> Any:
        if ground.looks:
            ground.require_one_device("clip", x, value)
        try:
            return kernel(x, value)
        except Exception:
            ground.require_fit("clip", x, value)
            raise

    return clip
