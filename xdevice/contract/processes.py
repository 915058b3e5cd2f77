"""What an adapter's engine for several processes is promised, and what it promises: one rank's part of a collective.

`xdevice.processes` promises an engine that

- every rank calls the same method with tensors of the same dtype and shape, one call at a time: it was voted on before;
- tensors are dense, of its own framework, without a gradient, and on `group.device` or on the host;
- a call that waits for a rank which has died or is stuck is left waiting in a thread of its own: the engine sets no
  deadline of its own that is shorter than `group.timeout`, and is told of the failure by `abort`.

A call comes back when its result is there, also on a GPU.

An engine that cannot do something says so in `refusal`, before anything is sent; it never gives another result instead.
What it knows of failures it raises in its own words: which rank has failed, and why, is found out beside it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xdevice.base.devices import Device


class Group(NamedTuple):
    """Where one process stands among those that work together."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    device: Device
    """Where this process computes."""
    host: str
    """Where the other ranks reach this process: "127.0.0.1" where all are on one machine."""
    timeout: float
    """Seconds that a rank may be late."""
    exchange: Callable[[str], list[str]]
    """Gives every rank's text, by rank, over the control connection: how addresses get round. All ranks call it, as
    often, in the same order. Raises where a rank fails."""
    wait: Callable[[Callable[[float], bool]], None] = lambda done: None
    """For the verbs of `Engine.in_steps`: waits until `done(seconds)`, which waits as long at most, says that the call
    has ended. Raises where a rank fails meanwhile."""


class Engine(ABC):
    """What moves tensors between the processes of a group, for one framework. `x` is one of its tensors."""

    name: str
    """The framework and what it uses: "torch:gloo"."""
    in_steps: frozenset[str] = frozenset()
    """The verbs that wait by `group.wait` only. They are called in the program's thread, the others in one of their
    own, always the same, which takes 20 to 100 us more."""
    orders_nan = False
    """Whether "max" and "min" are NaN where one rank has NaN, as NumPy's are; if not, the core sees to it by a second
    reduction."""

    @abstractmethod
    def refusal(self, verb: str, op: str | None, dtype: str) -> str | None:
        """Why it cannot do this, in a few words that end the sentence "torch:gloo does not support max of complex64:
        ..."; None where it can. `verb` is the name of a method below, `op` what it reduces by: "sum", "max" or
        "min"."""

    @abstractmethod
    def all_reduce(self, x: Any, op: str) -> Any:
        """The "sum", "max" or "min" over all ranks, bit for bit the same on each: in the memory of `x`, which is then
        returned itself, or a new tensor. 16-bit floats never come: they were cast."""

    @abstractmethod
    def broadcast(self, x: Any, root: int) -> Any:
        """The `x` of one rank, bit for bit, on all: in the memory of `x`, which is then returned itself, or new."""

    @abstractmethod
    def all_gather(self, x: Any) -> list[Any]:
        """The `x` of each rank, by rank, as new tensors. `x` is not written."""

    @abstractmethod
    def reduce_scatter(self, x: Any, op: str) -> Any:
        """This rank's part, along the first axis, of what `all_reduce` would give, as a new tensor; its length divides.
        `x` may be overwritten."""

    def send(self, x: Any, to: int) -> None:
        """Gives `x` to one rank, which calls `recv` at the same time. `x` is not written."""
        raise NotImplementedError

    def recv(self, like: Any, source: int) -> Any:
        """What one rank sends: in the memory of `like`, which is then returned itself, or a new tensor."""
        raise NotImplementedError

    # operations on single tensors, by which the core computes means, weights, 16-bit floats and buckets for all engines

    @abstractmethod
    def cast(self, x: Any, dtype: str) -> Any:
        """`x` as another dtype, rounded to nearest: float16 and bfloat16 to float32 and back."""

    def times(self, x: Any, factor: float) -> Any:
        """`x` times a number, in its own dtype, which is that of a float or complex; it may be written into `x`."""
        return x * factor

    def over(self, x: Any, divisor: float) -> Any:
        """`x` divided by a number, in its own dtype, which is that of a float or complex; it may be written into `x`.
        Rounded once: not a product with the reciprocal."""
        return x / divisor

    def reshaped(self, x: Any, shape: tuple[int, ...]) -> Any:
        """`x` in C order with another shape; it may be a view."""
        return x.reshape(shape)

    # the end

    @abstractmethod
    def close(self) -> None:
        """Ends the engine after success; every rank calls this at the same time."""

    def abort(self) -> None:  # noqa: B027  # most cannot be interrupted
        """Called instead of `close` after a failure, while a call may be waiting in another thread. Never waits."""


class Processes(Primitives):
    """Engines, which carry tensors between processes. The tensors of a backend without one are converted to PyTorch's
    and carried by PyTorch's engines."""

    needs: ClassVar[tuple[str, ...]] = ("engines", "start_engine")

    def engines(self) -> Sequence[str]:
        """The engines that could be started here, the best first, as names for `start_engine`: "gloo". Starts
        nothing, and imports nothing that the adapter has not imported already."""
        return ()

    def start_engine(self, name: str, group: Group) -> Engine:
        """Starts one of the `engines` for this process of a group: all its processes call it at the same time, and may
        tell each other addresses by `group.exchange`. Listens where `group.host` is, and nowhere else."""
        raise self.unsupported(f"an engine {name!r} for several processes", "choose engine='auto', which takes PyTorch")

    def why_no_engine(self) -> str:
        """Why `engines` is empty here, in a few words, for who asks for one by name."""
        return "it has no engine here"
