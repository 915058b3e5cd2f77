"""Engines, such as NCCL or gloo, move tensors between processes. An engine does one rank's part of each collective (an
operation that all processes take part in). This module says what an engine may rely on, and what it promises.

`xdevice.distributed.processes` promises an engine that

- every rank calls the same method with tensors of the same dtype and shape, one call at a time: the ranks vote on each
  call before it, unless the user has switched that off;
- tensors are dense, have elements, belong to the engine's own framework, have no gradient, and are on `group.device` or
  on the host;
- NCCL is started only for a process on a real GPU, and other engines only if tensors are in host memory, like those of
  virtual GPUs; the exception is PyTorch's gloo, which copies from a GPU;
- if a rank has died or is stuck, a call that waits for it is left waiting in its own thread. So the engine sets no
  deadline that is shorter than `group.timeout`, and learns of the failure by `abort`.

A call returns when its result has been computed, also on a GPU; only `start_mean` may have
several under way.

An engine that cannot do something says so in `refusal`, before anything is sent; it never returns a wrong result. If a
call fails, the engine raises its own error; it need not say which rank has failed, because the control connection
does.
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
    """One process among those that work together. `xdevice.distributed` makes it for
    `start_engine`."""

    rank: int
    size: int
    """The number of processes; `rank` is from 0 to `size` - 1."""
    local_rank: int
    local_size: int
    """The number of processes on this machine; `local_rank` is from 0 to `local_size` - 1."""
    device: Device
    """The device on which this process computes."""
    host: str
    """The address at which the other ranks reach this process: "127.0.0.1" if all are on one machine."""
    timeout: float
    """The seconds after which a rank counts as late."""
    exchange: Callable[[str], list[str]]
    """`exchange(text)` sends a text to all ranks over the control connection, and returns the
    texts of all ranks, in the order of the ranks: engines exchange addresses in this way. All
    ranks must call it equally often and in the same order. It raises `PeerError` if a rank
    fails."""
    wait: Callable[[Callable[[float], bool]], None] = lambda done: None
    """For the methods named in `Engine.in_steps`: `wait(done)` waits until the call has ended.
    `done(seconds)` must wait for at most that many seconds, and return whether the call has
    ended. `wait` raises `PeerError` if a rank fails meanwhile."""


class NativeGroup(NamedTuple):
    """A framework's own group of processes, with the functions that end it."""

    scope: AbstractContextManager[Any]
    """A block that the program's thread is in as long as the group exists, such as one that
    sets the current device."""
    close: Callable[[], None]
    """Ends the group after success. It is called by every rank at the same time, before
    `Engine.close`."""
    abort: Callable[[], None]
    """Ends the group after a failure instead. It may be called in any thread, while a call of
    the group is waiting, and must not wait."""


