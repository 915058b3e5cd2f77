"""Blocking mode for TensorFlow: the host waits after each operation of a thread."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from xdevice.contract.blocking import Blocking
from xdevice.contract.patching import Shared

from . import accelerators
from .callbacks import add_callback

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_blocked = Shared(per_thread=True)
"""Counts the open `with backend.blocking():` blocks of each thread. The first block makes the operations of the thread
synchronous, and the end of the last block restores the previous state."""


def is_blocking() -> bool:
    """Whether this thread is inside a `with backend.blocking():` block."""
    return _blocked.is_wanted()


def blocking(waits: bool) -> AbstractContextManager[None]:
    """Returns a context manager. In its block, the operations of this thread run synchronously.
    If `waits` is True, the host also waits for the GPUs after each operation."""
    return _blocked.on(partial(_block, waits))


def _block(waits: bool) -> Callable[[], None]:
    """Makes the operations of this thread synchronous. If `waits` is True, the host also waits
    for the GPUs after each operation. Returns a function that restores the previous state."""

    # TensorFlow calls this function after each operation, with these arguments
    def wait(
        op_type: str,
        inputs: Any,
        attrs: Any,
        outputs: Any,
        op_name: Any = None,
        graph: Any = None,
    ) -> None:
        """Waits for the GPUs if the operation has run eagerly inside a block of `blocking`."""
        # not while a graph is built; not after SyncDevice, which `sync_devices` itself runs;
        # and not if the last block has ended in another thread, because that thread cannot
        # remove this callback
        if (
            graph is None
            and op_type != "SyncDevice"
            and tf.executing_eagerly()
            and _blocked.is_wanted()
        ):
            tf.test.experimental.sync_devices()

    was_synchronous = tf.config.experimental.get_synchronous_execution()
    remove_callback = add_callback(wait) if waits else None
    tf.config.experimental.set_synchronous_execution(True)

    def undo() -> None:
        """Removes the callback, and restores the setting that the thread had before the
        block."""
        if remove_callback is not None:
            remove_callback()
        tf.config.experimental.set_synchronous_execution(was_synchronous)

    return undo


class TensorflowBlocking(Blocking):
    """Implements blocking mode for TensorFlow."""

    def blocking(self) -> AbstractContextManager[None]:
        """Returns a context manager. In its block, each operation of this thread returns only
        when its result has been computed. Raises `UnsupportedError` if there are GPUs of a
        plugin, because TensorFlow cannot wait for these."""
        # virtual GPUs are CPUs, on which synchronous execution is enough
        waits = self.count("gpu") > self.virtual
        if waits and not accelerators.IS_NVIDIA_OR_AMD:
            raise self.unsupported(
                f"blocking mode on {accelerators.kind()}, because TensorFlow cannot wait for the work of this device",
                "call xdevice.sync() after the line in question",
            )
        return blocking(waits)
