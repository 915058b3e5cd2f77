"""Gradients of functions, and the steps of an optimization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable

    # a function from a list of inputs to the loss and a list of any objects
    Call = Callable[[list[Any]], tuple[Any, list[Any]]]
    # the loss, a list with a gradient or None for each leaf, and that list of objects
    Outcome = tuple[Any, list[Any], list[Any]]


class Gradients(Primitives):
    """The capability to compute gradients as return values. The flags of the user's tensors (`requires_grad`), and the
    gradients stored in these tensors, remain unchanged, even after an error."""

    needs: ClassVar[tuple[str, ...]] = ("value_and_grad",)

    def value_and_grad(self, leaves: list[Any], call: Call, nested: bool) -> Outcome:
        """Calls `call` once, on tensors that represent `leaves`. The leaves are dense tensors
        of floats, or symbols. `call` returns a loss, which is a single float, and a list of
        any objects. The method returns the loss, a list with the gradient of the loss for each leaf, and the list of
        objects. A gradient is dense, with the leaf's shape, dtype and device. The gradient is None or zeros if the loss
        does not depend on the leaf; if the loss depends on no leaf, all gradients are None.

        Two leaves may be the same object, but they are still two inputs. The leaves, and all
        other tensors on which the loss depends, keep their flags and stored gradients, even if
        `call` raises. Recording for gradients is enabled inside `call`, even if the caller has
        disabled it. The returned tensors are detached, except in two cases. In the first case, `nested` is True, which
        means that this call is inside a function that is itself being differentiated. In the second case, a leaf is the
        result of recorded operations. In both cases, either gradients flow through the returned tensors, or the method
        raises `UnsupportedError`.
        """
        raise self.unsupported(
            f"gradients, but the parameters are {self.name} tensors",
            "use a backend that supports gradients: torch, tensorflow, paddle, mxnet or jax",
        )

    def stop_gradient(self, x: Any) -> Any:
        """Returns a tensor with the values of the tensor or symbol `x`, on the device of `x`. No gradient flows through
        the result. The result may share the memory of `x`; if the framework has no gradients, it may be `x` itself. An
        adapter that overrides `value_and_grad` must also override this method, because otherwise this default method
        raises `UnsupportedError`. In other adapters, the default returns `x`."""
        if type(self).value_and_grad is Gradients.value_and_grad:
            return x
        raise self.unsupported(
            "stop_gradient",
            "compute the parts without a gradient outside the function, and pass the results as arguments",
        )

    def update(
        self, rows: list[tuple[Any, ...]], rule: Callable[..., Any], nested: bool, writes: bool
    ) -> list[Any]:
        """Returns `rule(*row)` for each row of tensors, computed on the device of the row's first tensor. The
        computation is recorded for gradients only if `nested` is True. If `writes` is True, the rule may write into its
        arguments; it is then called with copies if the framework's tensors can be written into. This default method
        makes copies for every framework in this case."""
        own = [
            [self.copy(x, self.device_of(x)) for x in row] if writes else row for row in rows
        ]
        return [rule(*row) for row in own]
