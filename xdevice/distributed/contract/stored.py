"""Watches gradients, for the adapters of frameworks that call a function when a gradient has been stored."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class GradientWatch:
    """The `watch_gradients` of an adapter. Each variable gets one hook for as long as it lives, because adding and
    removing the hooks of ResNet-50 took 0.8 ms a step with PyTorch 2.13, and Paddle cannot remove them."""

    def __init__(self, add_hook: Callable[[Any, Callable[[], None]], object]) -> None:
        """`add_hook(variable, on_gradient)` must make the framework call `on_gradient()`
        whenever it has stored the variable's gradient."""
        self._add_hook = add_hook
        self._hooked: dict[int, weakref.ref[Any]] = {}
        """The variables that have a hook, by their `id`."""
        self._listeners: dict[int, tuple[int, Callable[[int, Any], None]]] = {}
        """For each variable that is watched now, by its `id`: its number, and the function to
        call."""

    def watch(
        self, variables: list[Any], ready: Callable[[int, Any], None]
    ) -> Callable[[], None]:
        """Does what `Steps.watch_gradients` promises: has `ready(i, gradient)` called for each
        gradient of `variables[i]`, and returns a function that ends this."""
        for i, variable in enumerate(variables):
            reference = self._hooked.get(id(variable))
            # Python may reuse the `id` of a variable that is gone for a new variable, which has
            # no hook yet
            if reference is None or reference() is not variable:
                self._hook(variable)
            self._listeners[id(variable)] = i, ready

        def end() -> None:
            """Ends the watching of these variables. Their hooks stay."""
            for variable in variables:
                self._listeners.pop(id(variable), None)

        return end

    def _hook(self, variable: Any) -> None:
        """Adds a hook to a variable. While the variable is watched, the hook calls the function
        that was passed to `watch`."""
        # weak, because the variable holds the hook, and each would keep the other alive
        key, alive = id(variable), weakref.ref(variable)

        def on_gradient() -> None:
            """Passes the variable's gradient to the function that `watch` has stored for it, if it is watched now."""
            listener, parameter = self._listeners.get(key), alive()
            if listener is not None and parameter is not None:
                i, ready = listener
                ready(i, parameter.grad)

        self._add_hook(variable, on_gradient)
        self._hooked[key] = alive
