"""Engines, such as NCCL or gloo, move tensors between processes. An engine does one rank's part of each collective (an
operation that all processes take part in). This module says what an engine may rely on, and what it promises.

`xdevice.distributed.processes` promises an engine that

- every rank calls the same method with tensors of the same dtype and shape, one call at a time: the ranks vote on each
  call before it, unless the user has switched that off;
- tensors are dense, have elements, are of the engine's own framework, without a gradient, and on `group.device` or on
  the host;
- NCCL is only started for a process on a real GPU, and other engines only where tensors are in host memory, as those of
  virtual GPUs are; PyTorch's gloo is the exception, which copies from a GPU;
- a call that waits for a rank which has died or is stuck is left waiting, in a thread of its own. So the engine sets no
  deadline that is shorter than `group.timeout`, and `abort` reports the failure to it.

A call returns when its result has been computed, also on a GPU; `start_mean` may have several under way.

An engine that cannot do something says so in `refusal`, before anything is sent; it never gives another result instead.
If a call fails, the engine raises its own error: the core finds out by other means which rank has failed, and why.
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
    """The place of one process among those that work together. The core makes it for `start_engine`."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    device: Device
    """The device on which this process computes."""
    host: str
    """The address at which the other ranks reach this process: "127.0.0.1" if all are on one machine."""
    timeout: float
    """How many seconds a rank may be late."""
    exchange: Callable[[str], list[str]]
    """`exchange(text)` returns the texts of all ranks, in the order of the ranks, over the control connection: engines
    tell each other addresses by it. All ranks call it equally often and in the same order. It raises if a rank
    fails."""
    wait: Callable[[Callable[[float], bool]], None] = lambda done: None
    """For the methods named in `Engine.in_steps`: waits until the call has ended. `done(seconds)` waits for that many
    seconds at most, and says whether it has. It raises if a rank fails meanwhile."""


class NativeGroup(NamedTuple):
    """Begins and ends the use of a framework's own group of processes."""

    scope: AbstractContextManager[Any]
    """A block that the program's thread is in as long as there is the group, such as a block of the current device."""
    close: Callable[[], None]
    """Called after success, by every rank at the same time, before `Engine.close`."""
    abort: Callable[[], None]
    """Called instead after a failure, in any thread, while a call may be waiting. It must not wait."""


