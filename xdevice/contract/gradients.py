"""Gradients of functions, and the steps that are made with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable


class Gradients(Primitives):
    """Gradients by value: flags and gradients of the user's tensors are as before, also after an error."""

    needs: ClassVar[tuple[str, ...]] = ("value_and_grad",)

    def value_and_grad(
        self, leaves: list[Any], call: Callable[[list[Any]], tuple[Any, list[Any]]], nested: bool
    ) -> tuple[Any, list[Any], list[Any]]:
        """Calls `call` once, on tensors that stand for `leaves`, which are dense and of floats, or symbols: it gives a
        loss, which is one float, and a list of anything. Returns the loss, its gradient for each leaf, and the list. A
        gradient is dense, with the leaf's shape, dtype and device; None, or zeros, where the loss does not depend on
        the leaf, and None for all if it depends on none.

        Two leaves may be one object, and are two inputs. Leaves, and what else the loss depends on, keep their flags
        and gradients, also when `call` raises. Recording is on inside, whatever the caller has switched off. What is
        returned is detached, unless `nested` says that a gradient is asked for of what is computed from it, or a leaf
        is the result of recorded work: then gradients flow on through it, or it raises `UnsupportedError`."""
        raise self.unsupported(
            "gradients", "choose a backend that does: XDEVICE_BACKEND=torch, tensorflow, paddle, mxnet or jax"
        )

    def update(self, leaves: list[Any], grads: list[Any], rule: Callable[[Any, Any], Any], nested: bool) -> list[Any]:
        """`rule(leaf, gradient)` for each pair, on the leaf's device, not recorded for gradients unless `nested`. What
        the rule gets is not memory of `leaves` and `grads`, where tensors can be written."""
        own = [[self.copy(x, self.device_of(x)) for x in pair] for pair in zip(leaves, grads, strict=True)]
        return [rule(*pair) for pair in own]
