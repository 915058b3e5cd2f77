"""Pairs the layers of two models without running them: by their paths, their order, or their kinds and shapes."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from xdevice.errors import StateError, shown
from xdevice.twins.contract import layouts

from .name_likeness import crossings, guess
from .reading import SHAPING, is_unread, name_in, some_of
from .unpairable import Unpaired, crossing, of_rows, unclear

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xdevice.twins.contract.layouts import Layer

    from .reading import Names, Pairs, Signature, Twin


def pair_layers(source: Twin, target: Twin, names: Names) -> Pairs:
    """The pairs of layers, by `names=` first.

    Raises:
        StateError: layers pair in several ways or in none; its attribute `pairs` is the likely pairs, by path.
    """
    pairs = by_name(source, target, names) if names else []
    ours, theirs = _left(source, target, names)
    there = {layer.path: layer for layer in theirs}
    # the same paths are the same layers, in whatever order they are defined
    if {layer.path for layer in ours} == there.keys():
        pairs += [(layer, there[layer.path]) for layer in ours]
    else:
        try:
            pairs += _match(_unpaired(source, ours), _unpaired(target, theirs))
        except StateError as error:
            # the guess can be passed as names= again, as a whole
            error.pairs = {**names, **error.pairs}
            raise
    for one, other in pairs:
        check_pair(source, one, target, other)
    return pairs


def _left(source: Twin, target: Twin, names: Names) -> tuple[list[Layer], list[Layer]]:
    """The layers of both models that `names=` does not pair."""
    ours = [layer for layer in source.layers if layer.path not in names]
    return ours, [layer for layer in target.layers if layer.path not in names.values()]


def _unpaired(twin: Twin, layers: list[Layer]) -> Unpaired:
    return Unpaired(twin.name, [(layer, twin.signature(layer)) for layer in layers])


# by `names=`


def by_name(source: Twin, target: Twin, names: Names) -> list[tuple[Layer, Layer]]:
    """The pairs of layers that the user gave as `names=`. Raises `StateError` for a path without a layer, and for a
    layer of the target that is given twice."""
    ours, theirs = source.by_path, target.by_path
    singles, others = ({layer.path for layer in twin.singles} for twin in (source, target))
    pairs = [
        (_at(ours, here, source), _at(theirs, there, target))
        for here, there in names.items()
        if here not in singles or there not in others  # `forms.single_tensors` pairs these
    ]
    # the second pair would overwrite the values of the first
    if len({other.path for _, other in pairs}) < len(pairs):
        raise StateError(f"names gives one layer of like= twice: {dict(names)}")
    return pairs


def _at(layers: Mapping[str, Layer], path: str, twin: Twin) -> Layer:
    """The layer at a path that `names=` gives. Raises `StateError` if there is none."""
    if path not in layers:
        raise StateError(
            f"names= says {shown(path)}, and {twin.name} has no layer there; it has {some_of(layers)}"
        )
    return layers[path]


def spelled_out(names: Names, source: Twin) -> dict[str, str]:
    """`names` with each pattern replaced by the layers of the source that it matches. The text that each `*` matches in
    a path of the source replaces the corresponding `*` in the path of the target."""
    every: dict[str, str] = {}
    paths = [layer.path for layer in (*source.layers, *source.singles)]
    for here, there in names.items():
        if "*" not in here:
            every[here] = there
            continue
        pattern = re.compile("(.*)".join(map(re.escape, here.split("*"))))
        fitting = {path: match.groups() for path in paths if (match := pattern.fullmatch(path))}
        # each `*` of the target takes the text of one in the source; for a surplus one there is no text
        if not fitting or there.count("*") > here.count("*"):
            raise StateError(
                f"names= says {shown(here)}: {shown(there)}; the first matches {len(fitting)} layers of {source.name} "
                f"and has {here.count('*')} '*', the second has {there.count('*')}; the layers are {some_of(paths)}"
            )
        first, *pieces = there.split("*")
        for path, groups in fitting.items():
            every[path] = first + "".join(
                group + piece for group, piece in zip(groups, pieces, strict=False)
            )
    return every


# by order, kinds and shapes


def _match(ours: Unpaired, theirs: Unpaired) -> Pairs:
    """Pairs layers whose paths differ: in their order, or each with the only one of its kind and shape."""
    # one order of kinds and shapes: names need not agree, but must not contradict it
    if ours.signatures == theirs.signatures:
        return _in_order(ours, theirs)
    # a backbone without its head
    if _is_part(ours, theirs) or _is_part(theirs, ours):
        there = {layer.path: layer for layer in theirs.layers}
        return [(layer, there[layer.path]) for layer in ours.layers if layer.path in there]
    # one order within each kind: some models define their norms behind all other layers
    by_kind, others = _by_kind(ours), _by_kind(theirs)
    if by_kind.signatures == others.signatures:
        return _in_order(by_kind, others)
    return _only_ones(ours, theirs)


def _by_kind(twin: Unpaired) -> Unpaired:
    """The layers of each kind in their order, one kind after the other."""
    # `sorted` is stable, so the layers of one kind stay in their order
    return twin._replace(signed=sorted(twin.signed, key=lambda pair: pair[0].kind))


def _is_part(few: Unpaired, many: Unpaired) -> bool:
    """Whether `many` has all the layers in `few`, with the same paths and signatures. False if a path in `few` ends in
    a number: a path such as 0.1 does not tell what the layer is."""
    there = {layer.path: signature for layer, signature in many.signed}
    return all(
        there.get(layer.path) == signature and not name_in(layer.path).isdigit()
        for layer, signature in few.signed
    )


def _in_order(ours: Unpaired, theirs: Unpaired) -> Pairs:
    """The pairs of layers in their order. Raises `StateError` if the names of two layers of one kind and shape would
    fit better with their counterparts exchanged."""
    here, there = ours.paths, theirs.paths
    groups: dict[Signature, list[int]] = {}
    for place, signature in enumerate(ours.signatures):
        groups.setdefault(signature, []).append(place)
    crossed: set[int] = set()
    likely: dict[str, str] = {}
    for places in groups.values():
        paths, others = [here[place] for place in places], [there[place] for place in places]
        if pairs := crossings(paths, others):
            crossed.update(places[number] for pair in pairs for number in pair)
            likely |= guess(paths, others)
    if crossed:
        raise StateError(
            crossing(ours, theirs, sorted(crossed), likely), likely_pairs(ours, theirs)
        )
    return list(zip(ours.layers, theirs.layers, strict=True))


def _only_ones(ours: Unpaired, theirs: Unpaired) -> Pairs:
    """The pairs of layers that are the only ones of their kind and shape in both models. Raises `StateError` if both
    models have layers of a kind and shape, and one model has several of them."""
    counts, others = Counter(ours.signatures), Counter(theirs.signatures)
    several = [
        signature
        for signature in counts
        if signature in others and counts[signature] + others[signature] > 2
    ]
    if several:
        raise StateError(unclear(ours, theirs, several), likely_pairs(ours, theirs))
    there = {signature: layer for layer, signature in theirs.signed}
    return [(layer, there[signature]) for layer, signature in ours.signed if signature in there]


# guesses, and what stays in doubt


def likely_pairs(ours: Unpaired, theirs: Unpaired, by_names: bool = True) -> dict[str, str]:
    """A guess for all layers: by their order among their kind and shape, or by names if these contradict it."""
    # strides are used only if they pair as well: a framework may not state them
    strided = _with_strides(ours), _with_strides(theirs)
    if Counter(strided[0].signatures) == Counter(strided[1].signatures):
        ours, theirs = strided
    likely: dict[str, str] = {}
    for signature in dict.fromkeys(ours.signatures):
        here, there = (twin.only([signature]).paths for twin in (ours, theirs))
        in_order = len(here) == len(there) and not (by_names and crossings(here, there))
        likely |= dict(zip(here, there, strict=True)) if in_order else guess(here, there)
    return likely


def _with_strides(twin: Unpaired) -> Unpaired:
    """The same layers with their strides in their signatures: a shortcut may have the kind and shape of the layer that
    it bypasses, but not its stride."""
    return twin._replace(
        signed=[
            (layer, (*own, str(layer.settings.get("stride")))) for layer, own in twin.signed
        ]
    )


def pairs_in_order(source: Twin, target: Twin, names: Names) -> dict[str, str]:
    """The paths of layers that are paired in their order among their kind and shape, regardless of their names."""
    ours, theirs = _left(source, target, names)
    return {
        **names,
        **likely_pairs(_unpaired(source, ours), _unpaired(target, theirs), by_names=False),
    }


def order_in_doubt(source: Twin, target: Twin, pairs: Pairs) -> Iterator[str]:
    """Yields a line about layers that `pair_layers` has paired only by their order among their kind; nothing if the
    layers of all kinds come in the same order."""
    places = {layer.path: place for place, layer in enumerate(target.layers)}
    counterparts = {one.path: other.path for one, other in pairs if other.path in places}
    order = [
        places[counterparts[layer.path]]
        for layer in source.layers
        if layer.path in counterparts
    ]
    # then order among all layers has paired them, not only order among a kind
    if order == sorted(order):
        return
    counts = Counter(target.signatures())
    paths = [
        other.path
        for one, other in pairs
        if other.path in places
        and one.path != other.path
        and counts[target.signature(other)] > 1
    ]
    if paths:
        yield (
            f"not compared: which layer is which of {some_of(paths)}, whose kinds come in different orders; they are "
            "paired in their order among their kind, and inputs= runs both models and compares their outputs"
        )


def check_pair(source: Twin, one: Layer, target: Twin, other: Layer) -> None:
    """Raises `StateError` if the parameters of one layer cannot become those of the other."""
    ours, theirs = source.shapes(one), target.shapes(other)
    same_kind = one.kind == other.kind
    if same_kind and any(
        one.settings.get(name) != other.settings.get(name) for name in SHAPING
    ):
        return  # a setting that shapes the weights differs, which is listed: the pairing is no mistake
    off = [
        f"{name or 'the tensor'} {shape} and {theirs[name]}"
        for name, shape in ours.items()
        if shape != theirs.get(name, shape) and name != layouts.NORMED[0]
    ]
    if same_kind and not off:
        return
    hints = [
        f"kinds={{{this.path!r}: {that.kind!r}}}"
        for this, that in ((one, other), (other, one))
        if is_unread(this)
    ]
    instead = "say "
    if hints and not same_kind:
        instead = f"say {' or '.join(hints)} if names and shapes mislead, or "
    rows = of_rows(one, ours.get("weight"), other, theirs.get("weight"))
    what = (
        f"of the shapes {', '.join(off)}" if same_kind else f"a {one.kind} and a {other.kind}"
    )
    raise StateError(
        f"{_part_names(one)} of {source.name} cannot become {_part_names(other)} of {target.name}: "
        f"they are {what} (in PyTorch's layout); {instead}which layer is which by names={{{one.path!r}: ...}}, "
        f"or leave both out: skip=[{one.path!r}]{rows and '; '}{rows}"
    )


def _part_names(layer: Layer) -> str:
    return ", ".join(part.name for part in layer.parts)
