"""Pairs the layers of two models without running them: by their paths, their order, or their kinds and shapes."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from xdevice.errors import StateError, shown
from xdevice.twins.contract import layouts

from .name_likeness import crossings, guess
from .reading import SHAPING, is_unread, last_name, some_of
from .unpairable import Unpaired, advice_on_rows, crossing_message, unclear_message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xdevice.twins.contract.layouts import Layer

    from .reading import Names, Pairs, Signature, Twin


def pair_layers(source: Twin, target: Twin, names: Names) -> Pairs:
    """Returns the pairs of layers: those that `names=` gives, then the others. Layers without a
    counterpart are left out.

    Raises:
        StateError: if a path in `names` has no layer, if it is not clear which layers
            correspond, or if two paired layers differ in kind or shape. If it is not clear, the
            error's attribute `pairs` has the likely pairs: paths of the target by paths of the
            source.
    """
    pairs = by_name(source, target, names) if names else []
    ours, theirs = _not_in_names(source, target, names)
    target_by_path = {layer.path: layer for layer in theirs}
    # layers with the same paths correspond, in whatever order they are defined
    if {layer.path for layer in ours} == target_by_path.keys():
        pairs += [(layer, target_by_path[layer.path]) for layer in ours]
    else:
        try:
            pairs += _pair_by_order(
                _with_signatures(source, ours), _with_signatures(target, theirs)
            )
        except StateError as error:
            # with the user's own pairs, so that the whole guess can be passed as names= again
            error.pairs = {**names, **error.pairs}
            raise
    for one, other in pairs:
        check_pair(source, one, target, other)
    return pairs


def _not_in_names(source: Twin, target: Twin, names: Names) -> tuple[list[Layer], list[Layer]]:
    """Returns the layers of the source and the layers of the target that `names=` does not pair."""
    ours = [layer for layer in source.layers if layer.path not in names]
    return ours, [layer for layer in target.layers if layer.path not in names.values()]


def _with_signatures(twin: Twin, layers: list[Layer]) -> Unpaired:
    """Returns some layers of a model with their signatures, for the functions that pair them."""
    return Unpaired(twin.name, [(layer, twin.signature(layer)) for layer in layers])


# by `names=`


def by_name(source: Twin, target: Twin, names: Names) -> list[tuple[Layer, Layer]]:
    """Returns the pairs of layers that the user gave as `names=`. Pairs of two single tensors
    are left out. Raises `StateError` if no layer is at a path, even if a single tensor is, or
    if a layer of the target is given twice."""
    ours, theirs = source.by_path, target.by_path
    singles, others = ({layer.path for layer in twin.singles} for twin in (source, target))
    pairs = [
        (_layer_at(ours, source_path, source), _layer_at(theirs, target_path, target))
        for source_path, target_path in names.items()
        if source_path not in singles
        or target_path not in others  # `forms.single_tensors` pairs these
    ]
    # the second pair would overwrite the values of the first
    if len({other.path for _, other in pairs}) < len(pairs):
        raise StateError(
            f"names= pairs two layers of the source with one layer of like=: {dict(names)}"
        )
    return pairs


def _layer_at(layers: Mapping[str, Layer], path: str, twin: Twin) -> Layer:
    """Returns the layer at a path that `names=` gives. `layers` has all layers of the model
    `twin`, by path. Raises `StateError` if none of them is at this path."""
    if path not in layers:
        raise StateError(
            f"names= has {shown(path)}, but {twin.name} has no layer there; it has {some_of(layers)}"
        )
    return layers[path]


def spelled_out(names: Names, source: Twin) -> dict[str, str]:
    """Returns `names` with each pattern replaced by the layers of the source that it matches.
    The text that each `*` matches in a path of the source replaces the corresponding `*` in the
    path of the target. Raises `StateError` if a pattern matches no layer, or if the target's
    path has more `*` than the source's."""
    every: dict[str, str] = {}
    paths = [layer.path for layer in (*source.layers, *source.singles)]
    # a path of the source and one of the target
    for here, there in names.items():
        if "*" not in here:
            every[here] = there
            continue
        pattern = re.compile("(.*)".join(map(re.escape, here.split("*"))))
        fitting = {path: match.groups() for path in paths if (match := pattern.fullmatch(path))}
        # each `*` of the target is replaced by the text of one in the source, so the target must not have more of them
        if not fitting or there.count("*") > here.count("*"):
            raise StateError(
                f"names= has {shown(here)}: {shown(there)}, but the first must match a layer, and have at least as "
                f"many '*' as the second: it matches {len(fitting)} layers of {source.name} and has "
                f"{here.count('*')}, the second has {there.count('*')}; the layers are {some_of(paths)}"
            )
        first, *pieces = there.split("*")
        # the texts beyond the last `*` of the target are dropped
        for path, groups in fitting.items():
            every[path] = first + "".join(
                group + piece for group, piece in zip(groups, pieces, strict=False)
            )
    return every


