"""TensorFlow's part of the product `performance`. It has no graphs: `tf.function` compiles
functions instead."""

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
    """No graphs: the error that refuses them names `tf.function` instead."""

    compiler = "tf.function"


class TensorflowParallel(Parallel):
    """Tasks in threads, with the device of the thread that starts them."""

    def thread_state(self) -> Callable[[], AbstractContextManager[Any]]:
        """Reads the device of this thread's block of `tf.device`, and returns a function that
        makes a block in which another thread has the same device."""
        # empty outside a block of `tf.device`
        place = tf.__internal__.eager_context.get_device_name()
        return (lambda: tf.device(place)) if place else nullcontext


MIXINS: Final = (TensorflowGraphs, TensorflowParallel, TensorflowPrefetch, TensorflowTransfers)
