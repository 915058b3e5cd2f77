"""The standard's extension `linalg`. Its functions are built from the functions of the namespace, and from the few
factorizations that an adapter provides."""

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

_COMPLEX = {
    "float32": "complex64",
    "float64": "complex128",
    "complex64": "complex64",
    "complex128": "complex128",
}
"""The dtypes that matrices may have, each with the complex dtype of the same precision. 16-bit floats are not accepted,
because no framework has kernels for them on all devices."""


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


# factorizations


def _of_square(
    function: str, make_result: Callable[[Any], Any] = lambda x: x
) -> Callable[..., Any]:
    """Returns the standard's function with the name `function`, such as "det", which accepts square matrices. It
    calls the adapter's kernel of that name. If the kernel returns several results, `make_result` converts them to a
    named tuple."""

    def factorization(checks: Checks, x: Any, /) -> Any:
        return make_result(_factorization(checks, function, x, is_square=True))

    return factorization


def cholesky(checks: Checks, x: Any, /, *, upper: bool = False) -> Any:
    """Returns the Cholesky factors of positive definite matrices: upper triangular matrices if `upper` is True, and
    otherwise lower triangular matrices."""
    result = _factorization(checks, "cholesky", x, is_square=True)
    # kernels return the lower triangular factor; the upper triangular factor is its conjugate
    # transpose
    return _adjoint(checks, result) if upper else result


det = _of_square("det")
eigh = _of_square("eigh", make_result=EighResult._make)
eigvalsh = _of_square("eigvalsh")
inv = _of_square("inv")
slogdet = _of_square("slogdet", make_result=SlogdetResult._make)


def eig(checks: Checks, x: Any, /) -> EigResult:
    """Returns the eigenvalues and the eigenvectors of square matrices, as complex numbers."""
    kernel = _factorization_kernel(checks, "eig")
    x = _as_matrices(checks, x, "eig", is_square=True)
    # the matrix is cast to complex numbers, because the eigenvalues of a real matrix may be
    # complex
    return EigResult(*kernel(checks.cast(x, _COMPLEX[checks.dtype_of(x)])))


def eigvals(checks: Checks, x: Any, /) -> Any:
    """Returns the eigenvalues of square matrices, as complex numbers."""
    return eig(checks, x)[0]


def qr(checks: Checks, x: Any, /, *, mode: str = "reduced") -> QRResult:
    """Returns the factors Q and R of matrices; `mode` is "reduced" or "complete", as in NumPy. Raises `ArgumentError`
    for any other `mode`, `ShapeError` or `DTypeError` if `x` does not consist of matrices of floats or complex numbers,
    and `UnsupportedError` if the adapter has no such kernel."""
    if mode not in ("reduced", "complete"):
        raise ArgumentError(
            f"linalg.qr: mode must be 'reduced' or 'complete', not {shown(mode)}"
        )
    return QRResult(*_factorization(checks, "qr", x, mode, is_square=False))


def solve(checks: Checks, x1: Any, x2: Any, /) -> Any:
    """Returns the solution y of `x1 @ y = x2`. `x1` is a square matrix or a stack of square matrices, and `x2` is a
    vector, a matrix or a stack of matrices. Raises `ShapeError` if the shapes do not match, `DTypeError` for dtypes
    other than floats and complex numbers, `DeviceMismatchError` for tensors on different devices, and
    `UnsupportedError` if the adapter has no such kernel."""
    x1, x2 = checks.operands_on_one_device("linalg.solve", FLOATING, x1, x2)
    kernel = _factorization_kernel(checks, "solve")
    x1 = _as_matrices(checks, x1, "solve", is_square=True)
    shape1, shape2 = shape_of(x1), shape_of(x2)
    # the standard treats x2 as a vector only if it has one dimension; NumPy before 2.0 has a
    # different rule
    is_vector = len(shape2) == 1
    # the elements of a vector are its rows
    rows_axis = -1 if is_vector else -2
    if not shape2 or shape2[rows_axis] != shape1[-1]:
        raise ShapeError(
            f"linalg.solve expects x2 with as many rows as x1, but x2 has shape {shape2} and x1 {shape1}"
        )
    x2 = checks.xp.expand_dims(x2, axis=1) if is_vector else x2
    # both are broadcast to stacks of the same shape, because not all kernels do this themselves
    batch = broadcast_shape(shape_of(x1)[:-2], shape_of(x2)[:-2])
    result = kernel(*[_stacked(checks, x, batch) for x in (x1, x2)])
    return checks.xp.squeeze(result, axis=-1) if is_vector else result


