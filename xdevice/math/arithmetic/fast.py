"""`matmul` and `sum`. Apart from elementwise functions, these are the functions that a training step calls most
often. Both functions store the kernel for each dtype with which they have been called. With a stored kernel, they check
the arguments only if the kernel raises an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from xdevice.errors import ShapeError

from . import dtypes, reducing
from .checks import Checks, broadcast_shape, shape_of
from .dtypes import NUMERIC

if TYPE_CHECKING:
    from collections.abc import Callable


def functions(checks: Checks) -> dict[str, Callable[..., Any]]:
    """Returns the functions of this module for the namespace of a backend, by name."""
    return {"matmul": _matmul(checks), "sum": _sum(checks)}


def _matmul(checks: Checks) -> Callable[..., Any]:
    """Returns the standard's `matmul`."""
    # the kernel for each dtype with which the function has been called. No lock is needed,
    # because all threads store the same kernel for a dtype
    kernels: dict[Any, Callable[[Any, Any], Any]] = {}

    def matmul(x1: Any, x2: Any, /) -> Any:
        # the fast case: two plain tensors of the same dtype, whose kernel is stored
        if checks.needs_no_check(x1) and checks.needs_no_check(x2):
            # the dtype is read only once, because this takes 0.4 us on Paddle
            dtype = x1.dtype
            kernel = kernels.get(dtype)
            if kernel is not None and x2.dtype is dtype:
                if checks.compares_devices:
                    checks.require_one_device("matmul", x1, x2)
                # the shapes are not checked first, because that takes as long as a small
                # product
                try:
                    return kernel(x1, x2)
                # the checks below raise a suitable error; if they pass, the kernel raises its
                # own error again
                except Exception:
                    pass
        x1, x2 = checks.operands_on_one_device("matmul", NUMERIC, x1, x2)
        _require_matching_rows(x1, x2)
        kernels[x1.dtype] = checks.kernel("matmul", x1.dtype)
        return _product(checks, x1, x2)

    return matmul


def _require_matching_rows(x1: Any, x2: Any) -> None:
    """Raises `ShapeError` if a tensor has no dimensions, or if the number of columns of the first tensor differs from
    the number of rows of the second tensor. The axes of stacks of matrices are not checked."""
    shapes = shape_of(x1), shape_of(x2)
    if not shapes[0] or not shapes[1]:
        raise ShapeError(
            f"matmul expects vectors or matrices, not tensors of shapes {shapes[0]} and {shapes[1]}"
        )
    # `max` selects axis 0 for a vector, whose elements are treated as rows
    columns, rows = shapes[0][-1], shapes[1][max(len(shapes[1]) - 2, 0)]
    if None not in (columns, rows) and columns != rows:
        raise ShapeError(
            f"matmul: shapes {shapes[0]} and {shapes[1]} cannot be multiplied, because the first tensor has {columns} "
            f"columns, but the second tensor has {rows} rows"
        )


def _product(checks: Checks, x1: Any, x2: Any) -> Any:
    """Returns the product of two matrices, stacks of matrices or vectors. A vector is treated as a matrix with one
    row or one column, and the result does not have that axis. Raises `ShapeError` if the stacks cannot be broadcast
    together."""
    # vectors become matrices, because the frameworks treat products of vectors and stacks of
    # matrices differently
    kernels = checks.kernels
    is_vector1, is_vector2 = len(x1.shape) == 1, len(x2.shape) == 1
    x1 = kernels.expand_dims(x1, 0) if is_vector1 else x1
    x2 = kernels.expand_dims(x2, 1) if is_vector2 else x2
    # called for its error only
    broadcast_shape(shape_of(x1)[:-2], shape_of(x2)[:-2])
    result = kernels.matmul(x1, x2)
    ndim = len(result.shape)
    # the axes that were added to vectors above; a tuple times False is the empty tuple
    added_axes = (ndim - 2,) * is_vector1 + (ndim - 1,) * is_vector2
    return kernels.squeeze(result, added_axes) if added_axes else result


def _sum(checks: Checks) -> Callable[..., Any]:
    """Returns the standard's `sum`, with a faster path for the sum of all elements of a tensor of floats."""
    # the kernel for each float dtype with which the function has been called; the sum of floats
    # has the dtype of the tensor
    kernels: dict[Any, Callable[..., Any]] = {}

    def sum(
        x: Any,
        /,
        *,
        axis: int | tuple[int, ...] | None = None,
        dtype: Any = None,
        keepdims: bool = False,
        **misspelled: NoReturn,
    ) -> Any:
        # the fast case: the sum of all elements of a plain tensor, in the tensor's own dtype
        sums_all_elements = (
            axis is None and dtype is None and not keepdims and checks.needs_no_check(x)
        )
        kernel = kernels.get(x.dtype) if sums_all_elements and not misspelled else None
        if kernel is not None:
            try:
                # the sum over all axes (None), which the result does not keep (False)
                return kernel(x, None, False)
            except Exception:
                checks.raise_if_misfit("sum", x)
                raise
        total = reducing.sum(checks, x, axis=axis, dtype=dtype, keepdims=keepdims, **misspelled)
        if sums_all_elements and dtypes.kind_of(checks.dtype_of(x)) == "f":
            kernels[x.dtype] = checks.kernel("sum", x.dtype)
        return total

    return sum
