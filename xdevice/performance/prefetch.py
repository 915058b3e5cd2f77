"""`prefetch`: copies batches to the device before the program asks for them.

A thread pulls batches from the source and copies them. If each thread of a backend can have its
own stream, the thread copies on its own stream, and marks each batch with an event that the
consumer's stream waits for. Otherwise the framework's own scheduler orders the copies.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Collection
from contextlib import ExitStack
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from xdevice.base import devices, forks
from xdevice.core import generators, registry, selection
from xdevice.errors import ArgumentError, UnsupportedError, shown
from xdevice.performance import workers
from xdevice.performance.graphs import refuse_in_capture
from xdevice.performance.parallel import carry_states, keep_memory, record_event, rejoin
from xdevice.tensors import leaves
from xdevice.tensors.creation import as_numbers
from xdevice.tensors.refusals import refuse_lacking, traced

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from xdevice.base.devices import Device
    from xdevice.contract import Backend

__all__ = ["prefetch"]


def prefetch(iterable: Iterable[Any], device: object, depth: int = 2) -> Feed:
    """Returns the batches of `iterable` on a device: the next are copied while the program computes with the current.

    Each loop over the result iterates over `iterable` from the start: call `prefetch` once for all epochs. `len` works.
    Tensors stay with their backend, NumPy arrays become tensors of the selected backend, and objects that are not
    numbers pass through. No batch shares memory with its source, which may therefore reuse one buffer for all batches.
    The source runs in a thread, which ends when the source ends or fails, and when the consumer leaves its loop.

    Args:
        iterable: a `torch.utils.data.DataLoader`, a `tf.data.Dataset`, a Gluon or Paddle `DataLoader`, a list, ...
        device: any spelling that `xdevice.device` takes.
        depth: how many batches are made in advance; at most this many wait on the device.

    | backend | copies to a GPU |
    |---|---|
    | torch | through pinned memory, from 24 MB on through xdevice's own ring of pinned buffers, on a side stream |
    | paddle | as on torch, the ring from 16 MB on, but on the stream of the computation: the process has one |
    | jax | from the thread, from 16 MB on through xdevice's ring of pinned memory; keeps memory for one more batch |
    | tensorflow | from the thread, by its own scheduler, or by the ring: arrays from 16 MB on, tensors from 64 MB on |
    | mxnet | through pinned memory by MXNet's engine, from 16 MB on by the ring, from the thread |

    Raises:
        ArgumentError, DeviceNotFoundError: if `depth` is below 1 or `iterable` not iterable; if the device is missing.
        ContainerError: for a batch with an object whose tensors would stay behind, as with `to_device`.
        UnsupportedError: for a batch with a model or a variable that is not on the device; for a second loop over an
            iterable that can be started only once, such as a generator.
        Any error of the source, in place of the batch; Paddle and tf.data change the error: docs/reference/async.md.

    Costs about 50 us a batch in addition to the copy, in the thread.

    Example:
        >>> [xdevice.item(x) for x in xdevice.prefetch(map(xdevice.tensor, [1.0, 2.0]), "cpu")]
        [1.0, 2.0]
    """
    place = devices.parse(device)
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise ArgumentError(
            f"the depth of prefetch must be an int of 1 or more, got {shown(depth)}; to move batches without "
            f"prefetching, call xdevice.to_device(batch, device) in the loop"
        )
    # checked here, because a loop would raise the error only when it takes its first batch
    if not (hasattr(type(iterable), "__iter__") or hasattr(type(iterable), "__getitem__")):
        raise ArgumentError(
            f"prefetch expects a loader, a generator or a list of batches, got {shown(iterable)} of type "
            f"{type(iterable).__qualname__}"
        )
    # checked here and not in the loop, so that the traceback ends in the line that is wrong
    refuse_in_capture("prefetch")
    backend = selection.current()
    place = backend.require(place)
    return Feed(iterable, place, depth, backend)


class Feed:
    """The result of `prefetch`: each loop over it iterates over the source from the start."""

    def __init__(
        self, source: Iterable[Any], place: Device, depth: int, backend: Backend
    ) -> None:
        self._source = source
        self._place = place
        self._depth = depth
        self._backend = backend
        self._has_batches = False
        """Whether an earlier loop got any batches."""
        self._is_whole = True
        """Whether the last loop has taken all batches. If not, batches that were made in
        advance are lost."""

    def __len__(self) -> int:
        return len(self._source)  # type: ignore[arg-type]  # raises TypeError if the source has no length

    def __iter__(self) -> Generator[Any, None, None]:
        """Yields the batches, each ready for use on this thread's stream."""
        producer = _Producer(self._source, self._place, self._depth, self._backend)
        # a generator cannot start again, and its next batches were already taken in advance
        if not (self._is_whole or producer.is_ours):
            raise self._cannot_restart("has given batches to a loop that did not finish")
        self._is_whole = False
        place, count = self._place, 0
        try:
            producer.start()
            while True:
                staged = producer.take()
                if staged is None:
                    break
                for owner, event in staged.events:
                    # for each batch, because the consumer may have entered another stream since
                    # the last one
                    current = owner.current_stream(place)
                    owner.stream_wait(current, event)
                    # the memory of the batch belongs to the stream for copies, but is used on
                    # the consumer's stream
                    keep_memory(staged.batch, owner, {place: current})
                count += 1
                yield staged.batch
                # the name would keep this batch's memory while the consumer waits for the next
                # batch
                del staged
        # also if the consumer leaves its loop: Python then closes this generator
        finally:
            producer.stop()
        # a source that gives nothing the second time can be started only once; a collection may
        # have become empty
        if not count and self._has_batches and not isinstance(self._source, Collection):
            raise self._cannot_restart("gave batches before, but gives none now")
        self._has_batches |= count > 0
        self._is_whole = True

    def _cannot_restart(self, why: str) -> UnsupportedError:
        """Returns the error for a second loop over a source that can be started only once.
        `why` says how that was noticed."""
        return UnsupportedError(
            f"prefetch cannot restart its source, an object of type {type(self._source).__qualname__} that {why}; "
            f"pass a loader or a list, which each loop can restart, or call prefetch with a new source for each loop"
        )


