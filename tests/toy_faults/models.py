"""Faults of models: their variables, where these are, moving and copying them."""

from __future__ import annotations

import copy

import xdevice
from xdevice.base import devices
from xdevice.errors import NotBuiltError

from .planting import (
    HOMES,
    flush_denormals,
    plain,
    swap,
    through,
    toy,
    wrong,
)

_IN_PLACE = "a_model_moves_in_place_with_its_values"
_SHARES_NOTHING = "a_copied_model_shares_nothing"
_STATE = "variables_are_those_of_the_state_dict"
_LINEAR = "a_linear_layer_has_a_weight_and_a_bias"
swap(
    "model_devices",
    "looks at the first variable only",
    "a_spread_model_is_a_named_mismatch",
    lambda look, adapter: lambda model: list(look(model))[:1],
)
swap(
    "model_devices",
    "mistakes an unbuilt model for an empty one",
    "an_unbuilt_model_is_refused",
    lambda look, adapter: lambda model: [],
    raises=(xdevice.errors.NotATensorError,),
)
swap(
    "model_devices",
    "always says cpu:0",
    "a_model_that_is_there_is_left_alone",
    lambda look, adapter: lambda model: [(name, devices.CPU) for name, _ in look(model)],
    HOMES[1:],
)
swap(
    "variables",
    "returns other values",
    _STATE,
    lambda variables, adapter: (
        lambda model: [(name, plain(x) + 1) for name, x in variables(model)]
    ),
)
swap(
    "variables",
    "leaves out the last one",
    _LINEAR,
    lambda variables, adapter: lambda model: list(variables(model))[:-1],
)
swap(
    "variables",
    "gives all of them the same name",
    _STATE,
    lambda variables, adapter: lambda model: [("x", x) for _, x in variables(model)],
)
swap(
    "variables",
    "uses different names in each model",
    _STATE,
    lambda variables, adapter: (
        lambda model: [(f"{name}{id(model)}", x) for name, x in variables(model)]
    ),
)
swap(
    "variables",
    "returns a shared variable only once",
    "a_shared_variable_comes_under_both_names",
    lambda variables, adapter: (
        lambda model: list({id(x): (name, x) for name, x in variables(model)}.values())
    ),
)
swap(
    "variables",
    "mistakes an unbuilt model for an empty one",
    "an_unbuilt_model_is_refused",
    lambda variables, adapter: lambda model: [] if None in _values(model) else variables(model),
    raises=(xdevice.errors.NotATensorError,),
)
swap(
    "variables",
    "returns copies on the CPU",
    _STATE,
    lambda variables, adapter: (
        lambda model: [(name, plain(x).clone(toy().CPU)) for name, x in variables(model)]
    ),
    HOMES[:1],
)


_BUILT = "a_model_is_built_or_refused"
swap("require_built", "refuses nothing", _BUILT, lambda _, adapter: lambda model: None)


@wrong("require_built", "refuses a model without its own parameters", _BUILT)
def require_built_refuses_a_model_without_parameters_of_its_own(adapter, patch, suite):
    def refuse(model):
        if not getattr(model, "own", ()):
            raise NotBuiltError("not built")

    patch.setattr(adapter, "require_built", refuse)


_ALL_ON = "a_model_is_all_on_the_device_where_it_is"
swap(
    "is_all_on", "always returns False", _ALL_ON, lambda _, adapter: lambda model, device: False
)
swap(
    "is_all_on",
    "always returns True",
    "a_model_moves_in_place_with_its_values",
    lambda _, adapter: lambda model, device: True,
)
swap(
    "is_all_on",
    "looks at the first variable only",
    _ALL_ON,
    lambda _, adapter: (
        lambda model, device: next(iter(adapter.model_devices(model)))[1] is device
    ),
)
_STANDS = "the_parts_of_a_copy_stand_for_those_of_the_model"
swap("model_parts", "finds none", _STANDS, lambda _, adapter: lambda model: [])
swap(
    "model_parts",
    "returns the same part for all of them",
    _STANDS,
    lambda parts, adapter: lambda model: [*parts(model)][:1] * len([*parts(model)]),
)
swap(
    "model_parts",
    "returns only models",
    _STANDS,
    lambda parts, adapter: (
        lambda model: [x for x in parts(model) if isinstance(x, toy().Module)]
    ),
)
swap(
    "model_parts",
    "returns new objects for variables",
    _STANDS,
    lambda parts, adapter: (
        lambda model: [x.detach() if isinstance(x, toy().ToyArray) else x for x in parts(model)]
    ),
)


