"""The standard's extension `linalg`: what is written on the namespace and on the few factorizations that an adapter
names."""

from __future__ import annotations

import math
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

from xdevice.errors import ArgumentError, DTypeError, ShapeError, shown

from .checks import NUMBERS, Checks, broadcast_shape, shape_of
from .dtypes import FLOATING, NUMERIC

if TYPE_CHECKING:
    from collections.abc import Callable

    Axis = int | tuple[int, ...] | None

HELD = ("float32", "float64", "complex64", "complex128")
"""The dtypes of factorizations: no framework has kernels for shorter floats everywhere."""


_COMPLEX = {
    "float32": "complex64",
    "float64": "complex128",
    "complex64": "complex64",
    "complex128": "complex128",
}


class EigResult(NamedTuple):
    eigenvalues: Any
    eigenvectors: Any


class EighResult(NamedTuple):
    eigenvalues: Any
    eigenvectors: Any


class QRResult(NamedTuple):
    Q: Any
    R: Any


class SlogdetResult(NamedTuple):
    sign: Any
    logabsdet: Any


class SVDResult(NamedTuple):
    U: Any
    S: Any
    Vh: Any


def _of_square(function: str) -> Callable[..., Any]:
    def factor(self: LinearAlgebra, x: Any, /) -> Any:
        return self._factor(function, x, True)

    return factor


