"""Makes operations run on the device of their operands. TensorFlow itself runs them on the
device of the open scope."""

from __future__ import annotations

from functools import cache, wraps
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from .private import private

if TYPE_CHECKING:
    from collections.abc import Callable

# whether this TensorFlow has `_copy`; if not, `_copy` is an object that raises when it is
# called
_IS_THERE = private.has("tensorflow.__internal__.EagerTensor._copy")
_copy = private["tensorflow.__internal__.EagerTensor._copy"]


def moved(x: Any, native: str) -> Any:
    """Returns an eager tensor on a device, such as "GPU:0". Without TensorFlow's `_copy`,
    raises `UnsupportedError` for a tensor that `tf.identity` leaves on the host."""
    if _IS_THERE:
        return _copy(x, device_name=native)
    # `tf.identity` computes int32 and strings on the host, whatever the scope is: then the call
    # of the absent `_copy` raises the error that names it
    with tf.device(native):
        copy = tf.identity(x)
    return copy if copy.backing_device.endswith(native) else _copy(x)


@cache
def _is_one_device() -> bool:
    """Whether TensorFlow has one device only, on which everything runs without a scope. Starts
    TensorFlow, after which the answer does not change."""
    return len(tf.config.list_logical_devices()) == 1


def placed(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a kernel so that it runs on the device of its first operand, and leaves its result
    there. TensorFlow computes int32, and in some operations int64, on the host instead of the
    GPU, and leaves the result on the host."""

    @wraps(kernel)
    def run(x: Any, *rest: Any) -> Any:
        """Returns the result of the kernel, computed on the device of `x` and stored there."""
        # traced tensors have no device
        if _is_one_device() or (place := getattr(x, "backing_device", None)) is None:
            return kernel(x, *rest)
        with tf.device(place):
            result = kernel(x, *rest)
        return (
            result
            if getattr(result, "backing_device", place) == place
            else moved(result, place)
        )

    return run
