"""`parallel`: runs independent tasks side by side, each in a thread of its own, which enqueues the task's work.

One thread cannot feed two GPUs from Python, so streams alone gain little (figures: docs/reference/async.md). Threads
are kept for the next call: starting one takes ten times as long as waking one, and three times that on TensorFlow.
A call uses `MOST` threads at most. Tasks that call `parallel` themselves could wait for free threads for ever, so a
nested call gets those threads that are left of the `MOST`, and its caller's thread does the other tasks.

On a backend where each thread can have its own streams, a task works on streams that belong to its thread, one for each
GPU in use. These wait for what the caller has enqueued, and the caller's streams wait for them, so results are ready
for use. Memory that a task makes beside its result, such as a gradient, belongs to the task's stream. The next task on
that stream waits for its own caller too, and so does not write into the memory while the caller still reads it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice import random
from xdevice.core import registry, selection, workers
from xdevice.errors import ArgumentError, UnsupportedError, note, put_on, shown

from .graphs import refuse_in_capture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from xdevice.base.devices import Device
    from xdevice.contract import Backend

MOST: Final = max(32, os.cpu_count() or 1)
"""How many tasks of one call of `parallel` run at the same time, at most."""


def parallel(*tasks: Callable[[], Any]) -> list[Any]:
    """Runs independent tasks side by side, and returns their results in order, ready for use.

    Each task gets a thread, and on PyTorch a stream on every GPU in use; it inherits `with device:`, the selected
    backend, context variables and the framework's own state of the thread. 32 tasks run at once, or as many as there
    are cores if there are more than 32; the others wait. Calls nest. docs/reference/async.md has more. Costs some tens
    of microseconds a task, ten times that for the first thread, and on GPUs a few for each tensor in a result.

    Args:
        tasks: functions without arguments; `functools.partial` or a lambda makes one. `parallel()` is `[]`.

    | backend | tasks run | gradients of results in the caller |
    |---|---|---|
    | torch | in a thread and on streams each | yes |
    | tensorflow | in a thread each | no: differentiate inside the task |
    | mxnet | one after another in one thread; its engine runs the work side by side | yes |
    | paddle | in a thread each, `paddle.grad` one at a time, on the caller's streams; on virtual GPUs as mxnet | yes |
    | jax | in a thread each | no: differentiate inside the task |
    | numpy | in a thread each | has none |

    Raises:
        ArgumentError: an argument cannot be called; no task has started.
        CaptureError: called inside a task that `capture` records.
        The error of the first task in order that raised one, once the other tasks have ended, with a note that names
            the task. Its `other_errors` are the errors of the other tasks.

    Example:
        >>> x = xdevice.ones(1)
        >>> [xdevice.item(y) for y in xdevice.parallel(lambda: x + 1, lambda: x * 3)]
        [2.0, 3.0]
    """
    for number, task in enumerate(tasks):
        if not callable(task):
            raise ArgumentError(
                f"task {number} of xdevice.parallel is {task!r:.100} of type {type(task).__qualname__}, expected a "
                f"function without arguments: parallel(lambda: f(x), lambda: f(y)), not parallel(f(x), f(y))"
            )
    if not tasks:
        return []
    refuse_in_capture("parallel")
    backend = selection.current()
    forks = _forks(backend)
    runs = [_Run(task, backend, forks) for task in tasks]
    try:
        _run_all(runs, backend)
        for run in runs:
            run.rejoin()
        _join(runs, backend, forks)
        _raise_first(runs)
        return [run.result for run in runs]
    finally:
        del runs  # an exception's traceback holds this frame, which would hold the exception


def close_pool() -> None:
    """Ends the threads that `parallel` keeps for its next call, and waits for them. Threads that are at work stay.

    Young: it may change in a minor version.

    The next `parallel` starts new ones. A program need not call this at its end: the threads end by themselves then,
    after the tasks at work. A program that ends with a daemon thread inside of `parallel` waits for these up to 10
    seconds.

    Example:
        >>> xdevice.close_pool()
    """
    _pool.close()


# a task


class _Fork(NamedTuple):
    """A GPU in use, and an event at the point that the caller's stream on it had reached when `parallel` was called."""

    device: Device
    event: Any


class _Run:
    """One task of a call of `parallel`: the caller's state that the task takes along, and its result or error."""

    def __init__(self, task: Callable[[], Any], backend: Backend, forks: Sequence[_Fork]) -> None:
        self.task = task
        self.result: Any = None
        self.error: BaseException | None = None
        self.events: list[Any] = []
        self._backend = backend
        self._forks = forks
        self._context = copy_context()
        self._context.run(random.branch)
        self._states = carry_states()

    def __call__(self) -> None:
        try:
            self._context.run(self._run)
        except BaseException as error:  # the caller's thread raises it
            self.error = error

    def rejoin(self) -> None:
        rejoin(self._states)

    def _run(self) -> None:
        with ExitStack() as stack:
            streams = [self._branch(fork, stack) for fork in self._forks]
            for state in self._states:  # entering a stream can change the current device, so these come after
                stack.enter_context(state())
            try:
                self.result = self.task()
            except BaseException as error:  # caught here: contextlib writes into exceptions, and some refuse that
                self.error = error
            finally:
                self.events = [self._mark(fork.device, s) for fork, s in zip(self._forks, streams, strict=True)]

    def _branch(self, fork: _Fork, stack: ExitStack) -> Any:
        stream = _own_stream(self._backend, fork.device)
        self._backend.stream_wait(stream, fork.event)
        stack.enter_context(self._backend.stream_scope(stream))
        return stream

    def _mark(self, device: Device, stream: Any) -> Any:
        event = self._backend.new_event(device)
        self._backend.record(event, stream)
        return event