_SHARES_STILL = "models_that_share_a_tensor_share_it_after_a_move"
swap(
    "rebind",
    "leaves the old tensors in place",
    _SHARES_STILL,
    lambda rebind, adapter: lambda model, new: None,
)
swap(
    "rebind",
    "puts copies in their place",
    _SHARES_STILL,
    lambda rebind, adapter: (
        lambda model, new: rebind(model, {key: x.clone() for key, x in new.items()})
    ),
)


@wrong("rebind", "replaces all tensors by the same one", _SHARES_STILL)
def rebind_puts_one_tensor_in_the_places_of_all(adapter, patch, suite):
    def rebind(model, new):
        for module in adapter.model_parts(model):
            if isinstance(module, toy().Module):
                module.buffers = dict.fromkeys(module.buffers, next(iter(new.values())))

    patch.setattr(adapter, "rebind", rebind)


def _values(model):
    return [model.value] if isinstance(model, toy().Variable) else [x for _, x in model.named()]


def _move_each(change):
    """A move that changes the values on the way."""

    def make(move, adapter):
        def moved(model, device):
            move(model, device)
            for x in map(plain, _values(model)):
                changed = change(x)
                x._block, x._values, x._owner = changed._block, changed._values, changed._owner

        return moved

    return make


def _copy_each(change):
    def make(copy_model, adapter):
        def copied(model, device):
            twin = copy_model(model, device)
            for x in map(plain, _values(twin)):
                changed = change(x)
                x._block, x._values, x._owner = changed._block, changed._values, changed._owner
            return twin

        return copied

    return make


swap("move_model", "does nothing", _IN_PLACE, lambda _, adapter: lambda model, device: None)
swap(
    "move_model",
    "moves a copy",
    _IN_PLACE,
    lambda _, adapter: lambda model, device: adapter.copy_model(model, device),
)
swap(
    "move_model",
    "loses the values",
    _IN_PLACE,
    _move_each(lambda x: toy().full(x.shape, 0, x.place, x.dtype)),
)
swap("move_model", "converts through float32", _IN_PLACE, _move_each(through("float32")))
swap("move_model", "flushes denormal numbers to zero", _IN_PLACE, _move_each(flush_denormals))


@wrong("move_model", "leaves buffers behind", _IN_PLACE)
def move_model_leaves_buffers_behind(adapter, patch, suite):
    def parameters_only(model, device):
        place = adapter.to_native(device)
        if isinstance(model, toy().Variable):
            model.value = model.value.to(place)
            return
        for x in model.parameters():
            x.take(x.detach().clone(place))

    patch.setattr(adapter, "move_model", parameters_only)


@wrong("move_model", "replaces parameters by plain tensors", _IN_PLACE)
def move_model_puts_plain_tensors_in_the_place_of_parameters(adapter, patch, suite):
    _replace_parameters(adapter, patch, lambda x: x)


@wrong(
    "move_model",
    "puts new parameters into the model that its optimizer does not have",
    "a_moved_model_trains_on_as_if_it_had_stayed",
    raises=(TypeError,),
)
def move_model_puts_new_parameters_into_the_model_which_its_optimizer_does_not_know(
    adapter, patch, suite
):
    _replace_parameters(adapter, patch, lambda x: toy().Parameter(x))


