"""Copies between ordinary host memory and NVIDIA GPUs. Several threads share each copy, and use a ring of page-locked
buffers.

The driver copies ordinary memory with a single thread, which is also the first to touch each new page. Its copies reach
2 GB/s to the host and 8 GB/s to the GPU, on a bus of 55 GB/s (docs/explanation/measurements.md). In this module, each
of several threads copies chunks between the caller's memory and a slot of the ring (a buffer of 4 MB), and the GPU
reads or writes the slot at the speed of the bus.

Any change to this module must preserve these rules:

- The GPU's part of each copy is queued on the stream that the caller names, so it runs after the work that is already
  on this stream, and before work that is added later. Each slot has an event, after which the GPU no longer uses the
  slot; the next user of the slot waits for this event.
- Only threads of the ring use slots, because in the caller's thread Ctrl-C could raise an exception between a copy and
  the recording of its event. The threads keep the memory on both sides alive until they have finished their part, even
  if the caller no longer waits.
- `os.fork` must not have to wait for the ring. A forked child begins without a ring.
- The ring calls the CUDA driver through ctypes, so all frameworks use the same ring, and no framework's allocator is
  involved. The framework makes its own copies in cases that were not measured (systems other than Linux, other GPUs,
  few cores), and for sizes for which the ring is not faster.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import deque
from queue import SimpleQueue
from typing import Any, Final

SLOT: Final = 4 << 20
"""The size in bytes of one buffer of the ring."""
SLOTS: Final = 16
"""The number of buffers of the ring. Together the buffers have 64 MB."""
FEW: Final = 64 << 10
"""The size in bytes below which a copy to the host runs in the caller's thread, if it does not wait for a stream. In a
thread of the ring, a copy of 4 bytes took 120 us longer (H200, 2026-11-26)."""
_PER_THREAD: Final = 2
"""CUDA's handle for the default stream of the calling thread (CU_STREAM_PER_THREAD). In the ring's threads, this handle
would mean a different stream, so the framework makes the copies on this stream."""
_THREADS_TO_GPU: Final = 12
"""The maximum number of threads for one copy to the GPU."""
_LEAST_CORES: Final = 4
"""The minimum number of cores with which the ring is used."""
# constants of cuda.h: flags of functions, kinds of memory, attributes of pointers
_PORTABLE: Final = 1
_NO_TIMING: Final = 2
_NON_BLOCKING: Final = 1
_DEVICE_MEMORY: Final = 2
_MEMORY_TYPE: Final = 2
_DEVICE_ORDINAL: Final = 9
# the size of a huge page of Linux, and the constant of mman.h that requests huge pages
_HUGE_PAGE: Final = 2 << 20
_MADV_HUGEPAGE: Final = 14


class DriverError(Exception):
    """A call to the CUDA driver has failed. The framework then makes the copy, and raises its own error if its copy
    fails too."""


def is_usable() -> bool:
    """Whether the ring can be used here. This requires Linux, enough cores and a CUDA driver. Elsewhere the ring was
    not measured, and the framework makes the copies."""
    global _driver
    # cached, because the result cannot change within a process; False stands for "no driver"
    if _driver is None:
        _driver = _loaded() or False
    return _driver is not False


def to_host(
    x: Any, address: int, array: Any, target: int, nbytes: int, stream: int | None
) -> bool:
    """Copies `nbytes` from `address` on a GPU, in the memory of `x`, to `target`, in the memory of `array`. The copy
    begins after the work on `stream`, or at once if `stream` is None. Returns True when the copy is complete, and False
    if the framework must make the copy. Call this only if `is_usable` returns True."""
    # waking a thread would take longer than the copy
    if stream is None and nbytes < FEW:
        return _few_to_host(address, target, nbytes)
    _advise_huge_pages(target, nbytes)
    return _make_copy(_ToHost((x, array), address, host=target, nbytes=nbytes, stream=stream))


def to_gpu(
    array: Any, source: int, x: Any, address: int, nbytes: int, stream: int | None
) -> bool:
    """Copies `nbytes` from `source`, in the memory of `array`, to `address` on a GPU, in the memory of `x`. Returns
    True when the source has been read. The copy then continues as work on `stream` or, if `stream` is None, is already
    complete. Returns False if the framework must make the copy. Call this only if `is_usable` returns True."""
    return _make_copy(_ToGpu((x, array), address, host=source, nbytes=nbytes, stream=stream))


def pinned_bytes() -> int:
    """Returns the number of bytes of page-locked memory that this process has allocated for the ring; 0 if there is no
    ring."""
    # read once, because another thread may free the ring at the same time
    ring = _ring
    return 0 if ring is None else SLOT * SLOTS


def free() -> None:
    """Waits for the copies in progress, and releases the ring's memory. The next copy creates a new ring."""
    global _ring
    # copies begin under this lock, so no copy can begin on this ring afterwards
    with _making:
        ring, _ring = _ring, None
    if ring is not None:
        ring.free()


