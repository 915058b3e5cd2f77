"""Pairs the layers of two models without running them: by their paths, their order, or their kinds and shapes."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from xdevice.contract import layouts
from xdevice.errors import StateError, shown

from . import refusals
from .likeness import crossings, guess
from .sides import Side, shapes_of, some_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xdevice.contract.layouts import Layer

SHAPING: Final = ("groups", "layers", "bidirectional", "projection", "packed")
"""Settings that shape a layer's parameters: if they differ between two layers, so may the parameters."""
Signature = tuple[object, ...]
"""The kind of a layer and the shape of one of its parameters, both the same for its counterpart in the other model."""

_TELLING: Final = ("running_mean", "weight", layouts.NORMED[1], "weight_ih_l0", "out_proj.weight", "")
"""The parameters, by PyTorch's names, whose shapes tell layers of one kind apart. Of each layer, the first of these
that it has is used."""


def pair_layers(source: Side, target: Side, renamed: Mapping[str, str]) -> list[tuple[Layer, Layer]]:
    """The pairs of layers, by `names=` first.

    Raises:
        StateError: layers pair in several ways or in none; its attribute `names` is the likely pairs, by path.
    """
    pairs = by_name(source, target, renamed)
    left = [layer for layer in source.layers if layer.path not in renamed]
    right = [layer for layer in target.layers if layer.path not in renamed.values()]
    try:
        pairs += _match(source, left, target, right)
    except StateError as error:
        error.pairs = {**renamed, **error.pairs}
        raise
    for one, other in pairs:
        check_pair(source, one, target, other)
    return pairs


def by_name(source: Side, target: Side, renamed: Mapping[str, str]) -> list[tuple[Layer, Layer]]:
    """The pairs of layers that the user gave as `names=`. Raises `StateError` for a path without a layer, and for a
    layer of the target that is given twice."""
    ours, theirs = _by_path(source), _by_path(target)
    bare, others = ({layer.path for layer in side.bare} for side in (source, target))
    pairs = [
        (_at(ours, here, source), _at(theirs, there, target))
        for here, there in renamed.items()
        if here not in bare or there not in others  # `views` pairs these
    ]
    if len({other.path for _, other in pairs}) < len(pairs):
        raise StateError(f"names gives one layer of like= twice: {dict(renamed)}")
    return pairs


def spelled_out(names: Mapping[str, str], source: Side) -> dict[str, str]:
    """`names` with each pattern replaced by the layers of the source that it stands for: what a `*` stands for in the
    source's path is put for the `*` of that number in the target's."""
    found: dict[str, str] = {}
    paths = [layer.path for layer in (*source.layers, *source.bare)]
    for here, there in names.items():
        if "*" not in here:
            found[here] = there
            continue
        pattern = re.compile("(.*)".join(map(re.escape, here.split("*"))))
        fitting = {path: match.groups() for path in paths if (match := pattern.fullmatch(path))}
        if not fitting or there.count("*") > here.count("*"):
            raise StateError(
                f"names= says {shown(here)}: {shown(there)}, and that is {len(fitting)} layers of "
                f"{source.backend.name}, with {here.count('*')} and {there.count('*')} parts to fill in; it has "
                f"{some_of(paths)}"
            )
        pieces = there.split("*")
        for path, groups in fitting.items():
            found[path] = pieces[0] + "".join(group + piece for group, piece in zip(groups, pieces[1:], strict=False))
    return found


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
        return _in_order(source, left, target, right)
    if _is_part(left, ours, right, theirs) or _is_part(right, theirs, left, ours):
        return [(layer, there[layer.path]) for layer in left if layer.path in there]
    by_kind, others = _by_kind(left), _by_kind(right)
    if [signature(source, layer) for layer in by_kind] == [signature(target, layer) for layer in others]:
        return _in_order(source, by_kind, target, others)
    return _only_ones(source, left, ours, target, right, theirs)


def _by_kind(layers: list[Layer]) -> list[Layer]:
    """The layers of each kind in their order, one kind behind the other."""
    return sorted(layers, key=lambda layer: layer.kind)


