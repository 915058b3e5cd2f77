"""PyTorch's kernels for `xdevice.array_namespace`. `xdevice.math.contract.arithmetic` describes their arguments and
results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from xdevice.base.dtypes import dtype_name
from xdevice.math.contract.arithmetic import HOST

# PyTorch's own functions that can be used as kernels without a change
from torch import (  # isort: skip  # noqa: F401
    abs, acos, acosh, add, all, amax as max, amin as min, any, argmax, argmin, asin, asinh, atan, atan2, atanh,
    bitwise_and, bitwise_left_shift, bitwise_or, bitwise_right_shift, bitwise_xor, broadcast_to, ceil, concat, copysign,
    cos, cosh, divide, einsum, exp, expm1, fft, flip, floor, hypot, imag, isfinite, isinf, isnan, linalg, log, log10,
    log1p, log2, logaddexp, logical_and, logical_not, logical_or, logical_xor, maximum, mean, minimum, multiply,
    nextafter, pow, real, reciprocal, remainder, reshape, roll, round, signbit, sin, sinh, sqrt, square, squeeze, stack,
    subtract, sum, tan, tanh, tril, triu, trunc, where,
)  # fmt: skip

if TYPE_CHECKING:
    import numpy as np

    Tensor = torch.Tensor

# constants that are explained in `xdevice.math.contract.arithmetic`
TAKE_NUMBERS = frozenset(
    [
        "add", "divide", "equal", "greater", "greater_equal", "less", "less_equal", "multiply", "not_equal", "pow",
        "subtract",
    ]
)  # fmt: skip
DENSE = "layout", torch.strided
ONE_DEVICE = True
RESHAPE_IS_VIEW = True
TAKES_MASKS = True
# few PyTorch kernels support unsigned integers wider than uint8
# (https://github.com/pytorch/pytorch/issues/58734). There is no wider integer for uint64, so
# NumPy computes uint64 on the host
_UNSIGNED = {"uint16": "int32", "uint32": "int64", "uint64": HOST}
WIDER = dict.fromkeys(
    (
        "abs", "add", "argmax", "argmin", "bitwise_invert", "bitwise_left_shift", "bitwise_right_shift", "clip",
        "cross", "flip", "floor_divide", "greater", "greater_equal", "less", "less_equal", "matmul", "max", "maximum",
        "min", "minimum", "negative", "pow", "put", "remainder", "searchsorted", "sign", "square", "subtract", "take",
        "take_along_axis", "tril", "triu",
    ),
    _UNSIGNED,
)  # fmt: skip

# creating arrays


def dtype(name: str) -> torch.dtype:
    """Returns PyTorch's dtype of this name."""
    return getattr(torch, name)  # type: ignore[no-any-return]


def astype(x: Tensor, name: str) -> Tensor:
    """Returns a new tensor with the values of `x` in the dtype `name`."""
    # copies even if `x` already has this dtype, because the contract requires a new tensor
    return x.to(dtype(name), copy=True)


def constant(array: np.ndarray[Any, Any], like: Tensor) -> Tensor:
    """Returns the values of a NumPy array as a tensor on the device of `like`."""
    return torch.asarray(array, device=like.device)


def copy(x: Tensor) -> Tensor:
    """Returns a copy of `x` in new memory."""
    return x.clone()


def full_like(x: Tensor, value: complex, name: str) -> Tensor:
    """Returns a tensor with the shape and the device of `x` and the dtype `name`, filled with `value`."""
    # only the shape and the device of `x` are used, so no gradient flows to `x`
    return torch.full_like(x, value, dtype=dtype(name), requires_grad=False)


def number(value: complex, name: str, like: Tensor) -> Tensor:
    """Returns `value` as a 0-d tensor with the dtype `name`, on the device of `like`."""
    return torch.full((), value, dtype=dtype(name), device=like.device)


# elementwise functions

bitwise_invert = torch.bitwise_not
clip = torch.clamp
conj = torch.conj_physical  # torch.conj only sets a bit, and `numpy()` refuses such a tensor
equal = torch.eq
greater = torch.gt
greater_equal = torch.ge
less = torch.lt
less_equal = torch.le
negative = torch.neg
not_equal = torch.ne


def floor_divide(x1: Tensor, x2: Tensor) -> Tensor:
    # torch.floor_divide has no gradient: https://github.com/pytorch/pytorch/issues/43327
    return torch.div(x1, x2, rounding_mode="floor")


