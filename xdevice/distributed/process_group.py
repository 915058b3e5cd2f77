"""`processes` and `World`: the block in which several processes work together, and the
collectives that they call in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from xdevice.errors import ArgumentError, LaunchError, ScopeError, UnsupportedError, shown

from . import collectives, engines, gradients, host_collectives
from .session import Options, Session

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import numpy as np

    from xdevice.base.devices import Device

_current: World | None = None
"""The world whose block this process is in."""


def processes(
    *,
    engine: str | None = None,
    timeout: float | None = None,
    join_timeout: float | None = None,
    check: bool | None = None,
) -> World:
    """Returns the block in which the processes that a launcher started work together; without one, a world of one.

    Experimental: it may change in a minor version.

    A nested block has the same world. A rank counts as late if the others wait for it while nothing happens in its
    process; docs/reference/processes.md explains this, and lists the launchers. XDEVICE_ENGINE, XDEVICE_TIMEOUT,
    XDEVICE_JOIN_TIMEOUT and XDEVICE_CHECK (1 or 0) set the arguments that are left out.

    Args:
        engine: the engine that moves the tensors: "auto", a framework ("paddle"), or one of its engines ("torch:gloo").
            "auto", the default, takes PyTorch's gloo on the host, and on GPUs the framework's own engine.
        timeout: seconds after which a rank counts as late: 30 by default.
        join_timeout: seconds in which all processes have to enter the block: 300 by default.
        check: whether the ranks vote on each collective before it starts: by default they do.

    Raises:
        LaunchError: the launcher's variables are incomplete or contradict each other; rank 0 is not on loopback, but no
            XDEVICE_TOKEN is set; no engine exists on all ranks. CollectiveMismatchError: the ranks' arguments differ.
            PeerError: a process fails or is missing. ArgumentError: an argument is wrong, or a nested block has others.

    Costs 20 ms and the start of the engine, which may import PyTorch; a world of one starts nothing.

    Example:
        >>> with xdevice.distributed.processes() as world:
        ...     assert xdevice.item(world.all_reduce(xdevice.tensor(3.0))) == 3 * world.size
    """
    options = Options(
        engines.setting(engine, "XDEVICE_ENGINE", "auto", str, "a framework or 'auto'"),
        engines.require_seconds(
            engines.setting(timeout, "XDEVICE_TIMEOUT", 30.0, float, "a number of seconds"),
            "timeout",
        ),
        engines.require_seconds(
            engines.setting(
                join_timeout, "XDEVICE_JOIN_TIMEOUT", 300.0, float, "a number of seconds"
            ),
            "join_timeout",
        ),
        engines.setting(
            check, "XDEVICE_CHECK", True, {"1": True, "0": False}.__getitem__, "1 or 0"
        ),
    )
    if not isinstance(options.engine, str) or type(options.check) is not bool:
        raise ArgumentError(
            f"engine must be a string, and check True or False, but they are {shown(engine)} and {shown(check)}"
        )
    if _current is None:
        return World(options)
    # a nested block: arguments that are left out are those of the outer block
    outer = _current.options
    arguments = (engine, timeout, join_timeout, check)
    if any(
        value is not None and value != own for value, own in zip(arguments, outer, strict=True)
    ):
        raise ArgumentError(
            f"this call is already inside a block of processes with {outer}; leave that block first"
        )
    return _current


def world() -> World:
    """Returns the `World` of the `with xdevice.distributed.processes()` block that this process is in.

    Experimental: it may change in a minor version.

    Raises:
        LaunchError: this process is not in such a block.

    Example:
        >>> with xdevice.distributed.processes() as world:
        ...     xdevice.distributed.world() is world
        True
    """
    if _current is None:
        raise LaunchError(
            "this process is not in a block of processes; open one: `with xdevice.distributed.processes() as world:`"
        )
    return _current


class World:
    """All processes that work together, from the view of one of them.
    `xdevice.distributed.processes()` returns it.

    Experimental: it may change in a minor version.

    Its attributes are `rank`, `size`, `local_rank`, `local_size`, `launcher`, `device`, which
    is `xdevice.distributed.local_device()`, and `engine`, the name of the engine that moves the
    tensors ("none" in a world of one). On TensorFlow, the block also works as `with device:`.

    Every rank must call the same methods in the same order, from one thread. The methods take tensors of any backend,
    on `device` or on the host, and containers of them. They raise PeerError if a rank has failed or is late; that
    closes the world: the tensors of the call may hold anything, and every later call raises the same error at once.
    They raise CollectiveMismatchError if the ranks call different methods or pass tensors that do not match; then
    nothing was written. No gradients flow through any of the methods.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._session = session = Session(options)
        self.rank, self.size = session.rank, session.size
        self.local_rank, self.local_size = session.launch.local_rank, session.launch.local_size
        self.launcher = session.launch.launcher
        # how many nested blocks of this world the program is in
        self._depth = 0

    @property
    def engine(self) -> str:
        """The name of the engine that moves the tensors, such as "torch:gloo"; "none" in a world of one."""
        return self._session.engine

    @property
    def device(self) -> Device:
        """The device of this process: `xdevice.distributed.local_device()`."""
        return self._session.device

    @property
    def is_first(self) -> bool:
        """Whether this process is rank 0."""
        return self.rank == 0

    def __repr__(self) -> str:
        state = "" if self._depth else ", closed"
        return f"<world: rank {self.rank} of {self.size} by {self.launcher}, engine {self.engine}{state}>"

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            "a world belongs to one process and cannot be copied or pickled; call "
            "xdevice.distributed.world() in the function that uses it, or "
            "pass world.rank and world.size"
        )

    def __enter__(self) -> World:
        global _current
        if self._depth == 0:
            if _current is not None:
                raise ScopeError(
                    "this process is in the block of another world; leave that block first"
                )
            self._session.join()
            _current = self
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: object
    ) -> None:
        global _current
        self._depth -= 1
        # only the outermost block leaves the world
        if self._depth == 0:
            _current = None
            self._session.leave(error)

    def all_reduce(self, x: Any, op: str = "sum", weight: float | None = None) -> Any:
        """Returns the sum, mean, max or min of `x` over all ranks, bit for bit the same on each. Use the return value.

        A tensor that can be written (`xdevice.parallel.all_reduce` lists which can) receives the result and is returned
        itself; for others a new tensor is made. 16-bit floats are added as float32 and rounded once; integers wrap
        around.

        Args:
            x: a tensor, or a container of tensors, with the same keys, dtypes and shapes on each rank.
            op: "sum", "mean", "max" or "min". Bools allow only the last two, complex numbers only the first two.
            weight: for "mean", the weight of this rank's `x`, such as its number of samples: the mean is
                sum(weight * x) / sum(weight). With weight 0 the values of `x` do not matter, even if they are NaN.

        Raises:
            NotATensorError, DTypeError, ArgumentError, UnsupportedError: as `xdevice.parallel.all_reduce`.
            ArgumentError also for a weight below 0, or weights of 0 on all ranks.

        Costs the engine's own time and a vote. The max and min of floats take two reductions, because engines lose NaN:
        two processes on one machine took 0.46 s for 64 MB, where the sum took 0.06 (PyTorch, gloo, one thread each).
        """
        return collectives.all_reduce(self._session, x, op, weight)

    def broadcast(self, x: Any, root: int = 0) -> Any:
        """Gives every rank the values that `x` has on rank `root`. Use the return value.

        Args:
            x: a tensor, a model, or a container of them, with the same keys, dtypes and shapes
                on each rank. All variables of a model are written in place, including running
                statistics, and those of layers that it holds in plain lists. So are tensors
                that can be written; others are returned as new tensors. Numbers and texts in a
                container are not sent: they must be the same on all ranks, or
                CollectiveMismatchError is raised. To send a number that only one rank has, make
                it a tensor. The numbers of an optimizer that are not among its variables must
                also be the same: all numbers of a PyTorch optimizer, and the learning rate of a
                Paddle optimizer and of a Gluon Trainer.
            root: the rank that has the values.

        Raises:
            NotATensorError: `x` holds no tensor. NotBuiltError: a model has no variables yet. ArgumentError: `root` is
                not a rank.
        """
        return collectives.broadcast(self._session, x, root)

    def all_gather(self, x: Any, even: bool = True) -> Any:
        """Returns, on every rank, the tensors of all ranks joined along the first axis, in the order of ranks.

        The tensors returned are new; `x` is not written.

        Args:
            x: a tensor, or a container of tensors, with the same keys, dtypes and shapes on each rank; 0-d tensors
                become a vector. Numbers and texts in a container are not sent and must be the same on all ranks.
            even: False allows the length of the first axis to differ between ranks, and to be 0.

        Raises:
            NotATensorError: `x` is a model, or holds no tensor.
        """
        return collectives.all_gather(self._session, x, even)

    def reduce_scatter(self, x: Any, op: str = "sum") -> Any:
        """Reduces `x` over all ranks as `all_reduce` does, and returns this rank's part of it along the first axis.

        The tensors returned are new; `x` is not written.

        Raises:
            ShapeError: the number of ranks does not divide the length of the first axis. Also the errors of
                `all_reduce`.
        """
        return collectives.reduce_scatter(self._session, x, op)

    def send(self, x: Any, to: int) -> None:
        """Sends a tensor, or a container of tensors, to the rank `to`, which must call `recv` with the same structure.

        The two ranks compare dtypes and shapes first, even in a world that was opened with `check=False`; the other
        ranks do not take part. Numbers and texts in a container are not sent and must be the same on both ranks.
        """
        collectives.send(self._session, x, to)

    def recv(self, like: Any, source: int) -> Any:
        """Receives the tensors that the rank `source` passes to `send`. Use the return value:
        tensors of `like` that can be written in place receive the values and are returned
        themselves; for others a new tensor is made."""
        return collectives.recv(self._session, like, source)

    def barrier(self) -> None:
        """Waits until all ranks have called `barrier`. It does not wait for work that is queued on devices."""
        host_collectives.barrier(self._session)

    def split_batch(self, x: Any, even: bool = True) -> Any:
        """Returns this rank's part, along the first axis, of a batch that every rank has whole. Nothing is sent or
        moved to another device.

        Args:
            x, even: as in `xdevice.split_batch`: with `even=False` the first parts may be longer by one, and the last
                parts empty.

        Raises:
            ShapeError, NotATensorError, UnsupportedError: as in `xdevice.split_batch`.
        """
        return collectives.split_batch(self._session, x, even)

    def split_range(
        self, count: int, pad: bool = False, seed: int | None = None
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Returns this rank's part of the indices 0 to count - 1 of a data set, as a NumPy array of int64.

        All ranks vote on the arguments. Each index is on exactly one rank. The indices are split in the order of the
        ranks, as by `split_batch` with `even=False`, so the first ranks may have one more.

        Args:
            count: how many samples the data set has, on every rank.
            pad: True gives all ranks the same number of indices, by repeating the first ones after the last.
            seed: shuffles the indices: they come in the order that `xdevice.random.permutation(count)` draws under
                `xdevice.random.seed(seed)`, on every backend. Use a different seed in each epoch, such as its number.

        Raises:
            ArgumentError: `count` or `seed` is not an int of 0 or more.

        Costs a vote and 8 bytes for each index; with a seed, 40 ns and 8 bytes for each sample of the data set.

        Example:
            >>> with xdevice.distributed.processes() as world:
            ...     world.split_range(5, seed=0).tolist()
            [0, 3, 4, 2, 1]
        """
        return host_collectives.split_range(self._session, count, pad, seed)

    def all_gather_object(self, value: Any) -> list[Any]:
        """Returns, on every rank, a list of the values of all ranks, in the order of ranks:
        `[0]` is that of rank 0.

        Args:
            value: None, a bool, an int, a float, a str, or a list or dict (with str as keys) of
                these. It is sent as JSON over the control connection, never pickled, so
                receiving it runs no code.

        Raises:
            ArgumentError: JSON would change the value, as it changes a tuple to a list; or the
                values of all ranks have more than 16 MB together.
        """
        return host_collectives.all_gather_object(self._session, value)

    def average_gradients(self, model_or_gradients: Any, weight: float | None = None) -> Any:
        """Averages each gradient over all ranks, and gives every rank the means. Use the return value.

        Args:
            model_or_gradients: a model that keeps its gradients (torch, paddle, mxnet), which are written in place; or
                a container of gradients. Those that can be written are; for others new tensors are made.
            weight: as in `all_reduce`: the number of samples of this rank, if it differs between ranks.

        A gradient that is None on all ranks stays None. If it is None on some ranks only,
        CollectiveMismatchError names it. Small gradients are sent together, in buckets of one
        dtype and of 25 MB at most.

        Raises:
            UnsupportedError: the framework does not keep gradients in the model (pass the gradients instead); the
                model holds a trainable layer in a plain list, where the framework does not find it. NotATensorError,
                DTypeError, ArgumentError: as in `all_reduce`.
        """
        return gradients.average_gradients(self._session, model_or_gradients, weight)

    def averaging(
        self, model: Any, weight: float | None = None
    ) -> AbstractContextManager[None]:
        """The block for one backward pass: afterwards each gradient of the model is the mean over all ranks.

        With `with world.averaging(model): loss.backward()` gradients travel while the pass computes the next ones, in
        buckets of 25 MB, with PyTorch and Paddle; with MXNet, and with engines other than PyTorch's, after the pass.
        Sending takes additional memory, as much as the gradients have. Gradients from earlier passes count too, for
        example if several batches are accumulated: run only the last pass in the block.

        Args:
            model: a model that keeps its gradients (torch, paddle, mxnet), with the same parameters on each rank.
            weight: as in `all_reduce`: the number of samples of this rank, if it differs between ranks.

        The ranks vote when the block begins and when it ends. No other collective can be called
        inside. A gradient that is None on all ranks stays None; if it is None on some ranks
        only, CollectiveMismatchError names it, and no gradient is changed. An error inside the
        block closes the world: the other ranks raise PeerError.

        Raises:
            NotATensorError: `model` is not a model, or has no trainable parameters. ScopeError: two backward passes
                ran.
            UnsupportedError: the framework does not keep gradients in the model (use `average_gradients`); the model
            holds a trainable layer in a plain list; after the pass, a gradient is sparse, or spread over processes.
            DTypeError, ArgumentError: as in `all_reduce`.
        """
        return gradients.averaging(self._session, model, weight)

    def native_group(self) -> None:
        """Makes the framework's own group of these processes: PyTorch's default process group.

        From then on DDP, FSDP (`fully_shard`), DTensor, and the libraries that ask
        `torch.distributed` work on this world, until its block ends. If the program has called
        `init_process_group` itself, that group stays. Their collectives are not voted on, but a
        rank that dies or raises an error is named on the other ranks.

        Raises:
            UnsupportedError: the backend in use has no such group (all but PyTorch). LaunchError: the program's own
                group does not exist on all ranks, or has other ranks.
        """
        self._session.start_native_group()

    def first(self) -> AbstractContextManager[bool]:
        """Lets rank 0 run the block first; the other ranks wait, and run it afterwards. Yields whether this is rank 0.

        With `with world.first(): data = load()` rank 0 downloads the data, and the others find it on disk. Code for
        rank 0 alone: `with world.first() as is_first: if is_first: xdevice.save(...)`. Rank 0 may take any time. An
        error that rank 0 raises in the block is raised on the other ranks as a PeerError, and the world can still be
        used afterwards. No collective of the world can be called inside the block.
        """
        return host_collectives.first(self._session)
