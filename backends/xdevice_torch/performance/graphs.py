"""CUDA graphs: records the work of a task (a function) on a GPU once, and repeats this work at each replay.

A replay reads and writes the memory that the task used during the recording, even if that memory has been freed since
then. So the graph keeps alive the memory that the task's operations read. An operation on a device other than the
graph's GPU raises an error, because it would run only during the recording, not in a replay.

After a recording has failed, PyTorch 2.11 behaves as if the recording were still in progress:
it does not free the recording's memory, can no longer draw random numbers on that GPU, and
calls the graph whenever it allocates pinned memory.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch

from xdevice.errors import DeviceMismatchError
from xdevice.performance.contract.graphs import Graphs
from xdevice_torch.blocking import is_blocking
from xdevice_torch.modes import Mode
from xdevice_torch.private import private
from xdevice_torch.trees import leaves, replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from xdevice.base.devices import Device

_clear_workspaces = private["torch._C._cuda_clearCublasWorkspaces"]
_release_pool = private["torch._C._cuda_releasePool"]
# versions before 2.8 have the first name, and later versions the second
_end_pool = (
    private.get("torch._C._cuda_endAllocateCurrentStreamToPool")
    or private["torch._C._cuda_endAllocateToPool"]
)

_one_at_a_time = threading.Lock()
"""Held while a graph is recorded, because PyTorch allows only one recording at a time in a process."""

_failed: list[Any] = []
"""Graphs whose recording has failed. They stay in this list until the process ends, because
PyTorch still calls them (no upstream issue known)."""


class Graph:
    """A CUDA graph, together with the memory that its replays read."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._inputs: list[Any] = []

    def capture(self, stream: Any, task: Callable[[], Any]) -> Any:
        """Calls `task`, records its work on `stream`, and returns its result without gradients.
        If the task or the recording fails, cleans up and raises the error."""
        with _one_at_a_time, _own_workspace(), _no_casts_from_before():
            return self._record(stream, task)

    def _record(self, stream: Any, task: Callable[[], Any]) -> Any:
        """Records the work of `task` on `stream`, and returns its result without gradients. Raises the error of the
        task or of the recording. `capture` calls this method inside its context managers."""
        inputs, cause = Inputs(), None
        # read before the recording, which binds the GPU's random generator to the graph
        generator_before = torch.cuda.default_generators[stream.device_index].clone_state()
        try:
            with _recording(self._graph, stream), inputs:
                try:
                    result = task()
                except BaseException as error:
                    cause = error
                    raise
        except BaseException as error:
            _free_random_numbers(stream, generator_before)
            # ending the recording may fail too, and that error would hide the error of the task
            raise cause or error  # noqa: B904
        # from now on the graph keeps this memory alive
        self._inputs = list(inputs.memories.values())
        # detached, because backward() would work only once, and not after each replay
        return replaced(torch.Tensor, torch.Tensor.detach, result)

    def replay(self) -> None:
        """Starts the recorded work on this thread's current stream."""
        self._graph.replay()


@contextmanager
def _recording(graph: Any, stream: Any) -> Iterator[None]:
    """A block that records its work on the stream in the graph. If an error is raised in the block, the recording is
    abandoned and its memory is freed."""
    # the recording uses a memory pool of its own, which `_abandon` can free
    pool = torch.cuda.graph_pool_handle()
    try:
        # with "thread_local", other threads may allocate memory during the recording
        with torch.cuda.graph(
            graph, pool=pool, stream=stream, capture_error_mode="thread_local"
        ):
            yield
    except BaseException:
        _abandon(graph, stream, pool)
        raise


def _abandon(graph: Any, stream: Any, pool: Any) -> None:
    """Ends the recording of `graph`, which has failed, and frees its memory pool, which PyTorch would not free."""
    with torch.cuda.stream(stream), suppress(RuntimeError):
        # if another thread waits for the GPU just when the recording begins, PyTorch raises an
        # error without ending the recording
        if torch.cuda.is_current_stream_capturing():
            graph.capture_end()
    # `_end_pool` raises an error if the recording has ended properly
    with suppress(RuntimeError):
        _end_pool(stream.device_index, pool)
        _release_pool(stream.device_index, pool)
        _failed.append(graph)


def _free_random_numbers(stream: Any, generator_before: Any) -> None:
    """Makes the GPU's random generator usable again after a failed recording. PyTorch releases the generator only at
    the end of a successful recording (no upstream issue known), so this function makes another recording, which is
    trivial. It tries up to ten times, because another thread that waits for the GPU can break this recording too.
    `generator_before` is a copy of the generator as it was before the failed recording. If all attempts fail, the state
    of this copy is restored."""
    for _ in range(10):
        with suppress(RuntimeError):
            with _recording(torch.cuda.CUDAGraph(), stream):
                torch.zeros(1, device=stream.device)
            return
    # this sets a new state object in the generator, so graphs that were recorded earlier can no
    # longer draw random numbers
    torch.cuda.default_generators[stream.device_index].graphsafe_set_state(generator_before)


@contextmanager
def _own_workspace() -> Iterator[None]:
    """A block in which a graph gets its own cuBLAS workspace. cuBLAS has one workspace per thread and stream, and two
    graphs with the same workspace could not run at the same time (https://github.com/pytorch/pytorch/issues/193402)."""
    _clear_workspaces()
    try:
        yield
    finally:
        _clear_workspaces()


