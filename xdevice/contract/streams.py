"""Streams of work on a device, and events in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .primitives import Primitives

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from xdevice.base.devices import Device
    from xdevice.errors import UnsupportedError


class Streams(Primitives):
    """Streams and events. Without them `Stream`, and an `Event` on such a device, are refused by name."""

    needs: ClassVar[tuple[str, ...]] = (
        "new_stream", "current_stream", "stream_scope", "stream_wait", "new_event", "record", "wait_event", "elapsed",
    )  # fmt: skip
    stream_reach: ClassVar[Literal["thread", "process"]] = "thread"
    """Whether `stream_scope` sends the work of its own thread to a stream, or that of all threads."""

    def new_stream(self, device: Device) -> Any:
        """A new stream of work on a device."""
        raise self._no_streams()

    def current_stream(self, device: Device) -> Any:
        """The stream that this thread's work on a device goes to."""
        raise self._no_streams()

    def stream_scope(self, stream: Any) -> AbstractContextManager[Any]:
        """Sends this thread's work to a stream inside the block."""
        raise self._no_streams()

    def stream_wait(self, stream: Any, event: Any) -> None:
        """Makes later work of a stream wait for an event; the host goes on."""
        raise self._no_streams()

    def new_event(self, device: Device) -> Any:
        """A new event that can be timed."""
        raise self._no_events()

    def require_events(self, device: Device) -> None:
        """Raises `UnsupportedError` where a device has no events. To be overridden where `new_event` starts it."""
        self.new_event(device)

    def record(self, event: Any, stream: Any) -> None:
        """Marks the point that a stream's work has reached."""
        raise self._no_events()

    def wait_event(self, event: Any) -> None:
        """Waits on the host until a recorded event has happened."""
        raise self._no_events()

    def elapsed(self, start: Any, end: Any) -> float:
        """Seconds of device time between two events that have happened."""
        raise self._no_events()

    def keep_for(self, x: Any, stream: Any) -> None:  # nothing to do if memory is never given away
        """Tells the allocator that a stream uses `x`, whose memory is then kept until that stream is done."""

    def _no_streams(self) -> UnsupportedError:
        return self.unsupported("streams", "it orders its work by itself; xdevice.parallel() runs tasks side by side")

    def _no_events(self) -> UnsupportedError:
        return self.unsupported("events", "xdevice.Timer waits for the device and reads the host's clock")
