"""TensorFlow's part of the product `performance`. TensorFlow cannot record and replay the work
of a device as a graph; instead, `tf.function` compiles functions."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf

from xdevice.performance.contract.graphs import Graphs
from xdevice.performance.contract.parallel import Parallel

from .prefetch import TensorflowPrefetch
from .transfers import TensorflowTransfers

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class TensorflowGraphs(Graphs):
    """Refuses graphs. The message of the error recommends `tf.function` instead."""

    compiler = "tf.function"


class TensorflowParallel(Parallel):
    """Runs tasks in threads, with the default device of the thread that starts them."""

    def thread_state(self) -> Callable[[], AbstractContextManager[Any]]:
        """Reads this thread's current device, which a block of `tf.device` has set. Returns a function that creates a
        context manager. In the block of the context manager, another thread has the same device."""
        # the name is empty outside a block of `tf.device`
        device_name = tf.__internal__.eager_context.get_device_name()
        return (lambda: tf.device(device_name)) if device_name else nullcontext


MIXINS: Final = (TensorflowGraphs, TensorflowParallel, TensorflowPrefetch, TensorflowTransfers)
