"""Which layer of one model is which of another: by their paths, their order, or their kinds and shapes."""

from __future__ import annotations

from collections import Counter
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any, Final

from xdevice.errors import StateError

from .sides import Side, shapes_of, some_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from xdevice.contract.layouts import Layer

SHAPING: Final = ("groups", "layers", "bidirectional", "projection", "packed")
"""Settings without which the parameters of two layers are not the same ones."""

_TELLING: Final = ("running_mean", "weight", "weight_ih_l0", "out_proj.weight", "")
"""Parameters that every layer of a kind has."""


def paired(source: Side, target: Side, renamed: Mapping[str, str]) -> list[tuple[Layer, Layer]]:
    ours, theirs = _by_path(source), _by_path(target)
    pairs = [(_at(ours, here, source), _at(theirs, there, target)) for here, there in renamed.items()]
    if len({other.path for _, other in pairs}) < len(pairs):
        raise StateError(f"names gives one layer of like= twice: {dict(renamed)}")
    left = [layer for layer in source.layers if layer.path not in renamed]
    right = [layer for layer in target.layers if layer.path not in renamed.values()]
    pairs += _matched(source, left, target, right)
    for one, other in pairs:
        _check_pair(source, one, target, other)
    return pairs


def _by_path(side: Side) -> dict[str, Layer]:
    return {layer.path: layer for layer in side.layers}


def _at(layers: Mapping[str, Layer], path: str, side: Side) -> Layer:
    if path not in layers:
        raise StateError(f"names= says {path!r}, and {side.backend.name} has no layer there; it has {some_of(layers)}")
    return layers[path]


def _matched(source: Side, left: list[Layer], target: Side, right: list[Layer]) -> list[tuple[Layer, Layer]]:
    there = {layer.path: layer for layer in right}
    if {layer.path for layer in left} == set(there):
        return [(layer, there[layer.path]) for layer in left]
    ours = [_signature(source, layer) for layer in left]
    theirs = [_signature(target, layer) for layer in right]
    if ours == theirs and not _crosses(left, right, ours):
        return list(zip(left, right, strict=True))
    if _is_part(left, ours, right, theirs) or _is_part(right, theirs, left, ours):
        return [(layer, there[layer.path]) for layer in left if layer.path in there]
    return _only_ones(source, left, ours, target, right, theirs)


def _crosses(left: list[Layer], right: list[Layer], signatures: list[Any]) -> bool:
    """Whether two layers of one kind and shape, both paired in their order, would fit better by their names exchanged:
    q, k, o beside k, q, out."""
    ours, theirs = ([_words(layer.path) for layer in layers] for layers in (left, right))
    for group in _groups(signatures):
        for one, two in combinations(group, 2):
            straight = len(ours[one] & theirs[one]) + len(ours[two] & theirs[two])
            if len(ours[one] & theirs[two]) + len(ours[two] & theirs[one]) > straight:
                return True
    return False


def _groups(signatures: list[Any]) -> Iterable[list[int]]:
    """The places of equal ones."""
    groups: dict[Any, list[int]] = {}
    for place, signature in enumerate(signatures):
        groups.setdefault(signature, []).append(place)
    return groups.values()


def _words(path: str) -> set[str]:
    """The names on the way, whole and in parts: block1_q has a q. A mere number is a place, and no name."""
    names = path.split(".")
    return {word for word in (*names, *chain.from_iterable(name.split("_") for name in names)) if not word.isdigit()}


def _is_part(few: list[Layer], own: list[Any], many: list[Layer], others: list[Any]) -> bool:
    """Whether all layers of one model are in the other, by their ways, which are not mere numbers."""
    there = {layer.path: signature for layer, signature in zip(many, others, strict=True)}
    named = all(not layer.path.rpartition(".")[2].isdigit() for layer in few)
    return named and all(there.get(layer.path) == signature for layer, signature in zip(few, own, strict=True))


def _only_ones(
    source: Side, left: list[Layer], ours: list[Any], target: Side, right: list[Layer], theirs: list[Any]
) -> list[tuple[Layer, Layer]]:
    """The pairs of which there is one of a kind and shape on either side; several on both sides are an error."""
    counted, others = Counter(ours), Counter(theirs)
    unclear = [signature for signature in counted if signature in others and counted[signature] + others[signature] > 2]
    if unclear:
        of_ours = _names_of(layer for layer, signature in zip(left, ours, strict=True) if signature in unclear)
        of_theirs = _names_of(layer for layer, signature in zip(right, theirs, strict=True) if signature in unclear)
        first = left[ours.index(unclear[0])].path
        fitting = [layer.path for layer, signature in zip(right, theirs, strict=True) if signature == unclear[0]]
        likely = max(fitting, key=lambda path: len(_words(first) & _words(path)))
        raise StateError(
            f"these parameters of {source.backend.name} fit more than one of {target.backend.name}: {of_ours} may be "
            f"{of_theirs}; say which layer is which: names={{{first!r}: {likely!r}, ...}}"
        )
    place = {signature: layer for layer, signature in zip(right, theirs, strict=True)}
    return [(layer, place[signature]) for layer, signature in zip(left, ours, strict=True) if signature in place]


def _names_of(layers: Iterable[Layer]) -> str:
    return ", ".join(part.name for layer in layers for part in layer.parts)


def _signature(side: Side, layer: Layer) -> tuple[object, ...]:
    """Kind and shape, in PyTorch's layout, of what every layer of the kind has."""
    shapes = shapes_of(side.variables, layer)
    telling = next((name for name in _TELLING if name in shapes), None)
    if telling is None:
        return (layer.kind,)
    shape = shapes[telling]
    groups = layer.settings.get("groups", 1)
    if isinstance(groups, int) and layer.kind.startswith("conv"):
        shape = (shape[0], shape[1] * groups, *shape[2:])
    return layer.kind, shape


def _check_pair(source: Side, one: Layer, target: Side, other: Layer) -> None:
    ours, theirs = shapes_of(source.variables, one), shapes_of(target.variables, other)
    if one.kind == other.kind and any(one.settings.get(name) != other.settings.get(name) for name in SHAPING):
        return  # listed, for it is not a mistake in the pairing
    off = [
        f"{name or 'the tensor'} {ours[name]} and {theirs[name]}"
        for name in ours
        if name in theirs and ours[name] != theirs[name]
    ]
    if one.kind == other.kind and not off:
        return
    same_kind = one.kind == other.kind
    what = f"of the shapes {', '.join(off)}" if same_kind else f"a {one.kind} and a {other.kind}"
    raise StateError(
        f"{_names_of([one])} of {source.backend.name} cannot become {_names_of([other])} of {target.backend.name}: "
        f"they are {what} (in PyTorch's layout); say which layer is which by names={{{one.path!r}: ...}}"
    )
