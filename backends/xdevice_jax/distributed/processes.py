"""Moves arrays between processes with JAX's collectives: with gloo on the CPU, and with NCCL on GPUs. Both require
`jax.distributed`.

Facts about JAX that the code depends on (measured on 0.7.1):

- `jax.distributed.initialize` fails once JAX has started (https://github.com/jax-ml/jax/issues/18237), and JAX cannot
  be started again. Therefore a process must have the same rank in all groups that it joins later. Existing connections
  still work after `jax.distributed.shutdown`, but new connections cannot be established.
- A process that has not called `jax.distributed.shutdown` waits at its exit for all other processes, so `close` calls
  that function. Rank 0 runs the coordination service, and must not end it until all other ranks have left. A rank that
  has not left by then prints connection errors.
- A process that loses its connection to the service ends immediately with SIGABRT, whatever the value of
  `jax_enable_recoverability` is. If a Python callback is set for this event, the process ends with std::bad_cast.
  Therefore all ranks connect to the service through `relay`, which hides the end of the service from JAX. xdevice
  raises PeerError when its own connection to a rank is lost.
- The coordinator listens on all addresses unless one address is passed.
- Adding zeros turns -0.0 into 0.0. A broadcast is a sum to which all ranks except the root contribute zeros, so the
  bits of the values are added as integers.
- A program may have switched on JAX's 64-bit mode in the calling thread only. The thread that runs collectives must
  then switch it on too, because JAX would otherwise narrow the caller's arrays.
- The call of a collective returns before the collective has run.
- Each collective is compiled separately for each dtype and shape.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xdevice.distributed.contract.collectives import (
    address,
    free_port,
)
from xdevice.distributed.contract.processes import Engine, Processes
from xdevice.errors import LaunchError
from xdevice_jax import conversion, unstarted
from xdevice_jax.performance import parallel
from xdevice_jax.private import private

from . import relay

try:
    from jax import shard_map
except ImportError:  # older versions of JAX
    from jax.experimental.shard_map import shard_map

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from xdevice.contract.primitives import Primitives
    from xdevice.distributed.contract.processes import Group

_State = private["jax._src.distributed.State"]
_global_state = private["jax._src.distributed.global_state"]
_SPREAD = PartitionSpec("rank")
"""The partition in which the first axis of an array is spread over the ranks."""
_START_SECONDS: Final = 300
"""The minimum time in seconds that JAX waits for all ranks to connect. After that time, JAX ends the process with
SIGABRT instead of raising an error. xdevice's own timeout may be shorter, and its error names the missing rank."""
_REDUCED_BY: Final = {"sum": jax.lax.psum, "max": jax.lax.pmax, "min": jax.lax.pmin}


class JaxProcesses(Processes):
    """Provides JAX's engines: gloo on the CPU, and NCCL on GPUs."""

    def engines(self) -> Sequence[str]:
        """Returns the names of the engines that this process could start, starting with the best."""
        # `virtual` is the number of virtual GPUs, whose memory is on the host, where NCCL cannot use it
        return ("nccl", "gloo") if self.count("gpu") > self.virtual else ("gloo",)

    def start_engine(self, name: str, group: Group) -> Engine:
        """Starts the engine `name` for this process, which belongs to `group`, and returns it."""
        private.require_names_for("several processes")
        return JaxEngine(name, group, self)


