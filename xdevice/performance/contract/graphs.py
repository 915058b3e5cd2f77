"""Graphs, such as CUDA graphs: work of a device that is recorded once and then replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from xdevice.base.devices import Device
    from xdevice.errors import UnsupportedError


class Graphs(Primitives):
    """The capability to record the work of a device once. Each replay does the work again without running Python."""

    needs: ClassVar[tuple[str, ...]] = ("new_graph", "only_on", "capture", "replay")

    compiler: ClassVar[str] = ""
    """The framework's own way of repeating a function without Python, such as "tf.function". Errors recommend it."""

    def new_graph(self, device: Device) -> Any:
        """Returns a new, empty graph, which can record work on `device`."""
        raise self.no_graphs()

    def only_on(self, device: Device) -> AbstractContextManager[Any]:
        """Returns a context manager. Inside its block, an operation of this thread that reads, creates or writes a
        tensor on a device other than `device` raises `DeviceMismatchError`."""
        raise self.no_graphs()

    def capture(self, graph: Any, stream: Any, task: Callable[[], Any]) -> Any:
        """Calls a task, and records in `graph` the work that the task enqueues on `stream`, instead of doing this work.
        Returns the task's result, detached from gradients; each replay writes new values into the memory of that
        result. The tensors that the recorded work reads live as long as the graph. For work that cannot be recorded,
        raises the framework's error and leaves everything unchanged."""
        raise self.no_graphs()

    def replay(self, graph: Any) -> None:
        """Repeats the work of a graph on this thread's current stream."""
        raise self.no_graphs()

    def no_graphs(self) -> UnsupportedError:
        """Returns the error for a device that has no graphs."""
        # empty if the framework has no compiler of functions
        cheaper = f", which {self.compiler} makes faster" if self.compiler else ""
        return self.unsupported(
            "graphs of recorded work here", f"call the function itself{cheaper}"
        )
