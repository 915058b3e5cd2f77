"""`parallel.run`: runs independent tasks side by side. Each task has its own thread, which enqueues the work of the
task.

A single Python thread cannot keep two GPUs busy, so streams alone gain little (figures: docs/reference/async.md).
Threads are kept for the next call (`pool`), because starting a thread takes ten times as long as waking an idle one,
and thirty times as long on TensorFlow.

On a backend where each thread can have its own streams, a task works on streams that belong to its thread, one for each
GPU in use. At the start, these streams wait for the work that the caller has enqueued. At the end, the caller's streams
wait for the tasks' streams, so results are ready for use. Memory that a task allocates for anything except its result,
such as a gradient, belongs to the task's stream. The next task on this stream also waits for its own caller, so it does
not write into that memory while the caller still reads it.
"""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice.base import forks
from xdevice.core import generators, registry, selection
from xdevice.errors import ArgumentError, UnsupportedError, note, set_on_error, shown
from xdevice.execution.calls import refuse_generator_function
from xdevice.performance import pool, workers
from xdevice.performance.graphs import refuse_in_capture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from xdevice.base.devices import Device
    from xdevice.contract import Backend


def run(*tasks: Callable[[], Any]) -> list[Any]:
    """Runs independent tasks side by side, and returns their results in order, ready for use.

    Each task runs in its own thread, and on PyTorch on its own stream on every GPU in use. The task inherits
    `with device:`, the selected backend, context variables and the framework's own per-thread state. Up to 32 tasks run
    at once, or one per core on a machine with more than 32 cores; the others wait. Calls can be nested. See
    docs/reference/async.md. Costs tens of microseconds for each task, ten times as much when a thread is started, and
    on GPUs a few microseconds for each tensor in a result.

    Args:
        tasks: functions without arguments, such as lambdas or `functools.partial` objects. `run()` returns `[]`.

    | backend | tasks run | gradients of results in the caller |
    |---|---|---|
    | torch | each in its own thread and on its own streams | yes |
    | tensorflow | each in its own thread | no: differentiate inside the task |
    | mxnet | one after another in the caller's thread; its engine runs the work side by side | yes |
    | paddle | each in its own thread, `paddle.grad` in turn, on the caller's streams; virtual GPUs: as mxnet | yes |
    | jax | each in its own thread | no: differentiate inside the task |
    | numpy | each in its own thread | NumPy has no gradients |

    Raises:
        ArgumentError: an argument cannot be called, or uses `yield` or `async`; no task has started.
        CaptureError: called inside a task that `make_graphed_callable` records.
        Errors of tasks: once all tasks have ended, the error of the failed task that comes first in `tasks` is raised,
            with a note that names this task. Its attribute `other_errors` contains the errors of the other tasks.

    Example:
        >>> x = xdevice.ones(1)
        >>> [xdevice.item(y) for y in xdevice.parallel.run(lambda: x + 1, lambda: x * 3)]
        [2.0, 3.0]
    """
    for number, task in enumerate(tasks):
        if not callable(task):
            raise ArgumentError(
                f"task {number} of xdevice.parallel.run: expected a function without arguments, got {task!r:.100} "
                f"of type {type(task).__qualname__}; write parallel.run(lambda: f(x), lambda: f(y)), not "
                f"parallel.run(f(x), f(y))"
            )
        refuse_generator_function(f"task {number} of xdevice.parallel.run", task)
    if not tasks:
        return []
    refuse_in_capture("parallel.run")
    backend = selection.current()
    gpus = _gpus_in_use(backend)
    # all of these are created before the first task starts, so that each task inherits the
    # state that the caller has now
    runs = [_Run(task, backend, gpus) for task in tasks]
    try:
        _run_all(runs, backend)
        for run in runs:
            # a task may have enabled a mode that the caller needs for using its result, such as MXNet's NumPy semantics
            run.rejoin()
        # necessary even if a task has failed: other tasks may have written into tensors of the caller
        _make_caller_wait(runs, backend, gpus)
        _raise_first(runs)
        return [run.result for run in runs]
    finally:
        # `runs` refers to the exception, whose traceback refers to this frame: a cycle that would keep the results
        # alive
        del runs


def close_pool() -> None:
    """Ends the idle threads that `parallel.run` keeps for its next call, and waits for their end. Busy threads
    continue.

    Experimental: it may change in a minor version.

    The next `parallel.run` starts new threads. A program need not call this function at its end, because the threads
    then end by themselves, after the tasks that are running. If the program ends while one of its daemon threads is
    inside `parallel.run`, the program waits up to 10 seconds for the tasks of that call.

    Example:
        >>> xdevice.parallel.close_pool()
    """
    pool.threads.close()


# one task, and the caller's state in which it runs


class _GpuInUse(NamedTuple):
    """A GPU in use, and an event that was recorded in the caller's stream on this GPU when `parallel.run` was
    called."""

    device: Device
    event: Any


