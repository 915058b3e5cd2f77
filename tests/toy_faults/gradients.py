"""Faults of gradients, and of steps made with them."""

from __future__ import annotations

from contextlib import suppress

from .planting import (
    GPU,
    HOMES,
    swap,
    toy,
)


def _differently(does, change, check="gradients_are_right_or_refused", homes=HOMES):
    """A fault in what comes back: `change(loss, grads, rest, leaves)`, of the loss as the function gave it."""

    def make(original, adapter):
        def value_and_grad(leaves, call, nested):
            kept = []

            def keeping(inputs):
                kept.append(call(inputs))
                return kept[0]

            loss, grads, rest = original(leaves, keeping, nested)
            return change(loss, list(grads), rest, leaves, kept[0])

        return value_and_grad

    swap("value_and_grad", does, check, make, homes)


_differently(
    "returns a loss that is still attached to the graph",
    lambda loss, grads, rest, leaves, kept: (kept[0], grads, rest),
)
_differently(
    "returns other results that are still attached to the graph",
    lambda loss, grads, rest, leaves, kept: (loss, grads, kept[1]),
)
_differently(
    "returns a gradient for a leaf that the loss does not depend on",
    lambda loss, grads, rest, leaves, kept: (
        loss,
        [*grads[:3], toy().full((1, 2), 1, leaves[0].place)],
        rest,
    ),
)
_differently(
    "returns zeros if the loss depends on no leaf",
    lambda loss, grads, rest, leaves, kept: (
        loss,
        [
            toy().full(x.shape, 0, x.place, x.dtype) if g is None else g
            for x, g in zip(leaves, grads, strict=True)
        ],
        rest,
    ),
)
_differently(
    "adds up the gradients of a tensor that occurs twice",
    lambda loss, grads, rest, leaves, kept: (
        loss,
        [grads[0] + grads[2], grads[1], grads[0] + grads[2], None],
        rest,
    ),
)
_differently(
    "leaves the gradients on the CPU",
    lambda loss, grads, rest, leaves, kept: (
        loss,
        [g if g is None else g.to(toy().CPU) for g in grads],
        rest,
    ),
    homes=("gpu:0",),
)
swap(
    "value_and_grad",
    "calls the function twice",
    "gradients_are_right_or_refused",
    lambda original, _: (
        lambda leaves, call, nested: original(
            leaves, lambda inputs: (call(inputs), call(inputs))[1], nested
        )
    ),
)
swap(
    "value_and_grad",
    "records nothing if the caller has switched recording off",
    "gradients_are_right_or_refused",
    lambda original, _: lambda leaves, call, nested: original(leaves, _as_around(call), nested),
)
swap(
    "value_and_grad",
    "writes into the stored gradients of the tensors",
    "gradients_are_right_or_refused",
    lambda original, _: (
        lambda leaves, call, nested: original(leaves, _with_backward(call), nested)
    ),
)
swap(
    "value_and_grad",
    "detaches results that are differentiated again",
    "gradients_nest_or_are_refused",
    lambda original, _: lambda leaves, call, nested: original(leaves, call, False),
)


_TOLD = "a_stored_gradient_is_told"


def _telling(does, change, raises=()):
    """A fault in what is told: `change(ready, variables)` is called in its place."""

    def make(original, adapter):
        return lambda variables, ready: original(variables, change(ready, variables))

    swap("watch_gradients", does, _TOLD, make, raises=raises)


def _swallowing(ready):
    def quiet(i, gradient):
        with suppress(ArithmeticError):
            ready(i, gradient)

    return quiet


swap(
    "gradients",
    "has none",
    _TOLD,
    lambda original, _: lambda model: [(name, x, None) for name, x, _ in original(model)],
)
_telling("reports nothing", lambda ready, variables: lambda i, gradient: None)
_telling(
    "reports the number of another variable",
    lambda ready, variables: lambda i, g: ready((i + 1) % len(variables), g),
)
_telling(
    "reports each gradient twice",
    lambda ready, variables: lambda i, g: (ready(i, g), ready(i, g)),
)
_telling("reports a different gradient", lambda ready, variables: lambda i, g: ready(i, g * 2))
_telling("does not pass errors on", lambda ready, variables: _swallowing(ready))
swap(
    "watch_gradients",
    "does not stop watching",
    _TOLD,
    lambda original, _: lambda variables, ready: (original(variables, ready), lambda: None)[1],
    raises=(ArithmeticError,),
)


def _as_around(call):
    was = toy().state.grad

    def calling(inputs):
        with toy()._with(grad=was):
            return call(inputs)

    return calling


def _with_backward(call):
    def calling(inputs):
        loss, rest = call(inputs)
        loss.backward()
        return loss, rest

    return calling


swap(
    "stop_gradient",
    "lets gradients flow",
    "what_is_stopped_has_the_value_and_no_gradient",
    lambda _, adapter: lambda x: x,
)
swap(
    "stop_gradient",
    "leaves the values on the CPU",
    "what_is_stopped_has_the_value_and_no_gradient",
    lambda _, adapter: lambda x: x.detach().to(toy().CPU),
    homes=GPU,
)
swap(
    "update",
    "passes the parameters themselves to the rule",
    "an_update_is_in_memory_of_its_own",
    lambda _, adapter: (
        lambda rows, rule, nested, writes: [rule(*(x.detach() for x in row)) for row in rows]
    ),
)
swap(
    "update",
    "records the step",
    "an_update_is_in_memory_of_its_own",
    lambda original, adapter: (
        lambda rows, rule, nested, writes: original(rows, rule, True, writes)
    ),
)
swap(
    "update",
    "pairs the first parameter with the last gradient",
    "an_update_is_in_memory_of_its_own",
    lambda original, adapter: (
        lambda rows, rule, nested, writes: original(
            [(rows[i][0], rows[i - 1][1]) for i in (0, 1)], rule, nested, writes
        )
    ),
)
