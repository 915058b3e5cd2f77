"""Copies between the host and a GPU of NVIDIA's through the ring of page-locked memory.

What must be kept:

- JAX makes memory by a program that it compiles for each new shape, in some 30 ms.
- JAX's streams are its own: so the host waits for what it reads, and for what it has made.
- A transfer guard that was set is JAX's own business.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from xdevice.base.dtypes import DTYPES
from xdevice.contract import staging
from xdevice.cuda import ring

if TYPE_CHECKING:
    from collections.abc import Hashable

TO_HOST: Final = 64 << 10
TO_GPU: Final = 16 << 20
"""Bytes from which the ring gains."""
_NOT_COPIED: Final = 64 << 10
"""Bytes from which it takes less to wait for JAX than to make a copy of an array that its owner may write into."""
_COMPILED_AT_ONCE: Final = 256 << 20
"""Bytes from which it gains with the time for compiling."""
_ORDINARY: Final = (None, "allow", "log")

_seen: set[Hashable] = set()
_ahead = threading.local()
"""Memory for the next array of a thread that is not the main one. It ends with the thread."""


def is_read(x: jax.Array) -> bool:
    """Whether `read` is for an array. Its result is nobody else's."""
    return (
        ring.is_measured()  # asked first: JAX finds `nbytes` in Python, in 4 us
        and x.nbytes >= TO_HOST
        and _is_plain(x, "gpu")
        and jax.config.jax_transfer_guard_device_to_host in _ORDINARY
    )


def read(x: jax.Array) -> np.ndarray[Any, Any] | None:
    """The values of an array that has been waited for; None where JAX's own way is to be taken."""
    return staging.read(x, x.unsafe_buffer_pointer(), x.shape, x.dtype)


def is_put(values: np.ndarray[Any, Any], native: Any) -> bool:
    """Whether `put` is for an array of NumPy's."""
    return (
        native.platform == "gpu"
        and values.nbytes >= _NOT_COPIED
        and ring.is_measured()
        and jax.config.jax_transfer_guard_host_to_device in _ORDINARY
    )


def put(values: np.ndarray[Any, Any], native: Any) -> jax.Array:
    """An array on a GPU with these values, which are in C order, and have been read on return."""
    made = _room(values, native) if values.nbytes >= TO_GPU else None
    if made is not None and ring.to_gpu(
        values, values.ctypes.data, made, made.unsafe_buffer_pointer(), values.nbytes, None
    ):
        return made
    made = jax.device_put(values, native)
    if isinstance(made, jax.core.Tracer):  # in a traced function it is a constant, which is read later
        return jax.device_put(values.copy(), native)
    return made.block_until_ready()


def _room(values: np.ndarray[Any, Any], native: Any) -> jax.Array | None:
    """New memory on a GPU; None for a shape that comes for the first time, and is not large enough to compile for."""
    key = values.shape, values.dtype, native
    if values.nbytes < _COMPILED_AT_ONCE and key not in _seen:
        _seen.add(key)
        return None
    kept, room = _ahead.__dict__.pop("room", (None, None))
    made = room if kept == key and room is not None else jnp.empty(values.shape, values.dtype, device=native)
    if threading.current_thread() is not threading.main_thread():
        # `prefetch` runs here: the memory for its next batch, if asked for now, need not wait for the computing on this
        _ahead.room = key, jnp.empty(values.shape, values.dtype, device=native)
    if isinstance(made, jax.core.Tracer):
        return None
    made.block_until_ready()
    return made if _is_plain(made, "gpu") else None


def moved(x: jax.Array, native: Any) -> jax.Array | None:
    """An array from the host on a GPU; None where JAX's own way is to be taken."""
    if not ring.is_measured() or isinstance(x, jax.core.Tracer) or x.nbytes < TO_GPU or not _is_plain(x, "cpu"):
        return None
    values = np.asarray(x)
    return put(values, native) if is_put(values, native) else None


def _is_plain(x: jax.Array, platform: str) -> bool:
    """Whether an array is on one device, and its memory are its values in C order."""
    places = x.sharding.device_set
    layout = getattr(getattr(x, "format", None), "layout", None)  # not in 0.6
    return (
        len(places) == 1
        and next(iter(places)).platform == platform
        and x.sharding.memory_kind in ("device", "unpinned_host")
        and x.dtype.name in DTYPES
        and not x.weak_type
        and layout is not None
        and tuple(layout.major_to_minor) == tuple(range(x.ndim))
        and not layout.tiling
    )