class _Run:
    """One task of a call of `parallel.run`, with the caller's state in which the task runs, and its result or error.
    Calling this object, in any thread, runs the task and never raises an error."""

    def __init__(
        self, task: Callable[[], Any], backend: Backend, gpus: Sequence[_GpuInUse]
    ) -> None:
        self.task = task
        self.result: Any = None
        self.error: BaseException | None = None
        self.events: list[Any] = []
        self._backend = backend
        self._gpus = gpus
        self._context = copy_context()
        # each task draws its own random numbers, whichever task runs first
        self._context.run(generators.use_derived_generator)
        self._states = capture_thread_states()

    def __call__(self) -> None:
        try:
            self._context.run(self._run)
        except BaseException as error:  # the caller's thread raises it
            self.error = error

    def rejoin(self) -> None:
        """Notifies the caller's frameworks, in the caller's thread, that the task has ended."""
        rejoin(self._states)

    def _run(self) -> None:
        """Runs the task on this thread's streams and in the caller's state. Sets `result` or `error`. Also sets
        `events`: one event for each GPU in use, recorded after the task's work on that GPU."""
        with ExitStack() as stack:
            streams = [self._branch(gpu, stack) for gpu in self._gpus]
            # the states are entered after the streams, because entering a stream can change the
            # current device
            for state in self._states:
                stack.enter_context(state())
            try:
                self.result = self.task()
            # caught inside the `with`, because contextlib writes into exceptions, which some
            # exceptions refuse
            except BaseException as error:
                self.error = error
            finally:
                self.events = [
                    record_event(self._backend, gpu.device, stream)
                    for gpu, stream in zip(self._gpus, streams, strict=True)
                ]

    def _branch(self, gpu: _GpuInUse, stack: ExitStack) -> Any:
        """Makes this thread's stream on the GPU `gpu` the current stream until `stack` is closed. The stream first
        waits for the caller's work on that GPU. Returns the stream."""
        stream = _own_stream(self._backend, gpu.device)
        self._backend.stream_wait(stream, gpu.event)
        stack.enter_context(self._backend.stream_scope(stream))
        return stream


def capture_thread_states() -> list[Callable[[], AbstractContextManager[Any]]]:
    """Returns this thread's state (such as its gradient mode) in every loaded backend, as a list of functions. Each
    function creates a context manager. Inside its block, another thread has this state."""
    return [
        # a backend with a `refusal` is left out: this process was forked after the framework
        # had been imported, and cannot use the framework
        backend.thread_state()
        for backend in registry.list_loaded()
        if backend.refusal is None
    ]


def rejoin(states: Iterable[Callable[[], AbstractContextManager[Any]]]) -> None:
    """Calls the function `rejoin` of each state that has one. `states` are the states of the calling thread, which
    another thread has used before it returned a result."""
    for state in states:
        getattr(state, "rejoin", _nothing)()


def _nothing() -> None: ...


_one_at_a_time = forks.unlocked_in_child(threading.RLock())
"""A lock that is held while tasks run on a framework that allows only one thread at a time: MXNet crashes if two
threads record operations on the same input. The lock is reentrant, because a task may call `parallel.run`."""


def _run_all(runs: Sequence[_Run], backend: Backend) -> None:
    """Runs the tasks, side by side if the backend allows it, and returns when all tasks have ended. After Ctrl-C in the
    caller's thread, no more tasks start."""
    if backend.threads == "many":
        with _short_turns(backend):
            pool.threads.run(pool.Call(runs))
    else:
        with _one_at_a_time:
            for run in runs:
                run()
                if isinstance(run.error, KeyboardInterrupt):
                    break
    # if the program is ending, some tasks were dropped, and the caller must not continue
    # without their results
    workers.block_if_ending()


def _raise_first(runs: Sequence[_Run]) -> None:
    """Raises the error of the failed task that comes first in `runs`, with notes about the errors of the other tasks.
    Does nothing if no task failed."""
    failed = [(number, run.error) for number, run in enumerate(runs) if run.error is not None]
    if not failed:
        return
    number, first = failed[0]
    note(
        first,
        f"raised by task {number} of xdevice.parallel.run: {_task_name(runs[number].task)}",
    )
    # the other errors become notes, because ExceptionGroup needs Python 3.11, and hides the
    # type of an error from `except`
    for number, error in failed[1:]:
        note(
            first,
            f"task {number} also failed: {_task_name(runs[number].task)}: {type(error).__qualname__}: "
            f"{_error_text(error)}",
        )
    set_on_error(first, "other_errors", [error for _, error in failed[1:]])
    try:
        raise first
    finally:
        # otherwise the error's traceback and this frame would keep each other alive
        del failed, first


def _error_text(error: BaseException) -> str:
    """Returns the message of an error, or its type and address if its `__str__` fails."""
    try:
        return str(error)
    except Exception:
        return object.__repr__(error)