def _stacked(checks: Checks, x: Any, batch: tuple[Any, ...]) -> Any:
    """Returns the matrices `x`, broadcast to a stack of matrices. `batch` contains the lengths of all axes of the stack
    except the last two."""
    shape = shape_of(x)
    return x if shape[:-2] == batch else checks.xp.broadcast_to(x, (*batch, *shape[-2:]))


def svd(checks: Checks, x: Any, /, *, full_matrices: bool = True) -> SVDResult:
    """Returns the singular value decomposition of matrices: U, the singular values, and the conjugate transpose of V.
    If `full_matrices` is False, U and V contain only as many vectors as there are singular values."""
    return SVDResult(*_factorization(checks, "svd", x, bool(full_matrices), is_square=False))


def svdvals(checks: Checks, x: Any, /) -> Any:
    """Returns the singular values of matrices."""
    return _factorization(checks, "svdvals", x, is_square=False)


def _factorization(
    checks: Checks, function: str, x: Any, *settings: Any, is_square: bool
) -> Any:
    """Returns the result of the adapter's kernel `function` for `x`, a matrix or a stack of matrices. If `is_square`
    is True, the matrices must be square. `settings` are the kernel's other arguments. Raises `UnsupportedError` if the
    adapter has no such kernel, and `ShapeError` or `DTypeError` if `x` does not consist of such matrices."""
    kernel = _factorization_kernel(checks, function)
    return kernel(_as_matrices(checks, x, function, is_square), *settings)


def _factorization_kernel(checks: Checks, function: str) -> Callable[..., Any]:
    """Returns the adapter's factorization with the name `function`. Raises `UnsupportedError` if the adapter has no
    such factorization."""
    kernel: Callable[..., Any] | None = getattr(checks.kernels.linalg, function, None)
    if kernel is None:
        raise checks.backend.unsupported(
            f"linalg.{function}",
            'convert the tensors to another backend with xdevice.convert(x, "numpy")',
        )
    return kernel


def _as_matrices(checks: Checks, x: Any, function: str, is_square: bool = False) -> Any:
    """Returns `x`, a matrix or a stack of matrices, as a tensor. Raises `ShapeError` if `x` has fewer than two
    dimensions, or if `is_square` is True and the matrices are not square. Raises `DTypeError` unless the dtype is in
    `_COMPLEX`."""
    x = checks.tensor_of_kinds(x, FLOATING, f"linalg.{function}")
    name, shape = checks.dtype_of(x), shape_of(x)
    if name not in _COMPLEX:
        raise DTypeError(
            f"linalg.{function} accepts {', '.join(_COMPLEX)}, not {name}; cast the tensor with "
            "xp.astype(x, xp.float32)"
        )
    if len(shape) < 2 or (is_square and shape[-1] != shape[-2]):
        raise ShapeError(
            f"linalg.{function} accepts {'square ' * is_square}matrices, not tensors of shape {shape}"
        )
    return x


# functions computed from factorizations


def matrix_power(checks: Checks, x: Any, n: int, /) -> Any:
    """Returns square matrices to the power of the int `n`. If `n` is negative, returns powers of the inverses."""
    x = _as_matrices(checks, x, "matrix_power", is_square=True)
    # `index` also accepts NumPy's ints, but no floats
    n = index(n)
    # the result is the identity, even for a matrix without an inverse; it is a matrix of ones
    # in which only the diagonal remains
    if n == 0:
        return checks.xp.tril(checks.xp.triu(checks.xp.ones_like(x)))
    return checks.call_fused(_power, (x if n > 0 else inv(checks, x),), abs(n))


def _power(checks: Checks, x: Any, n: int) -> Any:
    """Returns the matrix `x` to the power of `n`, which is at least 1. Uses repeated squaring, which needs about
    log2(n) products."""
    matmul = checks.xp.matmul
    # the product of those powers of `x` whose bits in n are 1; None means the identity
    result = None
    while n > 1:
        if n % 2:
            result = x if result is None else matmul(result, x)
        x, n = matmul(x, x), n // 2
    return x if result is None else matmul(result, x)


def matrix_rank(checks: Checks, x: Any, /, *, rtol: Any = None) -> Any:
    """Returns, for each matrix, the number of singular values that are greater than `rtol` times the largest singular
    value. `rtol` is a number, a tensor with one number for each matrix, or None for the standard's default."""
    return checks.call_fused(_rank, *_fused_arguments(checks, "matrix_rank", x, rtol))


