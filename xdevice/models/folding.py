"""Rewrites the lists of layers of two models, before they are paired, where the frameworks divide layers differently.

An LSTM of three layers is three LSTMs in Keras; an attention is one layer, or four linear layers in the package
transformers. Several layers become one `Layer` with all of their parts, where the other model has one layer for them.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from xdevice.contract import layouts
from xdevice.contract.layouts import Layer

from . import views
from .sides import Side, shapes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_ROLES: Final = {
    "q": ("q", "query", "queries", "wq"),
    "k": ("k", "key", "keys", "wk"),
    "v": ("v", "value", "values", "wv"),
    "kv": ("kv", "wkv"),
    "out": ("o", "out", "output", "wo", "proj"),
}
_WAYS: Final = {1: ("qkv",), 2: ("q", "kv"), 3: ("q", "k", "v")}
"""The roles of so many linear layers before the output."""
_FUSED: Final = frozenset({"qkv", "attn", "wqkv", "pack", "kqv"})
"""Words in the names of linear layers that hold query, key and value."""


def alike(source: Side, target: Side | None) -> tuple[Side, Side | None]:
    """Both models, with their layers rewritten to be of the same kinds as far as possible. Without a target, only the
    source is rewritten."""
    if target is None:
        return _with(source, map(_without_channels, source.layers)), None
    source, target = views.with_bare(source), views.with_bare(target)
    for way in (_without_ties, _with_channels, _with_instances, _with_stacks, views.with_norms, views.with_kinds):
        source, target = way(source, target), way(target, source)
    return _attentions_alike(source, target)


def in_code(pairs: Iterable[tuple[Layer, Layer]], source: Side, target: Side) -> Iterator[str]:
    """A line that names the attentions that were put together from linear layers: the model's code sets their heads and
    scale, and xdevice does not read that code."""
    found = [
        (other.path or "the attention", side.backend.name, any(len(part.of) > 1 for part in layer.parts))
        for pair in pairs
        for side, layer, other in zip((source, target), pair, reversed(pair), strict=True)
        if layer.settings.get(layouts.FOLDED)
    ]
    if found:
        fused = any(has_rows for _, _, has_rows in found)
        order = ", one of them with the rows of query, key and value, taken in that order" if fused else ""
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        yield (
            f"not compared: heads, scale and masks of {found[0][0]}{more}, which in {found[0][1]} are in the code "
            f"around linear layers{order}"
        )


def _with(side: Side, layers: Iterable[Layer]) -> Side:
    every = list(layers)
    sequence = side.sequence and list(_in_step(side.sequence, every))
    return side._replace(layers=every, sequence=sequence)


def _in_step(sequence: Iterable[Layer], layers: Iterable[Layer]) -> Iterator[Layer]:
    """The sequence with `layers` in place of the layers that they were made of, each where its first parameter comes.
    Layers without parameters stay."""
    owners = {part.name: layer for layer in layers for part in layer.parts}
    done: set[int] = set()
    for layer in sequence:
        owner = owners.get(layer.parts[0].name) if layer.parts else layer
        if owner is not None and id(owner) not in done:
            done.add(id(owner))
            yield owner._replace(line=layer.line)


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
    return _with(side, kept)


def _signature(side: Side, layer: Layer) -> tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]:
    return layer.kind, tuple(shapes_of(side.variables, layer).items())


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
    return _with(side, (_spread(layer, found[id(layer)]) if id(layer) in found else layer for layer in side.layers))


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
    return _with(side, (_as_instances(side, layer) for layer in side.layers))


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
    return _replace(side, folded, _stack)


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


# attentions of linear layers


def _attentions_alike(source: Side, target: Side) -> tuple[Side, Side]:
    """Joins linear layers into attentions where both models have equally many attentions in different forms: as one
    layer, as four linear layers, as three, of which one has the rows of key and value, or as two, of which the first
    has the rows of all three."""
    for is_fused in (False, True):
        ours, theirs = (_attentions(side, is_fused) for side in (source, target))
        if ours and len(ours) == len(theirs):
            break
    else:
        return source, target
    ways: tuple[dict[int, list[Layer]], dict[int, list[Layer]]] = ({}, {})
    rows: dict[int, Sequence[int]] = {}
    for one, other in zip(ours, theirs, strict=True):
        if len(one) == len(other) and _roles_in_order(source, one) == _roles_in_order(target, other):
            continue
        found = _rows(source, one) or _rows(target, other)
        if any(
            len(group) == 2 and sum(found) != _height(side, group[0])
            for side, group in ((source, one), (target, other))
        ):
            return source, target
        for way, group in zip(ways, (one, other), strict=True):
            rows[id(group)] = found
            way.update({id(layer): group for layer in group if len(group) > 1})
    made = [
        _replace(side, way, lambda side, group: _attention(side, group, rows[id(group)]))
        for side, way in zip((source, target), ways, strict=True)
    ]
    return made[0], made[1]


def _attentions(side: Side, is_fused: bool) -> list[list[Layer]]:
    """The attentions of a model in their order: each a layer; or four linear layers for query, key, value and output,
    or three where key and value are one; or, if `is_fused`, two, for the first three together and the output."""
    groups = [[layer] for layer in side.layers if layer.kind == layouts.ATTENTION]
    groups += [*_split(side), *(_fused(side) if is_fused else ())]
    places = {id(layer): place for place, layer in enumerate(side.layers)}
    return sorted(groups, key=lambda group: min(places[id(layer)] for layer in group))


def _roles_in_order(side: Side, group: Sequence[Layer]) -> list[int]:
    """The places of a group's layers, in the order in which the model defines them."""
    places = {id(layer): place for place, layer in enumerate(side.layers)}
    return sorted(range(len(group)), key=lambda number: places[id(group[number])])