def _task_name(task: Any) -> str:
    """Returns the name of a task's function. For an object without a name, such as a partial, returns its shortened
    `repr`."""
    return str(getattr(task, "__qualname__", None) or shown(task))


# how long a thread may keep Python's lock


TURN_SECONDS: Final = 0.0005
"""While tasks feed GPUs, a thread must hand over Python's global lock to another thread after this many seconds."""

_intervals_lock = forks.unlocked_in_child(threading.Lock())
_intervals: list[float] = []
"""The user's switch interval (`sys.getswitchinterval`) in seconds. It is in the list once for each call of
`parallel.run` that is in progress and has shortened it."""


@contextmanager
def _short_turns(backend: Backend) -> Iterator[None]:
    """Inside the block, threads hand over Python's lock (the GIL) after 0.5 ms. With the usual 5 ms, a GPU would be
    idle while the thread that sends its work waits for the lock (docs/explanation/measurements.md)."""
    if not _feeds_gpus(backend):
        yield
        return
    with _intervals_lock:
        # while another call is in progress, Python reports the shortened interval instead of
        # the user's
        _intervals.append(_intervals[0] if _intervals else sys.getswitchinterval())
        sys.setswitchinterval(min(TURN_SECONDS, _intervals[0]))
    try:
        yield
    finally:
        with _intervals_lock:
            before = _intervals.pop()
            # the call that ends last restores the user's interval
            if not _intervals:
                sys.setswitchinterval(before)


@forks.in_child
def _after_fork() -> None:
    """Restores the user's switch interval in a forked child, where no call of `parallel.run` is in progress."""
    # the calls in progress end only in the parent
    if _intervals:
        sys.setswitchinterval(_intervals[0])
        _intervals.clear()


def _feeds_gpus(backend: Backend) -> bool:
    """Whether the framework has started a GPU, so that tasks may send work to it."""
    gpus = (device for device in backend.devices() if device.kind == "gpu")
    return any(backend.is_started(gpu) for gpu in gpus)


# the streams of the caller and of the tasks


def _gpus_in_use(backend: Backend) -> list[_GpuInUse]:
    """Returns the GPUs in use, each with an event in the caller's stream on that GPU. The list is empty if tasks cannot
    have their own streams and therefore work on the caller's streams."""
    # entering a stream in one thread would change the stream of all threads
    if backend.stream_reach == "process":
        return []
    try:
        # a GPU that is not started has no work to wait for, and must not be started here
        gpus = [
            gpu for gpu in backend.devices() if gpu.kind == "gpu" and backend.is_started(gpu)
        ]
        return [
            _GpuInUse(gpu, record_event(backend, gpu, backend.current_stream(gpu)))
            for gpu in gpus
        ]
    # the framework has no streams: it schedules its work by itself
    except UnsupportedError:
        return []


def record_event(backend: Backend, device: Device, stream: Any) -> Any:
    """Returns a new event, recorded in a stream. The event is reached when the work that is in the stream now is
    complete."""
    event = backend.new_event(device)
    backend.record(event, stream)
    return event


_streams = threading.local()
"""Each thread's own streams, by backend and device. Streams are reused, because frameworks keep memory for each
stream."""


def _own_stream(backend: Backend, device: Device) -> Any:
    """Returns this thread's own stream on a device. The stream is created at the first call. If a task starts other
    tasks, some of these may run in the same thread, on the same stream."""
    streams = _streams.__dict__
    key = f"{backend.name} {device}"
    if key not in streams:
        streams[key] = backend.new_stream(device)
    return streams[key]


def _make_caller_wait(
    runs: Sequence[_Run], backend: Backend, gpus: Sequence[_GpuInUse]
) -> None:
    """Makes the caller's streams wait for the work of the tasks, and keeps the allocator from
    reusing the memory of the results while the caller's streams use them."""
    if not gpus:
        return
    streams = {gpu.device: backend.current_stream(gpu.device) for gpu in gpus}
    for run in runs:
        # streams and events are both in the order of `gpus`; a task that never ran has no events
        for stream, event in zip(streams.values(), run.events, strict=False):
            backend.stream_wait(stream, event)
        keep_memory_for_streams(run.result, backend, streams)


def keep_memory_for_streams(x: Any, backend: Backend, streams: dict[Device, Any]) -> None:
    """Keeps a backend's allocator from reusing the memory of the tensors in `x`, which may be a container, before the
    streams that use these tensors have finished. `streams` contains one stream for each device."""
    from xdevice.tensors.contents import owned

    for owner, kind, value in owned(x):
        if owner is backend and kind == "tensor":
            stream = streams.get(backend.device_of(value))
            # tensors on the CPU, and on GPUs that the caller has not used, need no stream
            if stream is not None:
                backend.keep_for(value, stream)
