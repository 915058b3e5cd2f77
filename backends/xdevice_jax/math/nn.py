"""JAX's kernels for `xdevice.nn`. `xdevice.math.contract.nn` describes their arguments and results."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from xdevice.base.dtypes import host_dtype
from xdevice_jax.blocking import is_blocking

if TYPE_CHECKING:
    from collections.abc import Callable

    from jax import Array

    Pair = tuple[int, int]

# compiled as a whole, so that the gradient is also one program
relu = jax.jit(jax.nn.relu)
sigmoid = jax.jit(jax.nn.sigmoid)
softmax = jax.jit(jax.nn.softmax, static_argnums=1)
log_softmax = jax.jit(jax.nn.log_softmax, static_argnums=1)
gelu = jax.jit(jax.nn.gelu, static_argnames="approximate")


def compiled(kernel: Callable[..., Array], settings: tuple[str, ...]) -> Callable[..., Array]:
    """Returns a kernel of the core as one compiled program. `settings` contains the names of the kernel's arguments
    that are not tensors."""
    return jax.jit(kernel, static_argnames=settings)


def guards(indices: Array, kind: str) -> bool:
    """Whether the core may call the kernels below with unchecked `indices` on a device of this kind ("cpu" or "gpu").
    For an index out of range, these kernels return NaN."""
    # on the CPU, reading the indices is cheap, so the core can raise an error; in blocking mode, a mistake must raise
    # an error immediately
    return kind != "cpu" and not is_blocking()


# `partial`, because type checkers treat a plain `@jax.jit` as an untyped decorator
@partial(jax.jit)
def cross_entropies(logits: Array, labels: Array) -> Array:
    """Returns the cross-entropy of each row of logits and the row's label, which is the index of a class."""
    # with mode="fill", JAX returns NaN for a label that is not a class
    columns = _negative_out_of_range(labels, logits.shape[1])[:, None]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), columns, axis=1, mode="fill")[:, 0]


# `partial`, because type checkers treat a plain `@jax.jit` as an untyped decorator
@partial(jax.jit)
def cross_entropy(logits: Array, labels: Array) -> Array:
    """Returns the mean of the cross-entropies of all rows."""
    return jnp.mean(cross_entropies(logits, labels))


# `partial`, because type checkers treat a plain `@jax.jit` as an untyped decorator
@partial(jax.jit)
def embedding(indices: Array, table: Array) -> Array:
    """Returns the row of `table` for each index; NaN for an index out of range."""
    return jnp.take(table, _negative_out_of_range(indices, table.shape[0]), axis=0, mode="fill")


def _negative_out_of_range(indices: Array, n: int) -> Array:
    """Returns the indices with each negative index replaced by `n`, which is out of range. JAX would count negative
    indices from the end instead of treating them as out of range."""
    return jnp.where(indices < 0, n, indices)


@partial(jax.jit, static_argnums=(1, 2))
def one_hot(indices: Array, n: int, name: str) -> Array:
    """Returns a vector of length `n` and dtype `name` for each index, with 1 at the index and 0 elsewhere. For an index
    out of range, all elements of a vector of floats are NaN."""
    dtype = host_dtype(name)
    ones = jax.nn.one_hot(indices, n, dtype=dtype)
    if not jnp.issubdtype(dtype, jnp.inexact):
        return ones
    # JAX returns zeros for an index that is not a class, which would hide the mistake; integer dtypes have no NaN that
    # could reveal it
    is_class = (indices >= 0) & (indices < n)
    return jnp.where(is_class[..., None], ones, jnp.nan)


@partial(jax.jit, static_argnames=("stride", "padding"))
def conv2d(x: Array, kernel: Array, bias: Array | None, stride: Pair, padding: Pair) -> Array:
    """Returns the convolution of the images `x` with `kernel`, plus `bias` for each output
    channel unless `bias` is None."""
    result = lax.conv_general_dilated(
        x, kernel, stride, _both_sides(padding), dimension_numbers=("NCHW", "OIHW", "NCHW")
    )
    return result if bias is None else result + bias[:, None, None]


@partial(jax.jit, static_argnames=("size", "stride", "padding"))
def max_pool2d(x: Array, size: Pair, stride: Pair, padding: Pair) -> Array:
    """Returns the maximum of each window of the images `x`. `size`, `stride` and `padding` are
    pairs (rows, columns)."""
    # JAX supports the gradient of `reduce_window` with `max` only if the initial value is -inf
    return _pooled(x, start=-jnp.inf, reduce=lax.max, size=size, stride=stride, padding=padding)


@partial(jax.jit, static_argnames=("size", "stride", "padding"))
def avg_pool2d(x: Array, size: Pair, stride: Pair, padding: Pair) -> Array:
    """Returns the mean of each window of the images `x`, where padding is included as zeros. `size`, `stride` and
    `padding` are pairs (rows, columns)."""
    height, width = size
    # the divisor includes the padding, as in PyTorch
    total = _pooled(x, start=0.0, reduce=lax.add, size=size, stride=stride, padding=padding)
    return total / (height * width)


def _pooled(
    x: Array,
    start: float,
    reduce: Callable[..., Array],
    size: Pair,
    stride: Pair,
    padding: Pair,
) -> Array:
    """Combines the numbers in each window with `reduce`, starting from `start`, which is also the value of the padding.
    Images have the shape (N, C, H, W)."""
    # no padding along the batch and the channels
    padding_of_axes = [(0, 0), (0, 0), *_both_sides(padding)]
    return lax.reduce_window(x, start, reduce, (1, 1, *size), (1, 1, *stride), padding_of_axes)


# `partial`, because type checkers treat a plain `@jax.jit` as an untyped decorator
@partial(jax.jit)
def dropout(x: Array, mask: Array, keep: float) -> Array:
    """Returns `x / keep` where the mask is True, and 0 elsewhere; `keep` is the probability of
    True."""
    return x * mask / keep


def _both_sides(padding: Pair) -> list[Pair]:
    """Returns the padding in the form that JAX expects: a pair of equal lengths for the two sides of each axis."""
    return [(length, length) for length in padding]
