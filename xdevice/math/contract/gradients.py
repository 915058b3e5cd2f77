"""Gradients of functions, and the steps that an optimization makes with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from xdevice.contract.primitives import Primitives

if TYPE_CHECKING:
    from collections.abc import Callable

    # from the inputs to the loss and a list of anything
    Call = Callable[[list[Any]], tuple[Any, list[Any]]]
    # the loss, a gradient or None for each leaf, and that list
    Outcome = tuple[Any, list[Any], list[Any]]


class Gradients(Primitives):
    """The capability of computing gradients as return values: the user's tensors keep their
    flags (`requires_grad`) and the gradients stored in them, also after an error."""

    needs: ClassVar[tuple[str, ...]] = ("value_and_grad",)

    def value_and_grad(self, leaves: list[Any], call: Call, nested: bool) -> Outcome:
        """Calls `call` once, on tensors that represent `leaves`. The leaves are dense tensors
        of floats, or symbols. `call` returns a loss, which is one float, and a list of
        anything. The method returns the loss, the gradient of the loss for each leaf, and that
        list. A gradient is dense, with the leaf's shape, dtype and device. It is None or zeros
        if the loss does not depend on the leaf; if the loss depends on no leaf, all gradients
        are None.

        Two leaves may be the same object, and still are two inputs. The leaves and all other
        tensors that the loss depends on keep their flags and stored gradients, also if `call`
        raises. Recording for gradients is on inside `call`, even if the caller has switched it
        off. The returned tensors are detached, with two exceptions: `nested` is True, because
        the caller itself computes the gradient of a function that makes this call; or a leaf is
        itself the result of recorded operations. Then gradients flow on through the returned
        tensors, or the method raises `UnsupportedError`.
        """
        raise self.unsupported(
            f"gradients, but the parameters are {self.name} tensors",
            "use a backend that does: torch, tensorflow, paddle, mxnet or jax",
        )

    def stop_gradient(self, x: Any) -> Any:
        """Returns a tensor with the values of the tensor or symbol `x`, on the device of `x`,
        through which no gradient flows. It may share the memory of `x`, or be `x` itself if the
        framework has no gradients. An adapter that overrides `value_and_grad` has to override
        this method, too: the default returns `x`, and raises `UnsupportedError` in such an
        adapter."""
        if type(self).value_and_grad is Gradients.value_and_grad:
            return x
        raise self.unsupported(
            "stop_gradient",
            "compute the parts without a gradient outside the function, and pass them in",
        )

    def update(
        self, rows: list[tuple[Any, ...]], rule: Callable[..., Any], nested: bool, writes: bool
    ) -> list[Any]:
        """Returns `rule(*row)` for each row of tensors, computed on the device of the row's first tensor. The
        computation is recorded for gradients only if `nested` is True. If `writes` is True, the rule may write into
        its arguments, so it gets copies if the framework's tensors can be written into. This default method makes
        copies in any framework."""
        own = [
            [self.copy(x, self.device_of(x)) for x in row] if writes else row for row in rows
        ]
        return [rule(*row) for row in own]
