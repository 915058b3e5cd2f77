"""Graphs: work of a device that is recorded once and then replayed, such as CUDA graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from xdevice.base.devices import Device
    from xdevice.errors import UnsupportedError


class Graphs(Primitives):
    """The capability of recording the work of a device once, and doing it again at each replay without running
    Python."""

    needs: ClassVar[tuple[str, ...]] = ("new_graph", "only_on", "capture", "replay")

    compiler: ClassVar[str] = ""
    """The framework's own way of repeating a function without Python, such as "tf.function". It
    is named in errors."""

    def new_graph(self, device: Device) -> Any:
        """Returns a new graph without any work, which can record work on `device`."""
        raise self.no_graphs()

    def only_on(self, device: Device) -> AbstractContextManager[Any]:
        """Returns a context manager. Inside its block, an operation of this thread that reads,
        makes or writes a tensor on a device other than `device` raises
        `DeviceMismatchError`."""
        raise self.no_graphs()

    def capture(self, graph: Any, stream: Any, task: Callable[[], Any]) -> Any:
        """Calls a task, and records the work that the task gives to `stream` in `graph`, instead of doing it. Returns
        the task's result, detached from gradients; each replay writes new values into the memory of that result. The
        tensors that the recorded work reads live as long as the graph. Raises the framework's errors for work that
        cannot be recorded, and leaves everything as before."""
        raise self.no_graphs()

    def replay(self, graph: Any) -> None:
        """Does the work of a graph again, on this thread's current stream."""
        raise self.no_graphs()

    def no_graphs(self) -> UnsupportedError:
        """Returns the error to raise if a device has no graphs."""
        # empty for a framework without a compiler of functions
        cheaper = f", which {self.compiler} makes cheaper" if self.compiler else ""
        return self.unsupported(
            "graphs of recorded work here", f"call the function itself{cheaper}"
        )