def _loaded() -> ctypes.CDLL | None:
    """Returns the library of the CUDA driver; None if the ring cannot be used here."""
    # counts the cores that this process may use, which can be fewer than the cores of the machine
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < _LEAST_CORES:
        return None
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _call(name: str, *arguments: Any) -> None:
    """Calls a function of the driver, which `is_usable` has loaded. Raises `DriverError` if the call fails."""
    status = getattr(_driver, name)(*arguments)
    # 0 means success
    if status:
        raise DriverError(f"{name} returned {status}")


def _result_of(name: str, kind: Any, *arguments: Any) -> Any:
    """Calls a function of the driver that writes its result to its first argument. Returns this result, an object of
    the ctypes type `kind`. Raises `DriverError` if the call fails."""
    result = kind()
    _call(name, ctypes.byref(result), *arguments)
    return result


def _make_copy(copy: _Copy) -> bool:
    """Makes a copy through the ring, and returns True. Returns False if the ring cannot make the copy, or has failed;
    the framework then makes the copy, and raises its own error if its copy fails too."""
    global _ring
    # in the ring's threads, this handle would mean a different stream
    if copy.stream == _PER_THREAD:
        return False
    try:
        copy.gpu = _gpu_of(copy.address)
        # all GPUs share one ring, which is created for the first copy; under the lock, so that no other
        # thread frees the ring before this copy has begun
        with _making:
            _ring = _ring or _Ring(copy.gpu)
            _ring.begin(copy)
        copy.wait()
    except DriverError:
        return False
    return True


def _few_to_host(address: int, target: int, nbytes: int) -> bool:
    """Copies a small number of bytes (`nbytes`) from `address` on a GPU to `target` on the host, in the caller's
    thread. Returns True when the copy is complete, and False if it has failed."""
    host, gpu, size = ctypes.c_void_p(target), ctypes.c_uint64(address), ctypes.c_size_t(nbytes)
    try:
        # a stream determines the context, so no context is made current here, which might stay current
        # after Ctrl-C
        stream = _gpu_of(address).quick
        _call("cuMemcpyDtoHAsync_v2", host, gpu, size, stream)
        _call("cuStreamSynchronize", stream)
    except DriverError:
        return False
    return True


def _gpu_of(address: int) -> _Gpu:
    """Returns the GPU whose memory contains an address. Raises `DriverError` for any other memory, such as the
    host's."""
    pointer = ctypes.c_uint64(address)
    if (
        # the framework makes the copies of managed memory and host memory
        _result_of("cuPointerGetAttribute", ctypes.c_uint, _MEMORY_TYPE, pointer).value
        != _DEVICE_MEMORY
    ):
        raise DriverError("not the memory of a GPU")
    index = _result_of("cuPointerGetAttribute", ctypes.c_int, _DEVICE_ORDINAL, pointer).value
    with _making:
        # created only once for each GPU, because its context and streams are never released
        if index not in _gpus:
            _gpus[index] = _Gpu(index)
        return _gpus[index]


class _Gpu:
    """A GPU. `primary` is its primary CUDA context, which the CUDA runtimes of all frameworks share. `stream` is the
    stream for copies whose caller names no stream. `quick` is the stream for copies of a few bytes, so that they need
    not wait for large copies."""

    def __init__(self, index: int) -> None:
        device = _result_of("cuDeviceGet", ctypes.c_int, index)
        self.primary = _result_of("cuDevicePrimaryCtxRetain", ctypes.c_void_p, device)
        with _Current(self):
            self.stream = _result_of("cuStreamCreate", ctypes.c_void_p, _NON_BLOCKING)
            self.quick = _result_of("cuStreamCreate", ctypes.c_void_p, _NON_BLOCKING)


class _Current:
    """A block in which the CUDA context of a GPU is this thread's current context."""

    def __init__(self, gpu: _Gpu) -> None:
        self._gpu = gpu

    def __enter__(self) -> None:
        _call("cuCtxPushCurrent_v2", self._gpu.primary)

    def __exit__(self, *raised: object) -> None:
        _result_of("cuCtxPopCurrent_v2", ctypes.c_void_p)


