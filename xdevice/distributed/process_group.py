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
"""The world whose block this process has entered; None outside such a block."""


def processes(
    *,
    engine: str | None = None,
    timeout: float | None = None,
    join_timeout: float | None = None,
    check: bool | None = None,
) -> World:
    """Returns the block in which the processes of a launcher work together, or, without a launcher, a world of one.
    Experimental: it may change in a minor version.

    A nested block shares the world of the outer block. A rank is late if the other ranks wait for it while nothing
    happens in its process; docs/reference/processes.md explains this, and lists the launchers. XDEVICE_ENGINE,
    XDEVICE_TIMEOUT, XDEVICE_JOIN_TIMEOUT and XDEVICE_CHECK (1 or 0) set the arguments that are omitted.

    Args:
        engine: the engine that moves the tensors: "auto", a framework ("paddle"), or one of its engines ("torch:gloo").
            "auto", the default, chooses PyTorch's gloo on the host, and the framework's own engine on GPUs.
        timeout: the number of seconds after which a rank is late; the default is 30.
        join_timeout: the number of seconds within which all processes must enter the block; the default is 300.
        check: whether the ranks vote on each collective before it starts; the default is True.

    Raises:
        LaunchError: the launcher's variables are incomplete or contradict each other; rank 0 is not on loopback, but no
            XDEVICE_TOKEN is set; no engine exists on all ranks. CollectiveMismatchError: the ranks' arguments differ.
            PeerError: a process fails or is missing. ArgumentError: an argument is invalid, or not the outer block's.

    Costs 20 ms and the start of the engine, which may import PyTorch. A world of one starts no engine.

    Example:
        >>> with xdevice.distributed.processes() as world:
        ...     assert xdevice.item(world.all_reduce(xdevice.tensor(3.0))) == 3 * world.size
    """
    options = Options(
        engines.argument_or_variable(
            engine,
            "XDEVICE_ENGINE",
            default="auto",
            read=str,
            expected="a framework or 'auto'",
        ),
        engines.require_seconds(
            engines.argument_or_variable(
                timeout,
                "XDEVICE_TIMEOUT",
                default=30.0,
                read=float,
                expected="a number of seconds",
            ),
            "timeout",
        ),
        engines.require_seconds(
            engines.argument_or_variable(
                join_timeout,
                "XDEVICE_JOIN_TIMEOUT",
                default=300.0,
                read=float,
                expected="a number of seconds",
            ),
            "join_timeout",
        ),
        # for any value but "1" and "0", the lookup raises KeyError, for which `argument_or_variable` raises its error
        engines.argument_or_variable(
            check,
            "XDEVICE_CHECK",
            default=True,
            read={"1": True, "0": False}.__getitem__,
            expected="1 or 0",
        ),
    )
    if not isinstance(options.engine, str) or type(options.check) is not bool:
        raise ArgumentError(
            f"engine must be a string, and check must be a bool; got engine={shown(engine)} and check={shown(check)}"
        )
    if _current is None:
        return World(options)
    # in a nested block, arguments that are omitted are those of the outer block
    outer = _current.options
    arguments = (engine, timeout, join_timeout, check)
    if any(
        argument is not None and argument != option
        for argument, option in zip(arguments, outer, strict=True)
    ):
        raise ArgumentError(
            f"processes() was called inside a block of processes() with other arguments ({outer}); end that block first"
        )
    return _current


