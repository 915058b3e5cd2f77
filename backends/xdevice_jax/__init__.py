"""The adapter for JAX. It implements xdevice's hooks (the methods that xdevice's core calls) with JAX's functions.

Facts about JAX that the code depends on, and the resulting rules (measured on jax 0.7.1 and 0.11.2):

- `jax.devices()` starts every runtime. After that, no forked child process can use JAX (jax-ml/jax#18852). Therefore
  unstarted.py counts the devices until JAX is started.
- `device_put` of a NumPy array to the CPU aliases the array if its memory is aligned to 64 bytes, even with
  `may_alias=False` (jax-ml/jax#37830). `device_put` of a replicated array aliases the shard on the target device.
  Therefore xdevice makes a copy first.
- `device_put` of an array in `pinned_host` memory to the array's own device raises a ValueError unless
  `may_alias=False` is passed.
- JAX's own functions create uncommitted arrays, which silently move to the devices of other operands. The arrays that
  xdevice creates are committed to their device.
- If 64-bit mode is off, JAX narrows float64 with a warning, and silently drops the upper bits of int64.
- `effects_barrier` waits for side effects, not for arrays. `live_arrays` lists only the arrays of one platform, and
  omits results to which the program no longer refers.
- On the CPU, if work has failed for lack of memory, reading its result (with `np.asarray`, DLPack, or on 0.7.1 also
  `repr`) crashes the process. On a GPU, `np.asarray` first allocates the same amount of memory on the host. Therefore
  xdevice waits for each array before it reads the array, so that the wait raises the error. After that, no stack frame
  of xdevice may refer to the array, because pytest would print the array and thus read it. As long as a failed array
  exists, even in a traceback, every sync() fails.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from xdevice.base import devices
from xdevice.base.dtypes import DTYPES, SHORT_FLOATS, name_of
from xdevice.contract import VIRTUAL_GPU, Backend, DeviceInfo, Kind, Memory, Way
from xdevice.contract.environment import is_blocking_wanted
from xdevice.contract.loader import importing

# JAX allocates three quarters of a GPU's memory when it starts, unless this variable is set before JAX is imported
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

with importing():
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import SingleDeviceSharding

    from . import accelerators, staging, unstarted
    from .blocking import JaxBlocking
    from .conversion import JaxConversion, require_values, stored_dtype
    from .private import private
    from .replicas import JaxReplicas

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import ModuleType

    from xdevice.base.devices import Device


_DEVICE = "_device" if private.has("jax.sharding.SingleDeviceSharding._device") else ""
"""The name of a sharding's private attribute that contains the device, for an array on one device. If this version of
JAX lacks that attribute, the name is "", which is not an attribute of any object."""


class JaxBackend(JaxConversion, JaxReplicas, JaxBlocking, Backend):
    """JAX as a backend. `xdevice.contract` describes each hook."""

    name = "jax"
    modules = ("jax", "jaxlib")
    minimum = (0, 6, 2)
    dtypes = frozenset(DTYPES)
    short_floats = frozenset(name for name in SHORT_FLOATS if hasattr(jnp, name))
    kinds = ("cpu", "gpu", "tpu")
    private_names = private

    def __init__(self) -> None:
        # JAX's devices of each kind; None until JAX is started
        self._natives: dict[str, list[Any]] | None = None
        # the `Device` for each pair of a JAX device or sharding and a kind of memory
        self._places: dict[tuple[Any, str | None], Device] = {}
        # whether JAX itself computes synchronously on the CPU. JAX reads that setting only when it starts, and the
        # setting does not affect GPUs
        self._blocks = is_blocking_wanted() and not unstarted.is_started()
        if self._blocks:
            jax.config.update("jax_cpu_enable_async_dispatch", False)

    # the framework

    @property
    def framework(self) -> ModuleType:
        return jax

    def classify(self, cls: type) -> Kind | None:
        """Returns "symbol" for a class of tracers (the stand-ins for arrays in traced functions), "tensor" for a class
        of arrays, and None for any other class. Raises `UnsupportedError` for mutable arrays."""
        # checked first, because in some versions a Tracer is also an Array
        if issubclass(cls, jax.core.Tracer):
            return "symbol"
        if issubclass(cls, jax.Array):
            return "tensor"
        # JAX's mutable arrays; the name of their class depends on the version
        if cls.__name__ in ("Ref", "ArrayRef"):
            raise self.unsupported(
                "moving a mutable Ref",
                "move the array ref[...] instead, and create a new Ref from the result",
            )
        return None

    # devices

    def count(self, kind: str) -> int:
        """Returns the number of devices of a kind, if possible without starting JAX, or 0 for a kind that JAX lacks."""
        if kind not in self.kinds:
            return 0
        if self.virtual:
            return {"cpu": 1, "gpu": self.virtual}.get(kind, 0)
        natives = self._natives
        # JAX is started only if the devices cannot be counted otherwise, because a forked child cannot use JAX after
        # that
        if natives is None:
            count = None if unstarted.is_started() else unstarted.count(kind)
            if count is not None:
                return count
            natives = self._start()
        return len(natives[kind])

    def describe(self, device: Device) -> DeviceInfo:
        """Returns the name of a device and its memory in bytes. The memory is None if JAX does
        not report it."""
        if self.virtual and device.kind == "gpu":
            return VIRTUAL_GPU
        native = self.to_native(device)
        return DeviceInfo(native.device_kind, (native.memory_stats() or {}).get("bytes_limit"))

    def hardware(self) -> frozenset[str]:
        """Returns the names that a user may use for the hardware of `gpu:i`, such as "cuda", or an empty set if there
        are no GPUs. Starts JAX, because its GPUs are not known before that."""
        return accelerators.hardware_names((self._natives or self._start())["gpu"])

    def lacks(self, device: Device) -> frozenset[str]:
        """Returns the names of the dtypes that this device does not support."""
        return (
            frozenset() if device.kind == "cpu" else accelerators.lacks(self.to_native(device))
        )

    def to_native(self, device: Device) -> Any:
        """Returns the `jax.Device` of a `Device`, and starts JAX to find it. Raises
        `DeviceNotFoundError` if the device does not exist."""
        natives = (self._natives or self._start()).get(device.kind, [])
        # callers may pass a device that does not exist
        if device.index >= len(natives):
            self.require(device)  # raises `DeviceNotFoundError`
        return natives[device.index]

    def from_native(self, native: Any) -> Device | None:
        """Returns the `Device` of a `jax.Device`, or None if `native` is not a `jax.Device`. Raises `UnsupportedError`
        for a device of another process, and for a device of a platform that xdevice does not support."""
        if not isinstance(native, jax.Device):
            return None
        for kind, natives in (self._natives or self._start()).items():
            if native in natives:
                return devices.of(kind, natives.index(native))
        # the device belongs to another process, or to a platform that is not `gpu:i`
        raise self.unsupported(
            f"using {native}, which belongs to another process, or to a platform that has no name in xdevice here",
            "use one of xdevice.devices()",
        )

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """Returns a context manager in which JAX creates new arrays on a device."""
        return jax.default_device(self.to_native(device))

    # tensors

    def device_of(self, x: jax.Array) -> Device:
        """Returns the device of an array. Raises `UnsupportedError` for an array on several
        devices."""
        sharding = x.sharding
        # for an array on one device, the key contains the device instead of the sharding, because comparing shardings
        # in Python takes twice as long
        key = getattr(sharding, _DEVICE, sharding), sharding.memory_kind
        return self._places.get(key) or self._find_device(key, sharding)

    def move(self, x: jax.Array, device: Device) -> jax.Array:
        """Returns a copy of `x` on another device. The copy goes through page-locked memory if that is faster."""
        require_values(x)
        native = self.to_native(device)
        # `_staged_on_cpu` creates arrays on cpu:0, and `moved` creates arrays on GPUs; None means that JAX has to make
        # the copy
        staged = self._staged_on_cpu(x) if device is devices.CPU else staging.moved(x, native)
        return jax.device_put(x, native, may_alias=False) if staged is None else staged

    def start_move(self, x: jax.Array, device: Device) -> jax.Array:
        """Returns a copy of `x` on another device. The values may still be on their way when this method returns."""
        require_values(x)
        # `device_put` does not wait, unlike a copy through page-locked memory
        return jax.device_put(x, self.to_native(device), may_alias=False)

    def copy(self, x: jax.Array, device: Device) -> jax.Array:
        """Returns a copy of `x` in new memory on a device, which may be the device of `x`."""
        require_values(x)
        staged = (
            self._staged_on_cpu(x)
            if device is devices.CPU
            else staging.moved(x, self.to_native(device))
        )
        if staged is not None:
            return staged
        # `device_put` aliases a shard of a replicated array, so such an array is copied; so is a symbol, because it may
        # represent such an array
        if isinstance(x, jax.core.Tracer) or len(x.sharding.device_set) > 1:
            x = jnp.copy(x)
        return jax.device_put(x, self.to_native(device), may_alias=False)

    def synchronize(self, device: Device | None) -> None:
        """Waits for all work on a device, or, if `device` is None, on all devices of all platforms. If work has failed,
        raises its error."""
        # there is no work before JAX is started
        if not unstarted.is_started():
            return
        natives = accelerators.all_started() if device is None else [self.to_native(device)]
        # a device computes in order, so these sums are computed after all work whose results the program has dropped
        jax.block_until_ready([jax.device_put(0.0, native) + 1 for native in natives])
        # then waits for each array that still exists, because only a wait for the array itself raises the error of its
        # computation
        for platform in {accelerators.name_of(native) for native in natives}:
            _wait_for_all(jax.live_arrays(platform), natives)

    def wait(self, x: jax.Array) -> None:
        """Waits until `x` is computed. If its computation has failed, raises the error."""
        require_values(x)
        try:
            x.block_until_ready()
        except BaseException:
            del x  # no frame of the traceback may refer to a failed array
            raise

    # values

    def from_numpy(self, array: np.ndarray[Any, Any], device: Device) -> jax.Array:
        """Returns a new array on a device with the values of a NumPy array. Raises `DTypeError` if JAX cannot represent
        the values because 64-bit mode is off."""
        native, dtype = self.to_native(device), stored_dtype(name_of(array.dtype), array)
        # a large array is put on a GPU without the copy that is made below, because `put` returns only after the array
        # has been read
        if staging.should_put(array, native):
            return staging.put(np.asarray(array, dtype=dtype, order="C"), native)
        # `device_put` may return an alias of its argument, so it gets a copy to which nothing else refers
        copied = np.array(array, dtype=dtype, copy=True, order="C")
        return jax.device_put(copied, native)

    def to_numpy(self, x: jax.Array) -> np.ndarray[Any, Any]:
        """Returns the values of an array as a NumPy array. Raises `UnsupportedError` for random
        keys, and for an array that was deleted."""
        require_values(x)
        # checked before the wait, while the device still computes
        should_read = staging.should_read(x)
        self.wait(x)
        staged = staging.read(x) if should_read else None
        try:
            return np.asarray(x) if staged is None else staged
        # NumPy lacks the extended dtypes, which random keys have
        except TypeError as error:
            if not jnp.issubdtype(x.dtype, jax.dtypes.extended):
                raise
            raise self.unsupported(
                f"reading an array of dtype {x.dtype} with NumPy",
                "read jax.random.key_data(x) instead",
            ) from error

    def full(
        self, shape: tuple[int, ...], value: float, device: Device, dtype: str
    ) -> jax.Array:
        """Returns an array of this shape and dtype, filled with `value` and created on the device itself. Raises
        `DTypeError` if JAX cannot represent the value or the dtype because 64-bit mode is off."""
        stored = stored_dtype(dtype, np.asarray(value))
        # a compiled program for one device cannot be part of a traced function for another device
        if self.tracing() is not None:
            return self._created_on_device(lambda: jnp.full(shape, value, stored), device)
        # a value that is too large becomes infinity, without NumPy's warning
        with np.errstate(over="ignore"):
            return _filling(self.to_native(device))(
                shape, np.asarray(value).astype(stored), stored
            )

    def tracing(self) -> str | None:
        """Returns a description of the transformation that is tracing the running function, or None if no
        transformation is active."""
        # inside any transformation, the result of a jitted function is a symbol
        return (
            "jax.jit or another transformation"
            if isinstance(_nothing(), jax.core.Tracer)
            else None
        )

    # containers

    def container_way(self, x: Any) -> Way | None:
        """Returns a `Way` to walk and rebuild an object if its type is registered with JAX's pytrees, or None for any
        other object."""
        # the type is not registered with JAX's pytrees
        if jax.tree_util.all_leaves([x]):
            return None
        # the items of a mapping have its keys, which error messages show in the paths of the items
        if isinstance(x, Mapping):
            return Way(_items, lambda old, items: _one_level(old)[1].unflatten(items.values()))
        way = Way(
            lambda x: _one_level(x)[0],
            lambda old, children: _one_level(old)[1].unflatten(children),
        )
        return way._replace(dense="make it dense first: x.todense()") if _is_sparse(x) else way

    def register_tree_node(
        self, cls: type, flatten: Callable[..., Any], unflatten: Callable[..., Any]
    ) -> None:
        """Registers the class `cls` with JAX's pytrees; does nothing if the program has already registered the class.
        `flatten(x)` returns the children of an object and its static part (everything else), and `unflatten(static,
        children)` creates an object from these."""
        with suppress(ValueError):  # raised for a class that is registered already
            jax.tree_util.register_pytree_node(cls, flatten, unflatten)

    # memory

    def memory(self, device: Device) -> Memory:
        """Returns the numbers of bytes that JAX reports for a device's memory. On the CPU, only the total size of all
        existing arrays is known."""
        native = self.to_native(device)
        stats = native.memory_stats()
        if stats is None:  # on the CPU
            return Memory(allocated=bytes_alive(native))
        total, used = stats.get("bytes_limit"), stats.get("bytes_in_use")
        free = None if total is None or used is None else total - used
        return Memory(total, free, allocated=used, peak=stats.get("peak_bytes_in_use"))

    # floats of a parity run

    def default_to_float64(self) -> None:
        """Switches 64-bit mode on for a run of the parity check."""
        jax.config.update("jax_enable_x64", True)

    # the process

    def after_fork(self) -> str | None:
        """Called in a forked child. Returns the reason why JAX cannot be used in this process, or None if it can be
        used."""
        if not unstarted.is_started():
            return None
        return (
            "jax was started before this process was forked, and its threads do not survive a fork, so calls would "
            "hang; start processes with multiprocessing.get_context('spawn')"
        )

    def _start(self) -> dict[str, list[Any]]:
        """Starts JAX, and returns its devices of each kind, in the order of their indices. After this call, users may
        also refer to JAX's GPUs by the name of their hardware, such as "cuda"."""
        # if JAX cannot start, this raises an error with the cause, which `_local_devices` would hide
        jax.local_devices()
        cpus = _local_devices("cpu")
        # virtual GPUs are the CPU devices after the first one
        if self.virtual:
            self._natives = {"cpu": cpus[:1], "gpu": cpus[1:], "tpu": []}
        else:
            self._natives = {
                "cpu": cpus,
                "gpu": accelerators.detect(),
                "tpu": _local_devices("tpu"),
            }
            # from now on, users can write the name of a plugin's device, just like "cuda"
            devices.HARDWARE.update(self.hardware())
        return self._natives

    def _find_device(
        self, key: tuple[Any, str | None], sharding: jax.sharding.Sharding
    ) -> Device:
        """Returns the device of an array with this sharding, and caches it under `key`, which `device_of` has computed.
        Raises `UnsupportedError` for an array on several devices, and for an array outside the device's default
        memory."""
        natives = sorted(sharding.device_set, key=lambda native: native.id)
        if len(natives) > 1:
            names = ", ".join(map(str, natives))
            raise self.unsupported(
                f"reporting one device for an array that is spread over {names}",
                "gather the array on one device with xdevice.copy_to(x, device)",
            )
        native, memory = natives[0], key[1]
        place = self.from_native(native)
        # None would mean that `native` is not a JAX device
        assert place is not None
        # all kinds of memory of a CPU device are host memory
        if place.kind != "cpu" and memory not in (None, native.default_memory().kind):
            raise self.unsupported(
                f"reporting the device of an array in the {memory} memory of {place}",
                f"copy the array first: xdevice.copy_to(x, {str(place)!r})",
            )
        self._places[key] = place
        return place

    def _staged_on_cpu(self, x: jax.Array) -> jax.Array | None:
        """Copies an array from a GPU to the CPU through the ring (buffers of page-locked memory). Returns the copy, or
        None if JAX has to copy the array."""
        if isinstance(x, jax.core.Tracer) or not staging.should_read_to_cpu(x):
            return None
        # `from_buffer` would narrow 64-bit values, which JAX's own copy preserves
        if x.dtype.itemsize >= 8 and not jax.config.jax_enable_x64:
            return None
        self.wait(x)
        values = staging.read(x)
        return None if values is None else self.from_buffer(values)

    def _created_on_device(self, make: Callable[[], jax.Array], device: Device) -> jax.Array:
        """Calls `make`, which creates an array, with `device` as JAX's default device. Returns the array, committed to
        `device`."""
        native = self.to_native(device)
        with jax.default_device(native):
            return jax.device_put(make(), native)


