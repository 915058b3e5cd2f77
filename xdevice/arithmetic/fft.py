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
_COMPLEX: Final = {"float64": "complex128", "complex128": "complex128"}


class Fourier:
    """The functions of `xp.fft`."""

    def __init__(self, ground: Ground, xp: Any) -> None:
        self._ground = ground
        self._xp = xp

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
        x = self._xp.conj(self._complex(x, "hfft"))
        return self._along("irfft", x, n, axis, _OTHER.get(norm, norm))

    def ihfft(self, x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
        x = self._ground.require(x, REAL_FLOATING, "fft.ihfft")
        return self._xp.conj(self._along("rfft", x, n, axis, _OTHER.get(norm, norm)))

    def _complex(self, x: Any, function: str) -> Any:
        x = self._ground.require(x, FLOATING, f"fft.{function}")
        return self._ground.cast(x, _COMPLEX.get(self._ground.name(x), "complex64"))

    def _along(self, function: str, x: Any, n: int | None, axis: int, norm: str) -> Any:
        if norm not in _OTHER:
            raise ArgumentError(f"fft.{function}: norm is one of {', '.join(_OTHER)}, not {shown(norm)}")
        ground, shape = self._ground, self._ground.known(x, f"fft.{function}")
        place = ground.axis(axis, len(shape), f"fft.{function}")
        if n is None:
            n = 2 * (shape[place] - 1) if function == "irfft" else shape[place]
        if index(n) < 1:
            raise ShapeError(f"fft.{function} is of 1 element or more, not of {n}")
        made = getattr(ground.kernels.fft, function)(x, index(n), place, norm)
        name = _COMPLEX.get(ground.name(x), "complex64")
        return ground.cast(made, name if function != "irfft" else {"complex64": "float32"}.get(name, "float64"))

    # along several

    def fftn(self, x: Any, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Any:
        return self._several("fft", "fft", self._complex(x, "fftn"), s, axes, norm)

    def ifftn(self, x: Any, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Any:
        return self._several("ifft", "ifft", self._complex(x, "ifftn"), s, axes, norm)

    def rfftn(self, x: Any, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Any:
        return self._several("rfft", "fft", self._ground.require(x, REAL_FLOATING, "fft.rfftn"), s, axes, norm)

    def irfftn(self, x: Any, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Any:
        return self._several("irfft", "ifft", self._complex(x, "irfftn"), s, axes, norm)

    def _several(self, last: str, others: str, x: Any, s: Any, axes: Any, norm: str) -> Any:
        """The transform `last` along the last of the axes, and `others` along the others: before it where `last` gives
        real numbers, else after it."""
        ndim = len(x.shape)
        if axes is None:
            axes = range(0 if s is None else ndim - len(s), ndim)
        places = [self._ground.axis(axis, ndim, f"fft.{last}n") for axis in listed(axes)]
        lengths = [None] * len(places) if s is None else listed(s)
        if not places or len(lengths) != len(places) or len({*places}) != len(places):
            raise ShapeError(f"fft.{last}n takes one length for each axis, and one axis or more, not {shown(s)}")
        steps = [(others, *pair) for pair in zip(lengths[:-1], places[:-1], strict=True)]
        steps.insert(len(steps) if last == "irfft" else 0, (last, lengths[-1], places[-1]))
        for function, n, axis in steps:
            x = self._along(function, x, n, axis, norm)
        return x

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
