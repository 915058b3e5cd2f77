"""Moves arrays between processes with JAX's collectives: by gloo on the CPU, by NCCL on GPUs.
Both need `jax.distributed`.

Facts about JAX that the code depends on (measured on 0.7.1):

- `jax.distributed.initialize` fails once JAX has started
  (https://github.com/jax-ml/jax/issues/18237), and JAX cannot be started again. So a process
  has the same rank in all groups that it joins later. Connections that exist still work after
  `jax.distributed.shutdown`, but new ones cannot be made.
- A process that has not called `jax.distributed.shutdown` waits at its exit for all others, so
  `close` calls it. Rank 0 runs the coordination service, and must end it last: a rank that has
  not left by then prints connection errors.
- A process whose connection to the service is lost ends at once by SIGABRT, whatever
  `jax_enable_recoverability` says; a Python callback for that ends it by std::bad_cast. So all
  ranks reach the service through `relay`, which hides that the service has ended: the PeerError
  comes through xdevice's own connection.
- The coordinator listens on all addresses unless it is given one.
- Adding zeros turns -0.0 into 0.0. A broadcast is a sum in which the other ranks add zeros, so
  it adds the bits of the values as integers.
- JAX's 64-bit mode may be on in the caller's thread only. The thread in which collectives run must switch it on too,
  otherwise JAX would narrow the caller's arrays.
- A call returns before its collective has run.
- Each collective is compiled for each dtype and shape.
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
except ImportError:  # in older versions of JAX
    from jax.experimental.shard_map import shard_map

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from xdevice.contract.primitives import Primitives
    from xdevice.distributed.contract.processes import Group

_State = private["jax._src.distributed.State"]
_global_state = private["jax._src.distributed.global_state"]
_SPREAD = PartitionSpec("rank")
"""The partition that spreads the first axis of an array over the ranks."""
_START_SECONDS: Final = 300
"""How many seconds JAX's ranks may take to meet, at least: after that time, JAX ends the
process by SIGABRT, without an error that could be reported. A rank that is missing is named by
the world's own timeout, which may be shorter."""
_REDUCED_BY: Final = {"sum": jax.lax.psum, "max": jax.lax.pmax, "min": jax.lax.pmin}


class JaxProcesses(Processes):
    """JAX's engines: gloo on the CPU, and NCCL on GPUs."""

    def engines(self) -> Sequence[str]:
        """Returns the names of the engines that this process could start, the best first."""
        # `virtual` is the number of virtual GPUs, whose memory is on the host, where NCCL cannot use it
        return ("nccl", "gloo") if self.count("gpu") > self.virtual else ("gloo",)

    def start_engine(self, name: str, group: Group) -> Engine:
        """Starts the engine `name` for this process of `group`."""
        private.require("several processes")
        return JaxEngine(name, group, self)


