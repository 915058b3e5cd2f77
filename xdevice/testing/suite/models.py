"""Checks of models: their variables, moves, copies and training."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import xdevice
from xdevice.base import devices
from xdevice.errors import DeviceMismatchError, NotBuiltError
from xdevice.twins.contract import layouts
from xdevice.twins.contract.operations import WIRING

from .base import Suite, skip_if_none, skipping_what_is_refused
from .capabilities import needs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdevice.base.devices import Device

    from .values import Array


@needs("Models")
class ModelChecks(Suite):
    """Checks of the models of a framework."""

    def models_at_home(self) -> Iterator[tuple[str, Any]]:
        """Yields the names and models of the samples. Each model is on the home device. Skips the check if the samples
        have no models."""
        models = self.samples.models()
        if not models:
            pytest.skip(f"{self.backend} has no models")
        for name, make in models.items():
            yield name, xdevice.to_device(make(), self.home)

    def values(self, model: Any) -> dict[str, Array]:
        """Returns, by name, the values of a model's variables, as the samples read them."""
        return {name: xdevice.to_numpy(x) for name, x in self.samples.variables(model).items()}

    def test_a_model_that_is_there_is_left_alone(self) -> None:
        # a move to the device that the model is on must not even reallocate its memory
        for name, model in self.models_at_home():
            before = self.addresses(model)
            self.assert_all_on(self.home_device, model, name)
            # an optimizer refers to the model's tensors, which must stay the same
            assert xdevice.to_device(model, self.home) is model, name
            assert self.addresses(model) == before, name

    def addresses(self, model: Any) -> dict[str, int | None]:
        """Returns a dict that maps the name of each variable to the address of its memory, or to None if the framework
        does not reveal the address."""
        return {
            name: self.samples.address(x) for name, x in self.samples.variables(model).items()
        }

    def test_a_model_moves_in_place_with_its_values(self) -> None:
        there = self.second_device()
        back = [self.home_device] if self.holds_values(there) else []
        for name, make in self.samples.models().items():
            model = make()
            # frozen parameters must stay frozen
            before, marks = self.values(model), self.gradient_marks(model)
            # values cannot be moved back from a device that holds none
            for target in (self.home_device, there, *back):
                assert xdevice.to_device(model, target) is model, name
                self.assert_all_on(target, model, name)
                after = self.samples.variables(model)
                # a lazy module of PyTorch is no longer lazy on "meta"
                if self.holds_values(target):
                    assert list(after) == list(before), name
                    assert self.gradient_marks(model) == marks, name
                for key, array in before.items():
                    self.assert_on(target, after[key], array, f"{name}.{key} on {target}")

    def assert_all_on(self, target: Device, model: Any, name: str) -> None:
        """Checks that the adapter reports only the device `target` for the parts of a model, and that `device_of`
        returns `target`."""
        assert {place for _, place in self.adapter.model_devices(model)} <= {target}, name
        assert xdevice.device_of(model) is target, name

    def gradient_marks(self, model: Any) -> dict[str, bool | None]:
        """Returns a dict that maps the name of each variable to a bool: whether the variable is marked as requiring a
        gradient. The value is None if the framework does not mark tensors."""
        return {
            name: self.requires_grad(x) for name, x in self.samples.variables(model).items()
        }

    def test_a_copied_model_shares_nothing(self) -> None:
        for target in self.all_devices():
            for name, model in self.models_at_home():
                before = self.values(model)
                copied = xdevice.copy_to(model, target)
                assert copied is not model, name
                assert type(copied) is type(model), name
                assert xdevice.device_of(copied) is target, name
                assert xdevice.device_of(model) is self.home_device, name
                old, new = self.samples.variables(model), self.samples.variables(copied)
                # a copy may have more: on "meta", PyTorch's lazy layers have parameters, and the copy of a recurrent
                # layer of Paddle has memory for a buffer that had none
                assert len(new) >= len(old), name
                for (key, a), b in zip(old.items(), new.values(), strict=False):
                    self.assert_holds(b, before[key], f"{name}.{key}")
                    self.assert_holds(a, before[key], f"{name}.{key}: the source")
                    if self.holds_values(target):
                        assert self.samples.address(a) != self.samples.address(b), (
                            f"{name}.{key}"
                        )
                    # a copy of a frozen layer is frozen
                    assert self.requires_grad(a) == self.requires_grad(b), f"{name}.{key}"

    def test_a_parameter_beside_its_model_stays_its_parameter(self) -> None:
        there = self.second_device_with_values()
        for (name, model), (_, twin) in zip(
            self.models_at_home(), self.models_at_home(), strict=True
        ):
            if not self.samples.variables(model):
                continue
            # a parameter and its model are moved in one call, after which the parameter must still belong to the model.
            # This is checked only if the parameter stays the same object when its model is moved alone
            alone, parameter = self.first_variable(twin), self.first_variable(model)
            xdevice.to_device(twin, there)
            # False for Gluon, whose moves create new arrays
            is_kept = self.first_variable(twin) is alone
            moved = xdevice.to_device({"parameter": parameter, "net": model}, there)
            assert moved["net"] is model, name
            assert xdevice.device_of(moved) is there, name
            assert not is_kept or moved["parameter"] is parameter, name

    def first_variable(self, model: Any) -> Any:
        """Returns the first variable of a model, as the samples read it."""
        return next(iter(self.samples.variables(model).values()))

    def test_variables_are_those_of_the_state_dict(self) -> None:
        built = 0
        for (name, model), (_, twin) in zip(
            self.models_at_home(), self.models_at_home(), strict=True
        ):
            # a lazy module of PyTorch has no values yet
            with suppress(NotBuiltError):
                self.assert_variables(name, model, twin)
                built += 1
        assert built

    def assert_variables(self, name: str, model: Any, twin: Any) -> None:
        """Checks the variables that the adapter lists. The variables must have distinct names, and `twin`, a second
        model of the same structure, must have the same names. The values of the variables must be among the values that
        the samples read. After a move, all variables must be on the second device."""
        variables = list(self.adapter.variables(model))
        keys = [key for key, _ in variables]
        assert len(set(keys)) == len(keys), f"{name}: two variables have the same name: {keys}"
        others = [key for key, _ in self.adapter.variables(twin)]
        # Gluon numbers the names in a ParameterDict across the whole program, so the names
        # differ
        assert keys == others or "ParameterDict" in name, (
            f"{name}: the variables of an equal model have other names: {others}"
        )
        # compared by their values, because frameworks have several names for the same variable
        all_values = [array.tobytes() for array in self.values(model).values()]
        assert variables, name
        assert {self.adapter.to_numpy(value).tobytes() for _, value in variables} <= set(
            all_values
        ), name
        target = self.second_device_or_none() or self.home_device
        xdevice.to_device(model, target)
        assert {self.adapter.device_of(x) for _, x in self.adapter.variables(model)} == {
            target
        }, name

    def linear_model(self) -> Any:
        """Returns a model on the home device that consists of one linear layer with three inputs and two outputs. Skips
        the check if the framework has no models."""
        return xdevice.to_device(skip_if_none(self.samples.network(3, 2), "models"), self.home)

    def test_a_linear_layer_has_a_weight_and_a_bias(self) -> None:
        variables = list(self.adapter.variables(self.linear_model()))
        # sorted, because the shape of the weight is (3, 2) on TensorFlow
        assert sorted(sorted(value.shape) for _, value in variables) == [[2], [2, 3]]
        assert len({name for name, _ in variables}) == 2
        assert {device for _, device in self.adapter.model_devices(self.linear_model())} == {
            self.home_device
        }

    @needs("Layers")
    def test_a_layout_says_what_a_layer_computes(self) -> None:
        self.skip_without_kernels()
        net = self.linear_model()
        with skipping_what_is_refused():
            layers = list(self.adapter.layers(net))
        assert [layer.kind for layer in layers] == ["linear"], "expected one linear layer"
        values = {}
        for name, variable in self.adapter.variables(net):
            # rounded to multiples of 1/64, which TF32 can represent, so that the result is
            # exact even if a GPU computes in TF32
            values[name] = np.round(self.adapter.to_numpy(variable) * 64) / 64
            self.adapter.write(variable, self.make(values[name]))
        # `part.name` is the name of a variable, `part.of` are the names of the parameters that the
        # variable contains, and `part.rule` converts its values to PyTorch's layout
        canonical: dict[str, Any] = {}
        for part in layers[0].parts:
            canonical.update(zip(part.of, part.rule.canonical(values[part.name]), strict=True))
        shapes = {name: array.shape for name, array in canonical.items()}
        assert shapes == {"weight": (2, 3), "bias": (2,)}, (
            "the shapes are not those of PyTorch's layout"
        )
        x = np.arange(6, dtype="float32").reshape(2, 3) / 4
        with self.home_device:
            y = net(self.make(x))
        expected = x @ canonical["weight"].T + canonical["bias"]
        np.testing.assert_allclose(xdevice.to_numpy(y), expected, rtol=1e-6, atol=1e-6)
        self.assert_parts_differ()

    def assert_parts_differ(self) -> None:
        """Checks that no two parts in the layout of a kind of layer contain the same parameter, because a conversion
        would write it twice."""
        for kind in layouts.KINDS:
            covered = [
                name for part in self.adapter.parts(kind, {"layers": 1}) for name in part.of
            ]
            assert len(set(covered)) == len(covered), (
                f"{kind}: two parts have the same parameter: {covered}"
            )

    @needs("Operations", "Calls")
    def test_layers_without_parameters_say_what_they_are_set_to(self) -> None:
        net = xdevice.to_device(
            skip_if_none(self.samples.settings(), "layers without parameters"), self.home
        )
        with skipping_what_is_refused():
            expected = list(self.adapter.layers(net))
            entries = list(self.adapter.operations(net, expected))
        # only some frameworks can say which layers use the outputs of which others
        layers = [layer for layer in entries if layer.kind != WIRING]
        first, *others = layers
        # for such a layer, `operations` only adds the line of the program
        assert [first._replace(line="")] == expected, (
            "operations has changed the layers with parameters"
        )
        pool = {
            "kernel": (3, 2),
            "stride": (1, 2),
            "padding": (0, 0),
            "dilation": (1, 1),
            "ceil_mode": False,
        }
        assert [(layer.kind, layer.parts, dict(layer.settings)) for layer in others] == [
            ("activation", (), {"function": "leaky_relu", "slope": 0.25}),
            ("dropout", (), {"p": 0.375, "mode": "upscale_in_train", "axes": "each number"}),
            ("max_pool", (), pool),
        ]
        self.skip_without_kernels()
        with self.home_device, self.adapter.calls(net) as calls:
            net(self.make(np.ones((1, 3, 3, 3), "float32")))
        assert [layer.path for layer in layers] == [call.path for call in calls], (
            "layers and calls have different paths"
        )

    def traceable_layer(self) -> Any:
        """Returns a linear layer. Skips the check if the adapter cannot record calls of
        layers."""
        self.skip_without_kernels()
        net = self.linear_model()
        with skipping_what_is_refused(), self.adapter.calls(net):
            pass
        return net

    @needs("Calls")
    def test_a_call_of_a_layer_is_seen_as_it_was(self) -> None:
        net = self.traceable_layer()
        array = np.arange(6, dtype="float32").reshape(2, 3)
        with self.home_device:
            x = self.make(array)
            # the layer refuses this shape; a failed call must not leave a hook behind
            with suppress(Exception), self.adapter.calls(net):
                net(self.make(array[:, :2]))
            with self.adapter.calls(net) as calls:
                y = net(x)
            result = xdevice.to_numpy(y)
            # a call after the block must not be recorded
            net(x)
        # writing zeros into the tensors must not change the recorded copies
        for tensor in (x, y):
            if self.adapter.can_write(tensor):
                self.adapter.write(tensor, self.adapter.copy(tensor * 0, self.home_device))
        paths = [layer.path for layer in self.adapter.layers(net)]
        assert [call.path for call in calls] == paths, (
            "expected a record of the call inside the block only"
        )
        tensors = (*calls[0].inputs, *calls[0].outputs)
        assert [self.adapter.device_of(tensor) for tensor in tensors] == [devices.CPU] * 2
        for tensor, values in zip(tensors, (array, result), strict=True):
            np.testing.assert_array_equal(self.adapter.to_numpy(tensor), values)

    @needs("Calls")
    def test_the_call_of_a_model_goes_through_one_function(self) -> None:
        """Inside `outermost(around)`, a call of a model must call `around` once, and return the result of `around`."""
        net = self.traceable_layer()
        inputs: list[Any] = []

        def around(model: Any, arguments: Any, call: Any) -> Any:
            """Records the input of the model's call, and returns the result of the call together with a string."""
            inputs.append(arguments[0][0])
            return call(), "told"

        with self.home_device:
            x = self.make()
            with self.adapter.outermost(around):
                result = net(x)
            assert not isinstance(net(x), tuple), "recording continues after its block"
        assert [tensor is x for tensor in inputs] == [True], (
            "around must be called once, for the whole model"
        )
        assert result[1] == "told"

    @needs("Calls")
    def test_a_model_is_called_without_its_gradients(self) -> None:
        net = self.traceable_layer()
        with self.home_device:
            x = self.make()
            # `infer` must compute the same, and must not record anything for gradients
            y, expected = self.adapter.infer(net, (x,)), net(x)
        assert not self.requires_grad(y)
        np.testing.assert_allclose(xdevice.to_numpy(y), xdevice.to_numpy(expected), rtol=1e-6)
        assert not self.adapter.has_channels_last(net), (
            "has_channels_last must be False for a linear layer"
        )

    def test_a_shared_variable_comes_under_both_names(self) -> None:
        model, _ = skip_if_none(self.samples.tied(), "a model with shared parameters")
        names, values = zip(*self.adapter.variables(model), strict=True)
        # the state dicts of all frameworks list a tied weight under each of its names
        assert len(set(names)) > len(set(map(id, values)))

    def test_shared_parameters_stay_shared(self) -> None:
        model, is_shared = skip_if_none(self.samples.tied(), "a model with shared parameters")
        assert is_shared(model)
        assert is_shared(xdevice.to_device(model, self.home))
        assert is_shared(xdevice.copy_to(model, self.home))
        there = self.second_device_or_none()
        if there is not None and self.holds_values(there):
            assert is_shared(xdevice.copy_to(model, there))
            assert is_shared(xdevice.to_device(model, there))
            assert xdevice.device_of(model) is there

    def test_models_that_share_a_tensor_share_it_after_a_move(self) -> None:
        *models, is_shared = skip_if_none(
            self.samples.sharing(), "two models that share a tensor"
        )
        before = [self.values(model) for model in models]
        assert is_shared()
        for target in self.all_devices():
            moved = xdevice.to_device(dict(enumerate(models)), target)
            assert is_shared(), f"on {target}"
            for i, values in enumerate(before):
                assert moved[i] is models[i]
                for name, x in self.samples.variables(models[i]).items():
                    self.assert_on(target, x, values[name], f"{name} on {target}")

    def test_a_spread_model_is_a_named_mismatch(self) -> None:
        far = next((place for place in self.all_devices() if place is not devices.CPU), None)
        there = skip_if_none(far, "a second device")
        model = skip_if_none(self.samples.spread(there), "a model spread over two devices")
        # the error must name the second device of the model
        for ask in (xdevice.device_of, xdevice.check_same_device):
            with pytest.raises(DeviceMismatchError, match=f"{there}"):
                ask(model)
        assert not xdevice.same_device(model)
        xdevice.to_device(model, there)
        assert xdevice.device_of(model) is there

    def test_an_unbuilt_model_is_refused(self) -> None:
        model = skip_if_none(self.samples.unbuilt(), "models without variables")
        for ask in (
            xdevice.device_of,
            lambda m: xdevice.to_device(m, self.home),
            lambda m: xdevice.copy_to(m, self.home),
            lambda m: list(self.adapter.variables(m)),
        ):
            with pytest.raises(NotBuiltError):
                ask(model)

    def test_a_model_is_built_or_refused(self) -> None:
        models = {**self.samples.models(), "unbuilt": self.samples.unbuilt}
        for name, make in models.items():
            if (model := make()) is None:
                continue
            try:
                list(self.adapter.variables(model))
            except NotBuiltError:
                with pytest.raises(NotBuiltError):
                    self.adapter.require_built(model)
            else:
                assert self.accepts(model), (
                    f"require_built refused {name}, although it is built"
                )

    def accepts(self, model: Any) -> bool:
        """Whether `require_built` accepts a model."""
        try:
            self.adapter.require_built(model)
        except NotBuiltError:
            return False
        return True

    def test_a_model_is_all_on_the_device_where_it_is(self) -> None:
        there = self.second_device()
        for name, model in self.models_at_home():
            if not list(self.adapter.model_devices(model)):
                continue
            assert self.adapter.is_all_on(model, self.home_device), (
                f"is_all_on must be True: {name} is on {self.home_device}"
            )
            assert not self.adapter.is_all_on(model, there), (
                f"is_all_on must be False: {name} is not on {there}"
            )
        # `far` is the device of the model's second part; the samples place its first part on
        # cpu:0
        far = there if there is not devices.CPU else self.home_device
        model = skip_if_none(self.samples.spread(far), "a model spread over two devices")
        assert not any(self.adapter.is_all_on(model, place) for place in (devices.CPU, far)), (
            "is_all_on must be False for a model that is spread over devices"
        )

    def test_the_parts_of_a_copy_stand_for_those_of_the_model(self) -> None:
        """`model_parts` must list the parts of a model and of its copy in the same order. xdevice relies on this order.
        If a part is copied together with its model, xdevice returns the corresponding part of the model's copy."""
        for target in self.all_devices():
            for name, model in self.models_at_home():
                self.assert_parts_follow(name, model, target)
        shapes = {
            tuple(sorted(part.shape))
            for part in self.parts_to_hold(self.linear_model())
            if hasattr(part, "shape")
        }
        assert shapes == {(2,), (2, 3)}, "model_parts must list the weight and the bias"

    def assert_parts_follow(self, name: str, model: Any, target: Device) -> None:
        """Checks a copy of a model and its parts to `target` in one call: the copies of the parts
        must be the parts of the model's copy."""
        parts = self.parts_to_hold(model)
        copied, *copies = xdevice.copy_to([model, *parts], target)
        its = self.parts_to_hold(copied)
        assert len(its) == len(parts), f"{name}: the copy has a different number of parts"
        for part, twin, copy in zip(parts, its, copies, strict=True):
            kind = self.adapter.classify(type(part))
            assert self.adapter.classify(type(twin)) == kind, (
                f"{name}: the parts of the copy are in a different order"
            )
            assert copy is twin, (
                f"{name}: the copy of a {type(part).__qualname__} is not part of the copied model"
            )
            if kind == "tensor" and self.accepts(model):
                # a buffer of Paddle's recurrent layers has no memory
                with suppress(NotBuiltError):
                    self.assert_equal(twin, part, name)

    def parts_to_hold(self, model: Any) -> list[Any]:
        """Returns the parts of a model that can be moved by themselves: its tensors and models."""
        parts = self.adapter.model_parts(model)
        return [
            part for part in parts if self.adapter.classify(type(part)) in ("tensor", "model")
        ]

    # a model that is one variable

    def test_a_lone_variable_is_read_as_its_tensor(self) -> None:
        lone = 0
        for name, model in self.models_at_home():
            tensor = self.adapter.tensor_of(model)
            with suppress(NotBuiltError):
                is_alone = [label for label, _ in self.adapter.variables(model)] == [""]
                assert (tensor is not None) is is_alone, (
                    f"{name}: tensor_of must return a tensor only for a single variable, whose name is ''"
                )
            if tensor is None:
                continue
            lone += 1
            assert self.adapter.classify(type(tensor)) == "tensor", name
            (value,) = self.values(model).values()
            self.assert_on(self.home_device, tensor, value, name)
            self.assert_reads(model, value, name)
        if self.samples.network(3, 2) is not None:
            assert self.adapter.tensor_of(self.linear_model()) is None
        if not lone:
            pytest.skip("the samples do not have: a model that is one variable")
