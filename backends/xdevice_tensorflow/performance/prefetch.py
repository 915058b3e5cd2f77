"""Copies for `xdevice.prefetch`, and iterates over `tf.data` pipelines so that exceptions of
the user's code in them have their own type.

TensorFlow turns an exception in `from_generator` or `py_function` into its own error, which
contains only the name of the exception's type and its text:

    {{function_node ...}} ValueError: too short\\nTraceback (most recent call last): ...
"""

from __future__ import annotations

import builtins
import re
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from xdevice.performance.contract.prefetch import Prefetch
from xdevice_tensorflow.conversion import COMPOSITES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdevice.base.devices import Device

# the name of the type and the text, in a message such as the one above
_RAISED = re.compile(
    r"^(?:\{\{.*?\}\} )?(?P<type>[A-Za-z]+): (?P<text>.*?)\nTraceback \(most recent call last\)",
    re.DOTALL,
)


def _unwrapping(batches: Iterator[Any]) -> Iterator[Any]:
    """Yields the batches. If TensorFlow raises an error for an exception of the user's code,
    raises an exception like the user's instead, if its type is one of Python's own."""
    try:
        yield from batches
    except tf.errors.OpError as error:
        original = _original(error)
        if original is None:
            raise
        raise original from error


def _original(error: tf.errors.OpError) -> Exception | None:
    """Returns a new exception with the type and the text of the one that the user's code
    raised. Returns None if the error has another cause, or if the type is not built into
    Python, because only such a type can be found by its name."""
    match = _RAISED.match(error.message)
    cls = getattr(builtins, match["type"], None) if match else None
    if match is None or not (isinstance(cls, type) and issubclass(cls, Exception)):
        return None
    try:
        return cls(match["text"])
    except TypeError:
        # some types need more than a text: UnicodeDecodeError needs five arguments
        return None


class TensorflowPrefetch(Prefetch):
    """Batches that are copied to a device while it computes."""

    if TYPE_CHECKING:  # a method of `TensorflowBackend`, into which this class is mixed

        def _moved_if_elsewhere(self, x: Any, device: Device) -> Any: ...

    def stage(self, x: Any, device: Device) -> Any:
        """Begins to copy a tensor or a NumPy array to a device, and returns the new tensor; an
        eager tensor that is on the device already is returned itself."""
        # an eager tensor cannot be changed, so one that is already on the device may be
        # returned itself
        if hasattr(x, "backing_device"):
            return self._moved_if_elsewhere(x, device)
        # sparse and ragged tensors, which consist of several
        if isinstance(x, COMPOSITES):
            return self.move(x, device)
        return self.from_numpy(x, device)

    def iterate(self, source: Any) -> Iterator[Any]:
        """Returns an iterator over `source`. If that is a `tf.data` pipeline, the iterator
        raises the errors of the user's code in it with their own type."""
        return (
            _unwrapping(iter(source)) if isinstance(source, tf.data.Dataset) else iter(source)
        )