class _Slot:
    """One buffer of the ring, which has `SLOT` bytes and begins at `address`."""

    def __init__(self, address: int) -> None:
        self.address = address
        # an event for each GPU that has used the slot, and the event that was recorded last
        self._events: dict[_Gpu, Any] = {}
        self._last: Any = None

    def mark(self, gpu: _Gpu, stream: Any) -> None:
        """Records an event in a stream of the GPU. When the GPU reaches the event, the slot is free again. The GPU's
        context must be current."""
        # an event belongs to the context of one GPU
        if gpu not in self._events:
            self._events[gpu] = _result_of("cuEventCreate", ctypes.c_void_p, _NO_TIMING)
        _call("cuEventRecord", self._events[gpu], stream)
        self._last = self._events[gpu]

    def wait(self) -> None:
        """Waits until the GPU no longer uses the slot."""
        if self._last is not None:
            _call("cuEventSynchronize", self._last)

    def free(self) -> None:
        """Waits until the GPU no longer uses the slot, and destroys its events."""
        self.wait()
        for event in self._events.values():
            _call("cuEventDestroy_v2", event)


class _Copy:
    """One copy, which several threads of the ring make chunk by chunk. `address` is the address on the GPU, and `host`
    is the address in host memory. `owners` are the two objects that own the memory on both sides; the copy keeps them
    alive until it is done. `stream` is the stream that the caller names; None means the GPU's own stream for copies."""

    threads = SLOTS
    """The maximum number of threads for one copy."""

    def __init__(
        self, owners: tuple[Any, Any], address: int, host: int, nbytes: int, stream: int | None
    ) -> None:
        self.address = address
        # the GPU, a `_Gpu`; set before the copy begins
        self.gpu: Any = None
        self.host = host
        self.nbytes = nbytes
        self.stream = stream
        self.owners: Any = owners
        # the error of a thread that has failed; None if no thread has failed
        self.error: BaseException | None = None
        # the offsets of the chunks that no thread has begun; several threads can safely pop from a deque
        self._starts = deque(range(0, nbytes, SLOT))
        # each thread puts None into this queue when its part of the copy is done
        self._ended: SimpleQueue[None] = SimpleQueue()
        # the number of threads that make the copy; set by `_Ring.begin`
        self.parts = 0

    def run(self, slots: SimpleQueue[_Slot]) -> None:
        """Copies chunks through free buffers from `slots` until no chunk is left. Runs in each thread of the ring that
        takes part in the copy. Stores an error, which `wait` raises."""
        try:
            stream = self.gpu.stream if self.stream is None else ctypes.c_void_p(self.stream)
            with _Current(self.gpu):
                try:
                    self._copy_chunks(slots, stream)
                finally:
                    self.end()
        except BaseException as error:
            self.error = error
        # also after an error, because `wait` waits for each thread
        finally:
            self._ended.put(None)

    def _copy_chunks(self, slots: SimpleQueue[_Slot], stream: Any) -> None:
        """Copies chunks, each through a free buffer from `slots` and on `stream`, until no chunk is left or another
        thread has failed."""
        while self.error is None:
            try:
                start = self._starts.popleft()
            except IndexError:
                return
            # if all slots are in use, this waits until another thread returns a slot
            slot = slots.get()
            try:
                self.step(slot, start, min(SLOT, self.nbytes - start), stream)
            # also after an error, because the slot would otherwise be lost
            finally:
                slots.put(slot)

    def step(self, slot: _Slot, start: int, nbytes: int, stream: Any) -> None:
        """Copies the chunk that begins at the offset `start` and has `nbytes` bytes, through a slot and on a stream."""
        raise NotImplementedError

    def end(self) -> None:
        """Called after the last chunk of a thread. By default, does nothing. Called in each thread, even if its last
        chunk has failed."""

    def wait(self) -> None:
        """Waits in the caller's thread until all threads have finished their part. If the copy has failed, raises its
        error."""
        try:
            for _ in range(self.parts):
                self._ended.get()
        # after Ctrl-C, the chunks that no thread has begun are no longer needed
        except BaseException:
            self._starts.clear()
            raise
        # the threads may refer to this object for a moment longer, but must not keep the memory alive
        self.owners = None
        if self.error is not None:
            raise self.error


class _ToHost(_Copy):
    """A copy from the GPU to the host."""

    def step(self, slot: _Slot, start: int, nbytes: int, stream: Any) -> None:
        """Copies a chunk from the GPU to the slot, waits for this copy, and then copies the chunk from the slot to the
        host."""
        # an earlier copy to the GPU may still read the slot
        slot.wait()
        _call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(slot.address), ctypes.c_uint64(self.address + start),
              ctypes.c_size_t(nbytes), stream)  # fmt: skip
        slot.mark(self.gpu, stream)
        # waits until the chunk is in the slot
        slot.wait()
        # ctypes releases Python's lock during the call, so the threads copy at the same time
        ctypes.memmove(self.host + start, slot.address, nbytes)


