"""Streams, which are queues of work on a device, and the events that are recorded in streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .primitives import Primitives

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from xdevice.base.devices import Device
    from xdevice.errors import UnsupportedError


class Streams(Primitives):
    """The capability of streams and events. Without this capability, creating an `xdevice.accelerator.Stream` or an
    `xdevice.accelerator.Event` raises `UnsupportedError`."""

    needs: ClassVar[tuple[str, ...]] = (
        "new_stream", "current_stream", "stream_scope", "stream_wait", "new_event", "record", "wait_event", "elapsed",
    )  # fmt: skip
    stream_reach: ClassVar[Literal["thread", "process"]] = "thread"
    """Whether `stream_scope` sends only the work of its own thread to a stream, or the work of all threads."""

    def new_stream(self, device: Device) -> Any:
        """Returns a new stream of work on a device."""
        raise self._no_streams()

    def current_stream(self, device: Device) -> Any:
        """Returns the stream to which this thread's work on a device goes."""
        raise self._no_streams()

    def stream_scope(self, stream: Any) -> AbstractContextManager[Any]:
        """Returns a context manager that sends this thread's work to a stream inside the block."""
        raise self._no_streams()

    def stream_wait(self, stream: Any, event: Any) -> None:
        """Makes all work that is added to a stream from now on wait for an event. The host does not wait."""
        raise self._no_streams()

    def new_event(self, device: Device) -> Any:
        """Returns a new event that can measure time; see `elapsed`."""
        raise self._no_events()

    def require_events(self, device: Device) -> None:
        """Raises `UnsupportedError` if a device has no events. Override this method if `new_event` initializes the
        device."""
        self.new_event(device)

    def record(self, event: Any, stream: Any) -> None:
        """Records an event in a stream. The event happens when all work that is now in the stream is done."""
        raise self._no_events()

    def wait_event(self, event: Any) -> None:
        """Makes the host wait until a recorded event has happened."""
        raise self._no_events()

    def elapsed(self, start: Any, end: Any) -> float:
        """Returns the seconds of device time from the event `start` to the event `end`, which have both happened."""
        raise self._no_events()

    # the default is correct for a framework whose own allocator tracks which work uses a tensor
    def keep_for(self, x: Any, stream: Any) -> None:
        """Prevents the framework's allocator from reusing the memory of `x` before all work that is now in a stream is
        done."""

    def _no_streams(self) -> UnsupportedError:
        """Returns the error that the methods for streams raise if the adapter does not define these methods."""
        return self.unsupported(
            "streams",
            "to run tasks side by side, call xdevice.parallel.run()",
        )

    def _no_events(self) -> UnsupportedError:
        """Returns the error that the methods for events raise if the adapter does not define these methods."""
        return self.unsupported(
            "events", "use xdevice.Timer, which waits for the device and reads the host's clock"
        )
