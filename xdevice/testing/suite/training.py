"""Checks of training: the state of optimizers, steps after a move, and gradients that are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xdevice
from xdevice.base import devices
from xdevice.contract import Backend
from xdevice.twins.contract import optimizers as terms

from .base import Suite, assert_same, need
from .capabilities import needs


@needs("Models")
class Training(Suite):
    def test_an_optimizer_takes_state_that_it_would_make_in_a_step(self) -> None:
        self.needs_kernels()
        model, optimizer, step = need(self.samples.optimized(), "an optimizer without state")
        fresh, untrained, other_step = need(self.samples.optimized(), "an optimizer without state")
        x, y = (xdevice.to_device(data, self.home) for data in self.training_data())
        for net in (model, fresh):
            xdevice.to_device(net, self.home)
        with self.here():
            losses = [step(x, y) for _ in range(3)]
        wanted = {name: self.adapter.to_numpy(value).copy() for name, value in self.adapter.variables(optimizer)}
        before = {name for name, _ in self.adapter.variables(untrained)}
        lacking = [name for name in wanted if name not in before]
        assert lacking, "an optimizer that has taken a step has state"
        assert not self.adapter.state_to_come(untrained, []), "state that nobody asks for"
        assert not self.adapter.state_to_come(fresh, lacking), "a network is not an optimizer"
        to_come = self.adapter.state_to_come(untrained, lacking)
        assert set(lacking) <= set(to_come), f"of {lacking} only {list(to_come)}"
        made = dict(self.adapter.variables(optimizer))
        for name in lacking:
            assert tuple(to_come[name].shape) == tuple(made[name].shape), f"{name} has another shape"
            assert str(to_come[name].dtype) == str(made[name].dtype), f"{name} has another dtype"
        assert {name for name, _ in self.adapter.variables(untrained)} == before, (
            "the state is there before it is given"
        )
        with self.here():
            assert other_step(x, y) == losses[0], "asking has changed what the optimizer computes"
        self.resumes(model, optimizer, step, x, y)

    def resumes(self, model: Any, optimizer: Any, step: Any, x: Any, y: Any) -> None:
        """Checks that a new model and optimizer, once loaded with the state of `model` and `optimizer`, continue
        training exactly as these do."""
        fresh, untrained, other_step = need(self.samples.optimized(), "an optimizer without state")
        xdevice.to_device(fresh, self.home)
        values = {name: self.adapter.to_numpy(value).copy() for name, value in self.adapter.variables(optimizer)}
        state = dict(self.adapter.variables(untrained))
        state.update(self.adapter.state_to_come(untrained, [name for name in values if name not in state]))
        self.put(
            dict(self.adapter.variables(fresh)), {n: self.adapter.to_numpy(v) for n, v in self.adapter.variables(model)}
        )
        self.put(state, values)
        self.adapter.take_state(untrained, state)
        found = dict(self.adapter.variables(untrained))
        assert set(found) == set(values), "state that was given is its variables"
        for name, value in values.items():
            assert_same(np.asarray(self.adapter.to_numpy(found[name])), value, name)
        for _ in range(2):
            with self.here():
                assert other_step(x, y) == step(x, y), "training goes on otherwise"

    def put(self, variables: dict[str, Any], values: dict[str, Any]) -> None:
        for name, x in variables.items():
            place = self.adapter.device_of(x)
            self.adapter.write(x, self.adapter.from_numpy(np.array(values[name]), place))

    @needs("Optimizers")
    def test_an_optimizer_says_what_it_computes(self) -> None:
        self.needs_kernels()
        model, optimizer, step = need(self.samples.optimized(), "an optimizer without state")
        xdevice.to_device(model, self.home)
        try:
            read = self.adapter.optimizer(optimizer)
        except xdevice.UnsupportedError as error:
            pytest.skip(str(error))
        own = {id(variable): name for name, variable in self.adapter.variables(model)}
        assert {own.get(id(one.variable)) for one in read.parameters} == set(own.values()), "the model's own, and all"
        known = terms.settings_of(read.kind)
        assert all(one.settings.keys() == known.keys() for one in read.parameters), f"the settings are {list(known)}"
        values = {name: self.adapter.to_numpy(x).copy() for name, x in self.adapter.variables(model)}
        with self.here():
            step(*(xdevice.to_device(data, self.home) for data in self.training_data()))
        held = dict(self.adapter.variables(optimizer))
        stated = {name for one in read.parameters for name in one.state.values()}
        assert stated == set(held), "every state has its slot"
        for one in read.parameters if read.kind == "sgd" else ():
            ((slot, name),) = one.state.items()
            moved = values[own[id(one.variable)]] - self.adapter.to_numpy(one.variable)
            rate = terms.FORMS.get(slot, one.settings["lr"])
            expected = rate * self.adapter.to_numpy(held[name])
            np.testing.assert_allclose(moved, expected, rtol=1e-3, atol=1e-6, err_msg="the first step")

    def test_a_moved_model_trains_on_as_if_it_had_stayed(self) -> None:
        self.needs_kernels()
        (model, step), (stayed, twin_step) = (need(self.samples.trainable(), "training") for _ in range(2))
        x, y = self.training_data()
        places = [self.here()]
        if (there := self.second()) is not None and self.holds_values(there):
            places += [there, self.here()]
        losses = []
        for place in places:
            xdevice.to_device(model, place)
            for _ in range(3):
                with place:
                    losses.append(step(xdevice.to_device(x, place), xdevice.to_device(y, place)))
                with devices.CPU:
                    expected = twin_step(x, y)
                assert losses[-1] == pytest.approx(expected, rel=1e-4), f"training differs on {place}"
        assert losses[-1] < 0.9 * losses[0], "the model does not learn"
        mine, its = self.samples.variables(model), self.samples.variables(stayed)
        for (name, a), b in zip(mine.items(), its.values(), strict=True):
            np.testing.assert_allclose(xdevice.to_numpy(a), xdevice.to_numpy(b), rtol=1e-4, atol=1e-6, err_msg=name)

    def test_a_stored_gradient_is_told(self) -> None:
        self.needs_kernels()
        model, step = need(self.samples.trainable(), "training")
        try:
            variables = [variable for _, variable, _ in self.adapter.gradients(model)]
        except xdevice.UnsupportedError:
            pytest.skip(f"{self.backend} keeps no gradients in its models")
        told: dict[int, Any] = {}

        def ready(i: int, gradient: Any) -> None:
            stored = [own for _, _, own in self.adapter.gradients(model)][i]
            assert stored is not None, "told before it is stored"
            assert i not in told, "told twice in one pass"
            told[i] = xdevice.to_numpy(gradient)
            assert_same(xdevice.to_numpy(stored), told[i], "the gradient that was told")

        def fails(i: int, gradient: Any) -> None:
            raise ArithmeticError("planned")

        data = self.training_data()
        end = self.adapter.watch_gradients(variables, ready)
        step(*data)
        end()
        if type(self.adapter).watch_gradients is not Backend.watch_gradients:
            assert sorted(told) == list(range(len(variables))), "not every gradient was told"
            assert all(told[i].shape == tuple(x.shape) for i, x in enumerate(variables)), "told by another number"
            end = self.adapter.watch_gradients(variables, fails)
            with pytest.raises((ArithmeticError, SystemError)):  # the second is what Paddle makes of it
                step(*data)
            end()
            step(*data)  # a watch that goes on would say that a gradient was told twice

    def training_data(self) -> tuple[Any, Any]:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(16, 4)).astype("float32")
        return xdevice.tensor(x), xdevice.tensor(x.sum(axis=1, keepdims=True))
