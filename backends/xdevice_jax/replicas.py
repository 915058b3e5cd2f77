"""Splits and joins arrays, and sums arrays of several devices. The sum uses a collective if each array is on a
different accelerator; otherwise it is computed on the device of the first array."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xdevice.contract.replicas import Replicas, add_up

from .conversion import require_values

try:
    from jax import shard_map
except ImportError:  # in older versions of JAX
    from jax.experimental.shard_map import shard_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from xdevice.base.devices import Device

_SHORT = ("float16", "bfloat16")
"""The dtypes that `total` adds in float32."""
_SPREAD = PartitionSpec("replica")
"""The partition in which the first axis of an array is spread over the devices of the mesh."""


class JaxReplicas(Replicas):
    """Handles arrays on several devices of this process."""

    def split(self, x: jax.Array, sizes: Sequence[int]) -> list[jax.Array]:
        """Returns consecutive parts of `x` along its first axis. `sizes` contains the lengths of the parts."""
        require_values(x)
        return super().split(x, sizes)

    def join(self, parts: list[jax.Array]) -> jax.Array:
        """Returns the parts joined along their first axis; 0-d parts are joined into a
        vector."""
        for part in parts:
            require_values(part)
        # `concatenate` does not accept 0-d arrays
        return jnp.concatenate(parts) if parts[0].ndim else jnp.stack(parts)

    def leaf(self, x: jax.Array, device: Device) -> jax.Array:
        """Returns a copy of `x` on a device. JAX does not require a mark on the copy to compute gradients."""
        # JAX can compute gradients with respect to any array, so arrays are not marked
        copied: jax.Array = self.copy(x, device)
        return copied

    def total(self, tensors: Iterable[jax.Array], mean: bool) -> jax.Array:
        """Returns the sum of arrays on one device, or their mean if `mean` is True, in the dtype of the first array.
        The arrays are added in the given order."""
        remaining = iter(tensors)
        first = next(remaining)
        # sums of 16-bit floats would be rounded to 16 bits after each addition
        wide = "float32" if first.dtype.name in _SHORT else first.dtype
        total: jax.Array = add_up(first.astype(wide), (x.astype(wide) for x in remaining), mean)
        return total.astype(first.dtype)

    def all_reduce(self, tensors: list[jax.Array], mean: bool) -> list[jax.Array]:
        """Returns the sum of arrays on several devices, or their mean if `mean` is True, as a new array on the device
        of each array."""
        for x in tensors:
            require_values(x)
        natives = tuple(self.to_native(self.device_of(x)) for x in tensors)
        if not is_for_collectives(tensors[0], natives):
            return super().all_reduce(tensors, mean)
        return by_collectives(tensors, natives, mean)


def is_for_collectives(x: jax.Array, natives: tuple[Any, ...]) -> bool:
    """Whether a collective can add arrays like `x`, one on each of these JAX devices. That is the case if `x` has
    elements and the devices are different accelerators. CPU devices share one memory and need no collective."""
    return (
        x.size > 0
        and len(set(natives)) == len(natives)
        and all(native.platform != "cpu" for native in natives)
    )


def by_collectives(
    arrays: list[jax.Array], natives: tuple[Any, ...], mean: bool
) -> list[jax.Array]:
    """Returns the sum of the arrays, or their mean if `mean` is True, as a new array on each of the devices. `natives`
    contains the JAX device of each array, and the arrays have the same shape and dtype. They are passed to JAX as one
    array whose first axis is spread over the devices, which requires no copy."""
    shape = arrays[0].shape
    # 0-d arrays get an axis that can be spread
    shards = arrays if shape else [x.reshape(1) for x in arrays]
    reduce, sharding = _reduction(natives, mean)
    spread_shape = (len(natives) * shards[0].shape[0], *shards[0].shape[1:])
    spread = jax.make_array_from_single_device_arrays(spread_shape, sharding, shards)
    reduced = reduce(spread)
    # collected by device, so that the order in which JAX lists the shards does not matter
    by_device = {shard.device: shard.data for shard in reduced.addressable_shards}
    return [by_device[native] if shape else by_device[native].reshape(()) for native in natives]


@lru_cache(32)
def _reduction(
    natives: tuple[Any, ...], mean: bool
) -> tuple[Callable[[jax.Array], jax.Array], NamedSharding]:
    """Returns a compiled function and a sharding. The function computes the sum or the mean of a spread array over
    these devices; the sharding describes how the array is spread. Results for the last 32 sets of devices are cached,
    because compiling takes a long time."""
    mesh = Mesh(np.array(natives), ("replica",))

    def reduce_shard(x: jax.Array) -> jax.Array:
        """Returns one device's part of the result, given the device's part `x` of the array. JAX runs this function on
        each device."""
        total: jax.Array = jax.lax.psum(x, "replica")
        # the mean of integers is a float, which is converted back to the integer dtype
        return (total / len(natives)).astype(x.dtype) if mean else total

    function = shard_map(reduce_shard, mesh=mesh, in_specs=_SPREAD, out_specs=_SPREAD)
    return jax.jit(function), NamedSharding(mesh, _SPREAD)