class JaxEngine(Engine):
    """Performs the collectives of one process, each as a compiled program that runs on one device of each rank."""

    def __init__(self, name: str, group: Group, backend: Primitives) -> None:
        """Connects this process with the other processes of `group`, which must do the same at the same time."""
        super().__init__(f"jax:{name}", group)
        self._exchange = group.exchange
        # whether this is the first world of the process: `close` ends `jax.distributed`, which cannot be started again
        self._is_first = _initialize(group)
        own_device = backend.to_native(group.device)
        # a mesh requires the devices on which the ranks compute, and only the rank itself knows its device
        numbers = group.exchange(str(own_device.id))
        # inside `jax.distributed`, `jax.devices` also lists the devices of the other ranks
        natives = {native.id: native for native in jax.devices(own_device.platform)}
        self._natives = tuple(natives[int(number)] for number in numbers)
        # JAX connects the ranks in the first collective, which is run here so that the program's first call does not
        # have to wait for the connection
        self.all_reduce(backend.full((1,), 0, group.device, "float32"), "sum")

    def refusal(self, verb: str, op: str | None, dtype: str) -> str | None:
        """Returns the reason why a collective is not possible, or None if it is possible. `verb` is the name of a
        method of this class."""
        # a pair of ranks requires a separate connection, which JAX can no longer establish in a later world
        if verb in ("send", "recv") and not self._is_first:
            return "JAX can connect a pair of ranks only in the first processes() block of a program"
        return None

    def all_reduce(self, x: jax.Array, op: str) -> jax.Array:
        """Returns the "sum", "max" or "min" (`op`) over the arrays `x` of all ranks."""
        return self._run(_all_reduce, op, x)

    def broadcast(self, x: jax.Array, root: int) -> jax.Array:
        """Returns the array `x` of the rank `root`."""
        return self._run(_broadcast, root, x)

    def all_gather(self, x: jax.Array) -> list[jax.Array]:
        """Returns the arrays `x` of all ranks, in the order of the ranks."""
        return list(self._run(_all_gather, self.size, x))

    def reduce_scatter(self, x: jax.Array, op: str) -> jax.Array:
        """Returns this rank's part of the result of `all_reduce`, which is divided along the first axis."""
        # `psum_scatter` supports only sums
        if op != "sum":
            return super().reduce_scatter(x, op)
        return self._run(_reduce_scatter, op, x)

    def send(self, x: jax.Array, to: int) -> None:
        """Sends `x` to the rank `to`, which must call `recv` at the same time."""
        # this is a broadcast between two ranks, the first of which (0) is the sender
        pair = (self._natives[self.rank], self._natives[to])
        self._run(_broadcast, 0, x, natives=pair)

    def recv(self, like: jax.Array, source: int) -> jax.Array:
        """Returns the array that the rank `source` sends, which must have the shape and dtype of `like`."""
        # as in `send`, the first of the two ranks (0) is the sender
        pair = (self._natives[source], self._natives[self.rank])
        return self._run(_broadcast, 0, like, natives=pair)

    # the end

    def close(self) -> None:
        """Leaves JAX's coordination service after success. Must be called on all ranks at the same time."""
        leaving = _take_state_from_jax()
        # rank 0 does not end the service yet, because the other ranks need the service in order to leave
        service, leaving.service = leaving.service, None
        leaving.shutdown()
        relay.leave_service()
        # returns when all ranks have reached this call, and have therefore left the service
        self._exchange("")
        if service is not None:
            service.shutdown()

    def _run(
        self,
        make_function: Any,
        argument: object,
        x: jax.Array,
        natives: tuple[Any, ...] | None = None,
    ) -> Any:
        """Runs a collective as a program on one device of each rank, and returns this rank's part of the results on the
        device of `x`. `make_function(argument)`, such as `_broadcast(root)`, returns the function that each rank runs.
        `natives` contains the devices of the participating ranks, by default of all ranks."""
        with _keeping_64_bits(x):
            function, sharding = _compiled(make_function, argument, natives or self._natives)
            count = len(natives or self._natives)
            # an array on the host is first copied to this rank's GPU; a 0-d array gets an axis that can be
            # spread
            shard = _move_to(self._natives[self.rank], x if x.ndim else x.reshape(1))
            spread_shape = (count * shard.shape[0], *shard.shape[1:])
            spread = jax.make_array_from_single_device_arrays(spread_shape, sharding, [shard])
            results = function(spread)
            # waits here, because this thread may hang if a peer has died; without this wait, the caller's thread would
            # hang
            jax.block_until_ready(results)
            return jax.tree.map(lambda y: _own_part(y, x), results)


def _own_part(y: jax.Array, x: jax.Array) -> jax.Array:
    """Returns this rank's part of `y`, the result of a collective on `x`, on the device of `x`. If `x` has no axes,
    removes the axis that `_run` has added."""
    (device,) = x.devices()
    part = _move_to(device, y.addressable_data(0))
    return part if x.ndim else part.reshape(())


def _move_to(native: Any, x: jax.Array) -> jax.Array:
    """Returns `x` on the JAX device `native`, which is `x` itself if it is already on that device."""
    return x if x.devices() == {native} else jax.device_put(x, native)


def _keeping_64_bits(x: jax.Array) -> AbstractContextManager[Any]:
    """Returns a context manager in which JAX does not narrow the dtype of `x`. If `x` has a 64-bit dtype and JAX's
    64-bit mode is off, the context manager switches the mode on; otherwise it does nothing."""
    if x.dtype.name not in conversion.WIDE or jax.config.jax_enable_x64:
        return nullcontext()
    return parallel.enable_x64(True)


# the start and the end


def _take_state_from_jax() -> Any:
    """Moves the objects that `jax.distributed.shutdown` would end from JAX's global state into a new state. Returns the
    new state; its method `shutdown` ends these objects. JAX's exit hook must not find these objects. If a program ended
    while `close` was still waiting for another rank, the hook would shut them down again, and the process would end
    with SIGABRT."""
    new_state = _State()
    for name in ("preemption_sync_manager", "client", "service"):
        setattr(new_state, name, getattr(_global_state, name))
        setattr(_global_state, name, None)
    return new_state


