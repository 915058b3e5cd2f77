"""Copies arrays between the host and an NVIDIA GPU through the ring, and reads small arrays directly through the
driver. The ring (`xdevice.cuda_driver.ring`) is a set of page-locked buffers that xdevice allocates for copies.

Facts about JAX that the code depends on:

- JAX allocates an array by running a program, which it compiles for each new shape in about 30 ms.
- JAX's streams are not accessible, so the host must wait for JAX before the ring reads or writes an array.
- After the wait, JAX takes 84 us to read a number, whereas the driver takes 24 us (H200, jax 0.11.2).
- If the program has set a transfer guard, JAX makes the copies, because only JAX applies the guard.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from xdevice.base.dtypes import DTYPES, host_dtype
from xdevice.contract import staging
from xdevice.cuda_driver import ring

if TYPE_CHECKING:
    from collections.abc import Hashable

MIN_TO_HOST: Final = 64 << 10
MIN_TO_GPU: Final = 16 << 20
"""The minimum sizes in bytes at which a copy through the ring is faster than JAX's own copy: `MIN_TO_HOST` for copies
to the host, `MIN_TO_GPU` for copies to a GPU."""
_MIN_TO_WAIT: Final = 64 << 10
"""The minimum size in bytes at which it is faster to wait until JAX has read an array than to pass JAX a copy of it."""
_MIN_TO_COMPILE: Final = 256 << 20
"""The minimum size in bytes at which a copy through the ring is faster even if JAX must first compile a program for the
shape of the array."""
_DTYPES: Final = frozenset(map(host_dtype, DTYPES))
_ORDINARY: Final = (None, "allow", "log")
"""The settings of JAX's transfer guard that allow all transfers."""

_seen: set[Hashable] = set()
"""The shape, dtype and device of each array for which `_empty_on_gpu` has already returned None once."""
_ahead = threading.local()
"""In each thread except the main thread, `entry` is a pair. Its first item is the shape, dtype and device of the
thread's last array. Its second item is GPU memory that is allocated in advance for the next such array."""


def should_read(x: jax.Array) -> bool:
    """Whether the host should read an array with `read` (after waiting for its values) instead of JAX's own call. The
    result of `read` does not share memory with any array."""
    return (
        ring.is_usable()
        and _is_plain(x, "gpu")
        and jax.config.jax_transfer_guard_device_to_host in _ORDINARY
    )


def should_read_to_cpu(x: jax.Array) -> bool:
    """Whether an array should be moved to JAX's CPU device with `read` instead of JAX's own call. `read` waits for the
    array; JAX's call does not."""
    return ring.is_usable() and x.nbytes >= MIN_TO_HOST and should_read(x)


def read(x: jax.Array) -> np.ndarray[Any, Any] | None:
    """Reads an array on a GPU through the driver or the ring. Returns its values as a NumPy array, or None if the
    caller has to read the array with JAX. The caller must have waited for the array."""
    # the module `xdevice.contract.staging`, not this one
    return staging.read(x, x.unsafe_buffer_pointer(), x.shape, x.dtype)


def should_put(values: np.ndarray[Any, Any], native: Any) -> bool:
    """Whether a NumPy array should be copied to the device `native` with `put` instead of JAX's own call."""
    return (
        native.platform == "gpu"
        and values.nbytes >= _MIN_TO_WAIT
        and ring.is_usable()
        and jax.config.jax_transfer_guard_host_to_device in _ORDINARY
    )


def put(values: np.ndarray[Any, Any], native: Any) -> jax.Array:
    """Returns an array on a GPU with the values of a NumPy array. The NumPy array must be in C order, and may be
    changed as soon as this function returns. Uses the ring for large arrays if that is faster."""
    target = _empty_on_gpu(values, native) if values.nbytes >= MIN_TO_GPU else None
    if target is not None and ring.to_gpu(
        values,
        values.ctypes.data,
        target,
        target.unsafe_buffer_pointer(),
        values.nbytes,
        stream=None,
    ):
        return target
    array = jax.device_put(values, native)
    # a traced function stores the values as a constant and reads them later, so it gets a copy
    if isinstance(array, jax.core.Tracer):
        return jax.device_put(values.copy(), native)
    return array.block_until_ready()  # JAX has read the values now


def _empty_on_gpu(values: np.ndarray[Any, Any], native: Any) -> jax.Array | None:
    """Returns a new array on a GPU into which the ring can copy the values. Returns None if this shape occurs for the
    first time, and the array is too small to be worth compiling a program for the shape. Also returns None if a traced
    function is running, or if JAX does not store the array in C order."""

    key = values.shape, values.dtype, native
    if values.nbytes < _MIN_TO_COMPILE and key not in _seen:
        _seen.add(key)
        return None
    # the `__dict__` of a `threading.local` contains the attributes that this thread has set
    ahead_key, ahead = _ahead.__dict__.pop("entry", (None, None))
    array = (
        ahead
        if ahead_key == key and ahead is not None
        else jnp.empty(values.shape, values.dtype, device=native)
    )
    if threading.current_thread() is not threading.main_thread():
        # in a thread of `prefetch`, the next batch usually has the same shape. Its memory is allocated now, because
        # once the computation with the current batch has started, an allocation would have to wait for that computation
        _ahead.entry = key, jnp.empty(values.shape, values.dtype, device=native)
    if isinstance(array, jax.core.Tracer):
        return None
    array.block_until_ready()
    return array if _is_plain(array, "gpu") else None


def moved(x: jax.Array, native: Any) -> jax.Array | None:
    """Copies an array on the host to the GPU `native` with `put`. Returns the copy, or None if the caller has to copy
    the array with JAX."""
    if (
        not ring.is_usable()
        or isinstance(x, jax.core.Tracer)
        or x.nbytes < MIN_TO_GPU
        or not _is_plain(x, "cpu")
    ):
        return None
    values = np.asarray(x)
    return put(values, native) if should_put(values, native) else None


def _is_plain(x: jax.Array, platform: str) -> bool:
    """Whether an array is on exactly one device of `platform` ("cpu" or "gpu"), in C order, and in the device's
    ordinary memory. False if this version of JAX does not report the layout of arrays."""
    sharding = x.sharding
    natives = sharding.device_set
    if len(natives) > 1 or next(iter(natives)).platform != platform:
        return False
    layout = getattr(getattr(x, "format", None), "layout", None)  # JAX 0.6 has no `format`
    # an array made from Python numbers has a weak type, which a copy would lose
    return (
        sharding.memory_kind in ("device", "unpinned_host")
        and x.dtype in _DTYPES
        and not x.weak_type
        and layout is not None
        and tuple(layout.major_to_minor) == tuple(range(x.ndim))
        and not layout.tiling
    )