class Engine(ABC):
    """Moves tensors of one framework between the processes of a group. An argument `x` is such a tensor."""

    def __init__(self, name: str, group: Group) -> None:
        self.name = name
        """The framework and what it uses: "torch:gloo"."""
        self.rank, self.size = group.rank, group.size

    in_steps: frozenset[str] = frozenset()
    """The names of methods that wait only by `group.wait`. They are called in the program's thread. All others are
    called in one thread of their own, which takes 20 to 100 us more."""

    @abstractmethod
    def refusal(self, verb: str, op: str | None, dtype: str) -> str | None:
        """Returns why the engine cannot do this, in a few words that end "torch:gloo does not support max of uint64:
        ..."; None where it can. `verb` is the name of a method below, `op` what it reduces by: "sum", "max" or "min".
        It is not asked about what no framework can do: the max of complex numbers, or the sum of bools."""

    @abstractmethod
    def all_reduce(self, x: Any, op: str) -> Any:
        """Returns the "sum", "max" or "min" of the `x` of all ranks, bit for bit the same on each rank: either in `x`
        itself, or as a new tensor. `x` never has 16-bit floats, because the core casts those first. For floats with a
        NaN, the max and min may be anything: the core replaces NaN first."""

    @abstractmethod
    def broadcast(self, x: Any, root: int) -> Any:
        """Returns the `x` of the rank `root`, bit for bit, on all ranks: either in this rank's `x` itself, or as a new
        tensor."""

    @abstractmethod
    def all_gather(self, x: Any) -> list[Any]:
        """Returns the `x` of each rank, in the order of the ranks, as new tensors. It does not write into `x`."""

    def reduce_scatter(self, x: Any, op: str) -> Any:
        """Returns this rank's part, along the first axis, of what `all_reduce` would return. The length of that axis is
        a multiple of the number of ranks. `x` may be overwritten."""
        length = x.shape[0] // self.size
        return self.all_reduce(x, op)[self.rank * length : (self.rank + 1) * length]

    def send(self, x: Any, to: int) -> None:
        """Sends `x` to the rank `to`, which calls `recv` at the same time. It does not write into `x`."""
        raise NotImplementedError

    def recv(self, like: Any, source: int) -> Any:
        """Returns what the rank `source` sends, a tensor of the shape and dtype of `like`: either in `like` itself, or
        as a new tensor."""
        raise NotImplementedError

    # gradients, which travel while others are still computed

    def start_mean(self, x: Any, divisor: float) -> Callable[[], Any] | None:
        """Starts to sum the `x` of all ranks and to divide the sum by `divisor`, as `all_reduce` and `over` do, and
        returns at once. All ranks start the same ones in the same order, and call nothing else before they have called
        what each returned: a function that waits for the mean, as the methods in `in_steps` do, and returns it. On a
        GPU it only has to make all later work wait. Returns None if the engine does one thing at a time."""
        return None

    def pack(self, tensors: list[Any]) -> Any | None:
        """Returns the elements of `tensors` of the engine's framework, in C order and one tensor after the other, as a
        new vector, which need not be computed yet. If it returns None, the core joins them with the backend's
        `join`."""
        return None

    def unpack(self, x: Any, tensors: list[Any]) -> bool:
        """Writes the elements of `x`, a vector, into `tensors` of the engine's framework, which have as many together,
        in C order. Returns whether it has; if not, the core writes one after the other."""
        return False

    # means and weights

    def times(self, x: Any, factor: float) -> Any:
        """Returns `x` times a number, in the dtype of `x`, which is a float or complex; it may write the result into
        `x`."""
        return x * factor

    def over(self, x: Any, divisor: float) -> Any:
        """Returns `x` divided by a number, in the dtype of `x`, which is a float or complex; it may write the result
        into `x`. Each quotient is rounded once, so a product with the reciprocal will not do."""
        return x / divisor

    # the end

    @abstractmethod
    def close(self) -> None:
        """Ends the engine after success; every rank calls this at the same time, and `Group.exchange` still works."""

    def abort(self) -> None:  # noqa: B027  # most cannot be interrupted
        """Called instead of `close` after a failure, while a call of the engine may be waiting in another thread. It
        must not wait."""


class Processes(Primitives):
    """The capability of moving tensors between processes, by engines such as NCCL and gloo. The tensors of a backend
    without an engine are converted to PyTorch's and moved by PyTorch's engines."""

    needs: ClassVar[tuple[str, ...]] = ("engines", "start_engine")

    def engines(self) -> Sequence[str]:
        """Returns the names of the engines that could be started here, the best first: "gloo". Starts nothing, and
        imports nothing that the adapter has not imported already."""
        return ()

    def start_engine(self, name: str, group: Group) -> Engine:
        """Starts the engine `name`, one of `engines`, for this process of a group, and returns it. All processes of the
        group call it at the same time, and may tell each other addresses by `group.exchange`. It listens on the address
        `group.host` only."""
        raise self.unsupported(
            f"an engine {name!r} for several processes",
            "choose engine='auto', which takes PyTorch",
        )

    def start_native_group(self, group: Group) -> NativeGroup:
        """Makes the framework's own group of these processes, which is global, so that the framework's other ways of
        using several processes work. All processes call it at the same time, like `start_engine`; there may be one
        only. If the program has made one with the same ranks, that one is left as it is, and the program has to end
        it."""
        raise self.unsupported(
            "a group of processes for all of its own functions", "use the methods of the world"
        )

    def why_no_engine(self) -> str:
        """Returns why `engines` is empty here, in a few words, for users who ask for an engine of this backend by
        name."""
        return "it has no engine here"