def _rank(checks: Checks, x: Any, rtol: Any) -> Any:
    """Returns the result of `matrix_rank` for checked arguments."""
    return checks.xp.count_nonzero(_nonzero_mask(checks, svdvals(checks, x), x, rtol), axis=-1)


def pinv(checks: Checks, x: Any, /, *, rtol: Any = None) -> Any:
    """Returns the pseudo-inverses of matrices. Singular values up to `rtol` times the largest singular value are
    treated as 0. `rtol` may have the same values as in `matrix_rank`."""
    return checks.call_fused(_pseudo_inverse, *_fused_arguments(checks, "pinv", x, rtol))


def _pseudo_inverse(checks: Checks, x: Any, rtol: Any) -> Any:
    """Returns the result of `pinv` for checked arguments. It is computed from the singular value decomposition, by
    inverting all singular values that are not treated as 0."""
    xp = checks.xp
    u, values, vh = svd(checks, x, full_matrices=False)
    is_nonzero = _nonzero_mask(checks, values, x, rtol)
    # the inner `where` replaces values near 0, because their reciprocals, although unused,
    # would make the gradient NaN
    inverse = xp.where(is_nonzero, xp.reciprocal(xp.where(is_nonzero, values, 1.0)), 0.0)
    scaled = xp.multiply(xp.expand_dims(inverse, axis=-1), _adjoint(checks, u))
    return xp.matmul(_adjoint(checks, vh), scaled)


def _fused_arguments(checks: Checks, function: str, x: Any, rtol: Any) -> tuple[Any, ...]:
    """Returns the arguments of `Checks.call_fused` that follow the function: a tuple of the tensors, and then the
    settings. If `rtol` is a tensor, it is added to the tensors. If `rtol` is a number or None, it is a setting."""
    x = _as_matrices(checks, x, function)
    if rtol is None or type(rtol) in NUMBERS:
        return (x,), rtol
    checks.require_one_device(
        f"linalg.{function}", x, checks.checked_tensor(rtol, f"linalg.{function}")
    )
    return ((x, rtol),)


def _nonzero_mask(checks: Checks, values: Any, x: Any, rtol: Any) -> Any:
    """Returns a mask of the singular values `values` of `x`. The mask is True for values greater than `rtol` times
    the largest value; all other values are treated as 0. `rtol` may have the same values as in `matrix_rank`."""
    xp, shape = checks.xp, shape_of(x)
    # an empty matrix has no largest singular value
    if 0 in shape:
        return xp.zeros_like(values, dtype=xp.bool)
    # the standard's default
    if rtol is None:
        rtol = max(shape[-2:]) * xp.finfo(values.dtype).eps
    rtol = rtol if type(rtol) in NUMBERS else xp.expand_dims(rtol, axis=-1)
    return xp.greater(values, xp.multiply(xp.max(values, axis=-1, keepdims=True), rtol))


def _adjoint(checks: Checks, x: Any) -> Any:
    """Returns the conjugate transposes of matrices."""
    return checks.xp.conj(checks.xp.matrix_transpose(x))


# products of vectors, and diagonals