@wrong(
    "move_model", "makes separate copies of shared parameters", "shared_parameters_stay_shared"
)
def move_model_tears_shared_parameters_apart(adapter, patch, suite):
    _replace_parameters(adapter, patch, lambda x: toy().Parameter(x))


def _replace_parameters(adapter, patch, make):
    def replace(model, device):
        place = adapter.to_native(device)
        if isinstance(model, toy().Variable):
            model.value = model.value.to(place)
            return
        if None in _values(model):
            raise NotBuiltError("not built")
        for held in (model.own, model.buffers):
            held.update({name: make(x.detach().clone(place)) for name, x in held.items()})
        for child in model.children.values():
            replace(child, device)

    patch.setattr(adapter, "move_model", replace)


@wrong("copy_model", "shares the storage", _SHARES_NOTHING)
def copy_model_shares_the_storage(adapter, patch, suite):
    patch.setattr(adapter, "copy_model", lambda model, device: copy.copy(model))


@wrong("copy_model", "copies the tree and shares its tensors", _SHARES_NOTHING)
def copy_model_copies_the_tree_and_shares_its_tensors(adapter, patch, suite):
    copy_model, bare = adapter.copy_model, copy.copy

    def shallow(model, device):
        if isinstance(model, toy().Variable):
            return copy_model(model, device)
        adapter.move_model(model, device)
        twin = bare(model)
        twin.own, twin.buffers = dict(model.own), dict(model.buffers)
        return twin

    patch.setattr(adapter, "copy_model", shallow)


swap(
    "copy_model",
    "moves the model",
    _SHARES_NOTHING,
    lambda _, adapter: lambda model, device: (adapter.move_model(model, device), model)[1],
)
swap(
    "copy_model",
    "leaves the copy on the model's device",
    _SHARES_NOTHING,
    lambda copy_model, adapter: (
        lambda model, device: copy_model(model, adapter.device_of(plain(_values(model)[0])))
    ),
)
swap(
    "copy_model",
    "draws new weights",
    _SHARES_NOTHING,
    _copy_each(lambda x: toy().full(x.shape, 0.5, x.place, x.dtype)),
)
swap("copy_model", "converts through float32", _SHARES_NOTHING, _copy_each(through("float32")))


@wrong("copy_model", "turns buffers into parameters", _SHARES_NOTHING)
def copy_model_makes_parameters_of_buffers(adapter, patch, suite):
    patch.setattr(adapter, "_twin", lambda x, place: toy().Parameter(x.detach().clone(place)))


@wrong(
    "copy_model", "makes separate copies of shared parameters", "shared_parameters_stay_shared"
)
def copy_model_tears_shared_parameters_apart(adapter, patch, suite):
    copy_model = adapter.copy_model

    def torn(model, device):
        twin = copy_model(model, device)
        for child in getattr(twin, "children", {}).values():
            child.own = {
                name: toy().Parameter(x.detach().clone()) for name, x in child.own.items()
            }
        return twin

    patch.setattr(adapter, "copy_model", torn)


swap(
    "tensor_of",
    "mistakes every tensor for a variable",
    "a_leaf_is_a_copy_that_asks_for_gradients",
    lambda _, adapter: lambda model: toy().full((1,), 0),
)
swap(
    "tensor_of",
    "recognizes no variable",
    "a_lone_variable_is_read_as_its_tensor",
    lambda _, adapter: lambda model: None,
)
swap(
    "tensor_of",
    "returns a tensor with another value",
    "a_lone_variable_is_read_as_its_tensor",
    lambda tensor_of, adapter: (
        lambda model: model.value * 2 if isinstance(model, toy().Variable) else None
    ),
)
swap(
    "model_parts",
    "leaves out the parameters",
    "a_parameter_beside_its_model_stays_its_parameter",
    lambda parts, adapter: (
        lambda model: [part for part in parts(model) if isinstance(part, toy().Module)]
    ),
)