class JaxEngine(Engine):
    """Carries out the collectives of one process, each as a compiled program over one device of
    each rank."""

    def __init__(self, name: str, group: Group, backend: Primitives) -> None:
        """Connects this process with the others of `group`, which do the same at the same
        time."""
        super().__init__(f"jax:{name}", group)
        self._exchange = group.exchange
        self._is_first = _initialize(group)
        own_device = backend.to_native(group.device)
        # a mesh needs the devices on which the ranks compute, and only a rank itself knows
        # which device that is
        numbers = group.exchange(str(own_device.id))
        everywhere = {native.id: native for native in jax.devices(own_device.platform)}
        self._natives = tuple(everywhere[int(number)] for number in numbers)
        # JAX connects the ranks in their first collective: here, so that the program's first call
        # does not have to wait for it
        self.all_reduce(backend.full((1,), 0, group.device, "float32"), "sum")

    def refusal(self, verb: str, op: str | None, dtype: str) -> str | None:
        """Returns why a collective cannot be done; None if it can. `verb` is the name of a
        method of this class."""
        # a pair of ranks needs connections of its own, which JAX cannot make any more in a
        # later world
        if verb in ("send", "recv") and not self._is_first:
            return "it connects two processes only in the first world of a process"
        return None

    def all_reduce(self, x: jax.Array, op: str) -> jax.Array:
        """Returns the "sum", "max" or "min" of the `x` of all ranks."""
        return self._run(_all_reduce, op, x)

    def broadcast(self, x: jax.Array, root: int) -> jax.Array:
        """Returns the `x` of the rank `root`."""
        return self._run(_broadcast, root, x)

    def all_gather(self, x: jax.Array) -> list[jax.Array]:
        """Returns the `x` of all ranks, in the order of the ranks."""
        return list(self._run(_all_gather, self.size, x))

    def reduce_scatter(self, x: jax.Array, op: str) -> jax.Array:
        """Returns this rank's part, along the first axis, of the result of `all_reduce`."""
        # `psum_scatter` only sums
        if op != "sum":
            return super().reduce_scatter(x, op)
        return self._run(_reduce_scatter, op, x)

    def send(self, x: jax.Array, to: int) -> None:
        """Sends `x` to the rank `to`, which calls `recv` at the same time."""
        # a broadcast between two ranks, of which the sender is the first
        pair = (self._natives[self.rank], self._natives[to])
        self._run(_broadcast, 0, x, pair)

    def recv(self, like: jax.Array, source: int) -> jax.Array:
        """Returns the array that the rank `source` sends, of the shape and dtype of `like`."""
        pair = (self._natives[source], self._natives[self.rank])
        return self._run(_broadcast, 0, like, pair)

    # the end

    def close(self) -> None:
        """Leaves JAX's coordination service after success, on all ranks at the same time."""
        leaving = _take_from_jax()
        # rank 0 does not end the service yet, because the other ranks need it to leave
        service, leaving.service = leaving.service, None
        leaving.shutdown()
        relay.leave()
        # returns when all ranks have come here, and so have left the service
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
        """Runs a collective as a program over one device of each rank, and returns this rank's
        part of the results, on the device of `x`. `make_function(argument)` returns the function that each
        rank runs, such as `_broadcast(root)`; `natives` are the devices of the ranks that take
        part, by default those of all ranks."""
        with _64_bit(x):
            function, sharding = _compiled(make_function, argument, natives or self._natives)
            count = len(natives or self._natives)
            # an array on the host is copied to this rank's GPU first; one without axes gets one
            # that can be spread
            part = _on(self._natives[self.rank], x if x.ndim else x.reshape(1))
            whole = (count * part.shape[0], *part.shape[1:])
            spread = function(jax.make_array_from_single_device_arrays(whole, sharding, [part]))
            # waits in this thread, which may hang if a peer has died: otherwise the caller's
            # thread would wait and hang
            jax.block_until_ready(spread)
            return jax.tree.map(lambda y: _own_part(y, x), spread)


def _own_part(y: jax.Array, x: jax.Array) -> jax.Array:
    """Returns this rank's part of `y`, the result of a collective on `x`, on the device of `x`. If `x` has no axes,
    removes the axis that `_run` has added."""
    (device,) = x.devices()
    part = _on(device, y.addressable_data(0))
    return part if x.ndim else part.reshape(())


def _on(native: Any, x: jax.Array) -> jax.Array:
    """Returns `x` on the JAX device `native`: `x` itself if it is on that device already."""
    return x if x.devices() == {native} else jax.device_put(x, native)


def _64_bit(x: jax.Array) -> AbstractContextManager[Any]:
    """Returns a block in which JAX keeps the dtype of `x`. If `x` has a 64-bit dtype and JAX's 64-bit mode is off, the
    block switches the mode on; otherwise it does nothing."""
    if x.dtype.name not in conversion.WIDE or jax.config.jax_enable_x64:
        return nullcontext()
    return parallel.enable_x64(True)


# the start and the end


def _take_from_jax() -> Any:
    """Takes from JAX the objects that `jax.distributed.shutdown` would end, and returns a new
    state that has them, whose `shutdown` ends them. JAX's exit hook must not find them: a
    program may end while `close` still waits for another rank, and a second shutdown would end
    the process by SIGABRT."""
    state_taken, state = _State(), _global_state
    for name in ("preemption_sync_manager", "client", "service"):
        setattr(state_taken, name, getattr(state, name))
        setattr(state, name, None)
    return state_taken


