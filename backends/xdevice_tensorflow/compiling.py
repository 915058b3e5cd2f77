"""Compiles functions by `tf.function`.

Facts about TensorFlow that the code depends on:
- An operation of a graph runs on the device of the scope that is open while the function is traced.
- AutoGraph would turn an `if` on a tensor into a graph's condition, where other frameworks raise: it is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from xdevice.contract.compiling import Compiling

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.base.devices import Device


class TensorflowCompiling(Compiling):
    def compile(self, call: Callable[[list[Any]], list[Any]], device: Device) -> Callable[[list[Any]], list[Any]]:
        native = self.to_native(device)

        def traced(tensors: list[Any]) -> list[Any]:
            with tf.device(native):
                return call(tensors)

        compiled: Callable[[list[Any]], list[Any]] = tf.function(traced, autograph=False)
        return compiled
