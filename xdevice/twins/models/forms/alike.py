"""Rewrites the layers of two models before they are paired, because frameworks divide models into layers differently. A
model is a `Twin` here: a list of layers, and the variables of these layers.

An LSTM of three layers, for example, is three LSTMs in Keras. If the other model has a single layer in place of several
layers, these are joined into one `Layer` with all of their parts (a part is one parameter of a layer). `attention`
rewrites linear layers, and `single_tensors` rewrites parameters that belong to no known layer.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from xdevice.twins.contract import layouts
from xdevice.twins.contract.layouts import Layer

from . import attention, single_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xdevice.twins.models.reading import Twin


def with_same_forms(source: Twin, target: Twin) -> tuple[Twin, Twin]:
    """Rewrites the layers of both models so that their kinds agree as far as possible, and returns the rewritten
    models."""
    rewrites = (
        _without_ties,
        _with_channels,
        _with_instance_norms,
        _with_stacks,
        single_tensors.with_layers_of_own_classes,
        single_tensors.with_added_biases,
        single_tensors.with_changed_kinds,
    )
    # the order matters, because each rewrite counts the layers of a kind that remain after the earlier ones
    for rewrite in rewrites:
        source, target = rewrite(source, target), rewrite(target, source)
    return attention.with_same_attentions(source, target)


# tied layers


def _without_ties(twin: Twin, other: Twin) -> Twin:
    """Returns the twin without the layers that only reuse variables of earlier layers. A layer is removed only if the
    other model has fewer layers of its kind and shape. For example, the head of a language model may be a layer in one
    model, and a multiplication by the embedding's weight in the other."""
    forms = twin.forms(twin.layers)
    # how many layers of each form this model has in excess of the other model
    excess = Counter(forms)
    excess.subtract(other.forms(other.layers))
    # the `id`s of the variables of earlier layers
    earlier: set[int] = set()
    remaining = []
    for layer, form in zip(twin.layers, forms, strict=True):
        variables = {id(twin.variables[part.name]) for part in layer.parts}
        # a layer that is tied in both models stays in both
        if variables <= earlier and excess[form] > 0:
            excess[form] -= 1
        else:
            remaining.append(layer)
        earlier |= variables
    return twin.with_layers(remaining)


# group norms


def refuse_unknown_channels(twin: Twin) -> Twin:
    """Marks a group norm as not convertible if its number of channels is not known from the framework, and returns the
    changed twin. Called if there is no other model that could supply the number."""
    why = "it has one number for each group, but does not state the number of channels; pass a model as like="

    def refuse(rule: layouts.Rule) -> layouts.Rule:
        """Returns a rule that supplies shapes, but refuses to convert values."""
        return layouts.refused(rule, why)

    return twin.with_layers(
        [
            _with_rules(layer, refuse) if _lacks_channels(layer) else layer
            for layer in twin.layers
        ]
    )


def _with_channels(twin: Twin, other: Twin) -> Twin:
    """Adds the number of channels to each group norm that lacks this number, and returns the changed twin. The numbers
    come from the group norms of the other model. If the other model has as many group norms as the twin has incomplete
    norms, the numbers are assigned in order. Otherwise, if all group norms of the other model have the same number of
    channels, this number is used. In all other cases the twin is returned unchanged."""
    lacking = [layer for layer in twin.layers if _lacks_channels(layer)]
    group_norms = [
        layer
        for layer in other.layers
        if layer.kind == "group_norm" and not _lacks_channels(layer)
    ]
    widths = [_width(other, layer) for layer in group_norms]
    if len(widths) != len(lacking) and len(set(widths)) == 1:
        widths = widths[:1] * len(lacking)
    # assigning the numbers of channels to the norms would be a guess
    if not lacking or len(widths) != len(lacking):
        return twin
    width_of = {id(layer): width for layer, width in zip(lacking, widths, strict=True)}
    return twin.with_layers(
        [
            _repeat_per_channel(layer, width_of[id(layer)]) if id(layer) in width_of else layer
            for layer in twin.layers
        ]
    )


def _repeat_per_channel(layer: Layer, channels: int) -> Layer:
    """Returns a group norm with a new rule for its parameters, which have one number for each group. The rule repeats
    these numbers to get one number for each channel, as in PyTorch's layout. `channels` is the number of channels.
    Returns the layer unchanged if `channels` is not divisible by the number of groups."""
    groups = layer.settings["num_groups"]
    # if the division leaves a remainder, the number of channels belongs to another norm
    if not isinstance(groups, int) or channels % groups:
        return layer
    return _with_rules(layer, lambda _: layouts.per_group(groups, channels))


def _with_rules(layer: Layer, change: Callable[[layouts.Rule], layouts.Rule]) -> Layer:
    """Returns the layer with the rule of each parameter replaced by `change(rule)`."""
    return layer._replace(
        parts=tuple(part._replace(rule=change(part.rule)) for part in layer.parts)
    )