def sign(x: Tensor) -> Tensor:
    signs = torch.sgn(x)
    # `sgn` returns 0 for NaN (no upstream issue known)
    return torch.where(torch.isnan(x), x, signs) if x.is_floating_point() else signs


# reductions, sorting and indexing


def prod(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    """Returns the product of the elements over `axes`. If `keepdims` is True, these axes
    remain, with the length 1."""
    if len(axes) == x.ndim and not keepdims:
        return torch.prod(x)
    # torch.prod accepts only one axis. The last axis is reduced first, so that the numbers of
    # the other axes remain valid without `keepdims`
    for axis in reversed(axes):
        x = torch.prod(x, axis, keepdim=keepdims)
    return x


def argsort(x: Tensor, axis: int, descending: bool) -> Tensor:
    """Returns the indices that sort `x` along an axis, in descending order if `descending` is
    True. Equal elements remain in their original order."""
    return torch.sort(x, dim=axis, descending=descending, stable=True).indices


cumulative_prod = torch.cumprod
cumulative_sum = torch.cumsum


def searchsorted(x1: Tensor, x2: Tensor, side: str) -> Tensor:
    """Returns the indices at which the values of `x2` would be inserted into the sorted vector
    `x1`: before equal elements if `side` is "left", after them if it is "right"."""
    return torch.searchsorted(x1, x2, side=side)


def sliced(x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    """Returns the elements from `start` up to, but not including, `stop` along an axis."""
    return torch.narrow(x, axis, start, stop - start)


def sort(x: Tensor, axis: int, descending: bool) -> Tensor:
    """Returns `x` sorted along an axis, in descending order if `descending` is True."""
    return torch.sort(x, dim=axis, descending=descending, stable=True).values


def take(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Returns the slices of `x` along `axis` at the indices in the vector `indices`."""
    return torch.index_select(x, axis, indices)


def put(x: Tensor, indices: Tensor, values: Tensor) -> Tensor:
    """Returns a copy of `x` in which each row `x[indices[i]]` is replaced by `values[i]`."""
    return torch.index_copy(x, 0, indices, values)


def take_along_axis(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Returns a tensor with the shape of `indices`. The result contains the elements of `x` at these indices along
    `axis`."""
    # older versions of torch.gather do not accept int32
    return torch.gather(x, axis, indices.long())


def cross(x1: Tensor, x2: Tensor, axis: int) -> Tensor:
    return torch.linalg.cross(x1, x2, dim=axis)  # type: ignore[no-any-return]


def nonzero(x: Tensor) -> tuple[Tensor, ...]:
    """Returns the indices of the elements that are not 0, as one vector for each axis."""
    # torch.nonzero does not support the wide unsigned integers; cast to bool, their nonzero
    # elements are True
    return torch.nonzero(x.bool() if dtype_name(x.dtype) in _UNSIGNED else x, as_tuple=True)


def norm(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    """Returns the Euclidean norm over `axes`: the square root of the sum of the squared magnitudes."""
    return torch.linalg.vector_norm(x, ord=2, dim=axes, keepdim=keepdims)  # type: ignore[no-any-return]


# shapes and products


def diagonal(x: Tensor, k: int) -> Tensor:
    """Returns the diagonals of the matrices in the last two axes. `k` is 0 for the main diagonals, positive for
    diagonals above them, and negative for diagonals below them."""
    return torch.diagonal(x, k, -2, -1)


expand_dims = torch.unsqueeze


def matmul(x1: Tensor, x2: Tensor) -> Tensor:
    """Returns the product of two matrices or stacks of matrices."""
    try:
        return torch.matmul(x1, x2)
    except NotImplementedError:  # raised by PyTorch for integers on a GPU
        # (..., m, k, 1) * (..., 1, k, n), summed over k; without the dtype, a sum of small
        # integers would be int64
        return (x1.unsqueeze(-1) * x2.unsqueeze(-3)).sum(-2, dtype=x1.dtype)


permute_dims = torch.permute


unstack = torch.unbind


def view(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns a tensor with the given shape in the memory of `x`. Raises ValueError if that is not possible."""
    try:
        return x.view(shape)
    except RuntimeError as error:
        raise ValueError(
            f"a tensor with strides {x.stride()} cannot be reshaped to {shape} without a copy; omit copy=False"
        ) from error