def _initialize(group: Group) -> bool:
    """Starts `jax.distributed` if no rank has started JAX yet, and returns whether `jax.distributed` is running now.
    Raises `LaunchError` if JAX was already started, except for an earlier group of the same size and with the same
    ranks."""
    is_used = unstarted.is_started() or jax.distributed.is_initialized()
    # each rank sends "1" if it has used JAX, otherwise "0", and an address. Only the address of rank 0, which runs the
    # coordinator, is used
    port = free_port(group.host) if group.rank == 0 else 0
    answers = group.exchange(f"{int(is_used)} {address(group.host, port)}")
    _, _, coordinator = answers[0].partition(" ")
    started_ranks = [rank for rank, answer in enumerate(answers) if answer.startswith("1")]
    if not started_ranks:
        # set explicitly, because the default differs between versions of JAX
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            coordinator_address=relay.start(coordinator),
            num_processes=group.size,
            process_id=group.rank,
            # JAX must not read a launcher's variables, because xdevice has already read them
            cluster_detection_method="deactivate",
            initialization_timeout=max(_START_SECONDS, int(group.timeout)),
            coordinator_bind_address=coordinator if group.rank == 0 else None,
        )
        return True
    has_same_rank = is_used and (jax.process_index(), jax.process_count()) == (
        group.rank,
        group.size,
    )
    # every rank gets the answers of all ranks, so that all ranks raise the error together: a rank that continued would
    # wait for the others
    if "0" in group.exchange(str(int(has_same_rank))):
        raise LaunchError(
            f"JAX has already been used on rank {', '.join(map(str, started_ranks))}, but it can connect to other "
            f"processes only before it creates its first array; enter xdevice.distributed.processes() earlier, or "
            f"choose engine='torch:gloo'"
        )
    return jax.distributed.is_initialized()


# the functions that each rank runs


@lru_cache(256)
def _compiled(
    make_function: Any, argument: Any, natives: tuple[Any, ...]
) -> tuple[Callable[[jax.Array], Any], NamedSharding]:
    """Returns a program and a sharding. In the program, each device runs the function `make_function(argument)` on its
    part of an array; the sharding describes how the array is spread. The result is cached, because jit compiles each
    new function object again, even if its code is the same."""
    mesh = Mesh(np.array(natives), ("rank",))
    function = shard_map(
        make_function(argument), mesh=mesh, in_specs=_SPREAD, out_specs=_SPREAD
    )
    return jax.jit(function), NamedSharding(mesh, _SPREAD)


def _all_reduce(op: str) -> Callable[[jax.Array], jax.Array]:
    """Returns a function that computes the "sum", "max" or "min" (`op`) over all ranks on each rank."""
    return lambda x: _REDUCED_BY[op](x, "rank")


def _broadcast(root: int) -> Callable[[jax.Array], jax.Array]:
    """Returns a function that copies the array of the rank `root` to each rank. The function sums the bits of the
    values over all ranks, where all other ranks contribute zeros."""

    def function(x: jax.Array) -> jax.Array:
        """Returns the array of the rank `root`. `x` is the array of the rank that runs this function."""
        bits = _bits(x)
        sent = jnp.where(jax.lax.axis_index("rank") == root, bits, jnp.zeros_like(bits))
        return _from_bits(jax.lax.psum(sent, "rank"), x.dtype)

    return function


def _all_gather(count: int) -> Callable[[jax.Array], tuple[jax.Array, ...]]:
    """Returns a function that copies the arrays of all `count` ranks to each rank."""

    def function(x: jax.Array) -> tuple[jax.Array, ...]:
        """Returns the arrays of all ranks. `x` is the array of the rank that runs this function."""
        gathered = jax.lax.all_gather(x, "rank")
        return tuple(gathered[rank] for rank in range(count))

    return function


def _reduce_scatter(op: str) -> Callable[[jax.Array], jax.Array]:
    """Returns a function that computes, on each rank, the rank's part of the sum over all ranks. `op` is always
    "sum"."""
    return lambda x: jax.lax.psum_scatter(x, "rank", tiled=True)


def _bits(x: jax.Array) -> jax.Array:
    """Returns the bits of an array as unsigned integers. For a complex array, the result has an additional first axis
    with the bits of the real part and of the imaginary part."""
    # `bitcast_convert_type` supports neither bool nor complex numbers
    if x.dtype == bool:
        return x.astype("uint8")
    if jnp.iscomplexobj(x):
        return _bits(jnp.stack([x.real, x.imag]))
    return jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")


def _from_bits(bits: jax.Array, dtype: Any) -> jax.Array:
    """Returns an array of this dtype with the bits `bits`, the result of `_bits`."""
    if dtype == np.dtype(bool):
        return bits.astype(bool)
    # the first axis contains the real part and the imaginary part
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jax.lax.complex(*_from_bits(bits, np.empty(0, dtype).real.dtype))
    return jax.lax.bitcast_convert_type(bits, dtype)
