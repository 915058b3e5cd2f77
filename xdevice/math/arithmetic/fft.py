"""The standard's extension `fft`, written on the transforms along one axis that an adapter names."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, Final

from xdevice.errors import ArgumentError, ShapeError, shown
from xdevice.tensors.creation import listed

from .dtypes import FLOATING, REAL_FLOATING
from .ground import Ground, shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_OTHER: Final = {"backward": "forward", "ortho": "ortho", "forward": "backward"}
_STEPS: Final = {
    "fftn": ("fft", "fft"), "ifftn": ("ifft", "ifft"), "irfftn": ("irfft", "ifft"), "rfftn": ("rfft", "fft"),
}  # fmt: skip
"""The transforms along several axes, and those that they are along the last axis and along the others."""
_COMPLEX: Final = {"float64": "complex128", "complex128": "complex128"}


class Fourier:
    """The functions of `xp.fft`."""

    def __init__(self, ground: Ground, xp: Any) -> None:
        self._ground = ground
        self._xp = xp
        self._transformed = ground.fused(self._of_kernel)

    # along one axis

    def fft(self, x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
        return self._along("fft", self._complex(x, "fft"), n, axis, norm)

    def ifft(self, x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
        return self._along("ifft", self._complex(x, "ifft"), n, axis, norm)

    def rfft(self, x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
        return self._along("rfft", self._ground.require(x, REAL_FLOATING, "fft.rfft"), n, axis, norm)

    def irfft(self, x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
        return self._along("irfft", self._complex(x, "irfft"), n, axis, norm)

    def hfft(self, x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
        return self._along("hfft", self._complex(x, "hfft"), n, axis, norm)

    def ihfft(self, x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
        return self._along("ihfft", self._ground.require(x, REAL_FLOATING, "fft.ihfft"), n, axis, norm)

    def _complex(self, x: Any, function: str) -> Any:
        x = self._ground.require(x, FLOATING, f"fft.{function}")
        return self._ground.cast(x, _COMPLEX.get(self._ground.name(x), "complex64"))

    def _along(self, function: str, x: Any, n: int | None, axis: int, norm: str) -> Any:
        place = self._ground.axis(axis, len(x.shape), f"fft.{function}")
        return self._transformed((x,), function, self._lengths(function, x, (n,), (place,), norm), (place,), norm)

    def _lengths(self, function: str, x: Any, given: Sequence[Any], axes: tuple[int, ...], norm: str) -> Any:
        """The lengths along the axes that the transform is of."""
        if norm not in _OTHER:
            raise ArgumentError(f"fft.{function}: norm is one of {', '.join(_OTHER)}, not {shown(norm)}")
        shape = self._ground.known(x, f"fft.{function}")
        own = [shape[axis] for axis in axes]
        if function in ("irfft", "irfftn", "hfft"):
            own[-1] = 2 * (own[-1] - 1)
        lengths = tuple([mine if n is None else index(n) for n, mine in zip(given, own, strict=True)])
        if min(lengths) < 1:
            raise ShapeError(f"fft.{function} is of 1 element or more along each axis, not of {shown(lengths)}")
        return lengths

    def _of_kernel(self, x: Any, function: str, lengths: tuple[int, ...], axes: tuple[int, ...], norm: str) -> Any:
        """What the adapter's transform of that name gives, or its transforms along one axis after the other: first
        along the last one, but not where that gives real numbers."""
        if function == "hfft":
            return self._of_kernel(self._xp.conj(x), "irfft", lengths, axes, _OTHER[norm])
        if function == "ihfft":
            return self._xp.conj(self._of_kernel(x, "rfft", lengths, axes, _OTHER[norm]))
        kernel = getattr(self._ground.kernels.fft, function, None)
        if kernel is None:
            last, others = _STEPS[function]
            steps = [(others, *pair) for pair in zip(lengths[:-1], axes[:-1], strict=True)]
            steps.insert(len(steps) if last == "irfft" else 0, (last, lengths[-1], axes[-1]))
            for one, n, axis in steps:
                x = self._of_kernel(x, one, (n,), (axis,), norm)
            return x
        ground, name = self._ground, _COMPLEX.get(self._ground.name(x), "complex64")
        made = kernel(x, lengths, axes, norm) if function in _STEPS else kernel(x, *lengths, *axes, norm)
        is_real = function in ("irfft", "irfftn")
        return ground.cast(made, {"complex64": "float32"}.get(name, "float64") if is_real else name)

    # along several

    def fftn(self, x: Any, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Any:
        return self._several("fftn", self._complex(x, "fftn"), s, axes, norm)

    def ifftn(self, x: Any, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Any:
        return self._several("ifftn", self._complex(x, "ifftn"), s, axes, norm)

    def rfftn(self, x: Any, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Any:
        return self._several("rfftn", self._ground.require(x, REAL_FLOATING, "fft.rfftn"), s, axes, norm)

    def irfftn(self, x: Any, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Any:
        return self._several("irfftn", self._complex(x, "irfftn"), s, axes, norm)

    def _several(self, function: str, x: Any, s: Any, axes: Any, norm: str) -> Any:
        ndim = len(x.shape)
        if axes is None:
            axes = range(0 if s is None else ndim - len(s), ndim)
        places = tuple([self._ground.axis(axis, ndim, f"fft.{function}") for axis in listed(axes)])
        given = [None] * len(places) if s is None else listed(s)
        if not places or len(given) != len(places) or len({*places}) != len(places):
            raise ShapeError(f"fft.{function} takes one length for each axis, and one axis or more, not {shown(s)}")
        return self._transformed((x,), function, self._lengths(function, x, given, places, norm), places, norm)

    # beside transforms

    def fftfreq(self, n: int, /, *, d: float = 1.0, dtype: Any = None, device: object = None) -> Any:
        import numpy as np

        return self._made(np.fft.fftfreq(n, d), dtype, device)

    def rfftfreq(self, n: int, /, *, d: float = 1.0, dtype: Any = None, device: object = None) -> Any:
        import numpy as np

        return self._made(np.fft.rfftfreq(n, d), dtype, device)

    def _made(self, values: Any, dtype: Any, device: object) -> Any:
        name = "float32" if dtype is None else self._ground.dtype(dtype)
        return self._xp.asarray(values.astype(name), dtype=name, device=device)

    def fftshift(self, x: Any, /, *, axes: int | Sequence[int] | None = None) -> Any:
        return self._shifted("fftshift", x, axes, 0)

    def ifftshift(self, x: Any, /, *, axes: int | Sequence[int] | None = None) -> Any:
        return self._shifted("ifftshift", x, axes, 1)

    def _shifted(self, function: str, x: Any, axes: Any, up: int) -> Any:
        x = self._ground.tensor(x, f"fft.{function}")
        places = self._ground.axes(axes, len(x.shape), f"fft.{function}")
        shape = shape_of(x)
        return self._xp.roll(x, [(shape[one] + up) // 2 for one in places], axis=places) if places else x