def carry_states() -> list[Callable[[], AbstractContextManager[Any]]]:
    """This thread's state in every loaded backend, as functions that make context managers, which restore the state in
    another thread."""
    return [backend.thread_state() for backend in registry.list_loaded() if backend.refusal is None]


def rejoin(states: Iterable[Callable[[], AbstractContextManager[Any]]]) -> None:
    """Calls the method `rejoin` of those states that have it. This is done in the thread that the states come from,
    once a thread that works in them has given results."""
    for state in states:
        getattr(state, "rejoin", _nothing)()


def _nothing() -> None: ...


def _run_all(runs: Sequence[_Run], backend: Backend) -> None:
    if backend.threads == "many":
        with _short_turns(backend):
            _pool.run(_Call(runs))
    elif _pool.is_enqueuer():  # a nested call: this thread would wait for itself for ever
        for run in runs:
            run()
    else:
        _pool.enqueue(_Call(runs))
    workers.park()


def _raise_first(runs: Sequence[_Run]) -> None:
    failed = [(number, run.error) for number, run in enumerate(runs) if run.error is not None]
    if not failed:
        return
    number, first = failed[0]
    note(first, f"raised by task {number} of xdevice.parallel: {_name(runs[number].task)}")
    for other, error in failed[1:]:
        note(
            first, f"task {other} failed too: {_name(runs[other].task)}: {type(error).__qualname__}: {_text_of(error)}"
        )
    put_on(first, "other_errors", [error for _, error in failed[1:]])
    try:
        raise first
    finally:
        del failed, first


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return object.__repr__(error)


def _name(task: Any) -> str:
    return str(getattr(task, "__qualname__", None) or shown(task))


# Python's lock


TURN: Final = 0.0005
"""Seconds after which a thread must hand over Python's global lock to another thread while tasks feed GPUs."""

_turns_lock = threading.Lock()
_turns: list[float] = []
"""The interval that `sys.getswitchinterval` gave before `TURN` was set, once for each call of `parallel` under way."""


@contextmanager
def _short_turns(backend: Backend) -> Iterator[None]:
    """Inside the block, threads hand over Python's lock (the GIL) after 0.5 ms instead of Python's 5 ms, in which a GPU
    that another thread feeds would run out of work (docs/explanation/hardware.md)."""
    if not _feeds_gpus(backend):
        yield
        return
    with _turns_lock:
        _turns.append(_turns[0] if _turns else sys.getswitchinterval())
        sys.setswitchinterval(min(TURN, _turns[0]))
    try:
        yield
    finally:
        with _turns_lock:
            before = _turns.pop()
            if not _turns:
                sys.setswitchinterval(before)


def _feeds_gpus(backend: Backend) -> bool:
    gpus = (device for device in backend.devices() if device.kind == "gpu")
    return any(backend.is_started(gpu) for gpu in gpus)


# streams


def _forks(backend: Backend) -> list[_Fork]:
    if backend.stream_reach == "process":
        return []  # a stream is entered for all threads, so that tasks cannot have streams of their own
    try:
        return [_fork(backend, gpu) for gpu in backend.devices() if gpu.kind == "gpu" and backend.is_started(gpu)]
    except UnsupportedError:
        return []  # the framework has no streams: it schedules its work by itself


def _fork(backend: Backend, gpu: Device) -> _Fork:
    stream = backend.current_stream(gpu)
    event = backend.new_event(gpu)
    backend.record(event, stream)
    return _Fork(gpu, event)


_streams = threading.local()


def _own_stream(backend: Backend, device: Device) -> Any:
    """This thread's stream on a device. A task that is started inside a task runs in another thread, so it has another
    stream."""
    mine = _streams.__dict__
    key = f"{backend.name} {device}"
    if key not in mine:
        mine[key] = backend.new_stream(device)
    return mine[key]


def _join(runs: Sequence[_Run], backend: Backend, forks: Sequence[_Fork]) -> None:
    """Makes the caller's streams wait for the tasks' streams, and the allocator keep the results for the caller's
    streams."""
    if not forks:
        return
    streams = {fork.device: backend.current_stream(fork.device) for fork in forks}
    for run in runs:
        for stream, event in zip(streams.values(), run.events, strict=False):
            backend.stream_wait(stream, event)
        keep(run.result, backend, streams)


