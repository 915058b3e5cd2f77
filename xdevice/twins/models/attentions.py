"""Joins the linear layers that are an attention into one layer, where the other model has attentions in another form.

An attention is one layer; or four linear layers, as in the package transformers; or three, or two, of which one has the
rows of several; or two beside which the biases are tensors of their own, as in timm.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from xdevice.contract import layouts
from xdevice.contract.layouts import Layer, Part

from .sides import shapes_of, with_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from .sides import Side

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


def alike(source: Side, target: Side) -> tuple[Side, Side]:
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
        if _form(source, one) == _form(target, other):
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
    made = [_joined(side, way, rows) for side, way in zip((source, target), ways, strict=True)]
    return made[0], made[1]


def _joined(side: Side, groups: Mapping[int, list[Layer]], rows: Mapping[int, Sequence[int]]) -> Side:
    found = with_groups(side, groups, lambda side, group: _attention(side, group, rows[id(group)]))
    held = {part.name for layer in found.layers for part in layer.parts}
    return found._replace(
        bare=tuple(layer for layer in side.bare if layer.parts[0].name not in held),
        unknown=[name for name in side.unknown if name not in held],
    )


def _attentions(side: Side, is_fused: bool) -> list[list[Layer]]:
    """The attentions of a model in their order: each a layer; or four linear layers for query, key, value and output,
    or three where key and value are one; or, if `is_fused`, two, for the first three together and the output."""
    groups = [[layer] for layer in side.layers if layer.kind == layouts.ATTENTION]
    groups += [*_split(side), *(_fused(side) if is_fused else ())]
    places = {id(layer): place for place, layer in enumerate(side.layers)}
    return sorted(groups, key=lambda group: min(places[id(layer)] for layer in group))


def _form(side: Side, group: Sequence[Layer]) -> object:
    """What two attentions have in common if their layers can be paired one by one: the order in which the model defines
    them, and whether biases are tensors of their own."""
    places = {id(layer): place for place, layer in enumerate(side.layers)}
    return sorted(range(len(group)), key=lambda number: places[id(group[number])]), [*_biases(side, group)]


def _biases(side: Side, group: Sequence[Layer]) -> dict[str, Layer]:
    """By its role, each bias of query, key or value that is a tensor of its own, beside linear layers without one."""
    into = [layer for layer in group[:-1] if len(layer.parts) == 1]
    parent = group[0].path.rpartition(".")[0]
    return {
        role: layer
        for role in "qkv"
        if into
        for layer in side.bare
        if layer.path.rpartition(".")[0] == parent and _is(role, layer) and layer.path.lower().endswith("bias")
    }


def _rows(side: Side, group: Sequence[Layer]) -> list[int]:
    """How many rows the weights of query, key and value have. Empty for two linear layers, which do not tell without
    biases of their own."""
    if len(group) == 1:
        shapes = shapes_of(side.variables, group[0])
        return [shapes[f"{role}_proj.weight"][0] for role in "qkv"]
    heights = [_height(side, layer) for layer in group[:-1]]
    if len(heights) == 2:
        return [heights[0], heights[1] // 2, heights[1] // 2]
    sizes = {role: side.variables[layer.parts[0].name].shape[0] for role, layer in _biases(side, group).items()}
    if len(heights) == 1 and {"q", "v"} <= {*sizes}:
        return [sizes["q"], heights[0] - sizes["q"] - sizes["v"], sizes["v"]]
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
    parts += [
        Part(layer.parts[0].name, (f"{role}_proj.bias",), layouts.SAME) for role, layer in _biases(side, group).items()
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
