"""The adapter for JAX: xdevice's hooks (the methods that its core calls), written with JAX's
functions.

The rules that it must keep, and the facts behind them (measured on jax 0.7.1 and 0.11.2):

- `jax.devices()` starts every runtime, after which no forked child can use JAX
  (jax-ml/jax#18852). So unstarted.py counts the devices as long as JAX has not been started.
- `device_put` of a NumPy array to the CPU aliases the array if its memory is at a multiple of
  64 bytes, even with `may_alias=False` (jax-ml/jax#37830). `device_put` of a replicated array
  aliases the shard on the target device. So a copy is made before.
- `device_put` of an array in `pinned_host` memory to its own device raises a ValueError, unless
  `may_alias=False` is passed.
- JAX's own functions make uncommitted arrays, which silently follow other operands to their
  devices. The arrays that xdevice makes are committed to their device.
- If 64-bit is off, JAX narrows float64 with a warning, and int64 by dropping bits.
- `effects_barrier` waits for nothing. `live_arrays` lists only the arrays of one platform,
  without results that the program has dropped.
- If work has failed for lack of memory, reading its result (`np.asarray`, DLPack, on 0.7.1 also
  `repr`) crashes the process on the CPU; on a GPU `np.asarray` first allocates as much memory
  on the host. So xdevice waits for each array before it reads it; the wait raises an error.
  After that no stack frame of xdevice may refer to the array: pytest would print it, which
  reads it, and as long as a failed array exists, even in a traceback, every sync() fails.
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

# JAX takes three quarters of a GPU's memory at its start, unless this variable is set before its
# import
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
"""The attribute with the device of an array's sharding, if the array is on one device; "",
which no object has as an attribute, if this version of JAX lacks it."""


class JaxBackend(JaxConversion, JaxReplicas, JaxBlocking, Backend):
    """JAX as a backend. `xdevice.contract` says more about each hook."""

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
        # for a JAX device or sharding, and a kind of memory: the `Device`
        self._places: dict[tuple[Any, str | None], Device] = {}
        # whether JAX's CPU itself computes synchronously: JAX reads the setting only at its
        # start, and the setting does not concern GPUs
        self._blocks = is_blocking_wanted() and not unstarted.is_started()
        if self._blocks:
            jax.config.update("jax_cpu_enable_async_dispatch", False)

    # the framework

    @property
    def framework(self) -> ModuleType:
        return jax

    def classify(self, cls: type) -> Kind | None:
        """Returns "symbol" for a class of symbols of traced functions, "tensor" for a class of
        arrays, and None for any other class. Raises `UnsupportedError` for mutable arrays."""
        # first, because in some versions a Tracer is also an Array
        if issubclass(cls, jax.core.Tracer):
            return "symbol"
        if issubclass(cls, jax.Array):
            return "tensor"
        # JAX's mutable arrays; the name of their class depends on the version
        if cls.__name__ in ("Ref", "ArrayRef"):
            raise self.unsupported(
                "moving a mutable Ref",
                "move its value, ref[...], and make a new Ref from the result",
            )
        return None

    # devices

    def count(self, kind: str) -> int:
        """Returns how many devices of a kind there are, without starting JAX if that is
        possible; 0 for a kind that JAX lacks."""
        if kind not in self.kinds:
            return 0
        if self.virtual:
            return {"cpu": 1, "gpu": self.virtual}.get(kind, 0)
        natives = self._natives
        # JAX is started only if nothing else can count, because no forked child can use it then
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
        """Returns the words for the hardware of `gpu:i`, such as "cuda"; an empty set without
        GPUs. Starts JAX, because only then are its GPUs known."""
        return accelerators.words((self._natives or self._start())["gpu"])

    def lacks(self, device: Device) -> frozenset[str]:
        """Returns the names of the dtypes that no array on this device can have."""
        return (
            frozenset() if device.kind == "cpu" else accelerators.lacks(self.to_native(device))
        )

    def to_native(self, device: Device) -> Any:
        """Returns the `jax.Device` of a `Device`, and starts JAX to find it. Raises
        `DeviceNotFoundError` if the device does not exist."""
        natives = (self._natives or self._start()).get(device.kind, [])
        # this method may be given a device that does not exist
        if device.index >= len(natives):
            self.require(device)  # raises `DeviceNotFoundError`
        return natives[device.index]

    def from_native(self, native: Any) -> Device | None:
        """Returns the `Device` of a `jax.Device`; None if `native` is not a `jax.Device`.
        Raises `UnsupportedError` for a device of another process, and for a device of a
        platform for which xdevice has no kind."""
        if not isinstance(native, jax.Device):
            return None
        for kind, natives in (self._natives or self._start()).items():
            if native in natives:
                return devices.of(kind, natives.index(native))
        # a device of another process, or of a platform that is not `gpu:i`
        raise self.unsupported(
            f"using {native}, which belongs to another process or to a platform that is not gpu:i here",
            "use one of xdevice.devices()",
        )

    def scope(self, device: Device) -> AbstractContextManager[Any]:
        """Returns a context manager in which JAX makes new arrays on a device."""
        return jax.default_device(self.to_native(device))

    # tensors

    def device_of(self, x: jax.Array) -> Device:
        """Returns the device of an array. Raises `UnsupportedError` for an array on several
        devices."""
        sharding = x.sharding
        # for an array on one device the key has the device, because comparing shardings in
        # Python takes twice as long
        key = getattr(sharding, _DEVICE, sharding), sharding.memory_kind
        return self._places.get(key) or self._find(key, sharding)

    def move(self, x: jax.Array, device: Device) -> jax.Array:
        """Returns a copy of `x` on another device, made through page-locked memory if that is
        faster."""
        require_values(x)
        native = self.to_native(device)
        # `_staged_on_cpu` makes arrays on cpu:0, and `moved` makes them on GPUs; None means
        # that JAX has to copy
        staged = self._staged_on_cpu(x) if device is devices.CPU else staging.moved(x, native)
        return jax.device_put(x, native, may_alias=False) if staged is None else staged

    def start_move(self, x: jax.Array, device: Device) -> jax.Array:
        """Returns a copy of `x` on another device, possibly before the values have arrived
        there."""
        require_values(x)
        # `device_put` does not wait, while a copy through page-locked memory does
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
        # `device_put` aliases a shard of a replicated array; a symbol is copied too, because it
        # may represent such an array
        if isinstance(x, jax.core.Tracer) or len(x.sharding.device_set) > 1:
            x = jnp.copy(x)
        return jax.device_put(x, self.to_native(device), may_alias=False)

    def synchronize(self, device: Device | None) -> None:
        """Waits for all work on a device, or, if `device` is None, on all devices of all
        platforms. Raises the error of work that has failed."""
        # before JAX is started there is no work
        if not unstarted.is_started():
            return
        natives = accelerators.everywhere() if device is None else [self.to_native(device)]
        # a device computes in order, so these sums come after all work whose results the
        # program has dropped
        jax.block_until_ready([jax.device_put(0.0, native) + 1 for native in natives])
        # then each array that still exists, because only its own wait raises the error of its
        # computation
        for platform in {accelerators.name_of(native) for native in natives}:
            _wait_for_all(jax.live_arrays(platform), natives)

    def wait(self, x: jax.Array) -> None:
        """Waits until `x` is computed. Raises the error of its computation."""
        require_values(x)
        try:
            x.block_until_ready()
        except BaseException:
            del x  # no frame of the traceback may refer to a failed array
            raise

    # values

    def from_numpy(self, array: np.ndarray[Any, Any], device: Device) -> jax.Array:
        """Returns a new array on a device with the values of a NumPy array. Raises `DTypeError`
        if JAX cannot hold the values, because 64-bit is off."""
        native, dtype = self.to_native(device), stored_dtype(name_of(array.dtype), array)
        # a large array goes to a GPU without the copy that is made below: `put` returns only
        # when the array has been read
        if staging.is_put(array, native):
            return staging.put(np.asarray(array, dtype=dtype, order="C"), native)
        # `device_put` may keep an alias of the array that it is given, so it gets a copy that
        # nobody else has
        own = np.array(array, dtype=dtype, copy=True, order="C")
        return jax.device_put(own, native)

    def to_numpy(self, x: jax.Array) -> np.ndarray[Any, Any]:
        """Returns the values of an array as a NumPy array. Raises `UnsupportedError` for random
        keys, and for an array that was deleted."""
        require_values(x)
        is_read = staging.is_read(x)  # checked before the wait, while the device still computes
        self.wait(x)
        staged = staging.read(x) if is_read else None
        try:
            return np.asarray(x) if staged is None else staged
        # NumPy has none of the extended dtypes, which are those of random keys
        except TypeError as error:
            if not jnp.issubdtype(x.dtype, jax.dtypes.extended):
                raise
            raise self.unsupported(
                f"reading a {x.dtype} array with NumPy", "read jax.random.key_data(x)"
            ) from error

    def full(
        self, shape: tuple[int, ...], value: float, device: Device, dtype: str
    ) -> jax.Array:
        """Returns an array of this shape and dtype, filled with `value`, made on the device
        itself. Raises `DTypeError` if JAX cannot hold the value or the dtype, because 64-bit is
        off."""
        stored = stored_dtype(dtype, np.asarray(value))
        # a program that is bound to one device cannot be part of a traced function for another
        # device
        if self.tracing() is not None:
            return self._made(lambda: jnp.full(shape, value, stored), device)
        # a value that is too large becomes infinity, without NumPy's warning
        with np.errstate(over="ignore"):
            return _filling(self.to_native(device))(
                shape, np.asarray(value).astype(stored), stored
            )

    def tracing(self) -> str | None:
        """Returns the name of the tracer of the running function; None if nothing traces."""
        # inside any transformation, the result of a jitted function is a symbol
        return (
            "jax.jit or another transformation"
            if isinstance(_nothing(), jax.core.Tracer)
            else None
        )

    # containers

    def container_way(self, x: Any) -> Way | None:
        """Returns how to walk and rebuild an object, if its type is registered with JAX's pytrees; None for any other
        object."""
        # not registered with JAX's pytrees
        if jax.tree_util.all_leaves([x]):
            return None
        # the items of a mapping get its keys, which errors then show in the paths of the items
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
        """Registers the class `cls` with JAX's pytrees; does nothing if the program has registered the class itself.
        `flatten(x)` returns the children of an object and its static part (everything else); `unflatten(static,
        children)` makes an object from these."""
        with suppress(ValueError):  # raised for a class that is registered already
            jax.tree_util.register_pytree_node(cls, flatten, unflatten)

    # memory

    def memory(self, device: Device) -> Memory:
        """Returns the bytes of a device's memory that JAX reports. On the CPU only the bytes of
        all existing arrays are known."""
        native = self.to_native(device)
        stats = native.memory_stats()
        if stats is None:  # on the CPU
            return Memory(None, None, bytes_alive(native), None)
        total, used = stats.get("bytes_limit"), stats.get("bytes_in_use")
        free = None if total is None or used is None else total - used
        return Memory(total, free, used, stats.get("peak_bytes_in_use"))

    # floats of a parity run

    def default_to_float64(self) -> None:
        """Switches 64-bit on, for a run of the parity check."""
        jax.config.update("jax_enable_x64", True)

    # the process

    def after_fork(self) -> str | None:
        """Called in a forked child. Returns why JAX cannot be used in it; None if it can."""
        if not unstarted.is_started():
            return None
        return (
            "jax was started before this process was forked, and its threads do not survive a fork, so calls would "
            "hang; start processes with multiprocessing.get_context('spawn')"
        )

    def _start(self) -> dict[str, list[Any]]:
        """Starts JAX, and returns its devices of each kind, in the order of their indices.
        After this call users may write the words for the hardware of JAX's GPUs as a device."""
        # raises an error with the cause if JAX cannot start, which `_local_devices` would hide
        jax.local_devices()
        cpus = _local_devices("cpu")
        # virtual GPUs are the CPU devices after the first
        if self.virtual:
            self._natives = {"cpu": cpus[:1], "gpu": cpus[1:], "tpu": []}
        else:
            self._natives = {
                "cpu": cpus,
                "gpu": accelerators.detect(),
                "tpu": _local_devices("tpu"),
            }
            # from now on users can write the name of a plugin's device, as they can write
            # "cuda"
            devices.HARDWARE.update(self.hardware())
        return self._natives

    def _find(self, key: tuple[Any, str | None], sharding: jax.sharding.Sharding) -> Device:
        """Returns the device of an array with this sharding, and keeps it under `key`, which
        `device_of` has made. Raises `UnsupportedError` for an array on several devices, and for
        an array that is not in the device's default memory."""
        natives = sorted(sharding.device_set, key=lambda native: native.id)
        if len(natives) > 1:
            names = ", ".join(map(str, natives))
            raise self.unsupported(
                f"reporting one device for an array that is spread over {names}",
                "gather the array on one device with xdevice.copy_to(x, device)",
            )
        native, memory = natives[0], key[1]
        place = self.from_native(native)
        # None would mean that the object is not a JAX device
        assert place is not None
        # all kinds of memory of a CPU device are the host's
        if place.kind != "cpu" and memory not in (None, native.default_memory().kind):
            raise self.unsupported(
                f"reporting the device of an array in the {memory} memory of {place}",
                f"copy the array first: xdevice.copy_to(x, {str(place)!r})",
            )
        self._places[key] = place
        return place

    def _staged_on_cpu(self, x: jax.Array) -> jax.Array | None:
        """Returns a copy on the CPU of an array on a GPU, made through the ring (buffers of
        page-locked memory); None if JAX has to copy the array."""
        if isinstance(x, jax.core.Tracer) or not staging.is_moved(x):
            return None
        # `from_buffer` would narrow 64-bit values, while JAX's own copy keeps them
        if x.dtype.itemsize >= 8 and not jax.config.jax_enable_x64:
            return None
        self.wait(x)
        values = staging.read(x)
        return None if values is None else self.from_buffer(values)

    def _made(self, make: Callable[[], jax.Array], device: Device) -> jax.Array:
        """Calls `make`, which returns an array, so that the array is made on `device`. Returns
        the array, committed to `device`."""
        native = self.to_native(device)
        with jax.default_device(native):
            return jax.device_put(make(), native)


