"""The standard's extension `fft`, built from the transforms along one axis that an adapter provides."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, Final

from xdevice.base.dtypes import dtype_name
from xdevice.errors import ArgumentError, ShapeError, shown
from xdevice.tensors.creation import as_tuple

from .checks import Checks, shape_of
from .dtypes import FLOATING, REAL_FLOATING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# for each norm, the norm with which `hfft` and `ihfft` call the transform in the opposite
# direction
_OPPOSITE_NORM: Final = {"backward": "forward", "ortho": "ortho", "forward": "backward"}
_STEPS: Final = {
    "fftn": ("fft", "fft"),
    "ifftn": ("ifft", "ifft"),
    "irfftn": ("irfft", "ifft"),
    "rfftn": ("rfft", "fft"),
}
"""Maps each transform along several axes to two transforms: one for the last axis, and one for the other axes."""
# the transforms of real numbers, and the transforms that return real numbers
_OF_REAL: Final = ("rfft", "ihfft", "rfftn")
_TO_REAL: Final = ("irfft", "hfft", "irfftn")
# the complex dtype in which a dtype is transformed; for all other dtypes it is complex64
_COMPLEX: Final = {"float64": "complex128", "complex128": "complex128"}
# the dtype of the real and imaginary parts of each complex dtype
_REAL: Final = {"complex64": "float32", "complex128": "float64"}


def _transform_along_axis(function: str) -> Callable[..., Any]:
    """Returns the standard's transform `function`, such as "fft", along one axis."""

    def transform(
        checks: Checks,
        x: Any,
        /,
        *,
        n: int | None = None,
        axis: int = -1,
        norm: str = "backward",
    ) -> Any:
        x = _operand(checks, function, x)
        axis_index = checks.axis_index(axis, len(x.shape), f"fft.{function}")
        # raises an error for a length that is unknown while a function is traced
        checks.known_shape(x, f"fft.{function}")
        return _checked_transform(
            checks, function, x, lengths=(n,), axes=(axis_index,), norm=norm
        )

    return transform


def _transform_along_axes(function: str) -> Callable[..., Any]:
    """Returns the standard's transform `function`, such as "fftn", along several axes. The transform raises
    `ShapeError` unless `axes` contains at least one axis, all axes differ, and `s` contains one length for each
    axis."""

    def transform(
        checks: Checks, x: Any, /, *, s: Any = None, axes: Any = None, norm: str = "backward"
    ) -> Any:
        x = _operand(checks, function, x)
        ndim = len(checks.known_shape(x, f"fft.{function}"))
        # the standard's default is all axes, or, if lengths are given, as many of the last axes
        # as there are lengths
        if axes is None:
            axes = range(0 if s is None else ndim - len(s), ndim)
        axis_indices = tuple(
            [checks.axis_index(axis, ndim, f"fft.{function}") for axis in as_tuple(axes)]
        )
        lengths = [None] * len(axis_indices) if s is None else as_tuple(s)
        if (
            not axis_indices
            or len(lengths) != len(axis_indices)
            or len({*axis_indices}) != len(axis_indices)
        ):
            raise ShapeError(
                f"fft.{function} requires at least one axis, no repeated axis, and one length in s for each axis; got "
                f"axes={shown(axes)} and s={shown(s)}"
            )
        return _checked_transform(checks, function, x, lengths, axis_indices, norm)

    return transform


fft = _transform_along_axis("fft")
ifft = _transform_along_axis("ifft")
rfft = _transform_along_axis("rfft")
irfft = _transform_along_axis("irfft")
hfft = _transform_along_axis("hfft")
ihfft = _transform_along_axis("ihfft")
fftn = _transform_along_axes("fftn")
ifftn = _transform_along_axes("ifftn")
rfftn = _transform_along_axes("rfftn")
irfftn = _transform_along_axes("irfftn")


def _checked_transform(
    checks: Checks,
    function: str,
    x: Any,
    lengths: Sequence[Any],
    axes: tuple[int, ...],
    norm: str,
) -> Any:
    """Returns the transform `function` of `x` along `axes`. `lengths` contains a length for each axis; None means the
    length that follows from the shape of `x`. Raises `ArgumentError` for an unknown `norm`, and `ShapeError` for a
    length below 1."""
    full_lengths = _full_lengths(checks, function, shape_of(x), lengths, axes, norm)
    return checks.call_fused(_transformed, (x,), function, full_lengths, axes, norm)


def _operand(checks: Checks, function: str, x: Any) -> Any:
    """Returns `x` as a tensor of the dtype that the transform `function` requires, which is a float dtype or a
    complex dtype. Raises `DTypeError` if `x` has neither a float dtype nor a complex dtype."""
    if function in _OF_REAL:
        return checks.tensor_of_kinds(x, REAL_FLOATING, f"fft.{function}")
    x = checks.tensor_of_kinds(x, FLOATING, f"fft.{function}")
    # the contract promises that kernels are called with complex numbers
    return checks.cast(x, _COMPLEX.get(checks.dtype_of(x), "complex64"))


def _full_lengths(
    checks: Checks,
    function: str,
    shape: tuple[Any, ...],
    lengths: Sequence[Any],
    axes: tuple[int, ...],
    norm: str,
) -> tuple[int, ...]:
    """Returns `lengths`, with each None replaced by the length that follows from `shape`. `shape` is the shape of the
    tensor, and `axes` are the axes along which the transform `function` is computed. Raises `ArgumentError` for an
    unknown `norm`, and `ShapeError` for a length below 1."""
    if norm not in _OPPOSITE_NORM:
        raise ArgumentError(
            f"fft.{function}: norm must be one of {', '.join(_OPPOSITE_NORM)}, not {shown(norm)}"
        )
    default_lengths = [shape[axis] for axis in axes]
    # a transform of n real numbers has n // 2 + 1 complex numbers. In the opposite direction,
    # two values of n are possible, and the even value is the default
    if function in _TO_REAL:
        default_lengths[-1] = 2 * (default_lengths[-1] - 1)
    full_lengths = tuple(
        [
            length if n is None else index(n)
            for n, length in zip(lengths, default_lengths, strict=True)
        ]
    )
    if min(full_lengths) < 1:
        raise ShapeError(
            f"fft.{function} requires at least 1 element along each axis, but the lengths are {shown(full_lengths)}"
        )
    return full_lengths


