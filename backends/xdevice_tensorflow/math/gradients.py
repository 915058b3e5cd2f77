"""Computes gradients with `tf.GradientTape`.

Facts about TensorFlow that the code depends on:
- An operation and the operations of its gradient run on the device of the open scope, not on the device of their
  operands.
- A tape distinguishes tensors by their identity as objects, so each input is passed to the tape
  as a new object.
- The gradient of `tf.gather` is a `tf.IndexedSlices`, which has to be converted to a dense
  tensor.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from xdevice.math.contract.gradients import Gradients

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from xdevice.math.contract.gradients import Call, Outcome


def _device_scope(x: Any) -> AbstractContextManager[Any]:
    """Returns a context manager. In its block, operations run on the device of `x`. If `x` is a
    traced tensor, which has no device, the context manager has no effect."""
    device = getattr(x, "backing_device", None)
    # the operations of a traced function run on the device of the whole function
    return nullcontext() if device is None else tf.device(device)


def _new_input(x: Any) -> Any:
    """Returns a new tensor object with the values and the device of `x`, because a tape
    distinguishes its inputs by their identity as objects."""
    with _device_scope(x):
        return tf.identity(x)


def _dense_gradient(g: Any, x: Any, backend: Gradients) -> Any:
    """Returns `g`, the gradient for the input `x`, as a dense tensor on the device of `x`.
    Returns None if `g` is None, which means that the loss does not depend on the input."""
    if g is None:
        return None
    # converts `tf.IndexedSlices` to a dense tensor, and returns any other gradient as it is
    g = tf.convert_to_tensor(g)
    # a symbolic tensor in a traced function has no `backing_device`. All operations of the
    # function, including those of the gradient, run on the same device, so there is nothing to
    # move
    if not hasattr(x, "backing_device") or backend.device_of(g) is backend.device_of(x):
        return g
    return backend.move(g, backend.device_of(x))


class TensorflowGradients(Gradients):
    """Implements the capability `Gradients` for TensorFlow. `xdevice.math.contract.gradients` documents its methods."""

    def value_and_grad(self, leaves: list[Any], call: Call, nested: bool) -> Outcome:
        """Calls `call` with new inputs that have the values of `leaves`. Returns the loss, the gradient of the loss for
        each leaf, and the list of other results that `call` returns in addition to the loss. A gradient is None if the
        loss does not depend on the leaf. `nested` is ignored, because an outer tape records the operations of the inner
        tape in any case."""
        with _device_scope(leaves[0]):
            # only the inputs are watched, so variables that the function reads are constants
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                inputs = [_new_input(x) for x in leaves]
                tape.watch(inputs)
                loss, aux_leaves = call(inputs)
            gradients = tape.gradient(loss, inputs)
        gradients = [
            _dense_gradient(g, x, self) for g, x in zip(gradients, leaves, strict=True)
        ]
        return loss, gradients, aux_leaves

    def stop_gradient(self, x: Any) -> Any:
        """Returns a tensor with the values and the device of `x`. No gradient flows through the result."""
        with _device_scope(x):
            return tf.stop_gradient(x)

    def update(
        self, rows: list[tuple[Any, ...]], rule: Callable[..., Any], nested: bool, writes: bool
    ) -> list[Any]:
        """Returns a list with `rule(*row)` for each row of tensors. Each result is computed on the device of the row's
        first tensor. `nested` and `writes` are ignored."""
        new = []
        # TensorFlow's tensors cannot be changed, so even a rule that writes (`writes`) needs no
        # copies. `nested` is not needed, because TensorFlow records operations only for tapes
        for row in rows:
            with _device_scope(row[0]):
                new.append(rule(*row))
        return new
