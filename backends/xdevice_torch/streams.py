"""Streams and events on GPUs, from `torch.cuda` or `torch.xpu`, which both have the same
functions for streams and events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from xdevice.contract.streams import Streams

from . import accelerators

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from xdevice.base.devices import Device


class TorchStreams(Streams):
    """The hooks for streams and events of CUDA and XPU. A stream or event is PyTorch's own object."""

    _gpu: str
    """The `type` of the `torch.device` that xdevice calls `gpu:i`, such as "cuda"."""

    def new_stream(self, device: Device) -> Any:
        """Returns a new stream on a GPU. Raises `UnsupportedError` for a device without streams."""
        return self._streams(device, "streams").Stream(self.to_native(device))

    def current_stream(self, device: Device) -> Any:
        """Returns the stream on which this thread's work on a GPU is queued. Raises
        `UnsupportedError` for a device without streams."""
        return self._streams(device, "streams").current_stream(self.to_native(device))

    def stream_scope(self, stream: Any) -> AbstractContextManager[Any]:
        """Returns a context manager in which this thread's work is queued on a stream."""
        # no check is needed, because without streams `new_stream` has already raised an error
        scope: AbstractContextManager[Any] = getattr(torch, self._gpu).stream(stream)
        return scope

    def stream_wait(self, stream: Any, event: Any) -> None:
        """Makes later work on a stream wait for an event. The host does not wait."""
        stream.wait_event(event)

    def new_event(self, device: Device) -> Any:
        """Returns a new event that can be used to measure times. Raises `UnsupportedError` for a device without
        events."""
        # the event belongs to the device of the stream on which it is first recorded
        return self._streams(device, "events").Event(enable_timing=True)

    def record(self, event: Any, stream: Any) -> None:
        """Records an event in a stream: the event happens when the stream has finished the work
        queued so far."""
        event.record(stream)

    def wait_event(self, event: Any) -> None:
        """Makes the host wait until an event has happened."""
        event.synchronize()

    def elapsed(self, start: Any, end: Any) -> float:
        """Returns the number of seconds between `start` and `end`, two events that have happened."""
        return float(start.elapsed_time(end)) / 1000  # PyTorch returns milliseconds

    def keep_for(self, x: torch.Tensor, stream: Any) -> None:
        """Prevents the memory of `x` from being reused until a stream has finished the work
        queued so far. Does nothing if `x` is not on a GPU with streams."""
        # `record_stream` tells PyTorch's allocator not to reuse the memory before the stream's
        # work is done
        if x.device.type == self._gpu in accelerators.STREAMS:
            x.record_stream(stream)

    def _streams(self, device: Device, what: str) -> Any:
        """Returns the module with the streams and events of this device: `torch.cuda` or
        `torch.xpu`. Raises `UnsupportedError` for a device without streams and events; `what`
        ("streams" or "events") is used in the message."""
        if device.kind == "gpu" and self._gpu in accelerators.STREAMS:
            return getattr(torch, self._gpu)
        where = "Apple MPS" if self._gpu == "mps" and device.kind == "gpu" else str(device)
        advice = "measure times with xdevice.Timer, and run tasks side by side with xdevice.parallel.run()"
        raise self.unsupported(f"{what} on {where}", advice)
