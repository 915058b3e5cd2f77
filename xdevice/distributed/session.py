"""`Session`: joins this process to the other ranks, leaves them at the end, and makes each call of an engine between.

A collective first tells the other ranks what it is about to do, and waits until all have said the same. Only then is
the engine called, in a thread of its own, so that the program's thread can stop waiting when a rank fails.
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
from .carrying import Carrier, Weight, require_dtype, require_here
from .control import GOODBYE, LEAVE, describe
from .hub import join
from .placement import local_device
from .runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from xdevice.base.devices import Device
    from xdevice.distributed.contract.processes import NativeGroup
    from xdevice.replicas.operands import Operand

    from .control import Line

NO_WEIGHT: Final = "the weights of all ranks are 0, and a mean of nothing is not a number"

_LARGE: Final = 1 << 24
"""The bytes from which on a copy may take so long that a rank that fails meanwhile would be named late."""
_SLOWEST: Final = 10e6
"""The speed in bytes per second that is expected of the slowest engine: a call may take the time that its bytes need at
this speed, plus the timeout."""
_COUNTED: Final = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
"""The methods of an engine (the library that moves tensors, such as NCCL) that all ranks call at the same time. Their
calls are numbered; those of `send` and `recv` are not."""
_ALONE: Final = launchers.Launch("none", 0, 1, 0, 1, launchers.LOOPBACK, None, "")

_failed: BaseException | None = None
"""The error that ended a world of this process. The other ranks have ended too, so there can be no second world."""


class Options(NamedTuple):
    """The arguments of `processes`, in the order of its signature."""

    engine: str
    timeout: float
    join_timeout: float
    check: bool

    def __str__(self) -> str:
        return f"engine={self[0]!r}, timeout={self[1]:g}, join_timeout={self[2]:g}, check={self[3]}"


class OnAllError(ArgumentError):
    """An error that every rank raises at the same point. It does not close the world: all ranks can go on together."""


class Session:
    """This process's connections to the other ranks: the control connection, and the engine that moves tensors. Each
    `World` has one."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.place = launchers.place() or _ALONE
        self.rank, self.size = self.place.rank, self.place.size
        self.engine = "none"
        self.is_open = False
        self._within = ""
        """The block in which no collective can be called, and why; empty outside such a block."""
        self.plans: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
        """For each model, the facts about its gradients: see `gradients.Plan`."""
        self._has_aborted = False
        self._line: Line | None = None
        self._carrier: Carrier | None = None
        self._runner: Runner | None = None
        self._native: NativeGroup | None = None
        # its text is a function, because only a call that takes long is named to the hub
        self._current_call: tuple[Callable[[], str], list[Operand]] = str, []
        # not re-entrant: a verb that a hook calls inside another verb must be refused too
        self._busy = threading.Lock()
        self._verb = ""
        # a forked child inherits this object, but the connections belong to its parent
        self._pid = os.getpid()
        # asked for on first use: on some frameworks the question starts the GPUs, which an engine may have to start
        # first
        self._device: Device | None = None
        self._scope = ExitStack()

    @property
    def device(self) -> Device:
        if self._device is None:
            self._device = local_device()
        return self._device

    # joining and leaving

    def join(self) -> None:
        """Enters the world when its block begins. If an earlier world failed, raises its error again, because the other
        ranks have ended."""
        if _failed is not None:
            raise _failed
        if self.size > 1:
            self._connect()
            if selection.current().computes_on == "scope" and self.device.kind != "cpu":
                # if entered earlier, it would start TensorFlow before its engine
                self._scope.enter_context(self.device)
        elif self.options.engine != "auto":
            # a world of one refuses the same names as a world of two
            engines.candidates(self.options.engine, selection.current(), self.device)
        self.is_open = True

    def _connect(self) -> None:
        """Opens the control connection, agrees with the other ranks on the options and the engine, and starts the
        engine."""
        self._line = join(self.place, self.options.timeout, self.options.join_timeout)
        self._runner = Runner()
        self._line.liveness.engine_threads.append(self._runner)
        # from here on, the end of rank 0 is noticed even while the program waits inside a framework
        self._line.lost = self._on_lost_hub
        try:
            self._line.vote(f"processes({self.options})")
            # each rank sends the engines that it could start, and all take the first that every rank has
            engine_names = engines.candidates(
                self.options.engine, selection.current(), self.device
            )
            self.engine = engines.agree(self._line.exchange(json.dumps(engine_names)))
            # two ranks on one GPU make PyTorch fail in NCCL, and JAX wait for ever
            if self.engine.endswith(":nccl"):
                engines.require_gpu_each(
                    self.engine, self._line.exchange(engines.gpu_of(self.device))
                )
            self._carrier = self.call(
                "", lambda: f"the start of {self.engine}", self._start, []
            )
        # Ctrl-C too: ranks that wait for this one must hear that it is gone
        except BaseException as error:
            self._close_after_failure(error)
            raise

    def _start(self) -> Carrier:
        backend, engine = engines.start(self.engine, self._group())
        return Carrier(backend, engine, self.size, self.device, self._run_copy)

    def _group(self) -> Group:
        place, line = self.place, self._line
        return Group(
            place.rank, place.size, place.local_rank, place.local_size, self.device,
            launchers.LOOPBACK if line is None else line.host, self.options.timeout,
            (lambda text: [text]) if line is None else line.exchange, self._wait,
        )  # fmt: skip

    def start_native_group(self) -> None:
        """Makes the group of the framework in use, unless this world has made it."""
        backend = selection.current()
        self.ready("native_group")
        # PyTorch has one default group for each process, so a second one would be refused
        if self._native is not None:
            return

        def call() -> str:
            return f"native_group of {backend.name}"

        with self.alone("native_group"):
            self.agree(call)
            native: NativeGroup = self.call(
                "", call, lambda: backend.start_native_group(self._group()), []
            )
        self._native = native
        self._scope.enter_context(native.scope)

    def leave(self, error: BaseException | None) -> None:
        """Leaves the world at the end of its block. `error` is the exception that the block raised, or None."""
        self.is_open = False
        with self._scope:
            self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        """Votes that this rank leaves, and closes the engine; after an error, tells the other ranks instead."""
        native = self._native
        if self._line is None and native is not None:
            self._native = None
            native.close()
        # a forked child leaves nothing: the connections are its parent's
        if self._line is None or os.getpid() != self._pid:
            return
        # NCCL and gloo report a dead peer as a RuntimeError of a socket; the hub knows which rank it was
        if native is not None and isinstance(error, Exception) and self._line.failure is None:
            self._raise_reason(error)
        # sys.exit() and sys.exit(0) are a program's normal end, not a failure
        is_quiet = error is None or (isinstance(error, SystemExit) and error.code in (None, 0))
        if not is_quiet or self._line.failure is not None:
            self._close_after_failure(error)
            return
        try:
            self._line.vote(LEAVE)
        except BaseException as failure:
            self._close_after_failure(failure)
            raise
        self._close()

    def _raise_reason(self, error: Exception) -> None:
        """Raises `PeerError` in place of `error`, if `error` is how the framework's own process group reported the
        failure of another rank."""
        try:
            self.line.raise_reason()
        except PeerError as reason:
            self._close_after_failure(error)
            raise reason from error

    def _close(self) -> None:
        """Closes the engine and the control connection, after all ranks have left the block without an error."""
        runner, carrier, line = self._runner, self._carrier, self._line
        native, self._native = self._native, None
        # first, so that a call during the closing is refused as one outside the block
        self._line = self._carrier = self._runner = None
        if runner is None or carrier is None or line is None:
            return

        def close() -> None:
            if native is not None:
                native.close()
            carrier.engine.close()

        try:
            runner.begin(close)
            # an engine that does not close would keep the process from ending, so it is left behind
            if not runner.ends_within(self.options.timeout):
                exits.arm(None)
                return
            # a rank that fails now has done all that the others needed of it
            with suppress(PeerError):
                runner.result()
                line.vote(GOODBYE)
            runner.stop()
        finally:
            line.close()

    def _close_after_failure(self, error: BaseException | None) -> None:
        """Closes the world after a failure of this rank or of another one."""
        global _failed
        line = self._line
        if line is None:
            return
        if error is not None:
            self._fail(f"rank {self.rank} raised {describe(error)}")
        self._abort()
        exits.arm(error)
        line.close()
        _failed = line.failure

    def _on_lost_hub(self) -> None:
        """Called in another thread when the hub has ended. If that is a failure, the program may be waiting for a GPU
        that waits for means that never arrive."""
        # after the block, the hub's end is the normal end of the world
        if self.is_open:
            self._abort()

    def _abort(self) -> None:
        if self._has_aborted:
            return
        # set before the engines are told: the hub's thread and the program's may both come here
        self._has_aborted = True
        if self._native is not None:
            self._native.abort()
        if self._carrier is not None:
            self._carrier.engine.abort()

    def _fail(self, text: str) -> None:
        """Tells the other ranks that this rank has raised an error, unless the world has failed already."""
        if self.size > 1 and self.line.failure is None:
            self.line.fail("raised", text)
            self.line.end(PeerError(text, self.rank, "raised"))

    # before a verb

    @property
    def line(self) -> Line:
        if self._line is None:
            raise LaunchError("this world is closed: its block was left")
        return self._line

    @property
    def carrier(self) -> Carrier:
        """The object that passes tensors through the engine, which a world of one does not have."""
        if self._carrier is None:
            raise LaunchError("this world is closed, or of one process: it has no engine")
        return self._carrier

    @property
    def is_free(self) -> bool:
        """Whether this is a world of one in which collectives can be called here."""
        return self.size == 1 and self.is_open and not self._within

    def ready(self, verb: str, tensors: Sequence[Operand] = (), op: str | None = None) -> None:
        """Raises if no collective can be called here, or if the engine cannot take one of the tensors; the other ranks
        have not been told anything by then."""
        if os.getpid() != self._pid:
            raise UnsupportedError(
                f"{verb} in a forked child: rank {self.rank} of this world is the process {self._pid}; call it there"
            )
        self.require_open(verb)
        if self._within:
            raise ScopeError(f"{verb} inside {self._within}; call it after the block")
        # a tensor that is traced is refused as a symbol
        for backend in registry.list_loaded() if not tensors else ():
            if (tracer := backend.tracing()) is not None:
                raise backend.unsupported(
                    f"{verb} inside {tracer}, where it works while that traces only",
                    "call it outside",
                )
        self.require(tensors, verb, op)

    def require(self, tensors: Iterable[Operand], verb: str, op: str | None) -> None:
        for one in tensors:
            if self.size > 1:
                self.carrier.require_dtype(one, verb, op)
            else:
                require_dtype(one, op)
            require_here(one, verb, lambda: self.device)

    def require_open(self, verb: str) -> None:
        line = self._line
        if line is not None and line.failure is not None:
            # the same error object is raised by every later call, and would collect the frames of all of them
            raise line.failure.with_traceback(None)
        if not self.is_open:
            raise LaunchError(
                f"{verb} outside the block of this world: with xdevice.distributed.processes() as world:"
            )

    @contextmanager
    def inside(self, what: str) -> Iterator[None]:
        """The block `what`, in which no collective can be called."""
        self._within = what
        try:
            yield
        finally:
            self._within = ""

    @contextmanager
    def alone(self, verb: str) -> Iterator[None]:
        """The block in which a collective works; raises `ScopeError` if another thread is in one. An error raised in
        the block closes the world on all ranks, unless the error came from another rank or all ranks raise it."""
        if not self._busy.acquire(blocking=False):
            raise ScopeError(
                f"{verb} while another thread is in {self._verb}: the order of the two would not be that of the other "
                "ranks; call the verbs of a world from one thread"
            )
        # only for the message that another thread gets
        self._verb = verb
        try:
            if self.size > 1:
                # the thread that is watched for signs of life
                self.line.liveness.thread = threading.current_thread()
            yield
        # the other ranks know of these already
        except (PeerError, CollectiveMismatchError, OnAllError):
            raise
        except BaseException as error:
            self._fail(f"rank {self.rank} raised {describe(error)} in {verb}")
            raise
        finally:
            self._busy.release()

    def require_rank(self, value: object, name: str) -> None:
        if type(value) is not int or not 0 <= value < self.size:
            raise ArgumentError(
                f"{name} must be a rank from 0 to {self.size - 1}, not {shown(value)}"
            )

    # the vote

    def vote(self, call: str, payload: str = "") -> list[str]:
        payloads = self.line.vote(call, payload)
        self.line.started += 1
        return payloads

    def agree(self, call: Callable[[], str], own: float | None = None) -> Weight | None:
        """Votes on the call: tells the other ranks what this rank is about to call, and waits until all have announced
        the same. With `check=False` and no weight, it only counts the call. If this rank has a weight, `own`, returns
        it with the sum of all ranks' weights."""
        if own is not None:
            total = sum(map(float, self.vote(call(), repr(own)))) if self.size > 1 else own
            if total == 0:
                raise OnAllError(NO_WEIGHT)
            return Weight(own, total)
        if self.size == 1:
            return None
        if self.options.check:
            self.vote(call())
        else:
            self.line.started += 1
        return None

    # the engine

    def agree_and_call(
        self, verb: str, call: Callable[[], str], job: Callable[[], Any], tensors: list[Operand]
    ) -> Any:
        with self.alone(verb):
            self.agree(call)
            return self.call(verb, call, job, tensors)

    def call(
        self, verb: str, call: Callable[[], str], job: Callable[[], Any], tensors: list[Operand]
    ) -> Any:
        """Calls the engine by running `job`, and waits until `job` returns or a rank fails. `verb` is the name of the
        engine's method."""
        if self.size == 1:
            return job()
        self._current_call = call, tensors
        try:
            if self._carrier is not None and verb in self._carrier.engine.in_steps:
                return job()
            return self._run_in_engine_thread(job, verb in _COUNTED)
        except PeerError:
            raise
        except Exception:
            self.line.raise_reason()  # raises instead if another rank's failure is the reason
            raise

    def _run_in_engine_thread(self, job: Callable[[], Any], is_counted: bool) -> Any:
        """Runs `job` in the engine's thread, while this one watches the other ranks."""
        runner, line = self._runner, self.line
        if runner is None:
            raise LaunchError("this world is closed: its block was left")
        runner.begin(job)
        line.wait(runner.ends_within, self._describe_call, is_counted)
        return runner.result()

    def _run_copy(self, job: Callable[[], Any]) -> Any:
        """Runs `job`, which copies the tensors of the current call: aside if that may take long, as the first touch of
        a gigabyte of new memory does."""
        is_short = _bytes_of(self._current_call[1]) < _LARGE or self.device.kind != "cpu"
        if is_short or threading.current_thread() is self._runner:
            return job()
        return self._run_in_engine_thread(job, True)

    def _describe_call(self) -> tuple[str, float]:
        """The text of the current call of the engine, and the seconds that it may take."""
        call, tensors = self._current_call
        return call(), self.options.timeout + _bytes_of(tensors) * self.size / _SLOWEST

    def _wait(self, done: Callable[[float], bool]) -> None:
        """For an engine that works in the program's thread: waits until it is done, or raises when a rank fails.
        `done(seconds)` waits at most that long, and returns whether the engine is done."""
        self.line.wait(done, self._describe_call, True)


def _bytes_of(tensors: list[Operand]) -> int:
    return sum(map(operands.bytes_of, tensors))
