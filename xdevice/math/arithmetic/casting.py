"""The functions of the Python Array API standard that cast tensors to other dtypes, or describe dtypes."""

from __future__ import annotations

from typing import Any

from xdevice.base import devices, floats
from xdevice.base.dtypes import dtype_name
from xdevice.core import registry
from xdevice.errors import DTypeError
from xdevice.tensors import verbs

from . import dtypes
from .checks import NUMBERS, Checks


def astype(
    checks: Checks, x: Any, dtype: Any, /, *, copy: bool = True, device: object = None
) -> Any:
    """Returns `x` cast to another dtype. The result is a copy, unless `copy` is False and `x` already has that dtype.
    If `device` is given, the result is moved to that device. Raises `DTypeError` if the backend does not support the
    dtype."""
    x = checks.checked_tensor(x, "astype")
    result = checks.cast(x, checks.supported_dtype(dtype_name(dtype)))
    # a cast to another dtype is a copy already
    result = checks.kernels.copy(result) if copy and result is x else result
    return result if device is None else verbs.to_device(result, devices.parse(device))


def can_cast(checks: Checks, from_: Any, to: Any, /) -> bool:
    """Whether `from_`, a dtype or a tensor, may be cast to the dtype `to`. This is the case if the common dtype of
    `from_` and `to` is `to`."""
    return dtypes.can_cast(_name(checks, from_, "can_cast"), dtype_name(to))


def finfo(checks: Checks, type: Any, /) -> dtypes.FInfo:
    """Returns the limits of a floating-point or complex dtype. `type` is the dtype, or a tensor of that dtype. Raises
    `DTypeError` for any other dtype."""
    name = _name(checks, type, "finfo")
    if dtypes.kind_of(name) not in dtypes.FLOATING:
        raise DTypeError(
            f"finfo expects a floating-point or complex dtype, not {name}; for integers, use iinfo"
        )
    # for complex numbers, the limits and the dtype are those of the real and imaginary parts
    return dtypes.float_limits(name, checks.kernels.dtype(floats.PARTS.get(name, name)))


def iinfo(checks: Checks, type: Any, /) -> dtypes.IInfo:
    """Returns the limits of an integer dtype. `type` is the dtype, or a tensor of that dtype. Raises `DTypeError` for
    any other dtype."""
    name = _name(checks, type, "iinfo")
    if dtypes.kind_of(name) not in dtypes.INTEGER:
        raise DTypeError(f"iinfo expects an integer dtype, not {name}; for floats, use finfo")
    return dtypes.integer_limits(name, checks.kernels.dtype(name))


def isdtype(checks: Checks, dtype: Any, kind: Any) -> bool:
    """Whether `dtype` is of the kind `kind`. `kind` is a word of the standard such as "integral", a dtype, or a tuple
    of words and dtypes. A dtype matches only itself, and a tuple matches if one of its items matches."""
    name = dtype_name(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(checks, dtype, item) for item in kind)
    # a kind of the standard, such as "integral", or a dtype
    return dtypes.is_dtype(name, kind) if isinstance(kind, str) else name == dtype_name(kind)


def result_type(checks: Checks, *arrays_and_dtypes: Any) -> Any:
    """Returns the common dtype of tensors, dtypes and Python numbers. Raises `DTypeError` if all arguments are numbers,
    or if there is no common dtype."""
    # only the kinds of Python numbers matter, and only together with a tensor or a dtype
    numbers = [x for x in arrays_and_dtypes if type(x) in NUMBERS]
    names = [
        _name(checks, x, "result_type") for x in arrays_and_dtypes if type(x) not in NUMBERS
    ]
    if not names:
        raise DTypeError(
            "result_type requires at least one tensor or dtype among its arguments"
        )
    return checks.kernels.dtype(checks.common_dtype(names, numbers))


def _name(checks: Checks, x: Any, function: str) -> str:
    """Returns the name of a dtype, or of the dtype of a tensor. Raises `ArgumentError` for a tensor of another
    backend. `function` is the function name to show in the error message."""
    if registry.owner_and_kind(type(registry.as_array(x))) is not None:
        return checks.dtype_of(checks.checked_tensor(x, function))
    return dtype_name(x)
