"""Registers callbacks that TensorFlow calls after each eager operation of a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .private import private

if TYPE_CHECKING:
    from collections.abc import Callable

_add = private["tensorflow.python.framework.op_callbacks.add_op_callback"]
_remove = private["tensorflow.python.framework.op_callbacks.remove_op_callback"]
_context = private["tensorflow.python.eager.context.context"]
# removes a callback from the list of this thread, but does not change the switch for all
# threads
_remove_here = private["tensorflow.python.eager.context.Context.remove_op_callback"]

_callbacks: list[Callable[..., None]] = []
"""The callbacks that are currently registered, in all threads."""


def add_callback(callback: Callable[..., None]) -> Callable[[], None]:
    """Registers a callback for the operations of this thread. Returns a function that removes the callback. The
    returned function must be called in the same thread.

    TensorFlow has a list of callbacks for each thread, but only one switch for all threads. When `remove_op_callback`
    removes the last callback of a thread, it turns the switch off. This also disables the callbacks of all other
    threads. So `remove_op_callback` is called only for the last callback of the process. All other callbacks are
    removed directly from the list of their thread."""
    # also turns the switch on
    _add(callback)
    _callbacks.append(callback)

    def remove_callback() -> None:
        """Removes the callback. Must be called in the thread that registered it."""
        _callbacks.remove(callback)
        if _callbacks:
            _remove_here(_context(), callback)
        else:
            _remove(callback)

    return remove_callback