def _lacks_channels(layer: Layer) -> bool:
    """Whether a layer is a group norm with an unknown number of channels. In that case, the rules of its parameters are
    lossy (see `layouts.per_group`)."""
    return layer.kind == "group_norm" and any(part.rule.is_lossy for part in layer.parts)


def _width(twin: Twin, layer: Layer) -> int:
    """Returns the number of channels of a group norm, which is the length of its first parameter in PyTorch's
    layout."""
    return next(iter(twin.shapes(layer).values()))[0]


def _with_instance_norms(twin: Twin, other: Twin) -> Twin:
    """If the other model has instance norms, returns the twin with instance norms in place of the group norms with one
    group per channel. Otherwise returns the twin unchanged."""
    if not any(layer.kind == "instance_norm" for layer in other.layers):
        return twin
    return twin.with_layers([_as_instance_norm(twin, layer) for layer in twin.layers])


def _as_instance_norm(twin: Twin, layer: Layer) -> Layer:
    """Returns an instance norm in place of a group norm with one group per channel. Returns any other layer
    unchanged."""
    if layer.kind != "group_norm" or layer.settings.get("num_groups") != _width(twin, layer):
        return layer
    # a group norm has no running statistics, so the equivalent instance norm has none either
    settings = {**layer.settings, "running_stats": False}
    del settings["num_groups"]
    return layer._replace(kind="instance_norm", settings=settings)


# stacks of recurrent layers


def _with_stacks(twin: Twin, other: Twin) -> Twin:
    """Joins consecutive recurrent layers if the other model has one recurrent layer of several levels in their place.
    Returns the changed twin."""
    stacks = []
    for kind in layouts.RECURRENT:
        ours, theirs = (
            [layer for layer in model.layers if layer.kind == kind] for model in (twin, other)
        )
        stacks += _stacks(twin, ours, list(map(_depth, theirs)))
    return twin.joined([(stack, _as_one_layer(stack)) for stack in stacks])


def _stacks(twin: Twin, layers: list[Layer], depths: list[int]) -> list[list[Layer]]:
    """Divides recurrent layers into consecutive groups. Each group corresponds to one layer of the other model.
    `depths` contains the number of levels of each layer of the other model. Returns the groups of more than one layer.
    Returns [] if the numbers of levels do not add up, or if the output of a layer in a group does not fit the input of
    the next layer."""
    stacks = []
    for depth in depths:
        # either one layer that is itself this deep, or as many layers of depth 1
        count = 1 if layers and _depth(layers[0]) == depth else depth
        stack, layers = layers[:count], layers[count:]
        if sum(map(_depth, stack)) != depth or not _feed_one_another(twin, stack):
            return []
        stacks.append(stack)
    # layers that are left over have no counterpart, so the division was wrong
    return [] if layers else [stack for stack in stacks if len(stack) > 1]


def _depth(layer: Layer) -> int:
    """Returns the number of levels of a recurrent layer."""
    # `str` is for type checkers only, which treat a setting as an `object`
    return int(str(layer.settings.get("layers", 1)))


def _feed_one_another(twin: Twin, stack: list[Layer]) -> bool:
    """Whether the output size of each recurrent layer equals the input size of the next layer, and all layers have the
    same number of directions."""
    shapes = [twin.shapes(layer) for layer in stack]
    directions = [2 if layer.settings.get("bidirectional") else 1 for layer in stack]
    outputs = [
        # axis 1 of weight_hh is the size of the output, even if a projection changes that size
        count * shape["weight_hh_l0"][1]
        for count, shape in zip(directions, shapes, strict=True)
    ]
    inputs = [shape["weight_ih_l0"][1] for shape in shapes]
    return outputs[:-1] == inputs[1:] and len(set(directions)) == 1


def _as_one_layer(stack: Sequence[Layer]) -> Layer:
    """Joins a stack of recurrent layers with one level each into one layer. In PyTorch's names of the parts, such as
    `weight_ih_l0`, the index of the layer in the stack replaces the 0. If the layers differ in a setting, the setting
    becomes a tuple with one value for each layer."""
    parts = [
        part._replace(of=tuple(name.replace("_l0", f"_l{number}") for name in part.of))
        for number, layer in enumerate(stack)
        for part in layer.parts
    ]
    # the layers may differ in a setting, such as dropout, although the other model has a single value for all of its
    # levels
    settings: dict[str, object] = {}
    for name in [name for layer in stack for name in layer.settings]:
        values = tuple(layer.settings.get(name) for layer in stack)
        settings[name] = values[0] if all(value == values[0] for value in values) else values
    return Layer(stack[0].path, stack[0].kind, tuple(parts), settings | {"layers": len(stack)})
