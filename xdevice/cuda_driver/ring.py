"""Copies between ordinary host memory and NVIDIA's GPUs, by several threads, through a ring of page-locked buffers.

The driver copies ordinary memory with one thread, which also touches each new page for the first time: 2 GB/s to the
host and 8 to the GPU, on a bus of 55 (docs/explanation/measurements.md). Here several threads copy one chunk each
between the caller's memory and a slot of the ring (a buffer of 4 MB), which the GPU reads or writes at the speed of the
bus.

Rules that a change of this module must keep:

- The GPU's part of each copy is queued on the stream that the caller names, so it comes after the work that is on that
  stream, and before work that is put there later. Each slot has an event, after which the GPU no longer uses the slot;
  the next user of the slot waits for it.
- Only threads of the ring hold slots: in the caller's thread, Ctrl-C could raise an exception between a copy and the
  recording of its event. The threads keep the memory on both sides alive until they have done their part, even if the
  caller no longer waits.
- `os.fork` must not have to wait for the ring: a forked child begins without one.
- The ring calls CUDA's driver by ctypes, so that one ring serves all frameworks, without any framework's allocator.
  Copies that were not measured are left to the framework: on systems other than Linux, on other GPUs, with few cores,
  and of sizes that gain nothing.
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
SLOTS: Final = 16
"""How many buffers of `SLOT` bytes the ring has: 64 MB in all."""
FEW: Final = 64 << 10
"""Of fewer bytes than this, a copy to the host that follows no stream is made in the caller's thread: by one of the
ring's 4 bytes took 120 us longer (H200, 2026-11-26)."""
_PER_THREAD: Final = 2
"""CUDA's handle for the default stream of the calling thread. In the ring's own threads it would mean another
stream, so copies on it are left to the framework."""
_THREADS_TO_GPU: Final = 12
_LEAST_CORES: Final = 4
_PORTABLE: Final = 1
_NO_TIMING: Final = 2
_NON_BLOCKING: Final = 1
_DEVICE_MEMORY: Final = 2
_MEMORY_TYPE: Final = 2
_DEVICE_ORDINAL: Final = 9
_HUGE_PAGE: Final = 2 << 20
_MADV_HUGEPAGE: Final = 14


class DriverError(Exception):
    """Raised if a call of CUDA's driver fails. The copy is then left to the framework, which may raise an error of its
    own."""


def is_measured() -> bool:
    """Whether the ring can be used here. It needs what it was measured with: Linux, enough cores, and a CUDA driver."""
    global _driver
    # asked once: the answer does not change while the process lives
    if _driver is None:
        _driver = _loaded() or False
    return _driver is not False


def to_host(
    x: Any, address: int, array: Any, target: int, nbytes: int, stream: int | None
) -> bool:
    """Copies `nbytes` from `address` on a GPU, in the memory of `x`, to `target`, in the memory of `array`, after the
    work on `stream`, or at once if that is None. The copy is complete on return. Returns False if the framework must
    make it."""
    # the threads would take longer than the copy
    if stream is None and nbytes < FEW:
        return _few_to_host(address, target, nbytes)
    _advise(target, nbytes)
    return _done(_ToHost((x, array), address, target, nbytes, stream))


def to_gpu(
    array: Any, source: int, x: Any, address: int, nbytes: int, stream: int | None
) -> bool:
    """Copies `nbytes` from `source`, in the memory of `array`, to `address` on a GPU, in the memory of `x`. On return
    the source has been read, and the copy goes on as work on `stream`; if that is None, the copy is complete. Returns
    False if the framework must make the copy."""
    return _done(_ToGpu((x, array), address, source, nbytes, stream))


def pinned_bytes() -> int:
    """The bytes of page-locked memory that this process keeps for the ring; 0 if there is no ring."""
    ring = _ring
    return 0 if ring is None else SLOT * SLOTS


def free() -> None:
    """Waits for the copies under way, and returns the ring's memory to the system. The next copy makes a new ring."""
    global _ring
    # `free` waits for copies under way, so none may begin while it runs
    with _making:
        ring, _ring = _ring, None
    if ring is not None:
        ring.free()


def _loaded() -> ctypes.CDLL | None:
    # the ring was measured with this many cores and more, on Linux
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < _LEAST_CORES:
        return None
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_driver, name)(*arguments)
    if status:
        raise DriverError(f"{name} gave {status}")


def _asked(name: str, kind: Any, *arguments: Any) -> Any:
    """Calls a function of the driver that writes its result to its first argument, and returns that result, of type
    `kind`."""
    result = kind()
    _call(name, ctypes.byref(result), *arguments)
    return result