def keep(x: Any, backend: Backend, streams: dict[Device, Any]) -> None:
    """Tells a backend's allocator that `streams` use the tensors in `x` that are on their devices."""
    from xdevice.tensors.contents import owned

    for owner, kind, value in owned(x):
        if owner is backend and kind == "tensor":
            stream = streams.get(backend.device_of(value))
            if stream is not None:
                backend.keep_for(value, stream)


# threads


class _Call:
    """One call of `parallel`: the tasks that no thread has taken yet, and a queue that tells which tasks have ended."""

    def __init__(self, runs: Sequence[_Run]) -> None:
        self.count = len(runs)
        self.done: SimpleQueue[None] = SimpleQueue()
        self._waiting = deque(runs)

    def next(self) -> _Run | None:
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def drop(self) -> None:
        """Forgets the tasks that still wait for a thread, so that they never start."""
        self._waiting.clear()

    def work(self, run: _Run | None, rest: Callable[[], None] = lambda: None) -> None:
        """Runs a task, and then the tasks that wait for a thread, one after another. Calls `rest` before it reports the
        end of the last task, so that this thread is free for the caller's next call of `parallel`."""
        while run is not None:
            run()
            run = self.next()  # before the report, since the name `run` would keep the last result alive
            if run is None:
                rest()
            self.done.put(None)

    def wait(self) -> None:
        for _ in range(self.count):
            self.done.get()


class _Worker(workers.Worker):
    """A thread that runs one job after another until it gets None."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            job()
            del job  # the name would keep the job's result alive until the next job


class _Pool:
    """The threads that `parallel` keeps: as many as were ever busy at once, and one more thread for a backend whose
    tasks must all run in the same thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rested = threading.Condition(self._lock)
        self._idle: list[_Worker] = []
        self._busy = 0
        self._calls: set[_Call] = set()
        """The calls of `parallel` under way, without those that tasks have made."""
        self._enqueuer: _Worker | None = None

    def run(self, call: _Call) -> None:
        """Runs the tasks of a call in threads of their own. If a task made the call, that task's thread does some of
        them too."""
        if isinstance(threading.current_thread(), _Worker):
            self._start(call, is_nested=True)
            call.work(call.next())
            call.wait()
            return
        with self._under_way(call):
            self._start(call, is_nested=False)
            call.wait()

    def enqueue(self, call: _Call) -> None:
        with self._under_way(call):
            self._start_enqueuer(call)
            call.wait()

    @contextmanager
    def _under_way(self, call: _Call) -> Iterator[None]:
        self._calls.add(call)
        try:
            yield
        finally:
            call.drop()  # after Ctrl-C, tasks may be left
            self._calls.discard(call)

    def _start(self, call: _Call, *, is_nested: bool) -> None:
        for _ in range(min(call.count, MOST)):
            if not self._submit(call, is_nested):
                return

    def _submit(self, call: _Call, is_nested: bool) -> bool:
        with self._lock:
            if (is_nested and self._busy >= MOST) or workers.must_park():
                return False
            run = call.next()
            if run is None:
                return False
            worker = self._idle.pop() if self._idle else None
            self._busy += 1
        if worker is None:
            worker = _Worker("xdevice-parallel")
            try:
                worker.start()
            except BaseException:
                self._rest(None)
                raise
        worker.jobs.put(partial(call.work, run, partial(self._rest, worker)))
        return True

    def _start_enqueuer(self, call: _Call) -> None:
        with self._lock:  # so that close() does not end the thread before it gets this job
            if workers.must_park():
                return
            if self._enqueuer is None:
                self._enqueuer = _Worker("xdevice-enqueuer")
                self._enqueuer.start()
            self._busy += 1
            self._enqueuer.jobs.put(partial(call.work, call.next(), partial(self._rest, None)))

    def _rest(self, worker: _Worker | None) -> None:
        with self._lock:
            if worker is not None:
                self._idle.append(worker)
            self._busy -= 1
            self._rested.notify_all()

    def is_enqueuer(self) -> bool:
        return threading.current_thread() is self._enqueuer

    def close(self) -> None:
        with self._lock:
            ending, self._idle = self._idle, []
            if self._enqueuer is not None and not self.is_enqueuer():
                ending.append(self._enqueuer)
                self._enqueuer = None
        for worker in ending:
            worker.jobs.put(None)
        for worker in ending:
            worker.join()

    def end(self) -> None:
        """At exit: waits some seconds for the tasks at work, starts no other tasks, and ends the threads if no task is
        left."""
        for call in tuple(self._calls):
            call.drop()
        with self._lock:
            is_at_rest = self._rested.wait_for(lambda: not self._busy, workers.PATIENCE)
        if is_at_rest:
            self.close()


_pool = _Pool()


def _after_fork() -> None:
    global _pool, _turns_lock
    _pool = _Pool()  # the threads of the parent do not exist in its child
    _turns_lock = threading.Lock()
    if _turns:
        sys.setswitchinterval(_turns[0])
        _turns.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
workers.at_exit(lambda: _pool.end())
