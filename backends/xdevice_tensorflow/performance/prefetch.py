"""Copies for `xdevice.prefetch`, and iterates over `tf.data` pipelines so that exceptions of the user's code in them
come out as the user raised them.

TensorFlow turns an exception in `from_generator` or `py_function` into an error of its own, which contains only the
name of the exception's type and its text:
"{{function_node ...}} ValueError: too short\\nTraceback (most recent call last): ...".
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

_RAISED = re.compile(
    r"^(?:\{\{.*?\}\} )?(?P<type>[A-Za-z]+): (?P<text>.*?)\nTraceback \(most recent call last\)",
    re.DOTALL,
)


def _unwrapping(batches: Iterator[Any]) -> Iterator[Any]:
    """Yields the batches, and raises the exception of the user's code, if TensorFlow's error tells its type."""
    try:
        yield from batches
    except tf.errors.OpError as error:
        original = _original(error)
        if original is None:
            raise
        raise original from error


def _original(error: tf.errors.OpError) -> Exception | None:
    """Returns a new exception like the one that the user's code raised. None if its type is not built into Python,
    because no other type can be found by its name."""
    match = _RAISED.match(error.message)
    cls = getattr(builtins, match["type"], None) if match else None
    if match is None or not (isinstance(cls, type) and issubclass(cls, Exception)):
        return None
    try:
        return cls(match["text"])
    except TypeError:
        # some types take more than a text: UnicodeDecodeError takes five arguments
        return None


class TensorflowPrefetch(Prefetch):
    if TYPE_CHECKING:

        def _settled(self, x: Any, device: Device) -> Any: ...

    def stage(self, x: Any, device: Device) -> Any:
        if hasattr(x, "backing_device"):
            # a tensor of TensorFlow cannot be changed, so one that is already there is passed on
            return self._settled(x, device)
        if isinstance(x, COMPOSITES):
            return self.move(x, device)
        return self.from_numpy(x, device)

    def iterate(self, source: Any) -> Iterator[Any]:
        return (
            _unwrapping(iter(source)) if isinstance(source, tf.data.Dataset) else iter(source)
        )