def cross(checks: Checks, x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Returns the cross products of the vectors of 3 elements along the axis; the other axes are broadcast. Raises
    `ShapeError` if the axis does not have the length 3, `DTypeError` for bool, and `DeviceMismatchError` for tensors on
    different devices."""
    x1, x2 = checks.operands_on_one_device("linalg.cross", NUMERIC, x1, x2)
    # a negative axis must exist in the tensor with fewer dimensions. It remains negative,
    # because the numbers of dimensions may differ
    ndim = min(len(x1.shape), len(x2.shape))
    axis_index = checks.axis_index(axis, ndim, "linalg.cross") - ndim if axis < 0 else axis
    lengths = [
        shape_of(x)[checks.axis_index(axis_index, len(x.shape), "linalg.cross")]
        for x in (x1, x2)
    ]
    if lengths != [3, 3]:
        raise ShapeError(
            f"linalg.cross needs an axis of length 3 in both tensors, but their shapes are {shape_of(x1)} and "
            f"{shape_of(x2)}"
        )
    # the contract promises that the kernel is called with two tensors of the same shape
    x1, x2 = (x1, x2) if shape_of(x1) == shape_of(x2) else checks.xp.broadcast_arrays(x1, x2)
    return checks.kernels.cross(x1, x2, axis_index % len(x1.shape))


def diagonal(checks: Checks, x: Any, /, *, offset: int = 0) -> Any:
    """Returns the diagonals of the matrices in the last two axes of `x`. `offset` is 0 for the main diagonals, and
    positive for diagonals above the main diagonals. Raises `ShapeError` if `x` has fewer than two dimensions."""
    x = checks.checked_tensor(x, "linalg.diagonal")
    shape = checks.known_shape(x, "linalg.diagonal")
    if len(shape) < 2:
        raise ShapeError(f"linalg.diagonal expects matrices, not a tensor of shape {shape}")
    return checks.kernels.diagonal(x, index(offset))


def outer(checks: Checks, x1: Any, x2: Any, /) -> Any:
    """Returns the outer product of two vectors: the matrix of the products of each element of `x1` and each element
    of `x2`. Raises `ShapeError` for tensors that are not vectors, and `DTypeError` for bool."""
    x1, x2 = checks.operands("linalg.outer", NUMERIC, (x1, x2))
    if len(x1.shape) != 1 or len(x2.shape) != 1:
        raise ShapeError(
            f"linalg.outer expects vectors, not tensors of shapes {shape_of(x1)} and {shape_of(x2)}"
        )
    return checks.xp.multiply(checks.xp.expand_dims(x1, axis=1), x2)


def trace(checks: Checks, x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """Returns the sums of the diagonals of the matrices in the last two axes of `x`. `offset` has the same meaning as
    in `diagonal`, and `dtype` has the same meaning as in `sum`."""
    return checks.xp.sum(diagonal(checks, x, offset=offset), axis=-1, dtype=dtype)


# norms of vectors and matrices


def matrix_norm(checks: Checks, x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """Returns a norm of matrices. `ord` is 'fro', 'nuc', 1, -1, 2, -2, inf or -inf. Raises `ArgumentError` for any
    other `ord`, and `ShapeError` or `DTypeError` if `x` does not consist of matrices of floats or complex numbers."""
    xp = checks.xp
    x = _as_matrices(checks, x, "matrix_norm")
    if ord == "fro":
        return _euclidean_norm(checks, x, (-2, -1), keepdims, function="matrix_norm")
    # the greatest or the least sum of a column (1) or of a row (inf)
    if ord in (1, -1, math.inf, -math.inf):
        summed_axis, compared_axis = (-2, -1) if abs(ord) == 1 else (-1, -2)
        sums = xp.sum(xp.abs(x), axis=summed_axis, keepdims=True)
        result = (xp.max if ord > 0 else xp.min)(sums, axis=compared_axis, keepdims=True)
        return result if keepdims else xp.squeeze(result, axis=(-2, -1))
    # the other norms are computed from the singular values
    reduce = {"nuc": xp.sum, 2: xp.max, -2: xp.min}.get(ord)
    if reduce is None:
        raise ArgumentError(
            f"linalg.matrix_norm: ord must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, not {shown(ord)}"
        )
    result = reduce(svdvals(checks, x), axis=-1, keepdims=keepdims)
    return xp.expand_dims(result, axis=-1) if keepdims else result


def vector_norm(
    checks: Checks, x: Any, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2
) -> Any:
    """Returns the norm of order `ord` of the vectors along the axes. If `axis` is None, returns the norm of all
    elements."""
    xp = checks.xp
    x = checks.tensor_of_kinds(x, FLOATING, "linalg.vector_norm")
    if ord == 2:
        return _euclidean_norm(checks, x, axis, keepdims, function="vector_norm")
    magnitudes = xp.abs(x)
    if math.isinf(ord):
        return (xp.max if ord > 0 else xp.min)(magnitudes, axis=axis, keepdims=keepdims)
    # the norm of order 0 is the number of elements that are not 0
    if ord == 0:
        return xp.sum(
            xp.astype(xp.not_equal(x, 0.0), magnitudes.dtype), axis=axis, keepdims=keepdims
        )
    if ord == 1:
        return xp.sum(magnitudes, axis=axis, keepdims=keepdims)
    # every other order, such as 3, 0.5 or -1, for which there is no simpler function
    return xp.pow(xp.sum(xp.pow(magnitudes, float(ord)), axis=axis, keepdims=keepdims), 1 / ord)


def _euclidean_norm(checks: Checks, x: Any, axis: Axis, keepdims: bool, function: str) -> Any:
    """Returns the square root of the sum of the squares along the axes. None means all axes. `function` is the function
    name to show in error messages."""
    axes = checks.axis_indices(axis, len(x.shape), f"linalg.{function}")
    # the contract promises that kernels are called with at least one axis; without axes, the
    # norm of each element is its absolute value
    return checks.kernels.norm(x, axes, bool(keepdims)) if axes else checks.xp.abs(x)