_nothing = jax.jit(lambda: 0)
"""A compiled function that `tracing` calls. Inside a transformation, its result is a tracer."""


@lru_cache
def _filling(native: Any) -> Any:
    """Returns a compiled `full(shape, value, dtype)` that creates an array on the device `native`. It takes 5 us,
    whereas `jnp.full` and `jax.device_put` together take 90 us."""
    return jax.jit(jnp.full, static_argnums=(0, 2), out_shardings=SingleDeviceSharding(native))


def _local_devices(kind: str) -> list[Any]:
    """Returns this process's devices of a kind, in JAX's order, or an empty list if there are no such devices."""
    try:
        return jax.local_devices(backend=kind)
    except RuntimeError:  # JAX raises this error if there are no such devices
        return []


def _wait_for_all(arrays: list[jax.Array], natives: list[Any]) -> None:
    """Waits for the arrays in `arrays` that are on one of the devices `natives`, and raises the error of the first
    array whose computation has failed. Empties the list `arrays`, so that this function's stack frame does not refer to
    a failed array."""
    while arrays:
        x = arrays.pop()
        if x.sharding.device_set.isdisjoint(natives):
            continue
        try:
            x.block_until_ready()
        except BaseException as error:
            # another thread may have donated the array in the meantime, which is not a failure
            is_donated = isinstance(error, RuntimeError) and x.is_deleted()
            del x
            if not is_donated:
                arrays.clear()
                raise


