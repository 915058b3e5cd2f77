"""Pairs the layers of two models without running them: by their paths, their order, or their kinds and shapes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from xdevice.contract import layouts
from xdevice.errors import StateError, shown

from . import refusals
from .likeness import crossings, guess
from .sides import Side, shapes_of, some_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xdevice.contract.layouts import Layer

SHAPING: Final = ("groups", "layers", "bidirectional", "projection", "packed")
"""Settings that shape a layer's parameters: if they differ between two layers, so may the parameters."""
Signature = tuple[object, ...]
"""The kind of a layer and the shape of one of its parameters, both the same for its counterpart in the other model."""

_TELLING: Final = ("running_mean", "weight", layouts.NORMED[1], "weight_ih_l0", "out_proj.weight", "")
"""The parameters, by PyTorch's names, whose shapes tell layers of one kind apart. Of each layer, the first of these
that it has is used."""


def pair_layers(source: Side, target: Side, renamed: Mapping[str, str]) -> list[tuple[Layer, Layer]]:
    pairs = by_name(source, target, renamed)
    left = [layer for layer in source.layers if layer.path not in renamed]
    right = [layer for layer in target.layers if layer.path not in renamed.values()]
    pairs += _match(source, left, target, right)
    for one, other in pairs:
        check_pair(source, one, target, other)
    return pairs


def by_name(source: Side, target: Side, renamed: Mapping[str, str]) -> list[tuple[Layer, Layer]]:
    """The pairs of layers that the user gave as `names=`. Raises `StateError` for a path without a layer, and for a
    layer of the target that is given twice."""
    ours, theirs = _by_path(source), _by_path(target)
    pairs = [(_at(ours, here, source), _at(theirs, there, target)) for here, there in renamed.items()]
    if len({other.path for _, other in pairs}) < len(pairs):
        raise StateError(f"names gives one layer of like= twice: {dict(renamed)}")
    return pairs


def _by_path(side: Side) -> dict[str, Layer]:
    return {layer.path: layer for layer in side.layers}


def _at(layers: Mapping[str, Layer], path: str, side: Side) -> Layer:
    if path not in layers:
        raise StateError(
            f"names= says {shown(path)}, and {side.backend.name} has no layer there; it has {some_of(layers)}"
        )
    return layers[path]


def _match(source: Side, left: list[Layer], target: Side, right: list[Layer]) -> list[tuple[Layer, Layer]]:
    there = {layer.path: layer for layer in right}
    if {layer.path for layer in left} == set(there):
        return [(layer, there[layer.path]) for layer in left]
    ours = [signature(source, layer) for layer in left]
    theirs = [signature(target, layer) for layer in right]
    if ours == theirs:
        _require_no_crossing(source, left, target, right, ours)
        return list(zip(left, right, strict=True))
    if _is_part(left, ours, right, theirs) or _is_part(right, theirs, left, ours):
        return [(layer, there[layer.path]) for layer in left if layer.path in there]
    return _only_ones(source, left, ours, target, right, theirs)


def _require_no_crossing(
    source: Side, left: list[Layer], target: Side, right: list[Layer], signatures: list[Signature]
) -> None:
    """Raises `StateError` if the names of two layers of one kind and shape, which were paired in their order, would fit
    better with their counterparts exchanged."""
    here, there = [layer.path for layer in left], [layer.path for layer in right]
    groups = _groups(signatures)
    off = {
        group[place]
        for group in groups
        for pair in crossings([here[place] for place in group], [there[place] for place in group])
        for place in pair
    }
    if not off:
        return
    doubtful = [group for group in groups if off.intersection(group)]
    likely: dict[str, str] = {}
    for group in doubtful:
        likely |= guess([here[place] for place in group], [there[place] for place in group])
    raise StateError(
        refusals.crossing(
            source, [left[place] for place in sorted(off)], target, [right[place] for place in sorted(off)], likely
        )
    )


def _groups(signatures: list[Signature]) -> list[list[int]]:
    """The indices in `signatures`, grouped so that equal signatures are in one group."""
    groups: dict[Signature, list[int]] = {}
    for place, found in enumerate(signatures):
        groups.setdefault(found, []).append(place)
    return list(groups.values())


def _is_part(few: list[Layer], own: list[Signature], many: list[Layer], others: list[Signature]) -> bool:
    """Whether `many` has all the layers in `few`, with the same paths and signatures. False if a path in `few` ends in
    a number: a path such as 0.1 does not tell what the layer is."""
    there = {layer.path: found for layer, found in zip(many, others, strict=True)}
    named = all(not layer.path.rpartition(".")[2].isdigit() for layer in few)
    return named and all(there.get(layer.path) == found for layer, found in zip(few, own, strict=True))


def _only_ones(
    source: Side, left: list[Layer], ours: list[Signature], target: Side, right: list[Layer], theirs: list[Signature]
) -> list[tuple[Layer, Layer]]:
    """The pairs of layers that are the only ones of their kind and shape in both models. Raises `StateError` if both
    models have layers of a kind and shape, and one model has several of them."""
    counted, others = Counter(ours), Counter(theirs)
    unclear = [found for found in counted if found in others and counted[found] + others[found] > 2]
    if unclear:
        raise StateError(refusals.unclear(source, left, ours, target, right, theirs, unclear))
    place = {found: layer for layer, found in zip(right, theirs, strict=True)}
    return [(layer, place[found]) for layer, found in zip(left, ours, strict=True) if found in place]


def signature(side: Side, layer: Layer) -> Signature:
    """A layer's kind, and the shape in PyTorch's layout of a parameter that every layer of the kind has."""
    shapes = shapes_of(side.variables, layer)
    telling = next((name for name in _TELLING if name in shapes), None)
    if telling is None:
        return (layer.kind,)
    shape = shapes[telling]
    groups = layer.settings.get("groups", 1)
    if isinstance(groups, int) and layer.kind.startswith("conv"):
        shape = (shape[0], shape[1] * groups, *shape[2:])
    return layer.kind, shape


def check_pair(source: Side, one: Layer, target: Side, other: Layer) -> None:
    ours, theirs = shapes_of(source.variables, one), shapes_of(target.variables, other)
    if one.kind == other.kind and any(one.settings.get(name) != other.settings.get(name) for name in SHAPING):
        return  # a setting that shapes the weights differs, which is listed: the pairing is no mistake
    off = [
        f"{name or 'the tensor'} {ours[name]} and {theirs[name]}"
        for name in ours
        if name in theirs and ours[name] != theirs[name] and name != layouts.NORMED[0]
    ]
    if one.kind == other.kind and not off:
        return
    same_kind = one.kind == other.kind
    what = f"of the shapes {', '.join(off)}" if same_kind else f"a {one.kind} and a {other.kind}"
    raise StateError(
        f"{refusals.names_of([one])} of {source.backend.name} cannot become {refusals.names_of([other])} of "
        f"{target.backend.name}: "
        f"they are {what} (in PyTorch's layout); say which layer is which by names={{{one.path!r}: ...}}, "
        f"or leave both out: skip=[{one.path!r}]"
    )
