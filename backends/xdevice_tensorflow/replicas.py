"""Splits and joins tensors, and adds tensors that are on several devices. NCCL adds tensors that are all on different
GPUs; other tensors are added on the device of the first tensor.

NCCL's operation on one GPU waits for the operations on the other GPUs. If the operations were run eagerly, the first
would wait forever. So the operations for all GPUs are in one `tf.function`. Each output stays on its GPU."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from xdevice.contract.replicas import Replicas, add_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from xdevice.base.devices import Device

_SHORT = (tf.float16, tf.bfloat16)
"""The dtypes that are added as float32, so that a sum of many tensors is rounded only once."""
_NCCL = (tf.float16, tf.float32, tf.float64)
"""The float dtypes that TensorFlow's operation `NcclAllReduce` supports."""


def is_for_nccl(x: Any, places: list[Device], backend: Replicas) -> bool:
    """Whether NCCL can add tensors with the dtype and shape of `x`, one on each of the devices
    `places`. The devices must be different real GPUs, and `x` must have elements and a dtype in
    `_NCCL`."""
    return (
        not backend.virtual
        and hasattr(tf.raw_ops, "NcclAllReduce")
        and x.dtype in _NCCL
        and x.shape.num_elements() > 0
        and all(place.kind == "gpu" for place in places)
        and len(set(places)) == len(places)
    )


def by_nccl(tensors: list[Any], natives: tuple[str, ...], mean: bool) -> list[Any]:
    """Adds tensors on different devices. Returns a list with a new tensor on each of these devices. Each new tensor
    contains the sum of all tensors or, if `mean` is True, their mean. `natives` are TensorFlow's names of the devices,
    in the order of the tensors."""
    return list(_reduction(natives, tensors[0].dtype, mean)(*tensors))


@lru_cache(32)
def _reduction(natives: tuple[str, ...], dtype: Any, mean: bool) -> Callable[..., Any]:
    """Returns a function that sums tensors of any shape or, if `mean` is True, computes their mean. The arguments are
    one tensor on each of the devices `natives`, and the results are the sum or mean on each device. Tracing takes a
    long time, so the last 32 functions are cached."""

    @tf.function(input_signature=[tf.TensorSpec(None, dtype)] * len(natives), autograph=False)  # type: ignore[untyped-decorator]
    def reduce(*tensors: Any) -> list[Any]:
        """Returns the sum or mean of the tensors, as a new tensor on each device."""
        totals = []
        for x, native in zip(tensors, natives, strict=True):
            with tf.device(native):
                # the operations of one reduction find each other by the shared name
                total = tf.raw_ops.NcclAllReduce(
                    input=x, reduction="sum", num_devices=len(natives), shared_name="xdevice"
                )
                totals.append(total / len(natives) if mean else total)
        return totals

    return reduce


class TensorflowReplicas(Replicas):
    """Handles tensors on several devices of this process."""

    if TYPE_CHECKING:
        # a method of the backend, of which this class is a base

        def _moved_if_elsewhere(self, x: Any, device: Device) -> Any: ...

    def split(self, x: Any, sizes: Sequence[int]) -> list[Any]:
        """Splits `x` along its first axis into consecutive parts with the lengths `sizes`, and
        returns the parts, which are on the device of `x`."""
        # a symbolic tensor inside tf.function has no device
        if not hasattr(x, "backing_device"):
            return list(tf.split(x, sizes))
        place = self.device_of(x)
        with self.scope(place):
            return [self._moved_if_elsewhere(part, place) for part in tf.split(x, sizes)]

    def join(self, parts: list[Any]) -> Any:
        """Returns the parts, joined along their first axis. 0-d parts are joined into
        a vector."""
        concatenate = partial(tf.concat, axis=0) if parts[0].shape.rank else tf.stack
        # a symbolic tensor inside tf.function has no device
        if not hasattr(parts[0], "backing_device"):
            return concatenate(parts)
        place = self.device_of(parts[0])
        with self.scope(place):
            return self._moved_if_elsewhere(concatenate(parts), place)

    def leaf(self, x: Any, device: Device) -> Any:
        """Returns a copy of `x` on `device`. The copy is a `tf.Variable`, which gradient tapes watch automatically. If
        the dtype has no gradients, the copy is a tensor."""
        copied = self.copy(x, device)
        if not (x.dtype.is_floating or x.dtype.is_complex):
            return copied
        with self.scope(device):
            return tf.Variable(tf.stop_gradient(copied))

    def write(self, x: Any, value: Any) -> None:
        """Assigns new values to the variable `x`. Raises `UnsupportedError` if `x` is a tensor,
        because TensorFlow's tensors cannot be changed."""
        if not isinstance(x, tf.Variable | keras.Variable):
            super().write(x, value)  # raises `UnsupportedError`
        with self.scope(self.device_of(value)):
            x.assign(value)

    def total(self, tensors: Iterable[Any], mean: bool) -> Any:
        """Returns the sum of tensors on the same device or, if `mean` is True, their mean. The tensors are added on
        this device in the given order."""
        remaining = iter(tensors)
        first = next(remaining)
        wide = tf.float32 if first.dtype in _SHORT else first.dtype
        place = self.device_of(first)
        with self.scope(place):
            total = add_up(tf.cast(first, wide), (tf.cast(x, wide) for x in remaining), mean)
            result = tf.stop_gradient(tf.cast(total, first.dtype))
        # int32 is added on the host, because its GPU kernel uses host memory
        return result if self.device_of(result) is place else self.move(result, place)

    def all_reduce(self, tensors: list[Any], mean: bool) -> list[Any]:
        """Adds tensors that are on several devices. Returns a list with a new tensor on each of these devices. Each new
        tensor contains the sum of all tensors or, if `mean` is True, their mean. The sum is computed by NCCL if
        possible, otherwise on the device of the first tensor."""
        places = [self.device_of(x) for x in tensors]
        if not is_for_nccl(tensors[0], places, self):
            return super().all_reduce(tensors, mean)
        return by_nccl(tensors, tuple(map(self.to_native, places)), mean)