def _rows(side: Side, group: Sequence[Layer]) -> list[int]:
    """How many rows the weights of query, key and value have. Empty for two linear layers, which do not tell."""
    if len(group) == 1:
        shapes = shapes_of(side.variables, group[0])
        return [shapes[f"{role}_proj.weight"][0] for role in "qkv"]
    heights = [_height(side, layer) for layer in group[:-1]]
    if len(heights) == 2:
        return [heights[0], heights[1] // 2, heights[1] // 2]
    return heights if len(heights) == 3 else []


def _height(side: Side, layer: Layer) -> int:
    return shapes_of(side.variables, layer)["weight"][0]


def _fused(side: Side) -> Iterator[list[Layer]]:
    """Pairs of linear layers of one block, the first of which may have the rows of query, key and value by its shape,
    or by its shape and name."""
    linear = [layer for layer in side.layers if layer.kind == "linear"]
    for first, out in pairwise(linear):
        block = _block(first)
        shapes = [shapes_of(side.variables, layer).get("weight", (0, 0)) for layer in (first, out)]
        (rows, width), (wide, inner) = shapes
        is_named = bool(set(first.path.rpartition(".")[2].lower().split("_")) & _FUSED) and rows > inner
        if wide == width and (rows == 3 * inner or is_named) and out.path.startswith(f"{block}." if block else ""):
            yield [first, out]


def _block(layer: Layer) -> str:
    return layer.path.rpartition(".")[0].rpartition(".")[0]


def _split(side: Side) -> Iterator[list[Layer]]:
    """Groups of linear layers: those with the same parent module whose names mean query, key and value, or query and
    both; and the output layer, which is named so beside them, or is the next linear layer of the block."""
    linear = [layer for layer in side.layers if layer.kind == "linear"]
    for layer in linear:
        parent = layer.path.rpartition(".")[0]
        beside = [other for other in linear if other.path.rpartition(".")[0] == parent]
        found = {role: [other for other in beside if _is(role, other)] for role in _ROLES}
        roles = next((way for way in (_WAYS[3], _WAYS[2]) if all(len(found[role]) == 1 for role in way)), ())
        if not _is("q", layer) or not roles:
            continue
        block = _block(layer)
        last = max(linear.index(found[role][0]) for role in roles)
        behind = [other for other in linear[last + 1 : last + 2] if other.path.startswith(f"{block}." if block else "")]
        out = found["out"] if len(found["out"]) == 1 else behind
        if len(out) == 1:
            yield [*(found[role][0] for role in roles), out[0]]


def _is(role: str, layer: Layer) -> bool:
    """Whether a layer's name means this role (query, key, value or output). The first role that fits counts, so q_proj
    is a query and no output."""
    words = set(layer.path.rpartition(".")[2].lower().split("_"))
    found = next((known for known, names in _ROLES.items() if words & set(names)), None)
    return found == role


def _attention(side: Side, group: Sequence[Layer], rows: Sequence[int]) -> Layer:
    """The attention that some linear layers are; `rows` says how many query, key and value have."""
    *into, out = group
    parts = [part._replace(of=tuple(f"out_proj.{name}" for name in part.of)) for part in out.parts]
    for layer, roles in zip(into, _WAYS[len(into)], strict=True):
        heights = [rows["qkv".index(role)] for role in roles]
        parts[-len(out.parts) : -len(out.parts)] = [
            part._replace(
                of=tuple(f"{role}_proj.{name}" for role in roles for name in part.of),
                rule=layouts.packed(heights, part.rule) if len(roles) > 1 else part.rule,
            )
            for part in layer.parts
        ]
    layer = Layer(_common(group), layouts.ATTENTION, tuple(parts), {})
    return layer._replace(
        settings={"packed": layouts.is_packed(shapes_of(side.variables, layer)), layouts.FOLDED: True}
    )


def _common(group: Sequence[Layer]) -> str:
    ways = [layer.path.split(".")[:-1] for layer in group]
    shared = []
    for names in zip(*ways, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return ".".join(shared)


def _replace(side: Side, groups: Mapping[int, list[Layer]], way: Callable[[Side, Sequence[Layer]], Layer]) -> Side:
    """`side` with each group of its layers replaced by the one layer that `way` makes of the group, at the place of the
    group's first layer."""
    if not groups:
        return side
    done: set[int] = set()
    layers: list[Any] = []
    for layer in side.layers:
        group = groups.get(id(layer))
        if group is None:
            layers.append(layer)
        elif id(group) not in done:
            done.add(id(group))
            layers.append(way(side, group))
    return _with(side, layers)