class LinearAlgebra:
    """The functions of `xp.linalg`; `matmul`, `matrix_transpose`, `tensordot` and `vecdot` are those of `xp`."""

    def __init__(self, checks: Checks, xp: Any) -> None:
        self._checks = checks
        self._xp = xp
        # each is one program where the framework makes programs, and its gradient too
        self._product = checks.fused(self._of_parts)
        self._power = checks.fused(self._of_factors)
        self._inverse = checks.fused(self._of_svd)
        self._rank = checks.fused(self._of_values)
        self._length = checks.fused(self._of_squares)

    # factorizations

    def cholesky(self, x: Any, /, *, upper: bool = False) -> Any:
        result = self._factor("cholesky", x, True)
        return self._adjoint(result) if upper else result

    det = _of_square("det")
    eigvalsh = _of_square("eigvalsh")
    inv = _of_square("inv")

    def eig(self, x: Any, /) -> EigResult:
        kernel, x = self._kernel("eig"), self._matrix(x, "eig", True)
        # the values of a real matrix are complex, unless it happens to be symmetric
        return EigResult(*kernel(self._checks.cast(x, _COMPLEX[self._checks.name(x)])))

    def eigvals(self, x: Any, /) -> Any:
        return self.eig(x)[0]

    def eigh(self, x: Any, /) -> EighResult:
        return EighResult(*self._factor("eigh", x, True))

    def qr(self, x: Any, /, *, mode: str = "reduced") -> QRResult:
        if mode not in ("reduced", "complete"):
            raise ArgumentError(
                f"linalg.qr: mode must be 'reduced' or 'complete', not {shown(mode)}"
            )
        return QRResult(*self._factor("qr", x, False, mode))

    def slogdet(self, x: Any, /) -> SlogdetResult:
        return SlogdetResult(*self._factor("slogdet", x, True))

    def solve(self, x1: Any, x2: Any, /) -> Any:
        x1, x2 = self._checks.operands("linalg.solve", FLOATING, (x1, x2))
        self._checks.require_one_device("linalg.solve", x1, x2)
        kernel, x1 = self._kernel("solve"), self._matrix(x1, "solve", True)
        shapes = shape_of(x1), shape_of(x2)
        # by the standard only one dimension is a vector; NumPy before 2.0 took more for vectors
        is_vector = len(shapes[1]) == 1
        if not shapes[1] or shapes[1][-1 if is_vector else -2] != shapes[0][-1]:
            raise ShapeError(f"linalg.solve: {shapes[0]} and {shapes[1]} do not fit")
        x2 = self._xp.expand_dims(x2, axis=1) if is_vector else x2
        batch = broadcast_shape(shape_of(x1)[:-2], shape_of(x2)[:-2])
        result = kernel(*[self._stacked(x, batch) for x in (x1, x2)])
        return self._xp.squeeze(result, axis=-1) if is_vector else result

    def _stacked(self, x: Any, batch: tuple[Any, ...]) -> Any:
        """Matrices, broadcast to a stack of this shape."""
        shape = shape_of(x)
        return x if shape[:-2] == batch else self._xp.broadcast_to(x, (*batch, *shape[-2:]))

    def svd(self, x: Any, /, *, full_matrices: bool = True) -> SVDResult:
        return SVDResult(*self._factor("svd", x, False, bool(full_matrices)))

    def svdvals(self, x: Any, /) -> Any:
        return self._factor("svdvals", x, False)

    def _factor(self, function: str, x: Any, is_square: bool, *settings: Any) -> Any:
        kernel = self._kernel(function)
        return kernel(self._matrix(x, function, is_square), *settings)

    def _kernel(self, function: str) -> Callable[..., Any]:
        kernel: Callable[..., Any] | None = getattr(self._checks.kernels.linalg, function, None)
        if kernel is None:
            raise self._checks.backend.unsupported(
                f"linalg.{function}", 'compute it with another: xdevice.convert(x, "numpy")'
            )
        return kernel

    def _matrix(self, x: Any, function: str, is_square: bool = False) -> Any:
        x = self._checks.require(x, FLOATING, f"linalg.{function}")
        name, shape = self._checks.name(x), shape_of(x)
        if name not in HELD:
            raise DTypeError(
                f"linalg.{function} takes {', '.join(HELD)}, not {name}; cast it by xp.astype"
            )
        if len(shape) < 2 or (is_square and shape[-1] != shape[-2]):
            raise ShapeError(
                f"linalg.{function} takes {'square ' * is_square}matrices, not the shape {shape}"
            )
        return x

    # from these

    def matrix_power(self, x: Any, n: int, /) -> Any:
        x, n = self._matrix(x, "matrix_power", True), index(n)
        # also for a matrix that has no inverse
        if n == 0:
            return self._xp.tril(self._xp.triu(self._xp.ones_like(x)))
        return self._power((x if n > 0 else self.inv(x),), abs(n))

    def _of_factors(self, x: Any, n: int) -> Any:
        result = None
        while n:
            result = (x if result is None else self._xp.matmul(result, x)) if n % 2 else result
            x, n = (self._xp.matmul(x, x) if n > 1 else x), n // 2
        return result

    def matrix_rank(self, x: Any, /, *, rtol: Any = None) -> Any:
        return self._rank(*self._with_rtol("matrix_rank", x, rtol))

    def _of_values(self, x: Any, rtol: Any) -> Any:
        return self._xp.count_nonzero(self._counts(self.svdvals(x), x, rtol), axis=-1)

    def pinv(self, x: Any, /, *, rtol: Any = None) -> Any:
        return self._inverse(*self._with_rtol("pinv", x, rtol))

    def _of_svd(self, x: Any, rtol: Any) -> Any:
        xp = self._xp
        u, values, vh = self.svd(x, full_matrices=False)
        counts = self._counts(values, x, rtol)
        # the inner `where` keeps the gradient of what does not count from being NaN
        inverse = xp.where(counts, xp.reciprocal(xp.where(counts, values, 1.0)), 0.0)
        scaled = xp.multiply(xp.expand_dims(inverse, axis=-1), self._adjoint(u))
        return xp.matmul(self._adjoint(vh), scaled)

    def _with_rtol(self, function: str, x: Any, rtol: Any) -> tuple[Any, ...]:
        """The arguments of a fused function: `rtol` is a setting of it if it is a number, and else a tensor."""
        x = self._matrix(x, function)
        if rtol is None or type(rtol) in NUMBERS:
            return (x,), rtol
        self._checks.require_one_device(
            f"linalg.{function}", x, self._checks.tensor(rtol, f"linalg.{function}")
        )
        return ((x, rtol),)

    def _counts(self, values: Any, x: Any, rtol: Any) -> Any:
        """Which singular values count: those above `rtol` times the largest."""
        xp, shape = self._xp, shape_of(x)
        # there is no largest of no values
        if 0 in shape:
            return xp.zeros_like(values, dtype=xp.bool)
        if rtol is None:
            rtol = max(shape[-2:]) * xp.finfo(values.dtype).eps
        rtol = rtol if type(rtol) in NUMBERS else xp.expand_dims(rtol, axis=-1)
        return xp.greater(values, xp.multiply(xp.max(values, axis=-1, keepdims=True), rtol))

    def _adjoint(self, x: Any) -> Any:
        return self._xp.conj(self._xp.matrix_transpose(x))

    # products and sums

    def cross(self, x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
        x1, x2 = self._checks.operands("linalg.cross", NUMERIC, (x1, x2))
        self._checks.require_one_device("linalg.cross", x1, x2)
        shorter = min(len(x1.shape), len(x2.shape))
        place = self._checks.axis(axis, shorter, "linalg.cross") - shorter if axis < 0 else axis
        lengths = [
            shape_of(x)[self._checks.axis(place, len(x.shape), "linalg.cross")]
            for x in (x1, x2)
        ]
        if lengths != [3, 3]:
            raise ShapeError(
                f"linalg.cross takes axes of 3 elements, not {shape_of(x1)} and {shape_of(x2)}"
            )
        # the adapters' own take one shape
        x1, x2 = (x1, x2) if shape_of(x1) == shape_of(x2) else self._xp.broadcast_arrays(x1, x2)
        place %= len(x1.shape)
        own = getattr(self._checks.kernels, "cross", None)
        return own(x1, x2, place) if own else self._product((x1, x2), place)

    def _of_parts(self, x1: Any, x2: Any, place: int) -> Any:
        multiply, subtract = self._xp.multiply, self._xp.subtract
        a, b = (self._xp.unstack(x, axis=place) for x in (x1, x2))

        def part(i: int, j: int) -> Any:
            return subtract(multiply(a[i], b[j]), multiply(a[j], b[i]))

        return self._xp.stack([part(1, 2), part(2, 0), part(0, 1)], axis=place)

    def diagonal(self, x: Any, /, *, offset: int = 0) -> Any:
        x, kernels = self._checks.tensor(x, "linalg.diagonal"), self._checks.kernels
        shape = self._checks.full_shape(x, "linalg.diagonal")
        if len(shape) < 2:
            raise ShapeError(f"linalg.diagonal takes matrices, not the shape {shape}")
        if hasattr(kernels, "diagonal"):
            return kernels.diagonal(x, index(offset))
        import numpy as np

        places = np.arange(shape[-2] * shape[-1]).reshape(shape[-2:]).diagonal(offset)
        flat = kernels.reshape(x, (*shape[:-2], shape[-2] * shape[-1]))
        return kernels.take(flat, self._checks.constant(places, x), len(shape) - 2)

    def outer(self, x1: Any, x2: Any, /) -> Any:
        x1, x2 = self._checks.operands("linalg.outer", NUMERIC, (x1, x2))
        if len(x1.shape) != 1 or len(x2.shape) != 1:
            raise ShapeError(
                f"linalg.outer takes vectors, not the shapes {shape_of(x1)} and {shape_of(x2)}"
            )
        return self._xp.multiply(self._xp.expand_dims(x1, axis=1), x2)

    def trace(self, x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
        return self._xp.sum(self.diagonal(x, offset=offset), axis=-1, dtype=dtype)

    # norms

    def matrix_norm(self, x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
        xp, x = self._xp, self._matrix(x, "matrix_norm")
        if ord == "fro":
            return self._root(x, (-2, -1), keepdims, "matrix_norm")
        if ord in (1, -1, math.inf, -math.inf):
            axis = -2 if abs(ord) == 1 else -1
            sums = xp.sum(xp.abs(x), axis=axis, keepdims=True)
            result = (xp.max if ord > 0 else xp.min)(sums, axis=-3 - axis, keepdims=True)
            return result if keepdims else xp.squeeze(result, axis=(-2, -1))
        reduce = {"nuc": xp.sum, 2: xp.max, -2: xp.min}.get(ord)
        if reduce is None:
            raise ArgumentError(
                f"linalg.matrix_norm: there is no norm {shown(ord)}; ord is 'fro', 'nuc', or +-1, 2, inf"
            )
        result = reduce(self.svdvals(x), axis=-1, keepdims=keepdims)
        return xp.expand_dims(result, axis=-1) if keepdims else result

    def vector_norm(
        self, x: Any, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2
    ) -> Any:
        xp, x = self._xp, self._checks.require(x, FLOATING, "linalg.vector_norm")
        if ord == 2:
            return self._root(x, axis, keepdims, "vector_norm")
        size = xp.abs(x)
        if math.isinf(ord):
            return (xp.max if ord > 0 else xp.min)(size, axis=axis, keepdims=keepdims)
        if ord == 0:
            return xp.sum(
                xp.astype(xp.not_equal(x, 0.0), size.dtype), axis=axis, keepdims=keepdims
            )
        if ord == 1:
            return xp.sum(size, axis=axis, keepdims=keepdims)
        # for any other order the definition itself
        return xp.pow(xp.sum(xp.pow(size, float(ord)), axis=axis, keepdims=keepdims), 1 / ord)

    def _root(self, x: Any, axis: Axis, keepdims: bool, function: str) -> Any:
        """The root of the sum of squares."""
        axes = self._checks.axes(axis, len(x.shape), f"linalg.{function}")
        own = getattr(self._checks.kernels, "norm", None)
        return (
            own(x, axes, bool(keepdims))
            if own and axes
            else self._length((x,), axes, bool(keepdims))
        )

    def _of_squares(self, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        xp = self._xp
        # squares of real numbers need no `abs`, whose gradient at 0 is not defined
        size = xp.abs(x) if self._checks.name(x).startswith("complex") else x
        return xp.sqrt(xp.sum(xp.square(size), axis=axes, keepdims=keepdims))