_nothing = jax.jit(lambda: 0)
"""A compiled function that `tracing` calls: inside a transformation its result is a symbol."""


@lru_cache
def _filling(native: Any) -> Any:
    """Returns a compiled `full(shape, value, dtype)` that makes an array on the device
    `native`. It takes 5 us, while `jnp.full` and `jax.device_put` take 90."""
    return jax.jit(jnp.full, static_argnums=(0, 2), out_shardings=SingleDeviceSharding(native))


def _local_devices(kind: str) -> list[Any]:
    """Returns this process's devices of a kind, in JAX's order; an empty list if there are
    none."""
    try:
        return jax.local_devices(backend=kind)
    except RuntimeError:  # JAX raises if there are none
        return []


def _wait_for_all(arrays: list[jax.Array], natives: list[Any]) -> None:
    """Waits for those of `arrays` that are on one of the devices `natives`, and raises the
    error of the first array whose computation has failed. Empties the list `arrays`, so that
    nothing here refers to a failed array."""
    while arrays:
        x = arrays.pop()
        if x.sharding.device_set.isdisjoint(natives):
            continue
        try:
            x.block_until_ready()
        except BaseException as error:
            # another thread may have donated it meanwhile, which is no failure
            is_donated = isinstance(error, RuntimeError) and x.is_deleted()
            del x
            if not is_donated:
                arrays.clear()
                raise


