"""Graphs of CUDA.

A replay reads and writes the memory that the task used while it was recorded, whoever has that memory by then. So the
graph keeps what the task's operations read. What they do elsewhere than on the graph's GPU would be done once, while
it is recorded, and never again: that is an error. After a recording that failed PyTorch 2.11 believes that it goes on,
keeps its memory, and gives no more random numbers on that GPU.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from xdevice.errors import DeviceMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable


class Graph:
    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._inputs: list[Any] = []

    def capture(self, stream: Any, task: Callable[[], Any]) -> Any:
        pool, inputs = torch.cuda.graph_pool_handle(), Inputs()
        random = torch.cuda.default_generators[stream.device_index]
        before = random.clone_state()
        # other threads may allocate meanwhile
        recording = torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local")
        try:
            with recording, inputs:
                result = task()
        except BaseException:
            with suppress(RuntimeError):  # raised by the first of these if the recording ended as it should
                torch._C._cuda_endAllocateToPool(stream.device_index, pool)
                torch._C._cuda_releasePool(stream.device_index, pool)
                random.graphsafe_set_state(before)
            raise
        self._inputs = list(inputs.found.values())
        # backward() works once through what was recorded, and not through a replay
        return tree_map_only(torch.Tensor, torch.Tensor.detach, result)

    def replay(self) -> None:
        self._graph.replay()


class _Mode(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # else a function of torch.compile that is called here first is never compiled


class OnlyOn(_Mode):
    """Refuses operations that make or write something elsewhere."""

    def __init__(self, place: torch.device) -> None:
        super().__init__()
        self._place = place

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        for x in _tensors(result):
            if x.device != self._place:
                raise DeviceMismatchError(
                    f"the task makes or writes a tensor on {x.device} ({func}), and its graph is of {self._place}: a "
                    f"replay would leave that out; keep it out of the task, or capture the task on that device"
                )
        return result


class Inputs(_Mode):
    """Finds the memory that operations read and did not make."""

    def __init__(self) -> None:
        super().__init__()
        self._made: set[Any] = set()
        self.found: dict[Any, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for x in _tensors((args, kwargs)):
            key, memory = _memory(x)
            if key not in self._made:
                self.found[key] = memory
        result = func(*args, **kwargs or {})
        self._made.update(_memory(x)[0] for x in _tensors(result))
        return result


def _tensors(x: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(x) if isinstance(leaf, torch.Tensor)]


def _memory(x: torch.Tensor) -> tuple[Any, Any]:
    """What tells a tensor's memory from others', and what keeps it."""
    if x.layout is not torch.strided:
        return id(x), x
    storage = x.untyped_storage()
    return storage._cdata, storage
