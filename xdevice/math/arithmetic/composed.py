"""The kernels in `COMPOSED` of `xdevice.math.contract.arithmetic`, for adapters that lack these kernels. They are
composed of kernels that every adapter has. The docstring of `xdevice.math.contract.arithmetic` lists the core's
promises about the arguments of kernels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .checks import with_lengths

if TYPE_CHECKING:
    from .checks import Checks


def cross(checks: Checks, x1: Any, x2: Any, axis: int) -> Any:
    """Returns the cross products of the vectors in `x1` and `x2` along the axis, which has 3 elements."""
    return checks.call_fused(_cross_product, (x1, x2), axis)


def _cross_product(checks: Checks, x1: Any, x2: Any, axis: int) -> Any:
    """Computes the result of `cross` from other kernels."""
    multiply, subtract = checks.kernels.multiply, checks.kernels.subtract
    a, b = (checks.kernels.unstack(x, axis) for x in (x1, x2))

    def component(i: int, j: int) -> Any:
        return subtract(multiply(a[i], b[j]), multiply(a[j], b[i]))

    return checks.kernels.stack([component(1, 2), component(2, 0), component(0, 1)], axis)


def diagonal(checks: Checks, x: Any, k: int) -> Any:
    """Returns the diagonals of the matrices in the last two axes of `x`. `k` is 0 for the main diagonals, and
    positive for diagonals above the main diagonals."""
    import numpy as np

    # the positions of the diagonal in a flattened matrix
    *stack, rows, columns = checks.known_shape(x, "linalg.diagonal")
    positions = np.arange(rows * columns).reshape(rows, columns).diagonal(k)
    flat = checks.kernels.reshape(x, (*stack, rows * columns))
    return checks.kernels.take(flat, checks.array_as_tensor(positions, x), len(stack))


def hypot(checks: Checks, x1: Any, x2: Any) -> Any:
    """Returns sqrt(x1 * x1 + x2 * x2) for each pair of elements, without overflow. The result is infinity if one of
    the two elements is infinite."""
    # the adapter's own kernels, without the wrappers of `WIDER`, which would look up the dtype
    # at each call. The wrappers are not needed, because these tensors are floats, and no
    # adapter in this repository has a float dtype in `WIDER`
    kernels, name = checks.backend.namespace(), checks.dtype_of(x1)
    one, zero, infinity = (kernels.number(value, name, x1) for value in (1.0, 0.0, math.inf))
    is_infinite = kernels.logical_or(kernels.isinf(x1), kernels.isinf(x2))
    x1, x2 = kernels.abs(x1), kernels.abs(x2)
    # large * sqrt((small / large) ** 2 + 1), because the squares themselves might overflow or
    # become 0. `where` is used instead of `maximum` and `minimum`, because for two equal
    # numbers, the gradients of both functions may flow to the first number only
    is_less = kernels.less(x1, x2)
    large, small = kernels.where(is_less, x2, x1), kernels.where(is_less, x1, x2)
    # a divisor of 0 is replaced by 1, because 0 / 0 would be NaN
    ratio = kernels.divide(small, kernels.where(kernels.greater(large, zero), large, one))
    length = kernels.multiply(large, kernels.sqrt(kernels.add(kernels.square(ratio), one)))
    return kernels.where(is_infinite, infinity, length)


def logaddexp(checks: Checks, x1: Any, x2: Any) -> Any:
    """Returns log(exp(x1) + exp(x2)) for each pair of elements, without overflow."""
    # the adapter's own kernels, without the wrappers of `WIDER`, for the same reason as in
    # `hypot`
    kernels, name = checks.backend.namespace(), checks.dtype_of(x1)
    half, zero = kernels.number(0.5, name, x1), kernels.number(0.0, name, x1)
    are_equal = kernels.equal(x1, x2)
    large, small = kernels.maximum(x1, x2), kernels.minimum(x1, x2)
    # the result is large + log(1 + exp(small - large)). For equal numbers the difference is
    # computed from zeros, because a difference of two infinities would make the gradients NaN
    difference = kernels.subtract(
        kernels.where(are_equal, zero, small), kernels.where(are_equal, zero, large)
    )
    # for equal numbers, `mean` is used instead of `maximum`, so that half of the gradient flows
    # to each number
    mean = kernels.add(kernels.multiply(x1, half), kernels.multiply(x2, half))
    return kernels.add(
        kernels.where(are_equal, mean, large), kernels.log1p(kernels.exp(difference))
    )


def nonzero(checks: Checks, x: Any) -> tuple[Any, ...]:
    """Returns a tuple with a vector of indices for each axis. Each vector contains the indices of all nonzero elements
    along its axis. `x` is a tensor with values and at least one axis."""
    import numpy as np

    # the host computes the indices, because the shapes of the results depend on the values
    return tuple(
        checks.array_as_tensor(positions, x) for positions in np.nonzero(checks.backend.peek(x))
    )


def norm(checks: Checks, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    """Returns the square root of the sum of the squared absolute values along the axes. There is at least one
    axis."""
    return checks.call_fused(_root_of_squares, (x,), axes, keepdims)


def _root_of_squares(checks: Checks, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    """Computes the result of `norm` from other kernels."""
    kernels = checks.kernels
    # `abs` is not used for real numbers, because its gradient at 0 is undefined
    magnitudes = kernels.abs(x) if checks.dtype_of(x).startswith("complex") else x
    return kernels.sqrt(kernels.sum(kernels.square(magnitudes), axes, keepdims))


def repeat(checks: Checks, x: Any, times: int, axis: int) -> Any:
    """Returns `x` with each element repeated `times` times along the axis."""
    # a new axis after the given axis is broadcast to the length `times`, and then merged into
    # the given axis
    shape = checks.known_shape(x, "repeat")
    length = shape[axis]
    wide = checks.kernels.expand_dims(x, axis + 1)
    wide = checks.kernels.broadcast_to(wide, with_lengths(shape, axis, length, times))
    return checks.kernels.reshape(wide, with_lengths(shape, axis, length * times))


def tril(checks: Checks, x: Any, k: int) -> Any:
    """Returns the matrices in the last two axes of `x`, with zeros above the diagonal `k`."""
    return _triangle(checks, x, k, is_above=False)


def triu(checks: Checks, x: Any, k: int) -> Any:
    """Returns the matrices in the last two axes of `x`, with zeros below the diagonal `k`."""
    # the elements on and above the diagonal k are those above the diagonal k - 1
    return _triangle(checks, x, k - 1, is_above=True)


def _triangle(checks: Checks, x: Any, k: int, is_above: bool) -> Any:
    """Returns the matrices in the last two axes of `x`, with some elements replaced by zeros. If `is_above` is False,
    these are the elements above the diagonal `k`; otherwise they are all other elements."""
    import numpy

    rows, columns = checks.known_shape(x, "tril or triu")[-2:]
    # a mask of the elements that remain is used, because a product with ones and zeros would
    # turn infinity into NaN
    mask = checks.array_as_tensor(numpy.tri(rows, columns, k, bool) != is_above, x)
    return checks.kernels.where(mask, x, checks.kernels.number(0, checks.dtype_of(x), x))