class _Staged(NamedTuple):
    """A copied batch, and an event for each backend that copied a part of it. The consumer's
    stream must wait for the events before it uses the batch."""

    batch: Any
    events: list[tuple[Backend, Any]]


class _CopyStream:
    """A backend's stream for copies to one device. The producer's thread enters it before its
    first copy."""

    def __init__(self, backend: Backend, place: Device) -> None:
        self.backend = backend
        self._place = place
        self._start: Any = None
        self._stream: Any = None
        # on a GPU that is not started, there is no work that the copies have to wait for
        if backend.is_started(place):
            self._start = record_event(backend, place, backend.current_stream(place))

    def enter(self, stack: ExitStack) -> None:
        """Makes this stream for copies the current one of the calling thread until `stack` is closed. Only the first
        call does anything."""
        if self._stream is not None:
            return
        streams = _idle_streams.setdefault(
            (self.backend.name, self._place, self.backend.virtual), []
        )
        try:
            self._stream = streams.pop()
        # none is idle: this is the first prefetch on this device, or others are at work
        except IndexError:
            self._stream = self.backend.new_stream(self._place)
        stack.callback(streams.append, self._stream)
        # the first batches may get memory that work which the caller has enqueued before still
        # uses
        if self._start is not None:
            self.backend.stream_wait(self._stream, self._start)
        stack.enter_context(self.backend.stream_scope(self._stream))

    def record_event(self) -> Any:
        """Returns an event that is reached when the copies so far are done."""
        return record_event(self.backend, self._place, self._stream)


