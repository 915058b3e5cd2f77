"""TensorFlow's callbacks, which see each eager operation of a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorflow.python.eager import context as _context
from tensorflow.python.framework import op_callbacks

if TYPE_CHECKING:
    from collections.abc import Callable

_callbacks: list[Callable[..., None]] = []
"""Those of all threads."""


def call_back(callback: Callable[..., None]) -> Callable[[], None]:
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