def _done(copy: _Copy) -> bool:
    """Makes a copy by the ring. Returns whether it could; if not, the framework copies, and reports the error if there
    is one."""
    global _ring
    if copy.stream == _PER_THREAD:
        return False
    try:
        copy.place = _place_of(copy.address)
        with _making:  # so that no other thread frees the ring before the copy begins
            _ring = _ring or _Ring(copy.place)
            _ring.begin(copy)
        copy.wait()
    except DriverError:
        return False
    return True


def _few_to_host(address: int, target: int, nbytes: int) -> bool:
    """Copies a few bytes in the caller's thread. Returns whether it could."""
    host, gpu, size = ctypes.c_void_p(target), ctypes.c_uint64(address), ctypes.c_size_t(nbytes)
    try:
        # the stream brings its context along; one that is made current, Ctrl-C could leave so
        stream = _place_of(address).quick
        _call("cuMemcpyDtoHAsync_v2", host, gpu, size, stream)
        _call("cuStreamSynchronize", stream)
    except DriverError:
        return False
    return True


def _place_of(address: int) -> _Place:
    """Returns the GPU in whose memory an address is. Raises `DriverError` for the memory of the host."""
    pointer = ctypes.c_uint64(address)
    if (
        # managed and host memory are left to the framework
        _asked("cuPointerGetAttribute", ctypes.c_uint, _MEMORY_TYPE, pointer).value
        != _DEVICE_MEMORY
    ):
        raise DriverError("not the memory of a GPU")
    index = _asked("cuPointerGetAttribute", ctypes.c_int, _DEVICE_ORDINAL, pointer).value
    with _making:
        # contexts and streams are made once for each GPU, and kept
        if index not in _places:
            _places[index] = _Place(index)
        return _places[index]


class _Place:
    """A GPU: its CUDA context, which the runtimes of all frameworks share, a stream for copies that name no stream, and
    one for those of a few bytes, so that they do not wait for large ones."""

    def __init__(self, index: int) -> None:
        device = _asked("cuDeviceGet", ctypes.c_int, index)
        self.primary = _asked("cuDevicePrimaryCtxRetain", ctypes.c_void_p, device)
        with _Current(self):
            self.stream = _asked("cuStreamCreate", ctypes.c_void_p, _NON_BLOCKING)
            self.quick = _asked("cuStreamCreate", ctypes.c_void_p, _NON_BLOCKING)


class _Current:
    """A block in which the GPU's CUDA context is current on this thread."""

    def __init__(self, place: _Place) -> None:
        self._place = place

    def __enter__(self) -> None:
        _call("cuCtxPushCurrent_v2", self._place.primary)

    def __exit__(self, *raised: object) -> None:
        _asked("cuCtxPopCurrent_v2", ctypes.c_void_p)


class _Slot:
    def __init__(self, address: int) -> None:
        self.address = address
        self._events: dict[_Place, Any] = {}
        self._last: Any = None

    def mark(self, place: _Place, stream: Any) -> None:
        """Records an event in the stream: once the GPU reaches it, the slot is free again. The GPU's context must be
        current."""
        # an event belongs to one GPU's context
        if place not in self._events:
            self._events[place] = _asked("cuEventCreate", ctypes.c_void_p, _NO_TIMING)
        _call("cuEventRecord", self._events[place], stream)
        self._last = self._events[place]

    def wait(self) -> None:
        """Waits until the GPU no longer uses the slot."""
        if self._last is not None:
            _call("cuEventSynchronize", self._last)

    def free(self) -> None:
        self.wait()
        for event in self._events.values():
            _call("cuEventDestroy_v2", event)


