"""PyTorch's kernels for `xdevice.array_namespace`: `xdevice.contract.arithmetic` says what they are promised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    Tensor = torch.Tensor

TAKE_NUMBERS = frozenset(
    [
        "add", "divide", "equal", "greater", "greater_equal", "less", "less_equal", "multiply", "not_equal", "pow",
        "subtract",
    ]
)  # fmt: skip
ONE_DEVICE = True
RESHAPE_IS_VIEW = True

# making


def dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found


def astype(x: Tensor, name: str) -> Tensor:
    return x.to(dtype(name), copy=True)


def constant(array: np.ndarray[Any, Any], like: Tensor) -> Tensor:
    return torch.tensor(array, device=like.device)


def copy(x: Tensor) -> Tensor:
    return x.clone()


def full_like(x: Tensor, value: complex, name: str) -> Tensor:
    return torch.full_like(x, value, dtype=dtype(name), requires_grad=False)


def number(value: complex, name: str, like: Tensor) -> Tensor:
    return torch.full((), value, dtype=dtype(name), device=like.device)


# elementwise

abs = torch.abs
acos = torch.acos
acosh = torch.acosh
add = torch.add
asin = torch.asin
asinh = torch.asinh
atan = torch.atan
atan2 = torch.atan2
atanh = torch.atanh
ceil = torch.ceil
cos = torch.cos
cosh = torch.cosh
divide = torch.divide
equal = torch.eq
exp = torch.exp
expm1 = torch.expm1
floor = torch.floor
greater = torch.gt
greater_equal = torch.ge
isfinite = torch.isfinite
isinf = torch.isinf
isnan = torch.isnan
less = torch.lt
less_equal = torch.le
log = torch.log
log10 = torch.log10
log1p = torch.log1p
log2 = torch.log2
logical_and = torch.logical_and
logical_not = torch.logical_not
logical_or = torch.logical_or
logical_xor = torch.logical_xor
maximum = torch.maximum
minimum = torch.minimum
multiply = torch.multiply
negative = torch.neg
not_equal = torch.ne
pow = torch.pow
reciprocal = torch.reciprocal
remainder = torch.remainder
round = torch.round
sin = torch.sin
sinh = torch.sinh
sqrt = torch.sqrt
square = torch.square
subtract = torch.subtract
tan = torch.tan
tanh = torch.tanh
trunc = torch.trunc
where = torch.where


def floor_divide(x1: Tensor, x2: Tensor) -> Tensor:
    return torch.div(x1, x2, rounding_mode="floor")  # floor_divide has no gradient


def sign(x: Tensor) -> Tensor:
    made = torch.sgn(x)
    # sgn gives 0 for NaN
    return torch.where(torch.isnan(x), x, made) if x.is_floating_point() else made


# reductions, and functions along an axis


def all(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    return torch.all(x, axes, keepdim=keepdims)


def any(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    return torch.any(x, axes, keepdim=keepdims)


def max(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    return torch.amax(x, axes, keepdim=keepdims)


def mean(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    return torch.mean(x, axes, keepdim=keepdims)


def min(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    return torch.amin(x, axes, keepdim=keepdims)


def prod(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    for axis in reversed(axes):  # torch.prod takes one
        x = torch.prod(x, axis, keepdim=keepdims)
    return x


def sum(x: Tensor, axes: tuple[int, ...] | None, keepdims: bool) -> Tensor:
    return torch.sum(x) if axes is None else torch.sum(x, axes, keepdim=keepdims)


argmax = torch.argmax
argmin = torch.argmin


def argsort(x: Tensor, axis: int, descending: bool) -> Tensor:
    return torch.sort(x, dim=axis, descending=descending, stable=True).indices


cumulative_sum = torch.cumsum


def sort(x: Tensor, axis: int, descending: bool) -> Tensor:
    return torch.sort(x, dim=axis, descending=descending, stable=True).values


def take(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    return torch.index_select(x, axis, indices)


def take_along_axis(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    return torch.gather(x, axis, indices.long())


# of shapes

broadcast_to = torch.broadcast_to


def concat(tensors: Sequence[Tensor], axis: int) -> Tensor:
    # torch.concat lets a vector without elements pass as any shape, but the core has checked the shapes
    return torch.concat(list(tensors), axis)


expand_dims = torch.unsqueeze
flip = torch.flip


def matmul(x1: Tensor, x2: Tensor) -> Tensor:
    try:
        return torch.matmul(x1, x2)
    except NotImplementedError:  # raised for integers on a GPU
        return (x1.unsqueeze(-1) * x2.unsqueeze(-3)).sum(-2, dtype=x1.dtype)


permute_dims = torch.permute
reshape = torch.reshape
roll = torch.roll
squeeze = torch.squeeze


def stack(tensors: Sequence[Tensor], axis: int) -> Tensor:
    return torch.stack(list(tensors), axis)


def view(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    try:
        return x.view(shape)
    except RuntimeError as error:
        raise ValueError(f"a tensor with the strides {x.stride()} cannot be seen in the shape {shape}") from error