def _transformed(
    checks: Checks,
    x: Any,
    function: str,
    lengths: tuple[int, ...],
    axes: tuple[int, ...],
    norm: str,
) -> Any:
    """Returns the transform `function` of `x`. The transform is computed by the adapter's kernel with this name, or
    from other transforms. `lengths`, `axes` and `norm` are the checked arguments of `_checked_transform`."""
    # `hfft` and `ihfft` are computed from `irfft` and `rfft`, so adapters need no kernels for
    # them. The two transforms are in opposite directions, so the conjugate and the opposite
    # normalization are used
    if function == "hfft":
        return _transformed(
            checks, checks.xp.conj(x), "irfft", lengths, axes, norm=_OPPOSITE_NORM[norm]
        )
    if function == "ihfft":
        return checks.xp.conj(
            _transformed(checks, x, "rfft", lengths, axes, norm=_OPPOSITE_NORM[norm])
        )
    kernel = getattr(checks.kernels.fft, function, None)
    if kernel is None:
        return _axis_by_axis(checks, x, function, lengths, axes, norm)
    complex_name = _COMPLEX.get(checks.dtype_of(x), "complex64")
    # a kernel along several axes expects two tuples, and a kernel along one axis expects a
    # length and an axis
    result = (
        kernel(x, lengths, axes, norm)
        if function in _STEPS
        else kernel(x, *lengths, *axes, norm)
    )
    # NumPy 1 computes all transforms in double precision, so the result is cast
    return checks.cast(result, _REAL[complex_name] if function in _TO_REAL else complex_name)


def _axis_by_axis(
    checks: Checks,
    x: Any,
    function: str,
    lengths: tuple[int, ...],
    axes: tuple[int, ...],
    norm: str,
) -> Any:
    """Returns a transform along several axes, computed along one axis at a time. The arguments are the same as for
    `_transformed`. `_STEPS` names a separate transform for the last axis. This axis is processed first, because the
    input of `rfft` must be real. For `irfftn`, it is processed last, because the output of `irfft` is real."""
    along_last, along_others = _STEPS[function]
    *others, last = zip(lengths, axes, strict=True)
    # each step consists of a transform, a length and an axis
    steps = [(along_others, *pair) for pair in others]
    steps.insert(len(steps) if along_last == "irfft" else 0, (along_last, *last))
    for transform, length, axis in steps:
        x = _transformed(checks, x, transform, lengths=(length,), axes=(axis,), norm=norm)
    return x


# functions that do not transform


def fftfreq(
    checks: Checks, n: int, /, *, d: float = 1.0, dtype: Any = None, device: object = None
) -> Any:
    """Returns a vector with the frequency of each element of the result of `fft`, for `n` samples with the spacing
    `d`."""
    import numpy as np

    return _frequencies(checks, np.fft.fftfreq(n, d), dtype, device)


def rfftfreq(
    checks: Checks, n: int, /, *, d: float = 1.0, dtype: Any = None, device: object = None
) -> Any:
    """Returns a vector with the frequency of each element of the result of `rfft`, for `n` samples with the spacing
    `d`."""
    import numpy as np

    return _frequencies(checks, np.fft.rfftfreq(n, d), dtype, device)


def _frequencies(checks: Checks, values: Any, dtype: Any, device: object) -> Any:
    """Returns the frequencies `values` as a tensor. NumPy computed the frequencies, so that the bits are the same on
    every backend. If `dtype` is None, the result is float32."""
    name = "float32" if dtype is None else dtype_name(dtype)
    return checks.xp.asarray(values.astype(name), dtype=name, device=device)


def fftshift(checks: Checks, x: Any, /, *, axes: int | Sequence[int] | None = None) -> Any:
    """Returns `x` with the frequency 0 moved to the middle of each of `axes`. None means all axes."""
    return _shifted(checks, "fftshift", x, axes, rounding=0)


def ifftshift(checks: Checks, x: Any, /, *, axes: int | Sequence[int] | None = None) -> Any:
    """Returns `x` with the middle of each of `axes` moved to the beginning. This is the inverse of `fftshift`. None
    means all axes."""
    return _shifted(checks, "ifftshift", x, axes, rounding=1)


def _shifted(checks: Checks, function: str, x: Any, axes: Any, rounding: int) -> Any:
    """Returns the tensor `x`, rolled along each of `axes` by half of the axis's length. For an odd length, the half
    is rounded down if `rounding` is 0 (for `fftshift`), and up if `rounding` is 1 (for `ifftshift`). Raises
    `UnsupportedError` if one of these lengths is unknown while a function is traced."""
    x = checks.checked_tensor(x, f"fft.{function}")
    axis_indices = checks.axis_indices(axes, len(x.shape), f"fft.{function}")
    shape = shape_of(x)
    lengths = checks.require_known_lengths(
        tuple([shape[axis_index] for axis_index in axis_indices]), f"fft.{function}"
    )
    # if there is no axis, `roll` returns `x`
    return checks.xp.roll(x, [(n + rounding) // 2 for n in lengths], axis=axis_indices)