# by order, kinds and shapes


def _pair_by_order(ours: Unpaired, theirs: Unpaired) -> Pairs:
    """Pairs layers of two models that do not have the same paths: by their order, the first with the first and so on;
    by equal paths, if one model is a part of the other; or each with the only one of its kind and shape. Layers
    without a counterpart are left out. Raises `StateError` if it is not clear which layers correspond."""
    # both models have the same kinds and shapes in the same order: names need not agree, but must not contradict it
    if ours.signatures == theirs.signatures:
        return _pair_in_order(ours, theirs)
    # one model is a part of the other, such as a backbone without its head
    if _is_part(ours, theirs) or _is_part(theirs, ours):
        target_by_path = {layer.path: layer for layer in theirs.layers}
        return [
            (layer, target_by_path[layer.path])
            for layer in ours.layers
            if layer.path in target_by_path
        ]
    # the same order within each kind is enough: some models define all of their norms after the other layers
    by_kind, others = _by_kind(ours), _by_kind(theirs)
    if by_kind.signatures == others.signatures:
        return _pair_in_order(by_kind, others)
    return _pair_unique(ours, theirs)


def _by_kind(twin: Unpaired) -> Unpaired:
    """Returns the layers sorted by their kinds."""
    # `sorted` is stable, so the layers of one kind keep their order
    return twin._replace(signed=sorted(twin.signed, key=lambda pair: pair[0].kind))


def _is_part(few: Unpaired, many: Unpaired) -> bool:
    """Whether `many` has all the layers in `few`, with the same paths and signatures. False if a path in `few` ends in
    a number, because a path such as 0.1 does not identify a layer."""
    signature_of = {layer.path: signature for layer, signature in many.signed}
    return all(
        signature_of.get(layer.path) == signature and not last_name(layer.path).isdigit()
        for layer, signature in few.signed
    )


def _pair_in_order(ours: Unpaired, theirs: Unpaired) -> Pairs:
    """Pairs the first layer of the source with the first of the target, the second with the second, and so on. Raises
    `StateError` if the names of two layers of one kind and shape would fit better with their counterparts
    exchanged."""
    # the paths of the layers, in order
    sources, targets = ours.paths, theirs.paths
    # the indices of the layers of each kind and shape: only these can be mistaken for one another
    groups: dict[Signature, list[int]] = {}
    for place, signature in enumerate(ours.signatures):
        groups.setdefault(signature, []).append(place)
    crossed: set[int] = set()
    likely: dict[str, str] = {}
    for places in groups.values():
        paths, others = [sources[n] for n in places], [targets[n] for n in places]
        if pairs := crossings(paths, others):
            crossed.update(places[number] for pair in pairs for number in pair)
            likely |= guess(paths, others)
    if crossed:
        raise StateError(
            crossing_message(ours, theirs, sorted(crossed), likely), likely_pairs(ours, theirs)
        )
    return list(zip(ours.layers, theirs.layers, strict=True))


