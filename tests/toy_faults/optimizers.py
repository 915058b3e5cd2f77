"""Faults of optimizers and their state."""

from __future__ import annotations

from .planting import (
    double_floats,
    plain,
    swap,
    toy,
    wrong,
)

_TAKES_STATE = "an_optimizer_takes_state_that_it_would_make_in_a_step"


def _to_come(change):
    def make(state_to_come, adapter):
        return lambda optimizer, names: {
            name: change(x) for name, x in state_to_come(optimizer, names).items()
        }

    return make


swap(
    "state_to_come", "finds none", _TAKES_STATE, lambda _, adapter: lambda optimizer, names: {}
)
swap(
    "state_to_come",
    "creates state that was not requested",
    _TAKES_STATE,
    lambda to_come, adapter: (
        lambda optimizer, names: to_come(optimizer, ["0.speed", "1.speed"])
    ),
)
swap(
    "state_to_come",
    "turns all state into numbers",
    _TAKES_STATE,
    _to_come(lambda x: toy().full((), 0, x.place, x.dtype)),
)
swap("state_to_come", "widens float32", _TAKES_STATE, _to_come(double_floats))


@wrong("state_to_come", "gives the optimizer its state at once", _TAKES_STATE)
def state_to_come_gives_the_optimizer_its_state_at_once(adapter, patch, suite):
    state_to_come = adapter.state_to_come

    def at_once(optimizer, names):
        state = state_to_come(optimizer, names)
        adapter.take_state(optimizer, state)
        return state

    patch.setattr(adapter, "state_to_come", at_once)


@wrong("state_to_come", "takes a step", _TAKES_STATE)
def state_to_come_takes_a_step(adapter, patch, suite):
    state_to_come = adapter.state_to_come

    def stepping(optimizer, names):
        state = state_to_come(optimizer, names)
        for x in getattr(optimizer, "parameters", ()) if state else ():
            x.write(x.detach() * 0.5)
        return state

    patch.setattr(adapter, "state_to_come", stepping)


def _taking(change):
    def make(take_state, adapter):
        return lambda optimizer, state: take_state(optimizer, change(state))

    return make


swap(
    "take_state",
    "takes no state",
    _TAKES_STATE,
    lambda _, adapter: lambda optimizer, state: None,
)
swap(
    "take_state",
    "takes only the first state",
    _TAKES_STATE,
    _taking(lambda state: dict(list(state.items())[:1])),
)
swap(
    "take_state",
    "begins with zeros",
    _TAKES_STATE,
    _taking(lambda state: {k: x * 0 for k, x in state.items()}),
)
_SAYS = "an_optimizer_says_what_it_computes"


def _of_parameters(change):
    def make(optimizer, adapter):
        def changed(x):
            read = optimizer(x)
            return read._replace(parameters=tuple(change(one) for one in read.parameters))

        return changed

    return make


swap(
    "optimizer",
    "reports a different learning rate",
    _SAYS,
    _of_parameters(
        lambda one: one._replace(settings={**one.settings, "lr": 1.01 * one.settings["lr"]})
    ),
)
swap(
    "optimizer",
    "leaves out settings",
    _SAYS,
    _of_parameters(lambda one: one._replace(settings={"lr": 0.05})),
)
swap(
    "optimizer",
    "reports that the momentum contains the learning rate",
    _SAYS,
    _of_parameters(
        lambda one: one._replace(state={"lr * momentum_buffer": one.state["momentum_buffer"]})
    ),
)
swap(
    "optimizer",
    "leaves out the state",
    _SAYS,
    _of_parameters(lambda one: one._replace(state={})),
)
swap(
    "optimizer",
    "copies parameters",
    _SAYS,
    _of_parameters(lambda one: one._replace(variable=plain(one.variable).clone())),
)