class Engine(ABC):
    """Moves tensors of one framework between the processes of a group. Arguments `x` are
    tensors of that framework."""

    def __init__(self, name: str, group: Group) -> None:
        self.name = name
        """The names of the framework and of the library that it uses: "torch:gloo"."""
        self.rank, self.size = group.rank, group.size

    in_steps: frozenset[str] = frozenset()
    """The names of methods that wait only by `group.wait`. They are called in the program's
    thread. The other methods are called in the engine's thread, which takes 20 to 100 us
    more."""

    @abstractmethod
    def refusal(self, verb: str, op: str | None, dtype: str) -> str | None:
        """Returns why the engine cannot call the method `verb` for this dtype, in a few words
        that complete "torch:gloo does not support max of uint64: ..."; None if it can. `op` is
        "sum", "max" or "min", or None for a method that reduces nothing. The method is not
        called for operations that no framework has, such as the max of complex numbers or the
        sum of bools."""

    @abstractmethod
    def all_reduce(self, x: Any, op: str) -> Any:
        """Returns the "sum", "max" or "min" (`op`) of the `x` of all ranks, bit for bit the
        same on each rank: either in `x` itself, or as a new tensor. `x` never has 16-bit
        floats, which the caller casts first, and for the max and min it has no NaN, which the
        caller replaces first."""

    @abstractmethod
    def broadcast(self, x: Any, root: int) -> Any:
        """Returns the `x` of the rank `root`, bit for bit, on all ranks: either in this rank's `x` itself, or as a new
        tensor."""

    @abstractmethod
    def all_gather(self, x: Any) -> list[Any]:
        """Returns the `x` of each rank, in the order of the ranks, as new tensors. It does not write into `x`."""

    def reduce_scatter(self, x: Any, op: str) -> Any:
        """Returns this rank's part, along the first axis, of the result of `all_reduce`. The
        length of that axis is a multiple of the number of ranks. `x` may be overwritten."""
        # an engine with its own operation for this overrides it, and sends fewer bytes
        length = x.shape[0] // self.size
        return self.all_reduce(x, op)[self.rank * length : (self.rank + 1) * length]

    def send(self, x: Any, to: int) -> None:
        """Sends `x` to the rank `to`, which calls `recv` at the same time. It does not write into `x`."""
        raise NotImplementedError

    def recv(self, like: Any, source: int) -> Any:
        """Returns the tensor that the rank `source` sends, which has the shape and dtype of
        `like`: either in `like` itself, or as a new tensor."""
        raise NotImplementedError

    # gradients, which are sent while others are still computed

    def start_mean(self, x: Any, divisor: float) -> Callable[[], Any] | None:
        """Starts to sum the `x` of all ranks and to divide the sum by `divisor`, as `all_reduce` and `over` do, and
        returns at once. Returns a function that waits for the mean and returns it; None if the engine can do only one
        thing at a time.

        All ranks start the same means in the same order, and call each returned function before they call anything
        else. The function waits as the methods in `in_steps` do. On a GPU it need not wait itself, if all later work
        on the GPU waits for the mean."""
        return None

    def pack(self, tensors: list[Any]) -> Any | None:
        """Returns the elements of `tensors`, which belong to the engine's framework, as a new
        vector: in C order, one tensor after the other. The vector need not be computed yet. If
        the method returns None, the caller joins the tensors with the backend's `join`."""
        return None

    def unpack(self, x: Any, tensors: list[Any]) -> bool:
        """Writes the elements of `x`, a vector, into `tensors`, which belong to the engine's
        framework and have the same number of elements together, in C order. Returns False if it
        has written nothing: the caller then writes one tensor after the other."""
        return False

    # arithmetic for means and weights

    def times(self, x: Any, factor: float) -> Any:
        """Returns `x` times a number. The dtype is that of `x`, a float or complex one. The
        result may be written into `x`."""
        return x * factor

    def over(self, x: Any, divisor: float) -> Any:
        """Returns `x` divided by a number. The dtype is that of `x`, a float or complex one.
        The result may be written into `x`. Each quotient must be rounded once only, so `x` must
        not be multiplied by the reciprocal."""
        return x / divisor

    # ending the engine

    @abstractmethod
    def close(self) -> None:
        """Ends the engine after success. Every rank calls this at the same time, and
        `Group.exchange` still works."""

    def abort(self) -> None:  # noqa: B027  # most engines cannot be interrupted, and do nothing here
        """Ends the engine after a failure. It is called instead of `close`, while a call of the
        engine may be waiting in another thread, and must not wait."""


class Processes(Primitives):
    """The capability of moving tensors between processes, by engines such as NCCL and gloo. The tensors of a backend
    without an engine are converted to PyTorch's and moved by PyTorch's engines."""

    needs: ClassVar[tuple[str, ...]] = ("engines", "start_engine")

    def engines(self) -> Sequence[str]:
        """Returns the names of the engines that could be started here, such as "gloo", the best
        first. It starts nothing, and imports nothing that the adapter has not already
        imported."""
        return ()

    def start_engine(self, name: str, group: Group) -> Engine:
        """Starts the engine `name`, one of `engines`, for this process of a group, and returns
        it. All processes of the group call it at the same time, and may exchange addresses by
        `group.exchange`. The engine listens on the address `group.host` only."""
        raise self.unsupported(
            f"the engine {name!r} for several processes",
            "choose engine='auto', which uses PyTorch",
        )

    def start_native_group(self, group: Group) -> NativeGroup:
        """Makes the framework's own group of these processes, so that the framework's other
        functions for several processes work. All processes call it at the same time, like
        `start_engine`. A process can have only one such group. If the program has made this
        group with the same ranks, it is kept as it is, and the program must end it."""
        raise self.unsupported(
            "a process group for its own functions", "use the methods of the world"
        )

    def why_no_engine(self) -> str:
        """Returns, in a few words, why `engines` is empty here. Users read it if they have
        named an engine of this backend."""
        return "it has no engine here"