def bytes_alive(native: Any) -> int:
    """Returns how many bytes all existing arrays use on a device."""
    size = 0
    for x in jax.live_arrays(accelerators.name_of(native)):
        if native in x.sharding.device_set and not x.is_deleted():
            # not by `addressable_shards`, which makes arrays that would be counted from then on
            size += prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    return size


def _is_sparse(x: Any) -> bool:
    """Whether `x` is one of JAX's sparse arrays, such as a `BCOO`, which consist of values and
    indices."""
    sparse = sys.modules.get("jax.experimental.sparse")
    return sparse is not None and isinstance(x, sparse.JAXSparse)


def _items(x: Any) -> dict[Any, Any]:
    """Returns the items of a mapping that is registered as a pytree, in JAX's order. Containers among the values are
    not walked."""
    # JAX may order the children differently than the mapping, so the keys come from its paths;
    # a type that is registered without keys gets numbers
    children = jax.tree_util.tree_flatten_with_path(x, is_leaf=lambda inside: inside is not x)[
        0
    ]
    return {
        getattr(path[0], "key", number): child for number, (path, child) in enumerate(children)
    }


def _one_level(x: Any) -> tuple[list[Any], Any]:
    """Returns the children of an object that is registered as a pytree, and the structure of the object. Containers
    among the children are not walked."""
    children, structure = jax.tree_util.tree_flatten(x, is_leaf=lambda inside: inside is not x)
    return children, structure