def bytes_alive(native: Any) -> int:
    """Returns the number of bytes that all existing arrays use on a device."""
    size = 0
    for x in jax.live_arrays(accelerators.name_of(native)):
        if native in x.sharding.device_set and not x.is_deleted():
            # `addressable_shards` is not used, because it creates arrays that would be counted from then on
            size += prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    return size


def _is_sparse(x: Any) -> bool:
    """Whether `x` is one of JAX's sparse arrays, such as a `BCOO`, which consist of values and
    indices."""
    sparse = sys.modules.get("jax.experimental.sparse")
    return sparse is not None and isinstance(x, sparse.JAXSparse)


def _items(x: Any) -> dict[Any, Any]:
    """Returns the items of a mapping that is registered as a pytree, in JAX's order. Does not descend into containers
    among the values."""
    # JAX may order the children differently than the mapping, so the keys are read from JAX's paths. If the type was
    # registered without keys, numbers are used instead
    children, _ = jax.tree_util.tree_flatten_with_path(
        x, is_leaf=lambda inside: inside is not x
    )
    return {
        getattr(path[0], "key", number): child for number, (path, child) in enumerate(children)
    }


def _one_level(x: Any) -> tuple[list[Any], Any]:
    """Returns the children of an object whose type is registered as a pytree, and the structure of the object. Does not
    descend into containers among the children."""
    children, structure = jax.tree_util.tree_flatten(x, is_leaf=lambda inside: inside is not x)
    return children, structure
