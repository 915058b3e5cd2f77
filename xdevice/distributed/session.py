"""`Session`: connects this process to the other ranks, makes each call of the engine, and
disconnects at the end.

A collective first sends the other ranks a description of the call, and waits until all ranks
have sent the same description. Only then is the engine called, usually in its own thread, so
that the program's thread can stop waiting when a rank fails.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from xdevice.core import registry, selection
from xdevice.distributed.contract.processes import Group
from xdevice.errors import (
    ArgumentError,
    CollectiveMismatchError,
    LaunchError,
    PeerError,
    ScopeError,
    UnsupportedError,
    shown,
)
from xdevice.replicas import operands

from . import engines, exits, launchers
from .carrying import Carrier, Weight, require_sendable, require_sendable_dtype
from .control import GOODBYE, LEAVE, describe_error
from .hub import join_world
from .placement import local_device
from .runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from xdevice.base.devices import Device
    from xdevice.distributed.contract.processes import NativeGroup
    from xdevice.replicas.operands import Operand

    from .control import Line

NO_WEIGHT: Final = "the weights of all ranks are 0, so there is no weighted mean; at least one weight must be above 0"

_LARGE_COPY_BYTES: Final = 1 << 24
"""A copy of at least this many bytes may take so long that the failure of another rank would be noticed late."""
_SLOWEST_BYTES_PER_SECOND: Final = 10e6
"""The speed of the slowest engine, in bytes per second. A call may take as long as its bytes
need at this speed, plus the timeout."""
_COUNTED_METHODS: Final = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
"""The methods of an engine (the library that moves tensors, such as NCCL) that all ranks call at the same time. The
calls of these methods are numbered; calls of `send` and `recv` are not."""
_ALONE: Final = launchers.Launch(
    "none",
    rank=0,
    size=1,
    local_rank=0,
    local_size=1,
    host=launchers.LOOPBACK,
    port=None,
    run="",
)
"""The `Launch` of a process that was not started by a launcher: rank 0 of 1, local rank 0 of 1."""

_failed: BaseException | None = None
"""The error that has ended a world of this process, or None. After such an error the other ranks have ended too, so
there can be no second world."""


class Options(NamedTuple):
    """The arguments of `processes`, in the order of its signature."""

    engine: str
    timeout: float
    join_timeout: float
    check: bool

    def __str__(self) -> str:
        return (
            f"engine={self.engine!r}, timeout={self.timeout:g}, join_timeout={self.join_timeout:g}, "
            f"check={self.check}"
        )


class OnAllError(ArgumentError):
    """An error that every rank raises in the same call. It does not close the world, because
    all ranks can continue together."""


class Session:
    """This process's connections to the other ranks: the control connection, and the engine that moves tensors. Each
    `World` has one session."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.launch = launchers.find_launch() or _ALONE
        self.rank, self.size = self.launch.rank, self.launch.size
        self.engine = "none"
        self.is_open = False
        self._within = ""
        """If this process is in a block that does not allow collectives, the name of this
        block, for errors; otherwise ""."""
        self.plans: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
        """Maps each model to the plans for its gradients: see `gradients.Plan`."""
        self._has_aborted = False
        self._line: Line | None = None
        self._carrier: Carrier | None = None
        self._runner: Runner | None = None
        self._native: NativeGroup | None = None
        # the current call of the engine: a function that returns the string that describes the
        # call, and the tensors of the call. It is a function because only slow calls need the
        # string. Before the first call it is `str`, which returns ""
        self._current_call: tuple[Callable[[], str], list[Operand]] = str, []
        # held while a collective runs. The lock is not reentrant, so that a collective is also
        # refused if a hook calls it inside another collective, in the same thread
        self._busy = threading.Lock()
        self._verb = ""
        # a forked child inherits this object, but the connections belong to its parent
        self._pid = os.getpid()
        # set at the first use, because some frameworks initialize the GPUs when they look for
        # the device, and an engine may have to be the first to initialize them
        self._device: Device | None = None
        # the context managers that are entered as long as the program is in the world
        self._scope = ExitStack()

    @property
    def device(self) -> Device:
        """The device of this process."""
        if self._device is None:
            self._device = local_device()
        return self._device

    # joining and leaving

    def join(self) -> None:
        """Enters the world when its block begins. If an earlier world has failed, raises the
        error of that world again, because the other ranks no longer exist."""
        if _failed is not None:
            raise _failed
        if self.size > 1:
            self._connect()
            # "scope" means that operations compute on the device of the innermost block, wherever their tensors are
            if selection.current().computes_on == "scope" and self.device.kind != "cpu":
                # only after the engine has started, because entering the device initializes TensorFlow
                self._scope.enter_context(self.device)
        elif self.options.engine != "auto":
            # a world of one raises the same errors for names of engines as a larger world
            engines.candidates(self.options.engine, selection.current(), self.device)
        self.is_open = True

    def _connect(self) -> None:
        """Opens the control connection, agrees with the other ranks on the options and the engine, and starts the
        engine."""
        self._line = join_world(self.launch, self.options.timeout, self.options.join_timeout)
        self._runner = Runner()
        self._line.liveness.engine_threads.append(self._runner)
        # from now on, the end of rank 0 is noticed even while the program is waiting inside a framework
        self._line.on_lost_hub = self._on_lost_hub
        try:
            self._line.vote(f"processes({self.options})")
            # each rank sends the names of the engines that it can start, and all ranks choose the first engine that
            # every rank has
            engine_names = engines.candidates(
                self.options.engine, selection.current(), self.device
            )
            self.engine = engines.choose_common(self._line.exchange(json.dumps(engine_names)))
            # with two ranks on one GPU, PyTorch would fail in NCCL, and JAX would wait for ever
            if self.engine.endswith(":nccl"):
                engines.require_distinct_gpus(
                    self.engine, self._line.exchange(engines.gpu_identity(self.device))
                )
            # "" and [], because this call is no collective, and sends no tensors
            self._carrier = self.call_engine(
                "", lambda: f"the start of {self.engine}", self._start_engine, tensors=[]
            )
        # `BaseException` includes Ctrl-C: the ranks that wait for this rank must learn that it is gone
        except BaseException as error:
            self._close_after_failure(error)
            raise

    def _start_engine(self) -> Carrier:
        """Starts the engine that the ranks have agreed on, and returns the object that passes
        tensors through it."""
        backend, engine = engines.start(self.engine, self._group())
        return Carrier(backend, engine, self.size, self.device, self._run_copy)

    def _group(self) -> Group:
        """Returns the `Group` of this process, with which an engine is started."""
        launch, line = self.launch, self._line
        # a world of one has no line: its address is loopback, and an exchange returns only its own text
        return Group(
            rank=launch.rank,
            size=launch.size,
            local_rank=launch.local_rank,
            local_size=launch.local_size,
            device=self.device,
            host=launchers.LOOPBACK if line is None else line.host,
            timeout=self.options.timeout,
            exchange=(lambda text: [text]) if line is None else line.exchange,
            wait=self._wait,
        )

    def start_native_group(self) -> None:
        """Does the work of `World.native_group`: creates the framework's own process group,
        unless this world already has one."""
        backend = selection.current()
        self.require_ready("native_group")
        # PyTorch allows only one default group in each process, so creating a second one would fail
        if self._native is not None:
            return

        def describe_call() -> str:
            """Returns the string that describes this call. The string must be the same on all ranks."""
            return f"native_group of {backend.name}"

        with self.exclusive("native_group"):
            self.agree_on_call(describe_call)
            # "" and [], because this call is no collective of the engine, and sends no tensors
            native: NativeGroup = self.call_engine(
                "",
                describe_call,
                lambda: backend.start_native_group(self._group()),
                tensors=[],
            )
        self._native = native
        self._scope.enter_context(native.scope)

    def leave(self, error: BaseException | None) -> None:
        """Leaves the world at the end of its block. `error` is the exception that the block raised, or None."""
        self.is_open = False
        # the context managers in `_scope` were entered earlier, and are left at the end of this block, even after an
        # error
        with self._scope:
            self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        """Votes to leave the block, and closes the engine. After an error, reports the error to the other ranks
        instead."""
        native = self._native
        # a world of one has no control connection, but may have the framework's own group
        if self._line is None and native is not None:
            self._native = None
            native.close()
        # in a forked child there is nothing to close, because the connections belong to its parent
        if self._line is None or os.getpid() != self._pid:
            return
        # NCCL and gloo report a dead rank as a RuntimeError about a socket; only the hub knows which rank has died
        if native is not None and isinstance(error, Exception) and self._line.failure is None:
            self._raise_if_a_rank_failed(error)
        # sys.exit() and sys.exit(0) end a program normally, and are not failures
        is_normal_end = error is None or (
            isinstance(error, SystemExit) and error.code in (None, 0)
        )
        if not is_normal_end or self._line.failure is not None:
            self._close_after_failure(error)
            return
        try:
            self._line.vote(LEAVE)
        except BaseException as failure:
            self._close_after_failure(failure)
            raise
        self._close()

    def _raise_if_a_rank_failed(self, error: Exception) -> None:
        """If the hub reports that another rank has failed, raises the `PeerError` for this rank instead of `error`. The
        framework's own process group may have raised `error` because of this failure. Returns normally if the hub
        reports no failure.
        """
        try:
            self.line.raise_if_a_rank_failed()
        except PeerError as reason:
            self._close_after_failure(error)
            raise reason from error

    def _close(self) -> None:
        """Closes the framework's own group, the engine and the control connection, after all ranks have left the block
        without an error. An engine that does not close within `timeout` seconds is abandoned. The failure of a rank at
        this point is ignored. If no engine was started, does nothing. Raises any error that closing the engine
        raises."""
        runner, carrier, line = self._runner, self._carrier, self._line
        native, self._native = self._native, None
        # set to None first, so that a collective that is called while the engine closes is
        # refused, as it would be outside the block
        self._line = self._carrier = self._runner = None
        if runner is None or carrier is None or line is None:
            return

        def close() -> None:
            """Closes the framework's own group, if there is one, and the engine."""
            if native is not None:
                native.close()
            carrier.engine.close()

        try:
            runner.begin(close)
            # an engine that does not close in time is abandoned, because the process must be
            # able to end
            if not runner.ends_within(self.options.timeout):
                exits.skip_exit_hooks(error=None)
                return
            # a rank that fails at this point has already done its part in every collective, so
            # its failure is ignored
            with suppress(PeerError):
                runner.result()
                line.vote(GOODBYE)
            runner.stop()
        finally:
            line.close()

    def _close_after_failure(self, error: BaseException | None) -> None:
        """Closes the world after a failure of this rank or of another rank. `error` is the
        exception of this rank, or None. Afterwards no other world can be opened."""
        global _failed
        line = self._line
        if line is None:
            return
        if error is not None:
            self._fail(f"rank {self.rank} raised {describe_error(error)}")
        self._abort()
        exits.skip_exit_hooks(error)
        line.close()
        _failed = line.failure

    def _on_lost_hub(self) -> None:
        """Aborts the engine if the hub has ended after a failure. Otherwise, the program might wait for ever for a GPU
        that waits for other ranks. This method is called in another thread.
        """
        # outside the block, the end of the hub is the normal end of the world
        if self.is_open:
            self._abort()

    def _abort(self) -> None:
        """Aborts the engine and the framework's own group, once."""
        if self._has_aborted:
            return
        # set before the work begins, because the program's thread and another thread may both call this
        self._has_aborted = True
        if self._native is not None:
            self._native.abort()
        if self._carrier is not None:
            self._carrier.engine.abort()

    def _fail(self, text: str) -> None:
        """Reports to the other ranks that this rank has raised an error, which `text`
        describes. Does nothing in a world of one, or if the world has already failed."""
        if self.size > 1 and self.line.failure is None:
            self.line.fail("raised", text)
            self.line.record_failure(PeerError(text, self.rank, "raised"))

    # checks before a collective

    @property
    def line(self) -> Line:
        """This process's side of the control connection. Raises `LaunchError` if the world is
        closed, or has only one process."""
        if self._line is None:
            raise LaunchError("this world is closed, because its `with` block has ended")
        return self._line

    @property
    def carrier(self) -> Carrier:
        """The object that passes tensors through the engine. Raises `LaunchError` if the world
        has no engine, because it is closed or has only one process."""
        if self._carrier is None:
            raise LaunchError(
                "this world has no engine, because it is closed or has only one process"
            )
        return self._carrier

    @property
    def is_ready_world_of_one(self) -> bool:
        """Whether this world has only one process, its block is open, and the process is in no block that forbids
        collectives. If so, a collective may return its argument at once."""
        return self.size == 1 and self.is_open and not self._within

    def require_ready(
        self, verb: str, tensors: Sequence[Operand] = (), op: str | None = None
    ) -> None:
        """Raises an error if the collective `verb` cannot be called now, or if the engine does
        not support one of the tensors. `op` is the name of the reduction, or None if the
        collective does not reduce. Sends nothing to the other ranks."""
        # in a forked child: the connections belong to the parent
        if os.getpid() != self._pid:
            raise UnsupportedError(
                f"{verb} was called in a forked child, but rank {self.rank} is process {self._pid}; call "
                f"{verb} in that process"
            )
        self.require_open(verb)
        if self._within:
            raise ScopeError(
                f"{verb} was called inside {self._within}; call it after the block"
            )
        # a call without tensors, such as `barrier`, may come from a function that is being
        # traced; if there are tensors, `require_supported` refuses traced ones
        if not tensors:
            for backend in registry.list_loaded():
                if (tracer := backend.tracing()) is not None:
                    raise backend.unsupported(
                        f"{verb} inside {tracer}, where it would run only during tracing",
                        "call it outside the traced function",
                    )
        self.require_supported(tensors, verb, op)

    def require_supported(self, tensors: Iterable[Operand], verb: str, op: str | None) -> None:
        """Raises an error if the engine does not support one of the tensors in the collective `verb`. In a world of
        one, which has no engine, raises an error for the tensors that no engine supports."""
        for operand in tensors:
            if self.size > 1:
                self.carrier.require_supported_dtype(operand, verb, op)
            else:
                require_sendable_dtype(operand, op)
            require_sendable(operand, verb, lambda: self.device)

    def require_open(self, verb: str) -> None:
        """Raises the error that has closed this world, if any, or `LaunchError` if the program
        is outside the block of this world."""
        line = self._line
        if line is not None and line.failure is not None:
            # removes the old traceback, because each call raises the same object, which would
            # otherwise collect the frames of all calls
            raise line.failure.with_traceback(None)
        if not self.is_open:
            raise LaunchError(
                f"{verb} was called outside the block `with xdevice.distributed.processes() as world:`"
            )

    @contextmanager
    def forbid_collectives(self, what: str) -> Iterator[None]:
        """A block in which no collective may be called, for example because the ranks are in it at different times, as
        in the block of `World.first`. A collective in the block raises `ScopeError`, which names the block: `what`."""
        self._within = what
        try:
            yield
        finally:
            self._within = ""

    @contextmanager
    def exclusive(self, verb: str) -> Iterator[None]:
        """A block in which the collective `verb` runs, and no other collective can run. Raises `ScopeError` if this
        thread or another thread is already in such a block. An error in the block closes the world on all ranks, unless
        the error came from another rank or is raised by all ranks."""
        if not self._busy.acquire(blocking=False):
            raise ScopeError(
                f"{verb} was called before {self._verb} had ended, so other ranks may run the two in a different "
                "order; call the methods of a world from one thread, one after the other"
            )
        # stored for the error that is raised if another thread calls a collective in the meantime
        self._verb = verb
        try:
            if self.size > 1:
                # from now on this thread is watched for signs of life
                self.line.liveness.thread = threading.current_thread()
            yield
        # these errors do not have to be reported to the other ranks
        except (PeerError, CollectiveMismatchError, OnAllError):
            raise
        except BaseException as error:
            self._fail(f"rank {self.rank} raised {describe_error(error)} in {verb}")
            raise
        finally:
            self._busy.release()

    def require_rank(self, value: object, name: str) -> None:
        """Raises `ArgumentError` if `value`, the argument called `name`, is not a rank of this world."""
        if type(value) is not int or not 0 <= value < self.size:
            raise ArgumentError(
                f"{name} must be a rank from 0 to {self.size - 1}, not {shown(value)}"
            )

    # voting with the other ranks

    def vote(self, call: str, payload: str = "") -> list[str]:
        """Votes with the other ranks on the string `call`, and increments the number of calls that this rank has begun.
        Returns the payloads of all ranks (the strings that the ranks attach to their votes)."""
        payloads = self.line.vote(call, payload)
        self.line.started += 1
        return payloads

    def agree_on_call(
        self, describe_call: Callable[[], str], own: float | None = None
    ) -> Weight | None:
        """Votes on a collective: sends the other ranks the string that `describe_call` returns, and waits until all
        ranks have sent the same string. With `check=False` and no weight, does not vote, and only counts the call.

        If this rank has a weight, `own`, returns this weight and the sum of the weights of all ranks; otherwise returns
        None. Raises `OnAllError` if that sum is 0, and the errors of `Line.vote`."""
        if own is not None:
            total = own
            if self.size > 1:
                # `repr` preserves every bit of the weight
                total = sum(map(float, self.vote(describe_call(), repr(own))))
            if total == 0:
                raise OnAllError(NO_WEIGHT)
            return Weight(own, total)
        if self.size == 1:
            return None
        if self.options.check:
            self.vote(describe_call())
        else:
            # otherwise `vote` counts the call
            self.line.started += 1
        return None

    # calling the engine

    def agree_and_call(
        self,
        verb: str,
        describe_call: Callable[[], str],
        job: Callable[[], Any],
        tensors: list[Operand],
    ) -> Any:
        """Votes on a collective, and then calls the engine. The arguments and the result are the same as in the method
        `call_engine`.
        """
        with self.exclusive(verb):
            self.agree_on_call(describe_call)
            return self.call_engine(verb, describe_call, job, tensors)

    def call_engine(
        self,
        verb: str,
        describe_call: Callable[[], str],
        job: Callable[[], Any],
        tensors: list[Operand],
    ) -> Any:
        """Calls the engine by running `job`, and returns the result of `job`. In a world of one, only runs `job`.
        Raises `PeerError` if a rank fails in the meantime.

        Args:
            verb: the name of the engine's method, or "" if the engine's thread is used for something else.
            describe_call: returns the string that describes the call.
            job: the function that makes the call.
            tensors: the tensors that are sent. Their size determines how long the call may take.
        """
        if self.size == 1:
            return job()
        self._current_call = describe_call, tensors
        try:
            # these methods of the engine wait in this thread, with `_wait`, which notices failures
            if self._carrier is not None and verb in self._carrier.engine.in_steps:
                return job()
            return self._run_in_engine_thread(job, is_counted=verb in _COUNTED_METHODS)
        except PeerError:
            raise
        except Exception:
            # if the failure of another rank is the reason, raises that failure instead
            self.line.raise_if_a_rank_failed()
            raise

    def _run_in_engine_thread(self, job: Callable[[], Any], is_counted: bool) -> Any:
        """Runs `job` in the engine's thread, while this thread watches the other ranks, and returns the result of
        `job`. `is_counted` is True if all ranks make this call; only such a call has a number.
        """
        runner, line = self._runner, self.line
        if runner is None:
            raise LaunchError("this world is closed, because its `with` block has ended")
        runner.begin(job)
        line.wait(runner.ends_within, self._describe_current_call, is_counted)
        return runner.result()

    def _run_copy(self, job: Callable[[], Any]) -> Any:
        """Runs `job`, which copies the tensors of the current call, and returns its result. In a process that works on
        the CPU, a copy of at least `_LARGE_COPY_BYTES` runs in the engine's thread, so that the failure of another rank
        is noticed during the copy. Such a copy may take long, for example because it is the first to use a gigabyte of
        new memory."""
        _, tensors = self._current_call
        is_long = _bytes_of(tensors) >= _LARGE_COPY_BYTES and self.device.kind == "cpu"
        # while a job runs in the engine's thread, the program's thread already watches the other ranks
        if not is_long or threading.current_thread() is self._runner:
            return job()
        # only the methods in `Engine.in_steps`, which all ranks call, run their jobs in the program's thread
        return self._run_in_engine_thread(job, is_counted=True)

    def _describe_current_call(self) -> tuple[str, float]:
        """Returns the string that describes the current call of the engine, and the number of
        seconds that the call may take."""
        describe_call, tensors = self._current_call
        return describe_call(), self.options.timeout + _bytes_of(
            tensors
        ) * self.size / _SLOWEST_BYTES_PER_SECOND

    def _wait(self, done: Callable[[float], bool]) -> None:
        """Waits for an engine that works in the program's thread. `done(seconds)` waits for at
        most that many seconds, and returns whether the engine has finished. Raises `PeerError`
        if a rank fails in the meantime."""
        self.line.wait(done, self._describe_current_call, is_counted=True)


def _bytes_of(tensors: list[Operand]) -> int:
    """Returns the total size of these tensors, in bytes."""
    return sum(map(operands.nbytes_of, tensors))
