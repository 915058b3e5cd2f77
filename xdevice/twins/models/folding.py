"""Rewrites the lists of layers of two models, before they are paired, where the frameworks divide layers differently.

An LSTM of three layers is three LSTMs in Keras. Several layers become one `Layer` with all of their parts, where the
other model has one layer for them. `attentions` does it with linear layers.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from xdevice.contract import layouts
from xdevice.contract.layouts import Layer

from . import attentions, views
from .sides import Side, shapes_of, with_groups, with_layers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def alike(source: Side, target: Side | None) -> tuple[Side, Side | None]:
    """Both models, with their layers rewritten to be of the same kinds as far as possible. Without a target, only the
    source is rewritten."""
    if target is None:
        return with_layers(source, map(_without_channels, source.layers)), None
    if _all(source) == _all(target):
        return source, target
    for way in (_without_ties, _with_channels, _with_instances, _with_stacks, views.with_norms, views.with_kinds):
        source, target = way(source, target), way(target, source)
    return attentions.alike(source, target)


def _all(side: Side) -> Counter[Any]:
    return Counter(_signature(side, layer) for layer in (*side.layers, *side.bare))


# tied layers


def _without_ties(side: Side, other: Side) -> Side:
    """Drops layers that only reuse variables of layers before them, if the other model has fewer layers of that kind
    and shape: the head of a language model is a layer in one model, and a product with the embedding's weight in the
    other."""
    ours, theirs = (Counter(_signature(one, layer) for layer in one.layers) for one in (side, other))
    seen: set[int] = set()
    kept = []
    for layer in side.layers:
        signature, variables = _signature(side, layer), {id(side.variables[part.name]) for part in layer.parts}
        if variables <= seen and ours[signature] > theirs[signature]:
            ours[signature] -= 1
        else:
            kept.append(layer)
        seen |= variables
    return with_layers(side, kept)


def _signature(side: Side, layer: Layer) -> tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]:
    shapes = shapes_of(side.variables, layer)
    return layer.kind, tuple(found for found in shapes.items() if found[0] != layouts.COUNTER)


# group norms


def _without_channels(layer: Layer) -> Layer:
    why = "it has one number for each group, and does not say how many channels there are; give like=, a model"
    return _map_rules(layer, lambda rule: layouts.refused(rule, why)) if _lacks_channels(layer) else layer


def _with_channels(side: Side, other: Side) -> Side:
    """Gives the group norms that do not know their number of channels the numbers of the other model's group norms: in
    their order if there are equally many, else the one number that all of those have. Changes nothing if they have
    several."""
    lacking = [layer for layer in side.layers if _lacks_channels(layer)]
    theirs = [layer for layer in other.layers if layer.kind == "group_norm"]
    told = [layer for layer in theirs if not _lacks_channels(layer)]
    if not lacking or (len(told) != len(lacking) and len({_width(other, layer) for layer in told}) != 1):
        return side
    widths = [_width(other, layer) for layer in told]
    widths *= 1 if len(told) == len(lacking) else len(lacking)
    found = {id(layer): width for layer, width in zip(lacking, widths, strict=False)}
    return with_layers(
        side, (_spread(layer, found[id(layer)]) if id(layer) in found else layer for layer in side.layers)
    )


def _spread(layer: Layer, channels: int) -> Layer:
    groups = layer.settings["num_groups"]
    if not isinstance(groups, int) or channels % groups:
        return layer
    return _map_rules(layer, lambda _: layouts.per_group(groups, channels))


def _map_rules(layer: Layer, way: Callable[[layouts.Rule], layouts.Rule]) -> Layer:
    return layer._replace(parts=tuple(part._replace(rule=way(part.rule)) for part in layer.parts))


def _lacks_channels(layer: Layer) -> bool:
    return layer.kind == "group_norm" and any(part.rule.is_lossy for part in layer.parts)


def _width(side: Side, layer: Layer) -> int:
    return next(iter(shapes_of(side.variables, layer).values()))[0]


def _with_instances(side: Side, other: Side) -> Side:
    """Turns group norms with one group per channel into instance norms, where the other model has instance norms."""
    if not any(layer.kind == "instance_norm" for layer in other.layers):
        return side
    return with_layers(side, (_as_instances(side, layer) for layer in side.layers))


def _as_instances(side: Side, layer: Layer) -> Layer:
    if layer.kind != "group_norm" or layer.settings.get("num_groups") != _width(side, layer):
        return layer
    rest = {name: value for name, value in layer.settings.items() if name != "num_groups"}
    return layer._replace(kind="instance_norm", settings={**rest, "running_stats": False})


# stacks of recurrent layers


def _with_stacks(side: Side, other: Side) -> Side:
    folded: dict[int, list[Layer]] = {}
    for kind in layouts.RECURRENT:
        ours, theirs = ([layer for layer in one.layers if layer.kind == kind] for one in (side, other))
        for stack in _stacks(side, ours, [_depth(layer) for layer in theirs]):
            folded |= {id(layer): stack for layer in stack}
    return with_groups(side, folded, _stack)


def _stacks(side: Side, layers: list[Layer], depths: list[int]) -> list[list[Layer]]:
    """Divides recurrent layers into groups, each of which stands for one layer of a depth in `depths`; gives those of
    more than one layer. Empty if the depths do not add up, or if the layers of a group do not feed one another."""
    found, rest = [], list(layers)
    for depth in depths:
        count = 1 if rest and _depth(rest[0]) == depth else depth
        stack, rest = rest[:count], rest[count:]
        if sum(map(_depth, stack)) != depth or not _follow(side, stack):
            return []
        found.append(stack)
    return [] if rest else [stack for stack in found if len(stack) > 1]


def _depth(layer: Layer) -> int:
    return int(str(layer.settings.get("layers", 1)))


def _follow(side: Side, stack: list[Layer]) -> bool:
    shapes = [shapes_of(side.variables, layer) for layer in stack]
    given = [_ways(layer) * found["weight_hh_l0"][1] for layer, found in zip(stack, shapes, strict=True)]
    taken = [found["weight_ih_l0"][1] for found in shapes]
    return given[:-1] == taken[1:] and len({_ways(layer) for layer in stack}) == 1


def _ways(layer: Layer) -> int:
    return 2 if layer.settings.get("bidirectional") else 1


def _stack(side: Side, stack: Sequence[Layer]) -> Layer:
    parts = [
        part._replace(of=tuple(name.replace("_l0", f"_l{number}") for name in part.of))
        for number, layer in enumerate(stack)
        for part in layer.parts
    ]
    settings = _settings_of(stack) | {"layers": len(stack)}
    return Layer(stack[0].path, stack[0].kind, tuple(parts), settings)


def _settings_of(stack: Sequence[Layer]) -> dict[str, object]:
    """The settings of a stack of recurrent layers: the value that all its layers share, or a tuple of each layer's
    value."""
    found: dict[str, object] = {}
    for name in dict.fromkeys(name for layer in stack for name in layer.settings):
        values = [layer.settings.get(name) for layer in stack]
        found[name] = values[0] if all(value == values[0] for value in values) else tuple(values)
    return found