class _Producer(workers.Worker):
    """The thread that takes batches from the source and copies them to `place`. At most `depth`
    copied batches wait for the consumer, the thread with the loop."""

    def __init__(
        self, source: Iterable[Any], place: Device, depth: int, backend: Backend
    ) -> None:
        super().__init__("xdevice-prefetch")
        owner = registry.owner_of(type(source))
        self._iterator = iter(source) if owner is None else owner.iterate(source)
        self.is_ours = self._iterator is not source
        """Whether the iterator was made here, and must be closed here. A generator that was
        passed in belongs to the user."""
        self._place = place
        self._backend = backend
        self._copy_streams = _copy_streams(backend, place)
        self._states = carry_states()
        # not named `_context`, which is an attribute of Python 3.14's threads
        self._callers_context = copy_context()
        # with its own generator, so that the source's random numbers do not depend on when the
        # thread runs
        self._callers_context.run(generators.branch)
        # one None for each batch that may still be made. A queue and not a semaphore of Python,
        # which Ctrl-C may leave locked forever
        self._permits: SimpleQueue[None] = SimpleQueue()
        for _ in range(depth):
            self._permits.put(None)
        self._staged: SimpleQueue[_Staged | BaseException | None] = SimpleQueue()
        """The copied batches in order; then the error of the source, or None at its end."""
        self._stopping = False
        self.is_awaited = False
        """Whether the program is ending. `_end_all` then waits for this thread, so that `stop` need not."""

    # called in the consumer's thread

    def start(self) -> None:
        """Starts the thread, and registers it for the end of the program."""
        # before the thread starts, so that the end of the program does not miss it
        _running.add(self)
        super().start()

    def take(self) -> _Staged | None:
        """Waits for the next batch, and returns it; None at the end of the source. Raises the
        error of the source."""
        staged = self._staged.get()
        # at the end of the program the thread stops early, which must not look like the end of
        # the source to the consumer
        workers.block_if_ending()
        self._permits.put(None)
        # the source may have switched on a mode that the consumer needs to use the batch, such as
        # MXNet's NumPy semantics
        rejoin(self._states)
        if isinstance(staged, BaseException):
            raise staged
        return staged

    def tell_to_stop(self) -> None:
        """Makes the thread end before its next batch, and does not wait for that."""
        self._stopping = True
        # wakes the thread, which may be waiting until it may make another batch
        self._permits.put(None)

    def stop(self) -> None:
        """Tells the thread to end, and waits up to `PATIENCE` seconds for that. Called when the consumer's loop ends.
        Warns if the thread is still making a batch after that time."""
        self.tell_to_stop()
        # at the program's end `_end_all` has waited for the thread. A generator may be closed
        # even later, when the modules that `join` needs are gone
        if self.is_awaited or not self.is_alive():
            return
        # the garbage collector may close the generator in any thread, and a thread cannot wait
        # for itself
        if threading.current_thread() is self:
            return
        # with a limit, because the source may hang, and the consumer has left its loop already
        self.join(workers.PATIENCE)
        if self.is_alive():
            warnings.warn(
                f"the source of prefetch has spent {workers.PATIENCE} s on a batch that is no longer needed; the "
                f"thread of prefetch ends when that batch is done",
                RuntimeWarning,
                stacklevel=3,
            )

    # called in this thread

    def run(self) -> None:
        """Runs the thread: in the caller's context it makes all batches, and then reports the
        end or an error."""
        try:
            self._callers_context.run(self._produce)
        # `take` raises it in the consumer's thread
        except BaseException as error:
            self._staged.put(error)
        else:
            self._staged.put(self._end())
        finally:
            _running.discard(self)

    def _end(self) -> UnsupportedError | None:
        """Returns the value that follows the last batch in `_staged`: None, or, if the thread
        was told to stop, the error for `take` to raise."""
        if not self._stopping:
            return None
        return UnsupportedError(
            "prefetch makes no more batches, because it was closed or the program is ending"
        )

    def _produce(self) -> None:
        """Enters the caller's state in this thread, copies all batches, and then closes the source's iterator."""
        with ExitStack() as stack:
            if self.is_ours:
                stack.callback(getattr(self._iterator, "close", lambda: None))
            self._enter(self._backend, stack)
            # after the stream, because entering one can change the current device
            for state in self._states:
                stack.enter_context(state())
            try:
                self._stage_all(stack)
            # inside the `with`, because contextlib writes into exceptions, and some refuse that
            except BaseException as error:
                self._staged.put(error)

    def _stage_all(self, stack: ExitStack) -> None:
        """Copies one batch after another, until the source ends or the thread is told to stop. The streams for copies
        are entered until `stack` is closed."""
        while True:
            # waits while `depth` batches are ready
            self._permits.get()
            if self._stopping:
                return
            try:
                batch = next(self._iterator)
            except StopIteration:
                return
            self._staged.put(self._stage_batch(batch, stack))
            # the name would keep the source's batch alive during the next wait
            del batch

    def _stage_batch(self, batch: Any, stack: ExitStack) -> _Staged:
        """Copies the tensors of one batch, each once, and returns them with an event for each stream that copied. The
        streams are entered until `stack` is closed."""
        # the backends whose streams have copied something, by their names
        owners: dict[str, Backend] = {}

        from xdevice.containers import trees

        tree = trees.Tree(batch, keep_movers=True, once=True)
        staged: dict[int, Any] = {}
        for i, value in enumerate(tree.leaves):
            # a tensor that occurs twice in a batch is copied once, and is one tensor on the
            # device too
            if id(value) not in staged:
                staged[id(value)] = self._stage(value, partial(tree.path, i), stack, owners)
        on_device = tree.rebuilt([staged[id(value)] for value in tree.leaves])
        copy_streams = [
            self._copy_streams[name] for name in owners if name in self._copy_streams
        ]
        return _Staged(
            on_device,
            [(copy_stream.backend, copy_stream.record_event()) for copy_stream in copy_streams],
        )

    def _stage(
        self, value: Any, path: Callable[[], str], stack: ExitStack, owners: dict[str, Backend]
    ) -> Any:
        """Returns a copy of one leaf of a batch if it is a tensor or an array of numbers.
        Returns other leaves unchanged, or raises the same errors as `to_device`.

        `path` returns where the leaf is, such as "[0]['image']". The backend that copies is added to `owners`, and its
        stream is entered until `stack` is closed.
        """
        # by the class alone, which is fast: this runs for every leaf of every batch
        owner_and_kind = registry.kind_of(type(value))
        if owner_and_kind is None:
            return self._stage_object(value, path, stack, owners)
        backend, kind = owner_and_kind
        if kind == "model":
            self._refuse_elsewhere(backend, value, path)
            return value
        if kind == "symbol":
            raise traced(backend, path() or type(value).__qualname__)
        if isinstance(value, numpy.ndarray):
            numbers, backend = as_numbers(self._backend, value, self._place), self._backend
            # an array of strings or objects, which may be tensors
            if numbers is None:
                return self._stage_object(value, path, stack, owners)
            value = numbers
        backend.require(self._place)
        if backend.lacks(self._place):
            refuse_lacking(value, self._place, (backend,), f"batch{path()}")
        # such as TensorFlow's strings, which cannot be on a GPU
        if (
            self._place.kind != "cpu"
            and kind == "tensor"
            and path()
            and backend.is_host_bound(value)
        ):
            return value
        self._enter(backend, stack)
        owners[backend.name] = backend
        copied = backend.stage(value, self._place)
        # the result may be the tensor itself only if nobody can write into it; otherwise this
        # raises an error
        if copied is value and backend.can_write(value):
            return leaves.require_new(backend, value, copied, "prefetching")
        return copied

    def _refuse_elsewhere(self, backend: Backend, model: Any, path: Callable[[], str]) -> None:
        """Raises `UnsupportedError` if a model in a batch is not on the device: moving it would
        change it in place, while the consumer may be computing with it."""
        if any(place is not self._place for _, place in backend.model_devices(model)):
            raise backend.unsupported(
                f"prefetching the model batch{path()}, which would move in place",
                "leave the model out of the batch, and move it beforehand: xdevice.to_device(model, device)",
            )

    def _stage_object(
        self, x: Any, path: Callable[[], str], stack: ExitStack, owners: dict[str, Backend]
    ) -> Any:
        """Returns a copy on the device of an object that has its own method `.to`, such as a
        graph or a named batch. Returns an object without tensors unchanged. Raises
        `ContainerError` for an object whose tensors would stay where they are."""
        from xdevice.containers import trees

        stranger = trees.stranger(x)
        if stranger is None or not stranger.has_tensors():
            return x
        if not stranger.moves:
            if not stranger.is_on(self._place):
                raise stranger.refusal(f"batch{path()}", self._place)
            return x
        stranger.require(self._place)
        refuse_lacking(
            x, self._place, [part.backend for part in stranger.parts], f"batch{path()}"
        )
        for part in stranger.parts:
            self._enter(part.backend, stack)
            owners[part.backend.name] = part.backend
        # if it is on the device already, `move_to` would return the object itself
        return (
            stranger.copy_to(self._place)
            if stranger.is_on(self._place)
            else stranger.move_to(self._place)
        )

    def _enter(self, backend: Backend, stack: ExitStack) -> None:
        """Makes the backend's stream for copies the current one until `stack` is closed, if the backend has such a
        stream."""
        copy_stream = self._copy_streams.get(backend.name)
        if copy_stream is not None:
            copy_stream.enter(stack)


