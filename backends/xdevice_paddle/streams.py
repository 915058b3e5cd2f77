"""Streams and events on GPUs. Also keeps tensors alive as long as a stream uses them.

The events are created with the CUDA driver. Paddle would create them on the current GPU, and `set_device` can change
the current GPU only for all threads. Tensors must be kept alive, because Paddle has no `record_stream`. When a tensor
is deleted, the stream on which it was created may reuse its memory at once.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import paddle

from xdevice.contract.streams import Streams

from . import driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdevice.base.devices import Device

_NOT_READY = 600  # CUDA_ERROR_NOT_READY


class Event:
    """A CUDA event on the GPU `index`, created with the CUDA driver, that records its time."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.handle = ctypes.c_void_p()
        with driver.on(index):
            # with the flags 0, the event records its time
            driver.call("cuEventCreate", ctypes.byref(self.handle), 0)

    def record(self, stream: Any) -> None:
        """Records this event in a stream: it happens when the work submitted to the stream so far is done."""
        with driver.on(self.index):
            driver.call("cuEventRecord", self.handle, _handle(stream))

    def block(self, stream: Any) -> None:
        """Makes later work of a stream wait for this event."""
        # called in the context of the stream, which may be on another GPU than the event
        with driver.on(stream.stream_base.place.get_device_id()):
            driver.call("cuStreamWaitEvent", _handle(stream), self.handle, 0)

    def wait(self) -> None:
        """Makes the host wait until this event has happened."""
        with driver.on(self.index):
            driver.call("cuEventSynchronize", self.handle)

    def has_happened(self) -> bool:
        """Whether the work before this event is done. Raises `DriverError` if that work has failed."""
        try:
            with driver.on(self.index):
                driver.call("cuEventQuery", self.handle)
        except driver.DriverError as error:
            if error.code == _NOT_READY:
                return False
            raise
        return True

    def __del__(self) -> None:
        """Releases the event in the driver."""
        # there is no handle if the driver could not create the event
        if self.handle:
            with suppress(Exception):  # at the end of the process the driver may be gone
                driver.call("cuEventDestroy_v2", self.handle)


def _handle(stream: Any) -> ctypes.c_void_p:
    """Returns the CUDA driver's handle of one of Paddle's streams."""
    return ctypes.c_void_p(stream.stream_base.cuda_stream)


# tensors that streams still use

_lock = threading.Lock()
_used: list[tuple[paddle.Tensor, Any]] = []
"""The tensors that the program may still use, each with a stream that uses it."""
_ending: list[tuple[paddle.Tensor, Event]] = []
"""The tensors to which only this module still refers, each with the event after which the stream
no longer uses the tensor."""


def keep(x: paddle.Tensor, stream: Any) -> None:
    """Keeps `x` alive until nothing else refers to `x`, and the stream has finished all work that was submitted to it
    before that time."""
    with _lock:
        _release_finished()
        _used.append((x, stream))


def _release_finished() -> None:
    """Releases each tensor in `_ending` if its event has happened. If only this module still refers to a tensor in
    `_used`, moves the tensor into `_ending`, with a new event."""
    _ending[:] = [entry for entry in _ending if not entry[1].has_happened()]
    still_used = []
    # each entry is a tensor and a stream. The tensor gets no name here, which would be a reference too
    for entry in _used:
        # two of the references are not the program's: the entry itself, and the argument of
        # `getrefcount`
        if sys.getrefcount(entry[0]) > 2:
            still_used.append(entry)
            continue
        event = Event(entry[1].stream_base.place.get_device_id())
        event.record(entry[1])
        _ending.append((entry[0], event))
    _used[:] = still_used


class PaddleStreams(Streams):
    """Provides streams and events on CUDA's GPUs."""

    _gpu: str
    """Paddle's own name for the kind of device that xdevice calls `gpu`."""

    stream_reach = "process"  # in Paddle, all threads share the current stream of a GPU

    def new_stream(self, device: Device) -> Any:
        """Returns a new stream on a GPU. Raises `UnsupportedError` for other devices."""
        self._require_gpu(device, "streams")
        return paddle.device.Stream(self.to_native(device))

    def current_stream(self, device: Device) -> Any:
        """Returns the current stream of a GPU. Raises `UnsupportedError` for other devices."""
        self._require_gpu(device, "streams")
        return paddle.device.current_stream(self.to_native(device))

    @contextmanager
    def stream_scope(self, stream: Any) -> Iterator[None]:
        """While the block is open, the work of all threads is submitted to a stream."""
        # not with paddle.device.stream_guard, which may also change the default GPU of all threads
        previous_stream = paddle.device.set_stream(stream)
        try:
            yield
        finally:
            paddle.device.set_stream(previous_stream)

    def stream_wait(self, stream: Any, event: Any) -> None:
        """Makes later work of a stream wait for an event; the host does not wait."""
        event.block(stream)

    def new_event(self, device: Device) -> Any:
        """Returns an event on a GPU. Raises `UnsupportedError` for other devices, and on
        ROCm."""
        self.require_events(device)
        self.current_stream(device)  # creates Paddle's context on the GPU if there is none
        return Event(device.index)

    def require_events(self, device: Device) -> None:
        """Raises `UnsupportedError` for a device without events."""
        self._require_gpu(device, "events")
        if not driver.is_there():
            raise self.unsupported(
                "events on ROCm",
                "use xdevice.Timer, which waits for the device and reads the host's clock",
            )

    def record(self, event: Any, stream: Any) -> None:
        """Records an event in a stream: it happens when the work submitted to the stream so far is done."""
        event.record(stream)

    def wait_event(self, event: Any) -> None:
        """Makes the host wait until an event has happened."""
        event.wait()

    def elapsed(self, start: Any, end: Any) -> float:
        """Returns the time in seconds from `start` to `end`, two events that have happened."""
        milliseconds = ctypes.c_float()
        with driver.on(start.index):
            driver.call(
                "cuEventElapsedTime", ctypes.byref(milliseconds), start.handle, end.handle
            )
        return milliseconds.value / 1000

    def keep_for(self, x: paddle.Tensor, stream: Any) -> None:
        """Keeps the memory of `x` from being reused until a stream has finished the work that uses
        it."""
        if x.place.is_gpu_place():
            keep(x, stream)

    def _require_gpu(self, device: Device, what: str) -> None:
        """Raises `UnsupportedError` for a device without streams, where Paddle would crash with a
        segmentation fault (3.3.1, built for the CPU). `what` is "streams" or "events", for the
        message."""
        if device.kind != "gpu" or self._gpu != "gpu":
            advice = "measure times with xdevice.Timer, and run tasks side by side with xdevice.parallel.run()"
            raise self.unsupported(f"{what} on {device}", advice)
