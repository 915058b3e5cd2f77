"""Seeing TensorFlow's transfers, and waiting after each operation.

Every method that reads ends in `_numpy_internal`; NumPy reads a tensor through the buffer protocol instead. An
operation copies its operands to its own device in silence: that is seen afterwards, by callbacks, which are per thread.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.eager import context as _context
from tensorflow.python.framework import op_callbacks, ops

from xdevice.base import devices
from xdevice.contract.hooks import Hooks, Shared, listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from xdevice.base.devices import Device
    from xdevice.contract import Backend, Transfer


_READS = (
    "numpy", "__array__", "__bool__", "__nonzero__", "__float__", "__int__", "__index__", "__complex__",
    "__repr__", "__str__", "__format__", "__reduce__",
)  # fmt: skip
_ON_THE_HOST = {tf.int32, tf.int64, tf.string, tf.resource, tf.variant}
"""Shapes, axes, names and handles: operations on a GPU take them from the host."""

_seen = Shared(per_thread=True)
"""One callback for each thread, however many blocks are open there: each further one would report anew."""
_blocked = Shared(per_thread=True)
_callbacks: list[Callable[..., None]] = []
"""Those of all threads."""


@contextmanager
def watch(backend: Backend, report: Callable[[Transfer], None]) -> Iterator[None]:
    def target(x: Any, ctx: Any = None, device_name: str | None = None) -> Device | None:
        return devices.parse(device_name) if device_name else None

    def seen(op_type: str, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None) -> None:
        if graph is not None or not listening.get() or not outputs or not hasattr(outputs[0], "backing_device"):
            return
        here = devices.parse(outputs[0].device)
        for x in inputs:
            if hasattr(x, "backing_device") and x.dtype not in _ON_THE_HOST and not _is_number(backend, x):
                hooks.tell(hooks.move(op_type, x, here))

    with Hooks(backend, report, _size) as hooks, _seen.on(partial(_call_back, seen)):
        hooks.verbs()
        hooks.numpy_reads()
        hooks.reads(ops.EagerTensor, *_READS)
        hooks.reads(ops.EagerTensor, "_numpy_internal", how="numpy")
        hooks.moves(ops.EagerTensor, "_copy", target, how="copy")
        yield


def blocking(waits: bool) -> AbstractContextManager[None]:
    """This thread's operations run synchronously; with `waits`, each one's kernels on the GPUs are waited for too."""
    return _blocked.on(partial(_block, waits))


def _block(waits: bool) -> Callable[[], None]:
    def wait(op_type: str, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None) -> None:
        # the wait is an operation itself
        if graph is None and op_type != "SyncDevice" and tf.executing_eagerly() and _blocked.is_wanted():
            tf.test.experimental.sync_devices()

    context = _context.context()
    before = context.execution_mode
    tf.config.experimental.set_synchronous_execution(True)
    call_no_more = _call_back(wait) if waits else None

    def undo() -> None:
        if call_no_more is not None:
            call_no_more()
        context.execution_mode = before

    return undo


def _call_back(callback: Callable[..., None]) -> Callable[[], None]:
    """TensorFlow's callbacks are per thread, and the function that calls them is replaced for all threads: it is put
    back by the first thread that has none left, so that the others' would be called no more."""
    op_callbacks.add_op_callback(callback)
    _callbacks.append(callback)

    def call_no_more() -> None:
        _callbacks.remove(callback)
        if _callbacks:
            _context.context().remove_op_callback(callback)
        else:
            op_callbacks.remove_op_callback(callback)

    return call_no_more


def _is_number(backend: Backend, x: Any) -> bool:
    """TensorFlow makes a host tensor of the 0.5 in `x * 0.5`, which an operation on a GPU takes along."""
    return x._rank() == 0 and backend.device_of(x).kind == "cpu"


def _size(x: Any) -> int:
    if not hasattr(x, "_num_elements"):  # a composite
        return sum(map(_size, tf.nest.flatten(x, expand_composites=True)))
    return int(x._num_elements()) * int(x.dtype.size or 0)