_running: set[_Producer] = set()
"""The threads that have started and not ended."""
_idle_streams: dict[tuple[str, Device, int], list[Any]] = {}
"""Streams for copies that no producer uses now, by backend, device, and number of virtual GPUs, because virtual GPUs
may replace the real ones. The streams are used again, because an allocator keeps memory for each stream: with a new
stream for each epoch, the allocator would keep the batches of all epochs."""


def _end_all() -> None:
    """Ends all threads when the program ends: waits for each up to `PATIENCE` seconds."""
    running = tuple(_running)
    # all are told to stop before the first wait, so that they end at the same time
    for producer in running:
        # its generator may be closed later still, and then does not wait for the thread again
        producer.is_awaited = True
        producer.tell_to_stop()
    for producer in running:
        producer.join(workers.PATIENCE)


@forks.in_child
def _after_fork() -> None:
    """Forgets the parent's threads and streams, which do not exist in a forked child."""
    _running.clear()
    _idle_streams.clear()


workers.at_exit(_end_all)


def _copy_streams(backend: Backend, place: Device) -> dict[str, _CopyStream]:
    """Returns, by the name of the backend, a stream for copies for each backend that tensors in
    a batch may belong to. Backends whose threads cannot have their own streams are left out.
    Returns {} if the device is not a GPU."""
    if place.kind != "gpu":
        return {}
    copy_streams = {}
    # a batch may hold tensors of any framework that is loaded
    for owner in {backend, *registry.list_loaded()}:
        if owner.refusal is None and owner.stream_reach == "thread" and owner.has(place):
            try:
                copy_streams[owner.name] = _CopyStream(owner, place)
            except UnsupportedError:
                # the framework has no streams: it schedules its copies by itself
                continue
    return copy_streams