class _Copy:
    """One copy, which is made chunk by chunk by several threads of the ring."""

    threads = SLOTS

    def __init__(
        self, owners: tuple[Any, Any], address: int, host: int, nbytes: int, stream: int | None
    ) -> None:
        self.address = address
        self.place: Any = None
        self.host = host
        self.nbytes = nbytes
        self.stream = stream
        self.owners: Any = owners
        self.error: BaseException | None = None
        self._starts = deque(range(0, nbytes, SLOT))  # popleft is atomic
        self._ended: SimpleQueue[None] = SimpleQueue()
        self.parts = 0

    def run(self, slots: SimpleQueue[_Slot]) -> None:
        """Runs in a thread of the ring: copies chunks until none is left. An error is kept for `wait` to raise."""
        try:
            stream = self.place.stream if self.stream is None else ctypes.c_void_p(self.stream)
            with _Current(self.place):
                try:
                    self._steps(slots, stream)
                finally:
                    self.end()
        except BaseException as error:
            self.error = error
        finally:
            self._ended.put(None)

    def _steps(self, slots: SimpleQueue[_Slot], stream: Any) -> None:
        """Copies chunks, each through a free slot, until none is left or another thread has failed."""
        while self.error is None:
            try:
                start = self._starts.popleft()
            except IndexError:
                return
            # waits until another thread has put one back
            slot = slots.get()
            try:
                self.step(slot, start, min(SLOT, self.nbytes - start), stream)
            # also after an error, or the slot would be lost for ever
            finally:
                slots.put(slot)

    def step(self, slot: _Slot, start: int, nbytes: int, stream: Any) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Called in each thread after its last chunk, even if that chunk has failed."""

    def wait(self) -> None:
        """Waits in the caller's thread until all threads have done their part. Raises the error of the copy, if any."""
        try:
            for _ in range(self.parts):
                self._ended.get()
        except BaseException:
            self._starts.clear()  # Ctrl-C: nobody waits for the rest
            raise
        self.owners = None  # the threads may still hold this object for a moment
        if self.error is not None:
            raise self.error


class _ToHost(_Copy):
    def step(self, slot: _Slot, start: int, nbytes: int, stream: Any) -> None:
        # the copy before may still be reading it
        slot.wait()
        _call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(slot.address), ctypes.c_uint64(self.address + start),
              ctypes.c_size_t(nbytes), stream)  # fmt: skip
        slot.mark(self.place, stream)
        slot.wait()
        # `ctypes` gives Python's lock away during the call, so the threads copy at the same time
        ctypes.memmove(self.host + start, slot.address, nbytes)


class _ToGpu(_Copy):
    threads = _THREADS_TO_GPU

    def step(self, slot: _Slot, start: int, nbytes: int, stream: Any) -> None:
        slot.wait()
        ctypes.memmove(slot.address, self.host + start, nbytes)
        _call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(self.address + start), ctypes.c_void_p(slot.address),
              ctypes.c_size_t(nbytes), stream)  # fmt: skip
        slot.mark(self.place, stream)

    def end(self) -> None:
        # no stream orders the copy before the next use of the memory, so it must be done
        if self.stream is None:
            _call("cuStreamSynchronize", self.place.stream)


class _Ring:
    def __init__(self, place: _Place) -> None:
        with _Current(place):
            # page-locked for all GPUs
            self._memory = _asked(
                "cuMemHostAlloc", ctypes.c_void_p, ctypes.c_size_t(SLOT * SLOTS), _PORTABLE
            )
        self._place = place
        self._all = [_Slot(self._memory.value + SLOT * number) for number in range(SLOTS)]
        self._slots: SimpleQueue[_Slot] = SimpleQueue()
        for slot in self._all:
            self._slots.put(slot)
        self._copies: SimpleQueue[_Copy | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name="xdevice-ring", daemon=True)
            for _ in range(min(SLOTS, len(os.sched_getaffinity(0))))
        ]
        for thread in self._threads:
            thread.start()

    def begin(self, copy: _Copy) -> None:
        # not more threads than there are chunks
        copy.parts = min(copy.threads, len(self._threads), -(-copy.nbytes // SLOT))
        for _ in range(copy.parts):
            self._copies.put(copy)

    def _work(self) -> None:
        while True:
            copy = self._copies.get()
            if copy is None:
                return
            copy.run(self._slots)
            del copy  # the name would keep the memory on both sides alive

    def free(self) -> None:
        for _ in self._threads:
            # one for each thread, to end it
            self._copies.put(None)
        for thread in self._threads:
            thread.join()
        with _Current(self._place):
            for slot in self._all:
                slot.free()
            _call("cuMemFreeHost", self._memory)


_driver: Any = None
_ring: _Ring | None = None
_places: dict[int, _Place] = {}
_making = threading.Lock()


def _advise(target: int, nbytes: int) -> None:
    """Asks the system for huge pages in the new memory, as NumPy does: the first write to each page is slow, and there
    are 512 times fewer of them."""
    start = -(-target // _HUGE_PAGE) * _HUGE_PAGE
    # whole huge pages only: the advice must not reach into memory of others
    length = (target + nbytes - start) // _HUGE_PAGE * _HUGE_PAGE
    if length > 0:
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_HUGEPAGE
        )


def _after_fork() -> None:
    global _ring, _making
    # kept alive: their destructors would call the driver, which does not work in a forked child
    _left_to_the_parent.append((_ring, dict(_places)))
    _ring, _making = None, threading.Lock()
    _places.clear()


_left_to_the_parent: list[Any] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
