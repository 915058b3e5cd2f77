"""Makes operations run on the device of their operands. TensorFlow itself runs operations on
the device of the open scope."""

from __future__ import annotations

from functools import cache, wraps
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from .private import private

if TYPE_CHECKING:
    from collections.abc import Callable

# whether this TensorFlow has `_copy`; otherwise, `_copy` is an object that raises an error when
# it is called
_HAS_COPY = private.has("tensorflow.__internal__.EagerTensor._copy")
_copy = private["tensorflow.__internal__.EagerTensor._copy"]


def moved(x: Any, native: str) -> Any:
    """Returns a copy of an eager tensor on the device `native`, such as "GPU:0". If this version of TensorFlow lacks
    `_copy`, uses `tf.identity`, and raises `UnsupportedError` for a tensor that `tf.identity` leaves on the host."""
    if _HAS_COPY:
        return _copy(x, device_name=native)
    # `tf.identity` computes int32 and strings on the host, even in the scope of a GPU. In this
    # case, the call of the missing `_copy` raises an error that names it
    with tf.device(native):
        copy = tf.identity(x)
    return copy if copy.backing_device.endswith(native) else _copy(x)


@cache
def _is_one_device() -> bool:
    """Whether TensorFlow has only one device, so that no scope is needed. Starts TensorFlow;
    after that, the result cannot change."""
    return len(tf.config.list_logical_devices()) == 1


def placed(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a kernel so that it runs on the device of its first operand, and returns a result on this device.
    TensorFlow computes int32, and in some operations int64, on the host instead of the GPU, and leaves the result on
    the host."""

    @wraps(kernel)
    def run(x: Any, *others: Any) -> Any:
        """Returns the result of the kernel, computed on the device of `x` and stored there."""
        # traced tensors have no device
        if _is_one_device() or (place := getattr(x, "backing_device", None)) is None:
            return kernel(x, *others)
        with tf.device(place):
            result = kernel(x, *others)
        return (
            result
            if getattr(result, "backing_device", place) == place
            else moved(result, place)
        )

    return run
