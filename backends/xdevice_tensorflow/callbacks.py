"""Registers callbacks that TensorFlow calls after each eager operation of a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .private import private

if TYPE_CHECKING:
    from collections.abc import Callable

_add = private["tensorflow.python.framework.op_callbacks.add_op_callback"]
_remove = private["tensorflow.python.framework.op_callbacks.remove_op_callback"]
_context = private["tensorflow.python.eager.context.context"]
# removes a callback from this thread's list, and leaves the switch for all threads as it is
_remove_here = private["tensorflow.python.eager.context.Context.remove_op_callback"]

_callbacks: list[Callable[..., None]] = []
"""The callbacks that are registered now, in all threads together."""


def call_back(callback: Callable[..., None]) -> Callable[[], None]:
    """Registers a callback for the operations of this thread. Returns a function that removes
    the callback, and that must be called in the same thread.

    TensorFlow keeps a list of callbacks for each thread, but one switch for all threads.
    `remove_op_callback` turns the switch off when its own thread has no callback left, and with
    it the callbacks of the other threads. So `remove_op_callback` is called only for the last
    callback of the process, and other callbacks are removed directly from the list of their
    thread."""
    # turns the switch on, if it is off
    _add(callback)
    _callbacks.append(callback)

    def call_no_more() -> None:
        """Removes the callback. Must be called in the thread that registered it."""
        _callbacks.remove(callback)
        if _callbacks:
            _remove_here(_context(), callback)
        else:
            _remove(callback)

    return call_no_more