@contextmanager
def _no_casts_from_before() -> Iterator[None]:
    """A block in which autocast's cache of cast weights is empty and disabled. Otherwise each replay would use the
    weights that were in the cache during the recording (https://github.com/pytorch/pytorch/issues/71631)."""
    was_enabled = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(was_enabled)


class OnlyOn(Mode):
    """A dispatch mode that raises `DeviceMismatchError` for an operation on a device other than `place`, the graph's
    device. This means that the operation reads a tensor on another device, or creates one there without having
    operands.

    An operation on the graph's device may create tensors on another device, and later
    operations may read these tensors: for example, attention stores its seed on the CPU.
    """

    def __init__(self, place: torch.device) -> None:
        super().__init__()
        self._place = place
        self._allowed: dict[Any, Any] = {}
        """The memory on other devices that operations of the task itself have created, and that
        later operations may read. The values of the dict keep this memory alive, because the
        key of freed memory may be used again."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls an operation. Checks the devices of the operands before the call, and the devices of the results after
        the call."""
        operands = _tensors((args, kwargs))
        self._require(
            func, [x for x in self._elsewhere(operands) if _memory(x)[0] not in self._allowed]
        )
        result = func(*args, **kwargs or {})
        results = self._elsewhere(_tensors(result))
        # an operation without operands creates a tensor on the device that the task specifies,
        # so the mistake is in the task
        if not operands:
            self._require(func, results)
        # `_memory` returns the key and the value of an entry
        self._allowed.update(map(_memory, results))
        return result

    def _elsewhere(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the tensors that are not on the graph's device."""
        return [x for x in tensors if x.device != self._place]

    def _require(self, func: Any, elsewhere: list[torch.Tensor]) -> None:
        """Raises `DeviceMismatchError` if `elsewhere` is not empty. `elsewhere` lists the tensors of the operation
        `func` that are on a wrong device."""
        if elsewhere:
            raise DeviceMismatchError(
                f"the task uses a tensor on {elsewhere[0].device} ({func}), but its graph is for {self._place}, so a "
                f"replay would omit this operation; move the operation out of the task, or capture the task on that "
                f"device. For an optimizer of torch.optim, set capturable=True"
            )


class Inputs(Mode):
    """A dispatch mode that collects the memory that operations read, except memory that an
    earlier operation of the task has created. The graph keeps the collected memory alive,
    because a replay reads it at the same address."""

    def __init__(self) -> None:
        super().__init__()
        # weak references, because a key may be used again after its memory has been freed
        self._results: WeakValueDictionary[int, Any] = WeakValueDictionary()
        """The memory that operations of the task have created, by its key."""
        self.memories: dict[Any, Any] = {}
        """Maps the key of the collected memory to an object that keeps the memory alive."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls an operation. Records the memory that it reads before the call, and the memory
        that it creates after the call."""
        for x in _tensors((args, kwargs)):
            key, memory = _memory(x)
            if self._results.get(key) is not memory:
                self.memories[key] = memory
        result = func(*args, **kwargs or {})
        self._results.update(map(_memory, _tensors(result)))
        return result


def _tensors(x: Any) -> list[torch.Tensor]:
    """Returns the tensors in nested lists, tuples and dicts."""
    return [leaf for leaf in leaves(x) if isinstance(leaf, torch.Tensor)]


def _memory(x: torch.Tensor) -> tuple[int, Any]:
    """Returns a key that identifies the memory of a tensor, and an object that keeps this memory alive."""
    # a sparse tensor has no storage
    if x.layout is not torch.strided:
        return id(x), x
    storage = x.untyped_storage()
    # PyTorch always uses the same Python object for a storage as long as the storage exists, so
    # all views have the same key
    return id(storage), storage


class TorchGraphs(Graphs):
    """The hooks for graphs on CUDA."""

    _gpu: str
    """The `type` of the `torch.device` that xdevice calls `gpu:i`, such as "cuda"."""

    # the error for a device without graphs recommends this function
    compiler = "torch.compile"

    def new_graph(self, device: Device) -> Any:
        """Returns a graph that can record work on a GPU. Raises `UnsupportedError` for other devices."""
        # PyTorch also calls ROCm's GPUs "cuda"
        if self._gpu != "cuda" or device.kind != "gpu":
            raise self.no_graphs()
        private.require_names_for("graphs", "CUDA")
        return Graph()

    def only_on(self, device: Device) -> AbstractContextManager[Any]:
        """Returns a context manager in which an operation that uses a tensor on another device
        raises `DeviceMismatchError`."""
        return OnlyOn(self.to_native(device))

    def capture(self, graph: Any, stream: Any, task: Callable[[], Any]) -> Any:
        """Calls `task`, and returns its result. Records in `graph` the work that `task` queues on `stream`."""
        return graph.capture(stream, task)

    def replay(self, graph: Any) -> None:
        """Repeats the recorded work of a graph."""
        graph.replay()
        # the dispatch mode of `blocking` is not called for the operations of a replay; None means all devices
        if is_blocking():
            self.synchronize(None)
