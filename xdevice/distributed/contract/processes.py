"""Engines, such as NCCL or gloo, move tensors between processes. In each collective (an operation in which all
processes take part), an engine does the work of one rank. This module describes what an engine can rely on, and what it
must guarantee.

`xdevice.distributed.processes` guarantees to an engine that

- every rank calls the same method with tensors of the same dtype and shape, one call at a time: the ranks vote before
  each call, unless the user has disabled the votes;
- each tensor is dense, has at least one element, belongs to the engine's own framework, has no gradient, and is on
  `group.device` or on the host;
- NCCL is started only for a process on a real GPU. Any other engine is started only if the tensors are in host memory,
  which includes tensors on virtual GPUs. The exception is PyTorch's gloo: it is also started for tensors on a GPU, and
  copies these tensors to the host;
- if a rank has died or is stuck, a call that waits for this rank is left waiting in its own thread, and `abort` reports
  the failure to the engine. So the engine must not set a deadline that is shorter than `group.timeout`.

A call returns only after its result has been computed, even on a GPU. Only calls of
`start_mean` may overlap.

If an engine does not support a call, its method `refusal` returns the reason, before anything is sent. An engine never
returns a wrong result. If a call fails, the engine raises its own error, which need not name the rank that has failed,
because the control connection reports that rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from xdevice.base.devices import Device


class Group(NamedTuple):
    """One process in a group of processes that work together. `xdevice.distributed` creates
    this object for `start_engine`."""

    rank: int
    size: int
    """The number of processes; `rank` is from 0 to `size` - 1."""
    local_rank: int
    local_size: int
    """The number of processes on this machine; `local_rank` is from 0 to `local_size` - 1."""
    device: Device
    """The device on which this process computes."""
    host: str
    """The address at which the other ranks reach this process: "127.0.0.1" if all ranks are on one machine."""
    timeout: float
    """The number of seconds after which a rank is considered late."""
    exchange: Callable[[str], list[str]]
    """`exchange(text)` sends a string to all ranks over the control connection, and returns the
    strings of all ranks, in the order of the ranks. Engines use it to exchange addresses. All
    ranks must call `exchange` the same number of times and in the same order. It raises
    `PeerError` if a rank fails."""
    wait: Callable[[Callable[[float], bool]], None] = lambda done: None
    """The methods named in `Engine.in_steps` wait by calling this function. `wait(done)` waits until the call of the
    engine has ended. `done(seconds)` must wait for at most that many seconds, and return whether the call has ended.
    `wait` raises `PeerError` if a rank fails in the meantime."""


class NativeGroup(NamedTuple):
    """A framework's own process group, with the functions that end it."""

    scope: AbstractContextManager[Any]
    """A context manager that the program's thread enters for as long as the group exists, such
    as one that sets the current device."""
    close: Callable[[], None]
    """Ends the group after success. All ranks call it at the same time, before `Engine.close`."""
    abort: Callable[[], None]
    """Ends the group after a failure; it is then called instead of `close`. It may be called in any thread, even while
    another call of the group is waiting, and must return without waiting."""


