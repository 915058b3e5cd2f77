"""Gradients of TensorFlow.

What this must keep:
- an operation runs on the device of the scope, not of its operands, and so do the operations of the gradient;
- a tape tells tensors apart by object, so each leaf is given to it as a new object;
- the gradient of `tf.gather` is `tf.IndexedSlices`.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from xdevice.contract.gradients import Gradients

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


def _beside(x: Any) -> AbstractContextManager[Any]:
    """A scope with the device of `x`; for a traced tensor, the scope that is open already."""
    place = getattr(x, "backing_device", None)
    return nullcontext() if place is None else tf.device(place)


def _input(x: Any) -> Any:
    with _beside(x):
        return tf.identity(x)


def _settled(g: Any, x: Any, backend: Gradients) -> Any:
    """The gradient `g` of the leaf `x`, made dense and moved to the device of `x`."""
    if g is None:
        return None
    g = tf.convert_to_tensor(g)
    if not hasattr(x, "backing_device") or backend.device_of(g) is backend.device_of(x):
        return g
    return backend.move(g, backend.device_of(x))


class TensorflowGradients(Gradients):
    def value_and_grad(
        self, leaves: list[Any], call: Callable[[list[Any]], tuple[Any, list[Any]]], nested: bool
    ) -> tuple[Any, list[Any], list[Any]]:
        with _beside(leaves[0]):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                inputs = [_input(x) for x in leaves]
                tape.watch(inputs)
                loss, rest = call(inputs)
            found = tape.gradient(loss, inputs)
        return loss, [_settled(g, x, self) for g, x in zip(found, leaves, strict=True)], rest

    def update(self, leaves: list[Any], grads: list[Any], rule: Callable[[Any, Any], Any], nested: bool) -> list[Any]:
        new = []
        for x, g in zip(leaves, grads, strict=True):
            with _beside(x):
                new.append(rule(x, g))
        return new
