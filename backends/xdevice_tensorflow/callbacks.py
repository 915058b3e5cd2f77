"""TensorFlow's callbacks, which see each eager operation of a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorflow.python.eager import context as _context
from tensorflow.python.framework import op_callbacks

if TYPE_CHECKING:
    from collections.abc import Callable

_callbacks: list[Callable[..., None]] = []
"""The callbacks that are registered now, of all threads together."""


def call_back(callback: Callable[..., None]) -> Callable[[], None]:
    """Registers a callback for this thread's operations; the result ends that.

    TensorFlow keeps callbacks per thread, but switches calling them on and off for all threads at once: the first
    thread without callbacks would switch off those of the others. So only the last callback of all is removed by
    `remove_op_callback`, which switches."""
    op_callbacks.add_op_callback(callback)
    _callbacks.append(callback)

    def call_no_more() -> None:
        _callbacks.remove(callback)
        if _callbacks:
            _context.context().remove_op_callback(callback)
        else:
            op_callbacks.remove_op_callback(callback)

    return call_no_more
