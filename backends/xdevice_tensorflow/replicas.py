"""Sums over devices: by NCCL where each tensor is on a GPU of its own, else where the first one is.

NCCL's operation waits for its partners on the other GPUs, so all of them are in one `tf.function`: run eagerly, the
first would wait forever. Their outputs stay on their GPUs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from xdevice.contract.sums import add_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from xdevice.base.devices import Device
    from xdevice.contract import Backend

_SHORT = (tf.float16, tf.bfloat16)
_NCCL = (tf.float16, tf.float32, tf.float64)


def total(tensors: Iterable[Any], mean: bool, backend: Backend) -> Any:
    """The sum or mean of tensors of one device, in their order."""
    rest = iter(tensors)
    first = next(rest)
    wide = tf.float32 if first.dtype in _SHORT else first.dtype
    place = backend.device_of(first)
    with backend.scope(place):
        found = add_up(tf.cast(first, wide), (tf.cast(x, wide) for x in rest), mean)
        result = tf.stop_gradient(tf.cast(found, first.dtype))
    # int32 is added on the host: its kernel for GPUs takes host memory
    return result if backend.device_of(result) is place else backend.move(result, place)


def is_for_nccl(x: Any, places: list[Device], backend: Backend) -> bool:
    """Whether tensors like `x` at these places go by NCCL."""
    return (
        not backend.virtual
        and hasattr(tf.raw_ops, "NcclAllReduce")
        and x.dtype in _NCCL
        and x.shape.num_elements() > 0
        and all(place.kind == "gpu" for place in places)
        and len(set(places)) == len(places)
    )


def by_nccl(tensors: list[Any], natives: tuple[str, ...], mean: bool) -> list[Any]:
    """New tensors at the same places, of the sum or mean."""
    return list(_reduction(natives, tensors[0].dtype, mean)(*tensors))


@lru_cache(32)
def _reduction(natives: tuple[str, ...], dtype: Any, mean: bool) -> Callable[..., Any]:
    @tf.function(input_signature=[tf.TensorSpec(None, dtype)] * len(natives), autograph=False)  # type: ignore[untyped-decorator]
    def reduce(*tensors: Any) -> list[Any]:
        found = []
        for x, native in zip(tensors, natives, strict=True):
            with tf.device(native):
                total = tf.raw_ops.NcclAllReduce(
                    input=x, reduction="sum", num_devices=len(natives), shared_name="xdevice"
                )
                found.append(total / len(natives) if mean else total)
        return found

    return reduce
