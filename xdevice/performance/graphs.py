"""`make_graphed_callable`: records the GPU work of a task once, so that it can be replayed many times without Python.

A GPU computes the product of two 100x100 matrices in less time than Python needs to launch this work
(docs/explanation/measurements.md). A recording, called a graph, launches all the work of a task at once.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from xdevice.base import devices
from xdevice.core import selection
from xdevice.errors import ArgumentError, CaptureError, TransferError, XDeviceError
from xdevice.execution import streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.base.devices import Device
    from xdevice.contract import Backend

_capturing: ContextVar[bool] = ContextVar("xdevice_capturing", default=False)
"""Whether this thread is running the task of `make_graphed_callable`."""


def make_graphed_callable(task: Callable[[], Any], device: object = None) -> Graph:
    """Records a task's work on a GPU, as `torch.cuda.make_graphed_callables` does. Calling the result replays the work.

    Experimental: it may change in a minor version.

    Calls the task twice: first to do its work, then to record the work without doing it. A replay reads and writes the
    same memory, and runs no Python: write new inputs into the tensors that the task reads (`x.copy_(batch)`). See
    docs/reference/async.md. Costs the two calls, a wait for the device, and the task's memory while the graph exists.

    Args:
        task: a function without arguments that works on one GPU, with constant shapes, and reads nothing on the host.
        device: any form that `xdevice.device` accepts; by default the device of `with device:`, else the only GPU.

    | backend | a graph is | instead |
    |---|---|---|
    | torch | `torch.cuda.CUDAGraph` (CUDA, ROCm) | elsewhere `torch.compile` |
    | tensorflow | none | `tf.function` |
    | mxnet | none | `net.hybridize()` |
    | paddle | none | `paddle.jit.to_static` |
    | jax | none | `jax.jit` |
    | numpy | none: NumPy computes synchronously | the task itself |

    Raises:
        UnsupportedError: if the backend has no graphs, or none on that device; the error says what to use instead.
        CaptureError: if the task reads, waits, calls `parallel.run`, `prefetch` or itself, or cannot be recorded.
        DeviceMismatchError: if the task works on another device, because a replay would leave out that work.
        ArgumentError, DeviceError: if `task` is not a function; if one of several GPUs must be named. Errors of `task`.

    Example:
        >>> try:
        ...     step = xdevice.accelerator.make_graphed_callable(lambda: xdevice.ones(2, 2))
        ... except xdevice.errors.UnsupportedError as error:  # no GPU, or no graphs
        ...     print("instead" if "graph" in str(error) else error)
        instead
    """
    if not callable(task):
        raise ArgumentError(
            f"make_graphed_callable: expected a function without arguments, got {task!r:.100} of type "
            f"{type(task).__qualname__}; write make_graphed_callable(lambda: f(x)), not make_graphed_callable(f(x))"
        )
    refuse_in_capture("accelerator.make_graphed_callable")
    backend = selection.current()
    place = streams.device_of_work(backend) if device is None else devices.parse(device)
    place = backend.require(place)
    # before the task runs, so that nothing has happened yet if the backend has no graphs
    native = backend.new_graph(place)
    # a new stream, because CUDA cannot record on the default stream
    stream = streams.Stream(place)
    token = _capturing.set(True)
    try:
        _rehearse(task, stream)
        result = _record(task, native, stream)
    finally:
        _capturing.reset(token)
    return Graph(backend, place, native, result)


def refuse_in_capture(verb: str) -> None:
    """Raises `CaptureError` if this thread is running a task that is being captured. `verb` is the function of xdevice
    that calls this one. That function works in other threads, or makes another recording, so its work would be missing
    from the graph."""
    if _capturing.get():
        raise CaptureError(
            f"xdevice.{verb} cannot be called in a task that is being captured; capture the inner tasks instead"
        )


class Graph:
    """The work of a task on one GPU, recorded by `make_graphed_callable`. Calling the graph does that work again.

    Experimental: it may change in a minor version.

    `graph()` runs on this thread's stream of the graph's device, so its work is ordered like any other work there. The
    call immediately returns the task's result. Each call returns the same tensors, and overwrites their values: copy
    values that you want to keep (`xdevice.copy_to`). A graph can be a task of `parallel.run`:
    `xdevice.parallel.run(graph_0, graph_1)`.

    A call costs one request to the GPU, and the time that the GPU needs for the work.
    """

    def __init__(self, backend: Backend, device: Device, native: Any, result: Any) -> None:
        self.backend = backend
        self.device = device
        self.native = native
        self._result = result

    def __call__(self) -> Any:
        self.backend.replay(self.native)
        # the replay has written new values into the memory of these tensors
        return self._result

    def __repr__(self) -> str:
        return f"<xdevice graph of {self.backend.name} on {self.device}>"


def _rehearse(task: Callable[[], Any], stream: streams.Stream) -> None:
    """Runs the task once on `stream`, before it is recorded. The first call of a task may allocate memory, which is
    impossible during the recording. Raises `CaptureError`, with the line of the program, if the task reads a tensor on
    the host or copies a tensor between devices. Raises `DeviceMismatchError` if the task works on another device."""
    # imported here, because a program without graphs does not need it
    from xdevice.performance.transfers import transfers

    caller = streams.Stream.current(stream.device)
    # the task may read the results of work that the caller has enqueued earlier
    stream.wait(caller)
    try:
        with stream, transfers("disallow_explicit"), stream.backend.only_on(stream.device):
            task()
    # a read by the host would not be repeated by a replay, which runs no Python
    except TransferError as error:
        raise CaptureError(
            f"the task cannot be captured, because a replay would not repeat this transfer: {error.record}; move the "
            f"transfer out of the task"
        ) from error
    finally:
        # this also happens after an error, because the task may have written into tensors of
        # the caller
        caller.wait(stream)


def _record(task: Callable[[], Any], graph: Any, stream: streams.Stream) -> Any:
    """Calls the task, records its work in the graph, and returns its result. If the framework or the task raises an
    error, raises a `CaptureError` that lists the possible causes. Passes on xdevice's own errors unchanged."""
    try:
        with stream:
            return stream.backend.capture(graph, stream.native, task)
    # the message of xdevice's own errors already says what is wrong, and how to fix it
    except XDeviceError:
        raise
    except Exception as error:
        raise CaptureError(
            f"the task cannot be captured on {stream.device}: {type(error).__qualname__}: {error}; the task must "
            f"not wait, read values, copy from the host, or use the stream of another captured task that still exists, "
            f"and no other thread may wait for the device"
        ) from error
