"""`processes` and `World`: the verbs between processes, and the block in which they work together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdevice.errors import ArgumentError, LaunchError, ScopeError, shown

from . import collectives, engines, gradients, turns
from .session import Options, Session

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from xdevice.base.devices import Device

_current: World | None = None


def processes(
    *,
    engine: str | None = None,
    timeout: float | None = None,
    join_timeout: float | None = None,
    check: bool | None = None,
) -> World:
    """The block in which the processes of a launcher work together. Without a launcher it is a world of one.

    Young: it may change in a minor version.

    A block inside the block gives the same world. docs/reference/processes.md says which launchers there are, and when
    a rank counts as late: one that the others wait for while nothing happens in it. XDEVICE_ENGINE, XDEVICE_TIMEOUT,
    XDEVICE_JOIN_TIMEOUT and XDEVICE_CHECK (1 or 0) set what is left out here.

    Args:
        engine: what moves the tensors: "auto", a framework ("paddle"), or one of its engines ("torch:gloo"). "auto",
            the default, is PyTorch's gloo on the host, and the framework's own on GPUs; `world.engine` names it.
        timeout: seconds after which a rank counts as late: 30 by default.
        join_timeout: seconds in which all processes have to enter the block: 300 by default.
        check: whether the ranks vote before each collective on what they call: by default they do.

    Raises:
        LaunchError: the launcher's variables are incomplete or contradict each other; no secret; no engine.
        PeerError, CollectiveMismatchError: a process has not come, or has failed; it came with other arguments.
        ArgumentError: a wrong argument, or one that differs from that of the block around.

    Costs 20 ms and the start of the engine, which may import PyTorch; a world of one starts nothing.

    Example:
        >>> with xdevice.processes() as world:
        ...     assert xdevice.item(world.all_reduce(xdevice.tensor(3.0))) == 3 * world.size
    """
    options = Options(
        engines.setting(engine, "XDEVICE_ENGINE", "auto", str, "a framework or 'auto'"),
        engines.require_seconds(engines.setting(timeout, "XDEVICE_TIMEOUT", 30.0, float, "seconds"), "timeout"),
        engines.require_seconds(
            engines.setting(join_timeout, "XDEVICE_JOIN_TIMEOUT", 300.0, float, "seconds"), "join_timeout"
        ),
        engines.setting(check, "XDEVICE_CHECK", True, {"1": True, "0": False}.__getitem__, "1 or 0"),
    )
    if not isinstance(options.engine, str) or type(options.check) is not bool:
        raise ArgumentError(f"engine is a text and check True or False, not {shown(engine)} and {shown(check)}")
    if _current is None:
        return World(options)
    around = _current.options
    given = (engine, timeout, join_timeout, check)
    if any(value is not None and value != own for value, own in zip(given, around, strict=True)):
        raise ArgumentError(f"this is inside of a block of processes already, with {around}; leave it first")
    return _current


def world() -> World:
    """The world whose block this process is in.

    Young: it may change in a minor version.

    Raises:
        LaunchError: this process is in no such block.

    Example:
        >>> with xdevice.processes() as world:
        ...     xdevice.world() is world
        True
    """
    if _current is None:
        raise LaunchError("this process is not in a block of processes: with xdevice.processes() as world:")
    return _current


class World:
    """The processes that work together, as one of them sees them: what `xdevice.processes()` gives.

    Young: it may change in a minor version.

    Its attributes are `rank`, `size`, `local_rank`, `local_size`, `launcher`, `device`, which is what
    `xdevice.local_device()` gives, and `engine`, the name of what moves the tensors ("none" in a world of one).

    Every rank calls the same verbs in the same order, from one thread. Each verb takes tensors of any backend, on
    `device` or on the host, and containers of them. Each raises PeerError where a rank has failed or is late; the world
    is closed then: the tensors of that call may hold anything, and each later verb raises the same at once. Each raises
    CollectiveMismatchError where the ranks call different things; then nothing was sent or written. No gradients flow
    through any of them.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._session = session = Session(options)
        self.rank, self.size = session.rank, session.size
        self.local_rank, self.local_size = session.place.local_rank, session.place.local_size
        self.launcher = session.place.launcher
        self._depth = 0

    @property
    def engine(self) -> str:
        """The engine that moves the tensors: "torch:gloo"; "none" in a world of one."""
        return self._session.engine

    @property
    def device(self) -> Device:
        """The device of this process: `xdevice.local_device()`."""
        return self._session.device

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def __repr__(self) -> str:
        state = "" if self._depth else ", closed"
        return f"<world: rank {self.rank} of {self.size} by {self.launcher}, engine {self.engine}{state}>"

    def __enter__(self) -> World:
        global _current
        if self._depth == 0:
            if _current is not None:
                raise ScopeError("this process is in the block of another world; leave it first")
            self._session.join()
            _current = self
        self._depth += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: object) -> None:
        global _current
        self._depth -= 1
        if self._depth == 0:
            _current = None
            self._session.leave(error)

    def all_reduce(self, x: Any, op: str = "sum", weight: float | None = None) -> Any:
        """The sum, mean, max or min over all ranks, on each of them, bit for bit the same. Use the result.

        Where a tensor can be written it is written, and comes back: `xdevice.all_reduce` lists which can. 16-bit floats
        are added as float32 and rounded once; integers wrap around.

        Args:
            x: a tensor, or a container of tensors, with the same keys, dtypes and shapes on each rank.
            op: "sum", "mean", "max" or "min". Bools have only the last two, complex numbers only the first two.
            weight: with "mean", what this rank's `x` counts, as the number of its samples: sum(weight * x) divided by
                sum(weight). 0 where this rank has none; then its values do not matter, NaN included.

        Raises:
            NotATensorError, DTypeError, ArgumentError, UnsupportedError: as `xdevice.all_reduce`. ArgumentError also
                for a weight below 0, or weights of 0 on all ranks.
        """
        return collectives.all_reduce(self._session, x, op, weight)

    def broadcast(self, x: Any, root: int = 0) -> Any:
        """One rank's values on all. Use the result.

        Args:
            x: a tensor, a model, or a container of them, with the same keys, dtypes and shapes on each rank. Of a model
                all variables are written in place, running statistics included. Tensors are written where they can be.
                Numbers and texts in a container are not sent: they must be the same on all ranks, or it is a
                CollectiveMismatchError. Make a tensor of a number that only one rank knows.
            root: the rank whose values they are.

        Raises:
            NotATensorError: nothing that holds a tensor. NotBuiltError: a model without variables yet. ArgumentError:
                a root that is not a rank.
        """
        return collectives.broadcast(self._session, x, root)

    def all_gather(self, x: Any, even: bool = True) -> Any:
        """The tensors of all ranks joined along the first axis, in the order of ranks, on each of them. New tensors.

        Args:
            x: a tensor, or a container of tensors, alike on each rank; 0-d tensors become a vector. Numbers and texts
                in a container are not sent, as in `broadcast`.
            even: True: all have the same shape. False: the lengths of the first axis may differ, 0 included.

        Raises:
            NotATensorError: a model, or nothing that holds a tensor.
        """
        return collectives.all_gather(self._session, x, even)

    def reduce_scatter(self, x: Any, op: str = "sum") -> Any:
        """This rank's part, along the first axis, of what `all_reduce` gives. New tensors; `x` stays as it is.

        Raises:
            ShapeError: a length of the first axis that the number of ranks does not divide. Others as `all_reduce`.
        """
        return collectives.reduce_scatter(self._session, x, op)

    def send(self, x: Any, to: int) -> None:
        """Gives a tensor, or a container of tensors, to one rank, which calls `recv` with one like it.

        The two agree before, also with `check=False`; the others do not take part. Numbers and texts in a container are
        not sent, as in `broadcast`.
        """
        collectives.send(self._session, x, to)

    def recv(self, like: Any, source: int) -> Any:
        """What one rank gives by `send`. Use the result: `like` is written where it can be, else a new tensor comes."""
        return collectives.recv(self._session, like, source)

    def barrier(self) -> None:
        """Waits until all ranks are here. The hosts wait, by the control connection; no device is waited for."""
        turns.barrier(self._session)

    def split_batch(self, x: Any, even: bool = True) -> Any:
        """This rank's part of a batch that all ranks have, along the first axis, where it is. Nothing is sent.

        Args:
            x, even: as `xdevice.split_batch`: with `even=False` the first parts may be longer by one, and the last ones
                empty.

        Raises:
            ShapeError, NotATensorError, UnsupportedError: as `xdevice.split_batch`.
        """
        return collectives.split_batch(self._session, x, even)

    def average_gradients(self, model_or_gradients: Any, weight: float | None = None) -> Any:
        """The mean of each gradient over all ranks, on each of them. Use the result.

        Args:
            model_or_gradients: a model that keeps its gradients (torch, paddle, mxnet), which are written; or a
                container of gradients, in which each is written where it can be.
            weight: as in `all_reduce`: the number of samples of this rank, where they differ.

        A gradient that is None on all ranks stays None; one that is None on some is a CollectiveMismatchError, which
        names it. Small gradients go together, in buckets of one dtype and of 25 MB at most.

        Raises:
            UnsupportedError: a model of a framework that keeps gradients apart: pass them. NotATensorError, DTypeError,
                ArgumentError: as `all_reduce`.
        """
        return gradients.average_gradients(self._session, model_or_gradients, weight)

    def first(self) -> AbstractContextManager[bool]:
        """Rank 0 runs the block first; the others wait, and run it afterwards. Gives whether this is rank 0.

        With `with world.first(): data = load()` rank 0 downloads the data, and the others find it there. Code for rank
        0 alone asks: `with world.first() as is_first: if is_first: xdevice.save(...)`. Rank 0 may take as long as it
        likes. An error that it raises in the block is raised on all ranks, on the others as a PeerError, after which
        the world can still be used. No verb of the world can be called inside.

        """
        return turns.first(self._session)
