"""Checks of training: the state of optimizers, steps after a move, and the gradients that `watch_gradients` reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import xdevice
from xdevice.base import devices
from xdevice.distributed.contract.steps import Steps
from xdevice.twins.contract import optimizers as terms

from .base import Suite, assert_same, skip_if_none, skipping_what_is_refused
from .capabilities import needs

if TYPE_CHECKING:
    from .values import Array


@needs("Models")
class TrainingChecks(Suite):
    """Checks of training steps and of optimizers."""

    def optimized(self) -> tuple[Any, Any, Any]:
        """Returns a model on the home device, its optimizer without any state yet, and a function that performs a
        training step. Skips the check if the samples have no such optimizer."""
        model, optimizer, step = skip_if_none(
            self.samples.optimized(), "an optimizer without state"
        )
        return xdevice.to_device(model, self.home), optimizer, step

    def test_an_optimizer_takes_state_that_it_would_make_in_a_step(self) -> None:
        """`state_to_come` must return the state that an optimizer would create in its first step, and must not change
        anything. A new optimizer that receives the state of another optimizer through `take_state` must continue where
        that optimizer stopped."""
        self.skip_without_kernels()
        model, optimizer, step = self.optimized()
        # a second model and a second optimizer, which have not been trained yet
        fresh, untrained, other_step = self.optimized()
        data = self.training_data_here()
        with self.home_device:
            losses = [step(*data) for _ in range(3)]
        state = dict(self.adapter.variables(optimizer))
        before = self.variable_names(untrained)
        lacking = [name for name in state if name not in before]
        assert lacking, "variables() must list the state of an optimizer that has taken steps"
        assert not self.adapter.state_to_come(untrained, []), (
            "state_to_come must return nothing if no names are requested"
        )
        # a network never has a state to come, whichever names are requested
        assert not self.adapter.state_to_come(fresh, lacking), (
            "state_to_come must return nothing for a network"
        )
        to_come = self.adapter.state_to_come(untrained, lacking)
        assert set(lacking) <= set(to_come), (
            f"state_to_come returned {list(to_come)}, expected {lacking}"
        )
        for name in lacking:
            assert tuple(to_come[name].shape) == tuple(state[name].shape), (
                f"{name} has a different shape"
            )
            assert str(to_come[name].dtype) == str(state[name].dtype), (
                f"{name} has a different dtype"
            )
        assert self.variable_names(untrained) == before, (
            "state_to_come has added the state to the optimizer"
        )
        with self.home_device:
            # the losses must be equal bit for bit, because this is the same computation on the
            # same device
            assert other_step(*data) == losses[0], (
                "reading the state has changed the results of the optimizer"
            )
        self.assert_resumes(model, optimizer, step, data)

    def variable_names(self, optimizer: Any) -> set[str]:
        """Returns the names of an optimizer's variables."""
        return {name for name, _ in self.adapter.variables(optimizer)}

    def assert_resumes(self, model: Any, optimizer: Any, step: Any, data: list[Any]) -> None:
        """Checks that training can be resumed. A new model and a new optimizer receive the weights of `model` and the
        state of `optimizer`. Their next steps on `data` must have exactly the same losses. `step` performs a training
        step with `model` and `optimizer`."""
        fresh, untrained, other_step = self.optimized()
        values = self.arrays_of(optimizer)
        state = dict(self.adapter.variables(untrained))
        lacking = [name for name in values if name not in state]
        state.update(self.adapter.state_to_come(untrained, lacking))
        # the trained weights are written, because the state belongs to these weights
        self.write_values(dict(self.adapter.variables(fresh)), self.arrays_of(model))
        self.write_values(state, values)
        self.adapter.take_state(untrained, state)
        resumed = self.arrays_of(untrained)
        assert set(resumed) == set(values), (
            "variables() must list the state that was passed to take_state"
        )
        for name, value in values.items():
            assert_same(resumed[name], value, name)
        # two steps, because only the second step shows whether the first has updated the state
        for _ in range(2):
            with self.home_device:
                assert other_step(*data) == step(*data), "training continues differently"

    def write_values(self, variables: dict[str, Any], values: dict[str, Array]) -> None:
        """Writes each of the `values` into the variable with the same name."""
        for name, x in variables.items():
            place = self.adapter.device_of(x)
            self.adapter.write(x, self.adapter.from_numpy(np.array(values[name]), place))

    @needs("Optimizers")
    def test_an_optimizer_says_what_it_computes(self) -> None:
        self.skip_without_kernels()
        model, optimizer, step = self.optimized()
        with skipping_what_is_refused():
            read = self.adapter.optimizer(optimizer)
        # compared by `id`, because an optimizer that holds copies of the variables would not
        # train the model
        names = {id(variable): name for name, variable in self.adapter.variables(model)}
        owned = {names.get(id(parameter.variable)) for parameter in read.parameters}
        assert owned == set(names.values()), (
            "optimizer() must list exactly the variables of the model"
        )
        settings = terms.default_settings(read.kind).keys()
        assert all(parameter.settings.keys() == settings for parameter in read.parameters), (
            f"expected the settings {list(settings)}"
        )
        values = self.arrays_of(model)
        with self.home_device:
            step(*self.training_data_here())
        state = self.arrays_of(optimizer)
        # the names of all states that `optimizer` lists
        stated = {name for parameter in read.parameters for name in parameter.state.values()}
        assert stated == set(state), "optimizer() and variables() list different states"
        for parameter in read.parameters if read.kind == "sgd" else ():
            # SGD with momentum has one state for each parameter
            ((slot, name),) = parameter.state.items()
            moved = values[names[id(parameter.variable)]] - self.adapter.to_numpy(
                parameter.variable
            )
            # some frameworks store the momentum times the learning rate, or the negative of
            # this product
            rate = terms.FORMS.get(slot, parameter.settings["lr"])
            np.testing.assert_allclose(
                moved, rate * state[name], rtol=1e-3, atol=1e-6, err_msg="the first step"
            )

    def test_a_moved_model_trains_on_as_if_it_had_stayed(self) -> None:
        self.skip_without_kernels()
        model, step = skip_if_none(self.samples.trainable(), "training")
        # a second model stays on the CPU, and computes the expected losses
        stayed, twin_step = skip_if_none(self.samples.trainable(), "training")
        x, y = self.training_data()
        first, *others = self.devices_with_values()
        losses = []
        # the model moves to the second device and back, because the optimizer's state must
        # follow in both directions
        for place in (first, *others, first) if others else (first,):
            xdevice.to_device(model, place)
            for _ in range(3):
                with place:
                    losses.append(
                        step(xdevice.to_device(x, place), xdevice.to_device(y, place))
                    )
                with devices.CPU:
                    expected = twin_step(x, y)
                # not compared exactly, because a GPU adds numbers in another order than the CPU
                assert losses[-1] == pytest.approx(expected, rel=1e-4), (
                    f"training differs on {place}"
                )
        # if no step changed anything, the losses would be equal, too
        assert losses[-1] < 0.9 * losses[0], "the model does not learn"
        mine, its = self.samples.variables(model), self.samples.variables(stayed)
        for (name, a), b in zip(mine.items(), its.values(), strict=True):
            np.testing.assert_allclose(
                xdevice.to_numpy(a), xdevice.to_numpy(b), rtol=1e-4, atol=1e-6, err_msg=name
            )

    def test_a_stored_gradient_is_told(self) -> None:
        """`watch_gradients` must call `ready` once for each gradient of a backward pass, after the gradient has been
        stored. It must not call `ready` after the watch has ended. An error that `ready` raises must end the pass."""
        self.skip_without_kernels()
        model, step = skip_if_none(self.samples.trainable(), "training")
        try:
            variables = [variable for _, variable, _ in self.adapter.gradients(model)]
        except xdevice.errors.UnsupportedError:
            pytest.skip(f"{self.backend} keeps no gradients in its models")
        gradients: dict[int, Any] = {}

        def ready(i: int, gradient: Any) -> None:
            """Checks that the gradient of variable number `i` is stored, and remembers its values."""
            stored = [own for _, _, own in self.adapter.gradients(model)][i]
            assert stored is not None, "the gradient is reported before it is stored"
            assert i not in gradients, "the gradient is reported twice in one pass"
            gradients[i] = xdevice.to_numpy(gradient)
            self.assert_reads(stored, gradients[i], "the gradient that was reported")

        def fails(i: int, gradient: Any) -> None:
            raise ArithmeticError("planned")

        data = self.training_data()
        end = self.adapter.watch_gradients(variables, ready)
        step(*data)
        end()
        # an adapter without its own `watch_gradients` reports no gradients
        cls: Any = type(self.adapter)
        if cls.watch_gradients is not Steps.watch_gradients:
            assert sorted(gradients) == list(range(len(variables))), (
                "not every gradient was reported"
            )
            for i, x in enumerate(variables):
                assert gradients[i].shape == tuple(x.shape), (
                    "the gradient was reported for another variable"
                )
            end = self.adapter.watch_gradients(variables, fails)
            # Paddle replaces the error with a SystemError
            with pytest.raises((ArithmeticError, SystemError)):
                step(*data)
            end()
            # if a watch had not ended, this step would report a gradient twice, and fail
            step(*data)

    def training_data(self) -> tuple[Any, Any]:
        """Returns a batch of 16 rows on the CPU. Each row has 4 random inputs, and their sum as the target."""
        rng = np.random.default_rng(0)
        x = rng.normal(size=(16, 4)).astype("float32")
        return xdevice.tensor(x), xdevice.tensor(x.sum(axis=1, keepdims=True))

    def training_data_here(self) -> list[Any]:
        """Returns the batch of `training_data` on the home device."""
        return [xdevice.to_device(data, self.home) for data in self.training_data()]
