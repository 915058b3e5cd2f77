"""`prefetch`: copies batches to the device before the program requests them.

A thread reads batches from the source and copies them. If a backend allows each thread its own stream, the thread
copies on such a stream, and records an event for each batch. The consumer's stream waits for this event. Otherwise, the
framework's scheduler orders the copies.
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
from xdevice.performance.parallel import (
    capture_thread_states,
    keep_memory_for_streams,
    record_event,
    rejoin,
)
from xdevice.tensors import leaves
from xdevice.tensors.creation import as_default_dtype
from xdevice.tensors.refusals import refuse_lacking, symbol_error

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from xdevice.base.devices import Device
    from xdevice.contract import Backend

__all__ = ["prefetch"]


def prefetch(iterable: Iterable[Any], device: object, depth: int = 2) -> Feed:
    """Returns the batches of `iterable` on a device; the next ones are copied while the program uses the current one.

    Each loop over the result iterates over `iterable` from the start: call `prefetch` once for all epochs. `len` works.
    Tensors keep their backend, NumPy arrays become tensors of the selected backend, and objects that are not numbers
    pass through. No batch shares memory with its source, so the source may reuse the same buffer for all batches. The
    source runs in a thread, which ends when the source ends or fails, or when the consumer leaves its loop.

    Args:
        iterable: a `torch.utils.data.DataLoader`, a `tf.data.Dataset`, a Gluon or Paddle `DataLoader`, a list, ...
        device: any form that `xdevice.device` accepts.
        depth: how many batches are prepared in advance; at most this many wait on the device.

    | backend | copies to a GPU |
    |---|---|
    | torch | through pinned memory (from 24 MB on, through xdevice's ring of pinned buffers), on a separate stream |
    | paddle | as on torch (the ring from 16 MB on), but on the stream of the computation: the process has only one |
    | jax | in the thread, from 16 MB on through xdevice's ring of pinned buffers; uses memory for one more batch |
    | tensorflow | in the thread, by its own scheduler; through the ring: arrays from 16 MB on, tensors from 64 MB on |
    | mxnet | through pinned memory by MXNet's engine, or, from 16 MB on, through the ring in the thread |

    Raises:
        ArgumentError, DeviceNotFoundError: if `depth` or `iterable` is wrong; if the backend lacks the device.
        ContainerError: if a batch contains an object whose tensors cannot be moved, as in `to_device`.
        UnsupportedError: for a batch with a model or a variable that is not on the device; for a second loop over an
            iterable that can be started only once, such as a generator.
        Errors of the source: raised in place of the batch. Paddle and tf.data alter them: docs/reference/async.md.

    Costs about 50 us for each batch in the thread, in addition to the copy.

    Example:
        >>> [xdevice.item(x) for x in xdevice.prefetch(map(xdevice.tensor, [1.0, 2.0]), "cpu")]
        [1.0, 2.0]
    """
    place = devices.parse(device)
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise ArgumentError(
            f"the depth of prefetch must be a positive int, got {shown(depth)}; to move batches without "
            f"prefetching, call xdevice.to_device(batch, device) in the loop"
        )
    # checked here, because a loop would raise the error only at its first batch
    if not (hasattr(type(iterable), "__iter__") or hasattr(type(iterable), "__getitem__")):
        raise ArgumentError(
            f"prefetch expects a loader, a generator or a list of batches, got {shown(iterable)} of type "
            f"{type(iterable).__qualname__}"
        )
    # checked here instead of in the loop, so that the traceback ends in the line that is wrong
    refuse_in_capture("prefetch")
    backend = selection.current()
    place = backend.require(place)
    return Feed(iterable, place, depth, backend)


class Feed:
    """The result of `prefetch`. Each loop over this object iterates over the source from the start."""

    def __init__(
        self, source: Iterable[Any], place: Device, depth: int, backend: Backend
    ) -> None:
        self._source = source
        self._place = place
        self._depth = depth
        self._backend = backend
        self._has_batches = False
        """Whether an earlier loop has received any batches."""
        self._is_whole = True
        """Whether the last loop has received all batches. If not, batches that were prepared in advance are lost."""

    def __len__(self) -> int:
        return len(self._source)  # type: ignore[arg-type]  # raises TypeError if the source has no length

    def __iter__(self) -> Generator[Any, None, None]:
        """Yields the batches, each ready for use on this thread's stream."""
        producer = _Producer(self._source, self._place, self._depth, self._backend)
        # an iterator of the user, such as a generator, cannot start again. If the last loop did not receive all
        # batches, the batches that had been read in advance are lost
        if not (self._is_whole or producer.is_ours):
            raise self._cannot_restart("has yielded batches to a loop that did not finish")
        self._is_whole = False
        place, count = self._place, 0
        try:
            producer.start()
            while True:
                staged = producer.take()
                if staged is None:
                    break
                for owner, event in staged.events:
                    # the stream is determined for each batch, because the consumer may have
                    # entered another one
                    current = owner.current_stream(place)
                    owner.stream_wait(current, event)
                    # the memory of the batch belongs to the stream for copies, but the
                    # consumer's stream uses it
                    keep_memory_for_streams(staged.batch, owner, {place: current})
                count += 1
                yield staged.batch
                # the name would keep the memory of this batch while the consumer waits for the
                # next one
                del staged
        # this also runs if the consumer leaves its loop, because Python then closes this
        # generator
        finally:
            producer.stop()
        # a source without batches in its second loop can be started only once, unless it is a
        # collection, which may have become empty
        if not count and self._has_batches and not isinstance(self._source, Collection):
            raise self._cannot_restart("yielded batches before, but yields none now")
        self._has_batches |= count > 0
        self._is_whole = True

    def _cannot_restart(self, why: str) -> UnsupportedError:
        """Returns the error for a second loop over a source that can be started only once. `why` says how `prefetch`
        has noticed this."""
        return UnsupportedError(
            f"prefetch cannot restart its source, an object of type {type(self._source).__qualname__} that {why}; "
            f"pass a loader or a list, which each loop can restart, or call prefetch with a new source for each loop"
        )


class _Staged(NamedTuple):
    """A copied batch, and an event for each backend that copied a part of the batch. The consumer's stream must wait
    for these events before it uses the batch."""

    batch: Any
    events: list[tuple[Backend, Any]]


class _CopyStream:
    """A backend's stream for copies to one device. The producer's thread enters the stream before its first copy."""

    def __init__(self, backend: Backend, place: Device) -> None:
        self.backend = backend
        self._place = place
        self._start: Any = None
        self._stream: Any = None
        # a GPU that is not started has no work for which the copies have to wait
        if backend.is_started(place):
            self._start = record_event(backend, place, backend.current_stream(place))

    def enter(self, stack: ExitStack) -> None:
        """Makes this stream for copies the current stream of the calling thread until `stack` is closed. Later calls do
        nothing."""
        if self._stream is not None:
            return
        streams = _idle_streams.setdefault(
            (self.backend.name, self._place, self.backend.virtual), []
        )
        try:
            self._stream = streams.pop()
        # no stream is idle: this is the first prefetch on this device, or other prefetches are
        # running
        except IndexError:
            self._stream = self.backend.new_stream(self._place)
        stack.callback(streams.append, self._stream)
        # the memory of the first batches may still be in use by work that the caller has
        # enqueued earlier
        if self._start is not None:
            self.backend.stream_wait(self._stream, self._start)
        stack.enter_context(self.backend.stream_scope(self._stream))

    def record_event(self) -> Any:
        """Returns an event that is reached when all copies so far are complete."""
        return record_event(self.backend, self._place, self._stream)


class _Producer(workers.Worker):
    """The thread that reads batches from the source and copies them to `place`. At most `depth` copied batches wait for
    the consumer, which is the thread that runs the loop."""

    def __init__(
        self, source: Iterable[Any], place: Device, depth: int, backend: Backend
    ) -> None:
        super().__init__("xdevice-prefetch")
        # a framework's own loader is iterated over by the adapter, which ensures that the loader never hangs
        owner = registry.owner_of(type(source))
        self._iterator = iter(source) if owner is None else owner.iterate(source)
        self.is_ours = self._iterator is not source
        """Whether this object has created the iterator, and must close it. A generator that was passed to `prefetch`
        belongs to the user."""
        self._place = place
        self._backend = backend
        self._copy_streams = _copy_streams(backend, place)
        self._states = capture_thread_states()
        # not named `_context`, which is an attribute of Python 3.14's threads
        self._callers_context = copy_context()
        # the thread has its own random generator, so that the source's random numbers do not
        # depend on when the thread runs
        self._callers_context.run(generators.use_derived_generator)
        # one None for each batch that may still be prepared. This is a queue, because Ctrl-C
        # may leave a semaphore of Python locked forever
        self._permits: SimpleQueue[None] = SimpleQueue()
        for _ in range(depth):
            self._permits.put(None)
        self._staged: SimpleQueue[_Staged | BaseException | None] = SimpleQueue()
        """The copied batches in order, followed by the error of the source, or by None if the
        source ended without an error."""
        self._stopping = False
        self.is_awaited = False
        """Whether `_end_all` waits for this thread because the program is ending. If so, `stop` need not wait."""

    # called in the consumer's thread

    def start(self) -> None:
        """Starts the thread, and registers it for the end of the program."""
        # registered before the thread starts, so that the end of the program does not miss this
        # thread
        _running.add(self)
        super().start()

    def take(self) -> _Staged | None:
        """Waits for the next batch, and returns it. Returns None at the end of the source. Raises the error of the
        source."""
        staged = self._staged.get()
        # at the end of the program, the thread stops early, which the consumer must not mistake
        # for the end of the source
        workers.block_if_ending()
        self._permits.put(None)
        # the source may have enabled a mode that the consumer needs for using the batch, such as MXNet's NumPy
        # semantics
        rejoin(self._states)
        if isinstance(staged, BaseException):
            raise staged
        return staged

    def tell_to_stop(self) -> None:
        """Tells the thread to end before its next batch, and does not wait for its end."""
        self._stopping = True
        # wakes the thread, which may be waiting for permission to prepare another batch
        self._permits.put(None)

    def stop(self) -> None:
        """Tells the thread to end, and waits up to `PATIENCE` seconds for its end. Called when the consumer's loop
        ends. Warns if the thread is still preparing a batch after that time."""
        self.tell_to_stop()
        # when the program ends, `_end_all` waits for the thread. The generator may be closed
        # even later, when the modules that `join` needs no longer exist
        if self.is_awaited or not self.is_alive():
            return
        # the garbage collector may close the generator in any thread, and a thread cannot wait
        # for itself
        if threading.current_thread() is self:
            return
        # the wait has a limit, because the source may hang, and the consumer has already left
        # its loop
        self.join(workers.PATIENCE)
        if self.is_alive():
            warnings.warn(
                f"the source of prefetch has spent {workers.PATIENCE} s on a batch that is no longer needed; the "
                f"thread of prefetch ends when that batch is complete",
                RuntimeWarning,
                stacklevel=3,
            )

    # called in this thread

    def run(self) -> None:
        """Runs the thread, which prepares all batches in the caller's context, and then reports the end or an error."""
        try:
            self._callers_context.run(self._produce)
        # `take` raises this error in the consumer's thread
        except BaseException as error:
            self._staged.put(error)
        else:
            self._staged.put(self._final_item())
        finally:
            _running.discard(self)

    def _final_item(self) -> UnsupportedError | None:
        """Returns the value that follows the last batch in `_staged`: None or, if the thread was told to stop, the
        error that `take` must raise."""
        if not self._stopping:
            return None
        return UnsupportedError(
            "prefetch yields no more batches, because it was closed or the program is ending"
        )

    def _produce(self) -> None:
        """Enters the caller's state in this thread, copies all batches, and then closes the source's iterator."""
        with ExitStack() as stack:
            if self.is_ours:
                stack.callback(getattr(self._iterator, "close", lambda: None))
            self._enter(self._backend, stack)
            # the states are entered after the stream, because entering a stream can change the current device
            for state in self._states:
                stack.enter_context(state())
            try:
                self._stage_all(stack)
            # caught inside the `with`, because contextlib writes into exceptions, which some exceptions refuse
            except BaseException as error:
                self._staged.put(error)

    def _stage_all(self, stack: ExitStack) -> None:
        """Copies the batches in order, until the source ends or the thread is told to stop. The thread enters the
        streams for copies, and leaves them when `stack` is closed."""
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
            # the name `batch` would keep the source's batch alive during the next wait
            del batch

    def _stage_batch(self, batch: Any, stack: ExitStack) -> _Staged:
        """Copies each tensor of one batch once. Returns the copied batch, with an event for each stream that was used.
        The thread enters these streams, and leaves them when `stack` is closed."""
        from xdevice.containers import trees

        # the backends that have copied something, by name; `_stage` adds them
        owners: dict[str, Backend] = {}
        # an object that can move itself is one leaf, and a container in several places is walked only once
        tree = trees.Tree(batch, keep_movers=True, once=True)
        # the copy of each leaf, by the leaf's `id`
        staged: dict[int, Any] = {}
        for i, value in enumerate(tree.leaves):
            # a tensor that occurs twice in a batch is copied once, so it is one tensor on the
            # device, too
            if id(value) not in staged:
                staged[id(value)] = self._stage(value, partial(tree.path, i), stack, owners)
        on_device = tree.rebuilt([staged[id(value)] for value in tree.leaves])
        # backends without a stream for copies have made their copies in another way
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
        """Returns a copy of one leaf of a batch if the leaf is a tensor or an array of numbers. Other leaves are
        returned unchanged, or refused with the same errors as in `to_device`.

        `path` returns the path of the leaf in the batch, such as "[0]['image']". The backend that copies the leaf is
        added to `owners`. The thread enters that backend's stream, and leaves it when `stack` is closed.
        """
        # decided by the class alone, which is fast, because this runs for every leaf of every
        # batch
        owner_and_kind = registry.owner_and_kind(type(value))
        if owner_and_kind is None:
            return self._stage_object(value, path, stack, owners)
        backend, kind = owner_and_kind
        if kind == "model":
            self._refuse_elsewhere(backend, value, path)
            return value
        if kind == "symbol":
            raise symbol_error(backend, path() or type(value).__qualname__)
        if isinstance(value, numpy.ndarray):
            numbers, backend = (
                as_default_dtype(self._backend, value, self._place),
                self._backend,
            )
            # an array of strings or of objects, which may be tensors
            if numbers is None:
                return self._stage_object(value, path, stack, owners)
            value = numbers
        backend.require(self._place)
        if backend.lacks(self._place):
            refuse_lacking(value, self._place, (backend,), f"batch{path()}")
        # a tensor that cannot be on a GPU, such as TensorFlow's strings, stays on the host if it is
        # in a container, as in `to_device`; the path of a batch that is a single tensor is ""
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
        # the result may be the tensor itself only if nobody can write into the tensor;
        # otherwise `require_new` raises an error
        if copied is value and backend.can_write(value):
            return leaves.require_new(backend, value, copied, "prefetching")
        return copied

    def _refuse_elsewhere(self, backend: Backend, model: Any, path: Callable[[], str]) -> None:
        """Raises `UnsupportedError` if a model in a batch is not on the device. A move would change the model in place,
        while the consumer may be computing with it."""
        if any(place is not self._place for _, place in backend.model_devices(model)):
            raise backend.unsupported(
                f"prefetching the model batch{path()}, which would move in place",
                "leave the model out of the batch, and move it beforehand: xdevice.to_device(model, device)",
            )

    def _stage_object(
        self, x: Any, path: Callable[[], str], stack: ExitStack, owners: dict[str, Backend]
    ) -> Any:
        """Returns a copy, on the device, of an object that has its own method `.to`, such as a graph or a named batch.
        Returns an object without tensors unchanged. Raises `ContainerError` for an object whose tensors would stay
        where they are."""
        from xdevice.containers import trees

        # a `Stranger` describes an object of a type that is no container: the tensors in it, and whether it can move
        stranger = trees.stranger(x)
        if stranger is None or not stranger.has_tensors():
            return x
        # without a method that moves its tensors, the object must be on the device already
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
        # `move_to` would return the object itself if it is on the device already
        return (
            stranger.copy_to(self._place)
            if stranger.is_on(self._place)
            else stranger.move_to(self._place)
        )

    def _enter(self, backend: Backend, stack: ExitStack) -> None:
        """Makes the backend's stream for copies the current stream until `stack` is closed, if the backend has a stream
        for copies."""
        copy_stream = self._copy_streams.get(backend.name)
        if copy_stream is not None:
            copy_stream.enter(stack)


_running: set[_Producer] = set()
"""The threads that have started and have not ended yet."""
_idle_streams: dict[tuple[str, Device, int], list[Any]] = {}
"""Streams for copies that no producer uses at present. The keys are the backend, the device, and the number of virtual
GPUs. Streams are reused, because an allocator keeps memory for each stream: with a new stream for each epoch, the
allocator would keep the memory of the batches of all epochs."""


def _end_all() -> None:
    """Ends all threads when the program ends. Waits up to `PATIENCE` seconds for each thread."""
    running = tuple(_running)
    # all threads are told to stop before the first wait, so that they end at the same time
    for producer in running:
        # the producer's generator may be closed even later, and then does not wait for the thread again
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
    """Returns a stream for copies for each backend to which tensors in a batch may belong, by the backend's name.
    Backends that do not allow each thread its own stream are left out. Returns {} if the device is not a GPU."""
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