def world() -> World:
    """Returns the `World` of the block `with xdevice.distributed.processes()` that this process has entered.

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
            "this process is not inside a `with` block of processes(); open one: "
            "`with xdevice.distributed.processes() as world:`"
        )
    return _current


class World:
    """All processes that work together, as seen by one of them. `xdevice.distributed.processes()` returns the world.

    Experimental: it may change in a minor version.

    Its attributes are `rank`, `size`, `local_rank`, `local_size`, `launcher`, `device` (the result of
    `xdevice.distributed.local_device()`) and `engine` (the name of the engine that moves the tensors, or "none" in a
    world of one). On TensorFlow, the block of a world with several processes also has the effect of `with device:`.

    Every rank must call the same methods in the same order, from one thread. The methods accept tensors of any backend,
    on `device` or on the host, and containers of such tensors. They raise PeerError if a rank has failed or is late.
    This closes the world: the tensors of the call may then contain any values, and every later call raises the same
    error at once. The methods raise CollectiveMismatchError if the ranks call different methods or pass tensors that do
    not match; in this case, no tensor has been written. No gradients flow through any of the methods.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._session = session = Session(options)
        self.rank, self.size = session.rank, session.size
        self.local_rank, self.local_size = session.launch.local_rank, session.launch.local_size
        self.launcher = session.launch.launcher
        # the number of nested blocks of this world that the program has entered
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
                    "this process is in the `with` block of another world; leave that block first"
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
        """Returns the sum, mean, max or min of `x` over all ranks, identical on each rank. Use the return value.

        If a tensor can be written (`xdevice.parallel.all_reduce` lists which tensors can), the result is written to it,
        and this tensor is returned; otherwise a new tensor is returned. 16-bit floats are added as float32 and rounded
        once; integers wrap around.

        Args:
            x: a tensor, or a container of tensors, with the same keys, dtypes and shapes on each rank.
            op: "sum", "mean", "max" or "min". Bools support only "max" and "min", complex numbers only "sum" and
                "mean".
            weight: for "mean", the weight of this rank's `x`, such as its number of samples: the mean is
                sum(weight * x) / sum(weight). With weight 0 the values of `x` are ignored, even if they are NaN.

        Raises:
            NotATensorError, DTypeError, ArgumentError, UnsupportedError: as in `xdevice.parallel.all_reduce`.
            Also raises ArgumentError for a weight below 0, or if the weights of all ranks are 0.

        Costs the engine's own time and a vote. The max and min of floats need two reductions, because engines lose NaN:
        for 64 MB, two processes on one machine took 0.46 s, compared with 0.06 s for the sum (PyTorch, gloo, one thread
        each).
        """
        return collectives.all_reduce(self._session, x, op, weight)

    def broadcast(self, x: Any, root: int = 0) -> Any:
        """Sends the values that `x` has on the rank `root` to all ranks. Use the return value.

        Args:
            x: a tensor, a model, or a container of tensors and models, with the same keys,
                dtypes and shapes on each rank. All variables of a model are written in place,
                including running statistics and the variables of layers in plain lists. Tensors
                that can be written are also written in place; for other tensors, new tensors
                are returned. Numbers and strings in a container are not sent. They must be the
                same on all ranks, or CollectiveMismatchError is raised. To send a number that
                only one rank has, make it a tensor. The numbers that an optimizer does not store in its variables must
                also be the same: all numbers of a PyTorch optimizer, and the learning rate of a Paddle optimizer or a
                Gluon Trainer.
            root: the rank whose values are sent.

        Raises:
            NotATensorError: `x` contains no tensor. NotBuiltError: a model has no variables yet. ArgumentError: `root`
                is not a rank.
        """
        return collectives.broadcast(self._session, x, root)

    def all_gather(self, x: Any, even: bool = True) -> Any:
        """Returns, on every rank, the tensors of all ranks, joined along the first axis in the order of the ranks.

        The tensors returned are new; `x` is not written.

        Args:
            x: a tensor, or a container of tensors, with the same keys, dtypes and shapes on each rank. 0-d tensors are
                joined to a vector. Numbers and strings in a container are not sent and must be the same on all ranks.
            even: False allows the length of the first axis to differ between ranks, and to be 0.

        Raises:
            NotATensorError: `x` is a model, or contains no tensor.
        """
        return collectives.all_gather(self._session, x, even)

    def reduce_scatter(self, x: Any, op: str = "sum") -> Any:
        """Reduces `x` over all ranks, as `all_reduce` does, and returns this rank's part along the first axis.

        The tensors returned are new; `x` is not written.

        Raises:
            ShapeError: the length of the first axis is not a multiple of the number of ranks. Also raises the errors of
                `all_reduce`.
        """
        return collectives.reduce_scatter(self._session, x, op)

    def send(self, x: Any, to: int) -> None:
        """Sends a tensor, or a container of tensors, to the rank `to`, which must call `recv` with the same structure.

        The two ranks compare dtypes and shapes first, even in a world that was opened with `check=False`; the other
        ranks do not take part. Numbers and strings in a container are not sent and must be the same on both ranks.
        """
        collectives.send(self._session, x, to)

    def recv(self, like: Any, source: int) -> Any:
        """Receives the tensors that the rank `source` passes to `send`. Use the return value:
        if a tensor of `like` can be written in place, the received values are written to it,
        and this tensor is returned; otherwise a new tensor is returned."""
        return collectives.recv(self._session, like, source)

    def barrier(self) -> None:
        """Waits until all ranks have called `barrier`. It does not wait for work that is queued on devices."""
        host_collectives.barrier(self._session)

    def split_batch(self, x: Any, even: bool = True) -> Any:
        """Returns this rank's part of the batch `x` along the first axis. Every rank must have the whole batch. Nothing
        is sent or moved to another device.

        Args:
            x, even: as in `xdevice.split_batch`: with `even=False`, the first parts may be longer by one, and the last
                parts may be empty.

        Raises:
            ShapeError, NotATensorError, UnsupportedError: as in `xdevice.split_batch`.
        """
        return collectives.split_batch(self._session, x, even)

    def split_range(
        self, count: int, pad: bool = False, seed: int | None = None
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Returns this rank's part of the indices 0 to count - 1 of a data set, as a NumPy array of int64.

        All ranks vote on the arguments. Without `pad`, each index goes to exactly one rank. The indices are split in
        the order of the ranks, as by `split_batch` with `even=False`, so the first ranks may get one index more than
        the others.

        Args:
            count: the number of samples in the data set, which must be the same on all ranks.
            pad: if True, all ranks get the same number of indices: the first indices are repeated after the last one.
            seed: if not None, the indices are shuffled. On every backend, they have the order that
                `xdevice.random.permutation(count)` draws after `xdevice.random.seed(seed)`. Use a different seed in
                each epoch, such as the number of the epoch.

        Raises:
            ArgumentError: `count` or `seed` is not a non-negative int.

        Costs a vote and 8 bytes for each index; with a seed, 40 ns and 8 bytes for each sample of the data set.

        Example:
            >>> with xdevice.distributed.processes() as world:
            ...     world.split_range(5, seed=0).tolist()
            [0, 3, 4, 2, 1]
        """
        return host_collectives.split_range(self._session, count, pad, seed)

    def all_gather_object(self, value: Any) -> list[Any]:
        """Returns, on every rank, a list of the values of all ranks, in the order of the ranks.

        Args:
            value: None, a bool, an int, a float, a str, or a list or dict (with str as keys) of
                these. It is sent as JSON over the control connection, never pickled, so
                receiving it runs no code.

        Raises:
            ArgumentError: JSON would change the value, as it changes a tuple to a list; or the
                values of all ranks together are larger than 16 MB.
        """
        return host_collectives.all_gather_object(self._session, value)

    def average_gradients(self, model_or_gradients: Any, weight: float | None = None) -> Any:
        """Averages each gradient over all ranks, and returns the means on every rank. Use the return value.

        Args:
            model_or_gradients: a model that stores its gradients (torch, paddle, mxnet), which are written in place; or
                a container of gradients. In a container, each gradient that can be written is written in place; for
                other gradients, new tensors are returned.
            weight: as in `all_reduce`: the number of samples of this rank, if this number differs between ranks.

        A gradient that is None on all ranks stays None. If a gradient is None on only some
        ranks, CollectiveMismatchError is raised and names this gradient. Small gradients are
        sent together, in buckets of at most 25 MB, each with gradients of one dtype.

        Raises:
            UnsupportedError: the framework does not store gradients in the model (pass the gradients instead); the
                model has a trainable layer in a plain list, where the framework does not find the layer.
                NotATensorError, DTypeError, ArgumentError: as in `all_reduce`.
        """
        return gradients.average_gradients(self._session, model_or_gradients, weight)

    def averaging(
        self, model: Any, weight: float | None = None
    ) -> AbstractContextManager[None]:
        """Returns a block for one backward pass. Afterwards, each gradient of the model has been replaced by its mean
        over all ranks.

        In `with world.averaging(model): loss.backward()`, PyTorch and Paddle send gradients, in buckets of 25 MB, while
        the pass computes the next gradients. With MXNet, and with engines other than PyTorch's, the gradients are sent
        after the pass. Sending needs as much additional memory as the gradients occupy. The means include gradients
        from earlier passes. To accumulate several batches, run only the last pass in the block.

        Args:
            model: a model that stores its gradients (torch, paddle, mxnet), with the same parameters on each rank.
            weight: as in `all_reduce`: the number of samples of this rank, if this number differs between ranks.

        The ranks vote when the block begins and when it ends. No other collective can be called
        inside the block. A gradient that is None on all ranks stays None. If a gradient is None
        on only some ranks, CollectiveMismatchError names it, and no gradient is changed. An
        error inside the block closes the world: the other ranks raise PeerError.

        Raises:
            NotATensorError: `model` is not a model, or has no trainable parameters. ScopeError: two backward passes
                were run in the block.
            UnsupportedError: the framework does not store gradients in the model (use `average_gradients`); the model
                has a trainable layer in a plain list; after the pass, a gradient is sparse, or spread over processes.
            DTypeError, ArgumentError: as in `all_reduce`.
        """
        return gradients.averaging(self._session, model, weight)

    def native_group(self) -> None:
        """Creates the framework's own process group from these processes: PyTorch's default process group.

        From then on, and until the block of this world ends, DDP, FSDP (`fully_shard`),
        DTensor, and the libraries that use `torch.distributed` work on this world. If the
        program has called `init_process_group` itself, that group is used. The ranks do not
        vote on PyTorch's own collectives, but if a rank dies or raises an error, the errors on
        the other ranks name that rank.

        Raises:
            UnsupportedError: the backend in use has no such group; only PyTorch has one. LaunchError: the program's own
                group does not exist on all ranks, or its ranks differ from the ranks of this world.
        """
        self._session.start_native_group()

    def first(self) -> AbstractContextManager[bool]:
        """Returns a block that rank 0 runs first, while the other ranks wait. The value after `as` is True on rank 0,
        and False on the other ranks.

        In `with world.first(): data = load()`, rank 0 downloads the data, and the other ranks find the data on disk. To
        run code only on rank 0, write `with world.first() as is_first: if is_first: xdevice.save(...)`. Rank 0 may
        spend any length of time in the block. An error that rank 0 raises in the block is raised on the other ranks as
        a PeerError, and the world can still be used afterwards. No collective of the world can be called inside the
        block.
        """
        return host_collectives.first(self._session)
