"""Checks of the kernels of `xdevice.array_namespace`, and of gradients."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

import xdevice
from xdevice.errors import UnsupportedError
from xdevice.math.contract import arithmetic

from .base import Suite
from .capabilities import needs

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class ArithmeticChecks(Suite):
    """Checks of array namespaces. An adapter without an array namespace must raise `UnsupportedError`. If an adapter
    has a namespace, the namespace must contain all kernels."""

    @needs("Arithmetic")
    def test_a_namespace_is_whole_or_refused(self) -> None:
        try:
            kernels = self.adapter.namespace()
        except UnsupportedError:
            return
        missing = [
            name
            for name in (*arithmetic.KERNELS, *arithmetic.CONSTANT)
            if not hasattr(kernels, name)
        ]
        assert not missing, f"namespace() lacks {', '.join(missing)}"
        self.skip_without_kernels()
        x = self.make([[1, 2], [3, 4]])
        # run in a new thread, so that the framework's settings for this thread end with the
        # thread
        self.in_thread(self.check_kernels, x)

    def check_kernels(self, x: Any) -> None:
        """Checks one kernel of each kind on `x`, the integer matrix `[[1, 2], [3, 4]]`. The results are exact in
        float32. Does nothing if the adapter has no array namespace."""
        try:
            xp = xdevice.array_namespace(x)
        except UnsupportedError:
            return
        y = xp.add(x, 1.5)
        assert xdevice.to_numpy(y).dtype == "float32"
        assert xdevice.item(xp.sum(y)) == 16.0
        self.assert_result(xp.matmul(y, y), [[22.0, 28.0], [36.0, 46.0]])
        changed = xdevice.math.at(y)[[1, 0], [0, 1]].set(9.0)
        self.assert_result(changed, [[2.5, 9.0], [9.0, 5.5]])
        assert xdevice.to_numpy(y).tolist() == [[2.5, 3.5], [4.5, 5.5]], (
            "the tensor itself was changed"
        )
        # `einsum` is optional
        if hasattr(self.adapter.namespace(), "einsum"):
            self.assert_result(
                xdevice.math.einsum("ij,jk->ki", y, changed), [[37.75, 60.75], [41.75, 70.75]]
            )
        ints = xp.astype(x, xp.int32)
        self.assert_result(xp.add(ints, ints), [[2, 4], [6, 8]])
        self.assert_result(xp.matmul(ints, ints), [[7, 10], [15, 22]])

    def assert_result(self, x: Any, numbers: list[list[float]]) -> None:
        """Checks that a result is on the home device, and has exactly these values."""
        assert self.adapter.device_of(x) is self.home_device, (
            "the result is not on the device of its operands"
        )
        assert xdevice.to_numpy(x).tolist() == numbers

    # these are gradients of sums of numbers, which every framework can compute

    @needs("Gradients")
    def test_gradients_are_right_or_refused(self) -> None:
        self.skip_without_kernels()
        # the loss does not depend on `unused`, and the gradient of `x` is requested twice
        x, y, unused, constant = (self.make(value) for value in (2.0, 3.0, [[1.0, 2.0]], 5.0))
        if self.requires_grad(constant) is not None:
            constant = self.samples.marked(constant)
        # tested without a mode, and in each mode of the samples, such as "no gradients"
        for mode, _ in ((nullcontext, None), *self.samples.modes().values()):
            self.in_thread(self.check_gradients, [x, y, x, unused], constant, mode)

    def check_gradients(
        self, leaves: list[Any], constant: Any, mode: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        """Checks the value and the gradients of `2 * x + constant + y + x` with respect to `leaves`. The leaves are x,
        y, x again, and a tensor that is not used. `mode` creates a block in which the gradients are computed. Does
        nothing if the adapter does not support gradients."""
        add, calls = self.samples.add, []

        def call(inputs: list[Any]) -> tuple[Any, list[Any]]:
            """Returns the loss, and two more values: the tensor y and a string."""
            calls.append(inputs)
            twice = add(inputs[0], inputs[0])
            return add(add(twice, constant), add(inputs[1], inputs[2])), [inputs[1], "text"]

        # compared at the end, because the tensors' marks and gradients must not change
        before = [self.gradient_state(x) for x in (*leaves, constant)]
        try:
            with mode():
                # False: the results are not differentiated again
                value, (*grads, unused), (y, text) = self.adapter.value_and_grad(
                    leaves, call, False
                )
        except UnsupportedError:
            return
        assert len(calls) == 1, "the function was called more than once"
        self.assert_number(value, 14.0, "the value")
        self.assert_number(y, 3.0, "the values returned with the loss")
        assert text == "text"
        for gradient, number in zip(grads, (2.0, 1.0, 1.0), strict=True):
            assert gradient is not None, "value_and_grad returned no gradient"
            self.assert_number(gradient, number, "a gradient")
            assert self.adapter.device_of(gradient) is self.home_device, (
                "the gradient is not on the device of its tensor"
            )
        if unused is not None:
            self.assert_holds(
                unused,
                np.zeros((1, 2), "float32"),
                "a gradient of a tensor on which the loss does not depend",
            )
        for x in (value, *grads, y):
            assert not self.requires_grad(x), "a result is not detached"
        # a loss that depends on none of the leaves
        _, no_grads, _ = self.adapter.value_and_grad(
            leaves, lambda inputs: (add(constant, constant), []), False
        )
        assert no_grads == [None] * 4, (
            "expected None for each leaf on which the loss does not depend"
        )
        assert [self.gradient_state(x) for x in (*leaves, constant)] == before, (
            "value_and_grad has changed a tensor's gradient, or whether the tensor requires one"
        )

    def assert_number(self, x: Any, number: float, name: str) -> None:
        """Checks that `x` is a 0-d float32 tensor that equals `number`. The error refers to the tensor as `name`."""
        self.assert_holds(x, np.full((), number, "float32"), name)

    def gradient_state(self, x: Any) -> Any:
        """Returns two values that the caller compares later. The first says whether a tensor is marked as requiring a
        gradient. The second contains the values of its gradient; None if it has no gradient."""
        grad = getattr(x, "grad", None)
        return self.requires_grad(x), None if grad is None else self.adapter.to_numpy(
            grad
        ).tolist()

    @needs("Gradients")
    def test_gradients_nest_or_are_refused(self) -> None:
        self.skip_without_kernels()
        x = self.make(2.0)
        self.in_thread(self.check_nested_gradients, x)

    def check_nested_gradients(self, x: Any) -> None:
        """Checks that `value_and_grad` can be nested. The value of the inner call is `x + x`. In the outer call, this
        value must still depend on `x`, and its gradient must be 2."""
        add = self.samples.add

        def outer(inputs: list[Any]) -> tuple[Any, list[Any]]:
            """Returns `x + x`, computed by an inner `value_and_grad`, as the loss."""
            value, _, _ = self.adapter.value_and_grad(
                # True: the outer call differentiates the value again
                inputs,
                lambda inner: (add(inner[0], inner[0]), []),
                True,
            )
            return value, []

        try:
            _, (slope,), _ = self.adapter.value_and_grad([x], outer, False)
        except UnsupportedError:
            return
        assert slope is not None, "the value of the inner call has no link to x"
        assert self.adapter.to_numpy(slope) == 2.0

    @needs("Gradients")
    def test_what_is_stopped_has_the_value_and_no_gradient(self) -> None:
        self.skip_without_kernels()
        x = self.make(2.0)
        self.in_thread(self.check_stop_gradient, x)

    def check_stop_gradient(self, x: Any) -> None:
        """Checks that for `x` = 2 the value of `x + stop_gradient(x)` is 4 and its gradient is 1, and that the result
        of `stop_gradient` is 2 and is on the device of `x`."""
        stopped = []

        def call(inputs: list[Any]) -> tuple[Any, list[Any]]:
            """Returns `x + stop_gradient(x)` as the loss, and `stop_gradient(x)` as another value."""
            stopped.append(self.adapter.stop_gradient(inputs[0]))
            assert self.adapter.device_of(stopped[0]) is self.home_device, (
                "the result of stop_gradient is on another device"
            )
            return self.samples.add(inputs[0], stopped[0]), stopped

        try:
            # False: the results are not differentiated again
            value, (slope,), (stopped_x,) = self.adapter.value_and_grad([x], call, False)
        except UnsupportedError:
            return
        self.assert_number(value, 4.0, "the value")
        self.assert_number(slope, 1.0, "the gradient")
        self.assert_number(stopped_x, 2.0, "stopped")

    def test_an_update_is_in_memory_of_its_own(self) -> None:
        self.skip_without_kernels()
        leaves = self.marked_tensors([1.0, 2.0], [3.0])
        grads = self.marked_tensors([10.0, 2.0], [3.0])
        self.in_thread(self.check_update, list(zip(leaves, grads, strict=True)))

    def marked_tensors(self, *arrays: list[float]) -> list[Any]:
        """Returns tensors with these values, marked as requiring gradients."""
        return [self.samples.marked(self.make(array)) for array in arrays]

    def check_update(self, rows: list[tuple[Any, Any]]) -> None:
        """Checks `update` with a rule that adds the gradient to the parameter, first without and then with permission
        to write into its arguments. The new parameters must be right, and must not be marked as requiring gradients. If
        the rule may write, its arguments must be copies. `rows` contains two pairs of a parameter and its gradient,
        which `test_an_update_is_in_memory_of_its_own` creates."""
        operands: list[Any] = []

        def rule(p: Any, g: Any) -> Any:
            """Returns the new parameter, `p + g`, and stores both operands."""
            operands.extend((p, g))
            return self.samples.add(p, g)

        for writes in (False, True):
            operands.clear()
            try:
                # False: the step is not recorded for gradients
                new = self.adapter.update(rows, rule, False, writes)
            except UnsupportedError:
                return
            # [1, 2] + [10, 2], and [3] + [3]
            for x, value in zip(new, ([11.0, 4.0], [6.0]), strict=True):
                self.assert_on(
                    self.home_device, x, np.array(value, "float32"), "a new parameter"
                )
                assert not self.requires_grad(x), (
                    "the new parameter is marked as requiring a gradient"
                )
        # these are the operands of the last step, whose rule may write
        for x, y in zip((x for row in rows for x in row), operands, strict=True):
            if self.adapter.can_write(x):
                self.assert_different_memory(x, y, "the arguments of the rule")