def _initialize(group: Group) -> bool:
    """Starts `jax.distributed` if no rank has started JAX before, and returns whether it is
    running now. Raises `LaunchError` if JAX has been started, except if that was for an earlier
    group in which each process had the same rank."""
    is_used = unstarted.is_started() or jax.distributed.is_initialized()
    # each rank sends "1" if it has used JAX, else "0"; rank 0 also sends a free address for the
    # coordinator
    answers = group.exchange(
        f"{int(is_used)} {address(group.host, 0 if group.rank else free_port(group.host))}"
    )
    _, _, coordinator = answers[0].partition(" ")
    started = [rank for rank, text in enumerate(answers) if text.startswith("1")]
    if not started:
        # the default differs between versions of JAX
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            relay.to(coordinator),
            group.size,
            group.rank,
            # JAX must not look for a launcher's variables: xdevice has read them already
            cluster_detection_method="deactivate",
            initialization_timeout=max(_START_SECONDS, int(group.timeout)),
            coordinator_bind_address=coordinator if group.rank == 0 else None,
        )
        return True
    has_same_rank = is_used and (jax.process_index(), jax.process_count()) == (
        group.rank,
        group.size,
    )
    # every rank gets the answers of all, so that all raise together: a rank that went on would
    # wait for the others
    if "0" in group.exchange(str(int(has_same_rank))):
        raise LaunchError(
            f"JAX has already been used on rank {', '.join(map(str, started))}, but it can connect to other "
            f"processes only before it makes its first array; enter xdevice.distributed.processes() earlier, or "
            f"choose engine='torch:gloo'"
        )
    return jax.distributed.is_initialized()


# the functions that each rank runs


@lru_cache(256)
def _compiled(
    make_function: Any, argument: Any, natives: tuple[Any, ...]
) -> tuple[Callable[[jax.Array], Any], NamedSharding]:
    """Returns the program in which each of the devices runs the function `make_function(argument)` on its
    part of an array, and the sharding that says how the array is spread. Cached, because jit
    compiles each new function object again, even if its code is the same."""
    mesh = Mesh(np.array(natives), ("rank",))
    function = shard_map(
        make_function(argument), mesh=mesh, in_specs=_SPREAD, out_specs=_SPREAD
    )
    return jax.jit(function), NamedSharding(mesh, _SPREAD)


def _all_reduce(op: str) -> Callable[[jax.Array], jax.Array]:
    """Returns the function that gives each rank the "sum", "max" or "min" over all ranks."""
    return lambda x: _REDUCED_BY[op](x, "rank")


def _broadcast(root: int) -> Callable[[jax.Array], jax.Array]:
    """Returns the function that gives each rank the array of the rank `root`: a sum of the bits
    of the values, in which the other ranks add zeros."""

    def function(x: jax.Array) -> jax.Array:
        """Returns the array of the rank `root`; `x` is that of the rank that runs this."""
        bits = _bits(x)
        sent = jnp.where(jax.lax.axis_index("rank") == root, bits, jnp.zeros_like(bits))
        return _from_bits(jax.lax.psum(sent, "rank"), x.dtype)

    return function


def _all_gather(count: int) -> Callable[[jax.Array], tuple[jax.Array, ...]]:
    """Returns the function that gives each rank the arrays of all `count` ranks."""

    def function(x: jax.Array) -> tuple[jax.Array, ...]:
        """Returns the arrays of all ranks; `x` is that of the rank that runs this."""
        gathered = jax.lax.all_gather(x, "rank")
        return tuple(gathered[rank] for rank in range(count))

    return function


def _reduce_scatter(op: str) -> Callable[[jax.Array], jax.Array]:
    """Returns the function that gives each rank its part of the sum over all ranks; `op` is
    always "sum"."""
    return lambda x: jax.lax.psum_scatter(x, "rank", tiled=True)


def _bits(x: jax.Array) -> jax.Array:
    """Returns the bits of an array as unsigned integers. For a complex array, a new first axis
    has the bits of the real and of the imaginary part."""
    # `bitcast_convert_type` takes neither bool nor complex numbers
    if x.dtype == bool:
        return x.astype("uint8")
    if jnp.iscomplexobj(x):
        return _bits(jnp.stack([x.real, x.imag]))
    return jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")


def _from_bits(bits: jax.Array, dtype: Any) -> jax.Array:
    """Returns the array of this dtype whose bits `_bits` has returned."""
    if dtype == np.dtype(bool):
        return bits.astype(bool)
    # the first axis has the real and the imaginary part
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jax.lax.complex(*_from_bits(bits, np.empty(0, dtype).real.dtype))
    return jax.lax.bitcast_convert_type(bits, dtype)