def in_doubt(source: Side, target: Side, pairs: Sequence[tuple[Layer, Layer]]) -> list[str]:
    """The paths, in the target, of layers that `pair_layers` has paired only by their order among their kind. Empty
    where the layers of all kinds come in one order."""
    places = {layer.path: place for place, layer in enumerate(target.layers)}
    found = {one.path: other for one, other in pairs if other.path in places}
    order = [places[found[layer.path].path] for layer in source.layers if layer.path in found]
    if order == sorted(order):
        return []
    counted = Counter(signature(target, layer) for layer in target.layers)
    return [other.path for one, other in pairs if other.path in places and one.path != other.path
            and counted[signature(target, other)] > 1]  # fmt: skip


def pairs_in_order(source: Side, target: Side, renamed: Mapping[str, str]) -> dict[str, str]:
    """The paths of layers that are paired in their order among their kind and shape, whatever they are called."""
    left = [layer for layer in source.layers if layer.path not in renamed]
    right = [layer for layer in target.layers if layer.path not in renamed.values()]
    ours, theirs = [signature(source, layer) for layer in left], [signature(target, layer) for layer in right]
    return {**renamed, **likely_pairs(left, ours, right, theirs, by_names=False)}


def likely_pairs(
    left: Sequence[Layer],
    ours: Sequence[Signature],
    right: Sequence[Layer],
    theirs: Sequence[Signature],
    by_names: bool = True,
) -> dict[str, str]:
    """A guess for all layers: by their order among their kind and shape, or by names if these contradict it."""
    strided = _with_strides(left, ours), _with_strides(right, theirs)
    if Counter(strided[0]) == Counter(strided[1]):
        ours, theirs = strided
    likely: dict[str, str] = {}
    for found in dict.fromkeys(ours):
        here, there = (
            [layer.path for layer, own in zip(layers, side, strict=True) if own == found]
            for layers, side in ((left, ours), (right, theirs))
        )
        in_order = len(here) == len(there) and not (by_names and crossings(here, there))
        likely |= dict(zip(here, there, strict=True)) if in_order else guess(here, there)
    return likely


def _with_strides(layers: Sequence[Layer], signatures: Sequence[Signature]) -> list[Signature]:
    """The signatures of layers, with the stride of each: a shortcut may have the kind and shape of the layer beside it,
    but not its stride."""
    return [(*found, str(layer.settings.get("stride"))) for layer, found in zip(layers, signatures, strict=True)]


def _in_order(source: Side, left: list[Layer], target: Side, right: list[Layer]) -> list[tuple[Layer, Layer]]:
    """The pairs of layers in their order. Raises `StateError` if the names of two layers of one kind and shape would
    fit better with their counterparts exchanged."""
    here, there = [layer.path for layer in left], [layer.path for layer in right]
    signatures = [signature(source, layer) for layer in left]
    groups = _groups(signatures)
    off = {
        group[place]
        for group in groups
        for pair in crossings([here[place] for place in group], [there[place] for place in group])
        for place in pair
    }
    if not off:
        return list(zip(left, right, strict=True))
    doubtful = [group for group in groups if off.intersection(group)]
    likely: dict[str, str] = {}
    for group in doubtful:
        likely |= guess([here[place] for place in group], [there[place] for place in group])
    raise StateError(
        refusals.crossing(
            source, [left[place] for place in sorted(off)], target, [right[place] for place in sorted(off)], likely
        ),
        likely_pairs(left, signatures, right, signatures),
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
        raise StateError(
            refusals.unclear(source, left, ours, target, right, theirs, unclear),
            likely_pairs(left, ours, right, theirs),
        )
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
    rows = refusals.of_rows(one, ours.get("weight"), other, theirs.get("weight"))
    same_kind = one.kind == other.kind
    what = f"of the shapes {', '.join(off)}" if same_kind else f"a {one.kind} and a {other.kind}"
    raise StateError(
        f"{refusals.names_of([one])} of {source.backend.name} cannot become {refusals.names_of([other])} of "
        f"{target.backend.name}: "
        f"they are {what} (in PyTorch's layout); say which layer is which by names={{{one.path!r}: ...}}, "
        f"or leave both out: skip=[{one.path!r}]{rows and '; '}{rows}"
    )
