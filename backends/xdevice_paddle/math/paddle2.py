"""The kernels of the array namespace that Paddle 2 lacks (2.6.2): `signbit`, `copysign` and the shifts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy
import paddle

if TYPE_CHECKING:
    from collections.abc import Callable

_BITS: Final = {
    paddle.float16: "int16",
    paddle.bfloat16: "int16",
    paddle.float32: "int32",
    paddle.float64: "int64",
}
"""For each dtype of floats, the signed integers of the same size."""


def signbit(x: Any) -> Any:
    """Returns a bool for each number: True if its sign is negative, including for -0.0."""
    # the highest bit of a float is its sign, and that of an integer says that it is negative
    bits = _BITS.get(x.dtype)
    return (x if bits is None else x.view(bits)) < 0


def copysign(x: Any, y: Any) -> Any:
    """Returns the numbers of `x` with the signs of the numbers of `y`."""
    # a product, because Paddle's -x is 0.0 for 0.0
    return paddle.abs(x) * (1 - 2 * signbit(y).astype(x.dtype))


def _by_numpy(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns a kernel that computes with NumPy on the host, and puts the result on the device of `x`."""

    def kernel(x: Any, y: Any) -> Any:
        """Returns the function's result for two tensors."""
        return paddle.to_tensor(function(x.numpy(), y.numpy()), place=x.place)

    return kernel


bitwise_left_shift = _by_numpy(numpy.left_shift)
bitwise_right_shift = _by_numpy(numpy.right_shift)
