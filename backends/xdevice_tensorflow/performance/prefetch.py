"""Makes the copies for `xdevice.prefetch`, and iterates over `tf.data` pipelines. If the user's
code in a pipeline raises an exception of a built-in type, the exception keeps its type.

If `from_generator` or `py_function` raises an exception, TensorFlow raises its own error instead. This error contains
only the name of the exception's type, and its message:

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

# matches the name of the type and the message of the exception, in a message such as the one
# above
_RAISED = re.compile(
    r"^(?:\{\{.*?\}\} )?(?P<type>[A-Za-z]+): (?P<text>.*?)\nTraceback \(most recent call last\)",
    re.DOTALL,
)


def _unwrapping(batches: Iterator[Any]) -> Iterator[Any]:
    """Yields the batches. If an exception of the user's code has caused TensorFlow's error, raises an exception with
    the same type and message instead. This is possible only for the types of exceptions that are built into Python."""
    try:
        yield from batches
    except tf.errors.OpError as error:
        original = _original(error)
        if original is None:
            raise
        raise original from error


def _original(error: tf.errors.OpError) -> Exception | None:
    """Returns a new exception with the type and the message of the exception that the user's code raised. Returns None
    if the error has another cause, or if the type is not built into Python, because only built-in types can be found by
    their names."""
    match = _RAISED.match(error.message)
    cls = getattr(builtins, match["type"], None) if match else None
    if match is None or not (isinstance(cls, type) and issubclass(cls, Exception)):
        return None
    try:
        return cls(match["text"])
    except TypeError:
        # some types need more arguments than a message: UnicodeDecodeError needs five
        return None


class TensorflowPrefetch(Prefetch):
    """Copies batches to a device while the device computes."""

    if TYPE_CHECKING:  # a method of `TensorflowBackend`, into which this class is mixed

        def _moved_if_elsewhere(self, x: Any, device: Device) -> Any: ...

    def stage(self, x: Any, device: Device) -> Any:
        """Begins to copy a tensor or a NumPy array to a device, and returns the new tensor. If
        `x` is an eager tensor that is already on the device, returns `x` itself."""
        # eager tensors cannot be changed, so a tensor that is already on the device need not be
        # copied
        if hasattr(x, "backing_device"):
            return self._moved_if_elsewhere(x, device)
        # sparse and ragged tensors, which consist of several tensors
        if isinstance(x, COMPOSITES):
            return self.move(x, device)
        return self.from_numpy(x, device)

    def iterate(self, source: Any) -> Iterator[Any]:
        """Returns an iterator over `source`. If `source` is a `tf.data` pipeline, exceptions of the user's code in the
        pipeline keep their types (see `_unwrapping`)."""
        return (
            _unwrapping(iter(source)) if isinstance(source, tf.data.Dataset) else iter(source)
        )