class _ToGpu(_Copy):
    """A copy from the host to the GPU."""

    threads = _THREADS_TO_GPU

    def step(self, slot: _Slot, start: int, nbytes: int, stream: Any) -> None:
        """Copies a chunk from the host to the slot, and queues its copy from the slot to the
        GPU. Does not wait for the GPU."""
        # an earlier copy to the GPU may still read the slot
        slot.wait()
        ctypes.memmove(slot.address, self.host + start, nbytes)
        _call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(self.address + start), ctypes.c_void_p(slot.address),
              ctypes.c_size_t(nbytes), stream)  # fmt: skip
        slot.mark(self.gpu, stream)

    def end(self) -> None:
        """Waits for the GPU if the caller has not named a stream."""
        # without a stream that the caller has named, nothing else would make the next use of the memory
        # wait for the copy
        if self.stream is None:
            _call("cuStreamSynchronize", self.gpu.stream)


class _Ring:
    """The page-locked memory, which is divided into slots, and the threads that copy through the slots. The memory is
    allocated in the context of `gpu`, but all GPUs can use it."""

    def __init__(self, gpu: _Gpu) -> None:
        with _Current(gpu):
            # `_PORTABLE` makes the memory page-locked for all GPUs
            self._memory = _result_of(
                "cuMemHostAlloc", ctypes.c_void_p, ctypes.c_size_t(SLOT * SLOTS), _PORTABLE
            )
        self._gpu = gpu
        self._all = [_Slot(self._memory.value + SLOT * number) for number in range(SLOTS)]
        # the slots that no thread is using
        self._slots: SimpleQueue[_Slot] = SimpleQueue()
        for slot in self._all:
            self._slots.put(slot)
        # contains each copy as many times as there are threads to make it; None ends a thread
        self._copies: SimpleQueue[_Copy | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name="xdevice-ring", daemon=True)
            for _ in range(min(SLOTS, len(os.sched_getaffinity(0))))
        ]
        for thread in self._threads:
            thread.start()

    def begin(self, copy: _Copy) -> None:
        """Starts a copy, and returns at once. `copy.wait` waits for the copy."""
        # no more threads than there are chunks; `-(-a // b)` rounds up
        copy.parts = min(copy.threads, len(self._threads), -(-copy.nbytes // SLOT))
        for _ in range(copy.parts):
            self._copies.put(copy)

    def _work(self) -> None:
        """Runs in each thread of the ring. Takes part in one copy after another, until `free` ends the thread."""
        while True:
            copy = self._copies.get()
            if copy is None:
                return
            copy.run(self._slots)
            # without this, the name would keep the memory on both sides alive until the next copy
            del copy

    def free(self) -> None:
        """Ends the threads after the copies that have begun, and then releases the memory."""
        for _ in self._threads:
            self._copies.put(None)
        for thread in self._threads:
            thread.join()
        with _Current(self._gpu):
            for slot in self._all:
                slot.free()
            _call("cuMemFreeHost", self._memory)


# None: not loaded yet; False: there is no driver
_driver: Any = None
_ring: _Ring | None = None
# the GPUs that were used, by the driver's index
_gpus: dict[int, _Gpu] = {}
# held while a ring or a `_Gpu` is created, and while a copy begins
_making = threading.Lock()


def _advise_huge_pages(target: int, nbytes: int) -> None:
    """Requests huge pages from the system for the `nbytes` of new memory at `target`, as NumPy does. The first write to
    each page is slow, and with huge pages the memory has 512 times fewer pages."""
    # the first multiple of the page size from `target` on
    start = -(-target // _HUGE_PAGE) * _HUGE_PAGE
    # only whole pages, because the memory before and after `target` has other owners
    length = (target + nbytes - start) // _HUGE_PAGE * _HUGE_PAGE
    if length > 0:
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_HUGEPAGE
        )


def _after_fork() -> None:
    """Discards the ring in a forked child, so that the next copy creates a new one."""
    global _ring, _making
    # kept alive, because the destructors could call the driver, which does not work in a forked child
    _left_to_the_parent.append((_ring, dict(_gpus)))
    _ring, _making = None, threading.Lock()
    _gpus.clear()


# the rings and GPUs of the processes from which this process was forked
_left_to_the_parent: list[Any] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