class Engine(ABC):
    """Moves tensors of one framework between the processes of a group. Every argument `x` is a
    tensor of that framework."""

    def __init__(self, name: str, group: Group) -> None:
        self.name = name
        """The names of the framework and of the library that moves its tensors, such as "torch:gloo"."""
        self.rank, self.size = group.rank, group.size

    in_steps: frozenset[str] = frozenset()
    """The names of the methods that wait only by calling `group.wait`. These methods are called
    in the program's thread. All other methods are called in the engine's thread, which takes 20
    to 100 us longer."""

    @abstractmethod
    def refusal(self, verb: str, op: str | None, dtype: str) -> str | None:
        """Returns why the engine does not support the method `verb` for this dtype. The reason is a few words that
        complete the message "torch:gloo does not support max of uint64: ...". Returns None if the engine supports it.
        `op` is "sum", "max" or "min", or None if the method `verb` does not reduce. `refusal` is not called for
        operations that no framework supports, such as the max of complex numbers or the sum of bools."""

    @abstractmethod
    def all_reduce(self, x: Any, op: str) -> Any:
        """Returns the "sum", "max" or "min" (`op`) of the tensors `x` of all ranks, either in
        `x` itself or as a new tensor. The result must be identical on all ranks, bit for bit.
        `x` never contains 16-bit floats, because the caller casts them first. For "max" and
        "min" it never contains NaN, because the caller replaces NaN first."""

    @abstractmethod
    def broadcast(self, x: Any, root: int) -> Any:
        """Returns, on every rank, an exact copy of the `x` of the rank `root`, either in this rank's `x` itself or as a
        new tensor."""

    @abstractmethod
    def all_gather(self, x: Any) -> list[Any]:
        """Returns a list with the `x` of each rank, in the order of the ranks, as new tensors. It does not write to
        `x`."""

    def reduce_scatter(self, x: Any, op: str) -> Any:
        """Returns this rank's part of the result of `all_reduce`, which is split along the first axis. The length of
        that axis is a multiple of the number of ranks. `x` may be overwritten."""
        # an engine whose library has such an operation overrides this method, and then sends fewer bytes
        length = x.shape[0] // self.size
        return self.all_reduce(x, op)[self.rank * length : (self.rank + 1) * length]

    def send(self, x: Any, to: int) -> None:
        """Sends `x` to the rank `to`, which calls `recv` at the same time. It does not write to `x`."""
        raise NotImplementedError

    def recv(self, like: Any, source: int) -> Any:
        """Returns the tensor that the rank `source` sends, either in `like` itself or as a new
        tensor. The tensor has the shape and dtype of `like`."""
        raise NotImplementedError

    # gradients, which are sent while others are still computed

    def start_mean(self, x: Any, divisor: float) -> Callable[[], Any] | None:
        """Starts to compute a mean, without waiting for it. The tensors `x` of all ranks are summed as in `all_reduce`,
        and the sum is divided by `divisor` as in `over`. Returns a function that waits for this mean and returns it.
        Returns None if the engine can run only one operation at a time.

        All ranks start the same means in the same order, and call every returned function before they call any other
        method. The function waits by calling `group.wait`, as the methods in `in_steps` do. On a GPU it may return
        earlier if all later work on the GPU waits for the mean.
        """
        return None

    def pack(self, tensors: list[Any]) -> Any | None:
        """Returns a new vector with the elements of `tensors`, one tensor after the other, each
        in C order. The tensors belong to the engine's framework. The vector's values need not
        have been computed when `pack` returns. If `pack` returns None, the caller joins the
        tensors with the backend's `join`."""
        return None

    def unpack(self, x: Any, tensors: list[Any]) -> bool:
        """Writes the elements of the vector `x` to `tensors`, one tensor after the other, each
        in C order. The tensors belong to the engine's framework, and together have as many
        elements as `x`. Returns False if nothing was written; the caller then writes the
        tensors one by one."""
        return False

    # arithmetic for means and weights

    def times(self, x: Any, factor: float) -> Any:
        """Returns `x` times `factor`, in the dtype of `x`, which is a float or complex dtype.
        The result may be written to `x`."""
        return x * factor

    def over(self, x: Any, divisor: float) -> Any:
        """Returns `x` divided by `divisor`, in the dtype of `x`, which is a float or complex
        dtype. The result may be written to `x`. Each quotient must be rounded only once, so `x`
        must not be multiplied by the reciprocal."""
        return x / divisor

    # ending the engine

    @abstractmethod
    def close(self) -> None:
        """Ends the engine after success. All ranks call this at the same time, and
        `Group.exchange` still works."""

    def abort(self) -> None:  # noqa: B027  # most engines cannot be interrupted, so this does nothing
        """Ends the engine after a failure. It is called instead of `close`, possibly while another call of the engine
        is waiting in another thread, and must return without waiting."""


class Processes(Primitives):
    """The capability of moving tensors between processes, with engines such as NCCL and gloo. If a backend has no
    engine, its tensors are converted to PyTorch tensors, and PyTorch's engines move these."""

    needs: ClassVar[tuple[str, ...]] = ("engines", "start_engine")

    def engines(self) -> Sequence[str]:
        """Returns the names of the engines that can be started here, such as "gloo", with the best first. It starts
        nothing, and imports nothing that the adapter has not already imported."""
        return ()

    def start_engine(self, name: str, group: Group) -> Engine:
        """Starts the engine `name`, one of `engines`, for the process that `group` describes, and returns the engine.
        All processes of the group call this at the same time, and may exchange addresses with `group.exchange`. The
        engine must listen only on the address `group.host`."""
        raise self.unsupported(
            f"the engine {name!r} for several processes",
            "choose engine='auto', which uses PyTorch",
        )

    def start_native_group(self, group: Group) -> NativeGroup:
        """Creates the framework's own process group from these processes, so that the
        framework's other functions for several processes work. All processes call this at the
        same time, as for `start_engine`. A process can have only one such group. If the program
        has already created the group with the same ranks, that group is used, and the program
        must end it."""
        raise self.unsupported(
            "a process group for its own functions", "use the methods of the world"
        )

    def why_no_engine(self) -> str:
        """Returns, in a few words, why `engines` returns nothing here. An error shows this
        reason to a user who has asked for an engine of this backend."""
        return "it has no engine here"