def _pair_unique(ours: Unpaired, theirs: Unpaired) -> Pairs:
    """Returns the pairs of layers that are the only ones of their kind and shape in both models. Layers without any
    counterpart are left out. Raises `StateError` if both models have layers of a kind and shape, and one model has
    several of them."""
    counts, others = Counter(ours.signatures), Counter(theirs.signatures)
    several = [
        signature
        for signature in counts
        # each model has at least one, and one of them has several
        if signature in others and counts[signature] + others[signature] > 2
    ]
    if several:
        raise StateError(unclear_message(ours, theirs, several), likely_pairs(ours, theirs))
    target_layer_of = {signature: layer for layer, signature in theirs.signed}
    return [
        (layer, target_layer_of[signature])
        for layer, signature in ours.signed
        if signature in target_layer_of
    ]


# guesses, and what stays in doubt


def likely_pairs(ours: Unpaired, theirs: Unpaired, by_names: bool = True) -> dict[str, str]:
    """Returns a guess at which layers correspond: paths of the target by paths of the source.
    Layers of one kind and shape are paired in their order, or by names if the models have
    different numbers of them, or if `by_names` is true and the names contradict the order."""
    # strides distinguish more layers, but only if both models have the same: a framework may not state them
    strided = _with_strides(ours), _with_strides(theirs)
    if Counter(strided[0].signatures) == Counter(strided[1].signatures):
        ours, theirs = strided
    likely: dict[str, str] = {}
    for signature in dict.fromkeys(ours.signatures):
        paths, others = (twin.only([signature]).paths for twin in (ours, theirs))
        in_order = len(paths) == len(others) and not (by_names and crossings(paths, others))
        likely |= dict(zip(paths, others, strict=True)) if in_order else guess(paths, others)
    return likely


def _with_strides(twin: Unpaired) -> Unpaired:
    """Returns the same layers with their strides in their signatures. A shortcut may have the kind and shape of the
    layer that it bypasses, but not its stride."""
    return twin._replace(
        signed=[
            (layer, (*own, str(layer.settings.get("stride")))) for layer, own in twin.signed
        ]
    )


def pairs_in_order(source: Twin, target: Twin, names: Names) -> dict[str, str]:
    """Returns a guess at which layers correspond, paths of the target by paths of the source:
    the pairs of `names=`, then the other layers. Those of one kind and shape are paired in
    their order, or by names if the models have different numbers of them."""
    ours, theirs = _not_in_names(source, target, names)
    return {
        **names,
        **likely_pairs(
            _with_signatures(source, ours), _with_signatures(target, theirs), by_names=False
        ),
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
    # all pairs are in the order of both models, so more than the order within a kind supports them
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
    """Raises `StateError` if the source's layer `one` cannot become the target's layer `other`, because they differ in
    kind or in the shapes of their parameters. Different shapes are allowed if a setting in `SHAPING` differs too,
    because the result lists that."""
    ours, theirs = source.shapes(one), target.shapes(other)
    same_kind = one.kind == other.kind
    if same_kind and any(
        one.settings.get(name) != other.settings.get(name) for name in SHAPING
    ):
        return  # a setting that shapes the weights differs: the result lists that, and the pairing may be right
    off = [
        f"{name or 'the tensor'} {shape} and {theirs[name]}"
        for name, shape in ours.items()
        # the g of a weight norm may have another shape, because it depends on the axis of the norm
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
    rows = advice_on_rows(one, ours.get("weight"), other, theirs.get("weight"))
    difference = (
        f"of the shapes {', '.join(off)}" if same_kind else f"a {one.kind} and a {other.kind}"
    )
    raise StateError(
        f"{_part_names(one)} of {source.name} cannot become {_part_names(other)} of {target.name}: "
        f"they are {difference} (in PyTorch's layout); {instead}which layer is which with names={{{one.path!r}: ...}}, "
        f"or leave both out: skip=[{one.path!r}]{rows and '; '}{rows}"
    )


def _part_names(layer: Layer) -> str:
    """The names of a layer's parameters, for a message."""
    return ", ".join(part.name for part in layer.parts)
