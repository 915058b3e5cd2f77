"""Graphs of recorded work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from xdevice.base.devices import Device
    from xdevice.errors import UnsupportedError


class Graphs(Primitives):
    """Work that is recorded once and done again at each replay, without Python."""

    needs: ClassVar[tuple[str, ...]] = ("new_graph", "only_on", "capture", "replay")

    compiler: ClassVar[str] = ""
    """What takes Python out of a repeated function in the framework's own way: "tf.function"."""

    def new_graph(self, device: Device) -> Any:
        """A graph of work on a device, without any work yet."""
        raise self.no_graphs()

    def only_on(self, device: Device) -> AbstractContextManager[Any]:
        """Raises `DeviceMismatchError` for work of this thread inside that reads, makes or writes what is elsewhere."""
        raise self.no_graphs()

    def capture(self, graph: Any, stream: Any, task: Callable[[], Any]) -> Any:
        """Calls a task and records the work that it gives to a stream in a graph, instead of doing it. Gives its
        result without gradients, whose memory each replay writes anew. What the work reads lives as long as the graph.
        Raises the framework's errors for what cannot be recorded; then all is as before."""
        raise self.no_graphs()

    def replay(self, graph: Any) -> None:
        """Does the work of a graph on this thread's current stream."""
        raise self.no_graphs()

    def no_graphs(self) -> UnsupportedError:
        """The error to raise where a device has no graphs."""
        cheaper = f", which {self.compiler} makes cheaper" if self.compiler else ""
        return self.unsupported("graphs of recorded work here", f"call the function itself{cheaper}")
