"""Pairs the layers of two models without running the models: by paths, order, or kinds and shapes."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from xdevice.errors import StateError, shown
from xdevice.twins.contract import layouts

from .name_likeness import crossings, guess_pairs
from .reading import SHAPING, has_unknown_settings, last_name, some_of
from .unpairable import Unpaired, advice_on_rows, crossing_message, unclear_message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xdevice.twins.contract.layouts import Layer

    from .reading import Names, Pairs, Signature, Twin


def pair_layers(source: Twin, target: Twin, names: Names) -> Pairs:
    """Returns the pairs of layers: first the pairs that `names=` contains, then the others. Layers without a
    counterpart are left out.

    Raises:
        StateError: if there is no layer at a path in `names`, if it is not clear which layers correspond, or if two
            paired layers differ in kind or shape. If it is not clear which layers correspond, the attribute `pairs` of
            the error contains the likely pairs, as a dict from paths of the source to paths of the target.
    """
    pairs = pairs_of_names(source, target, names) if names else []
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
            # includes the user's own pairs, so that the complete guess can be passed as names= in the next call
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
    """Returns the given layers of a model with their signatures, as the functions that pair layers need them."""
    return Unpaired(twin.name, [(layer, twin.signature(layer)) for layer in layers])


# by `names=`


def pairs_of_names(source: Twin, target: Twin, names: Names) -> list[tuple[Layer, Layer]]:
    """Returns the pairs of layers that the user passed as `names=`. Pairs of two single tensors are left out. Raises
    `StateError` if a path is not the path of a layer (a single tensor is not a layer), or if a layer of the target
    appears twice."""
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
            f"names= pairs two layers of the source with the same layer of like=: {dict(names)}"
        )
    return pairs


def _layer_at(layers: Mapping[str, Layer], path: str, twin: Twin) -> Layer:
    """Returns the layer at `path`, which comes from `names=`. `layers` contains all layers of the model `twin`, by
    path. Raises `StateError` if there is no layer at this path."""
    if path not in layers:
        raise StateError(
            f"names= contains {shown(path)}, but the model of {twin.name} has no layer at this path; its layers are "
            f"{some_of(layers)}"
        )
    return layers[path]


def expand_names(names: Names, source: Twin) -> dict[str, str]:
    """Returns `names` with each pattern replaced by one entry for each matching layer of the source. In the path of the
    target, each `*` is replaced by the string that the corresponding `*` matches in the path of the source. Raises
    `StateError` if a pattern matches no layer, or if the target's pattern contains more `*` than the source's
    pattern."""
    pairs: dict[str, str] = {}
    paths = [layer.path for layer in (*source.layers, *source.singles)]
    for source_path, target_path in names.items():
        if "*" not in source_path:
            pairs[source_path] = target_path
            continue
        pattern = re.compile("(.*)".join(map(re.escape, source_path.split("*"))))
        fitting = {path: match.groups() for path in paths if (match := pattern.fullmatch(path))}
        # each `*` of the target is replaced by the match of a `*` in the source, so the target must not have more `*`
        # than the source
        if not fitting or target_path.count("*") > source_path.count("*"):
            raise StateError(
                f"names= contains {shown(source_path)}: {shown(target_path)}, but the first path must match a layer, "
                f"and contain at least as many '*' as the second. It matches {len(fitting)} layers of {source.name}, "
                f"and the paths contain {source_path.count('*')} and {target_path.count('*')} '*'. The layers are "
                f"{some_of(paths)}"
            )
        first, *pieces = target_path.split("*")
        # matches beyond the last `*` of the target are dropped
        for path, groups in fitting.items():
            pairs[path] = first + "".join(
                group + piece for group, piece in zip(groups, pieces, strict=False)
            )
    return pairs


# by order, kinds and shapes


def _pair_by_order(ours: Unpaired, theirs: Unpaired) -> Pairs:
    """Pairs the layers of two models that do not have the same paths. Layers are paired by order if their kinds and
    shapes are in the same order in both models. If one model is part of the other, layers with equal paths are paired.
    Otherwise layers are paired by kind and shape, if these are unique. Layers without a counterpart are left out.
    Raises `StateError` if it is not clear which layers correspond."""
    # both models have the same kinds and shapes in the same order: the names need not agree, but must not contradict
    # that order
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
    # the same order within each kind is enough, because some models define all of their norms after the other layers
    by_kind, others = _sorted_by_kind(ours), _sorted_by_kind(theirs)
    if by_kind.signatures == others.signatures:
        return _pair_in_order(by_kind, others)
    return _pair_unique(ours, theirs)


def _sorted_by_kind(twin: Unpaired) -> Unpaired:
    """Returns the layers sorted by their kinds."""
    # `sorted` is stable, so the layers of one kind keep their order
    return twin._replace(
        with_signatures=sorted(twin.with_signatures, key=lambda pair: pair[0].kind)
    )


def _is_part(few: Unpaired, many: Unpaired) -> bool:
    """Whether `many` contains all layers in `few`, with the same paths and signatures. False if a path in `few` ends in
    a number, because a path such as 0.1 does not identify a layer."""
    signature_of = {layer.path: signature for layer, signature in many.with_signatures}
    return all(
        signature_of.get(layer.path) == signature and not last_name(layer.path).isdigit()
        for layer, signature in few.with_signatures
    )


def _pair_in_order(ours: Unpaired, theirs: Unpaired) -> Pairs:
    """Pairs the first layer of the source with the first of the target, the second with the second, and so on. Raises
    `StateError` if the names of two layers of the same kind and shape would match better with their counterparts
    exchanged."""
    # the paths of the layers, in order
    sources, targets = ours.paths, theirs.paths
    # the indices of the layers of each kind and shape: only layers of the same kind and shape can be mistaken for one
    # another
    groups: dict[Signature, list[int]] = {}
    for place, signature in enumerate(ours.signatures):
        groups.setdefault(signature, []).append(place)
    crossed: set[int] = set()
    likely: dict[str, str] = {}
    for places in groups.values():
        paths = [sources[place] for place in places]
        others = [targets[place] for place in places]
        if pairs := crossings(paths, others):
            # `crossings` returns indices of the lists above, which are turned into indices of all layers
            crossed.update(places[index] for pair in pairs for index in pair)
            likely |= guess_pairs(paths, others)
    if crossed:
        raise StateError(
            crossing_message(ours, theirs, sorted(crossed), likely), likely_pairs(ours, theirs)
        )
    return list(zip(ours.layers, theirs.layers, strict=True))


def _pair_unique(ours: Unpaired, theirs: Unpaired) -> Pairs:
    """Pairs two layers if each of them is the only layer of this kind and shape in its model, and returns the pairs.
    Layers without any counterpart are left out. Raises `StateError` if both models have layers of the same kind and
    shape, and one of the models has several of these."""
    counts, others = Counter(ours.signatures), Counter(theirs.signatures)
    several = [
        signature
        for signature in counts
        # each model has at least one such layer, and one of the models has several
        if signature in others and counts[signature] + others[signature] > 2
    ]
    if several:
        raise StateError(unclear_message(ours, theirs, several), likely_pairs(ours, theirs))
    target_layer_of = {signature: layer for layer, signature in theirs.with_signatures}
    return [
        (layer, target_layer_of[signature])
        for layer, signature in ours.with_signatures
        if signature in target_layer_of
    ]


# guesses, and pairs that remain in doubt


def likely_pairs(ours: Unpaired, theirs: Unpaired, by_names: bool = True) -> dict[str, str]:
    """Returns a guess at which layers correspond, as a dict from paths of the source to paths of the target. Layers of
    the same kind and shape are paired in their order. They are paired by names instead if the models have different
    numbers of such layers, or if `by_names` is true and the names contradict the order."""
    # strides distinguish more layers, but are used only if the same strides occur in both models, because a framework
    # may not state them
    strided = _with_strides(ours), _with_strides(theirs)
    if Counter(strided[0].signatures) == Counter(strided[1].signatures):
        ours, theirs = strided
    likely: dict[str, str] = {}
    for signature in dict.fromkeys(ours.signatures):
        paths, others = (twin.only([signature]).paths for twin in (ours, theirs))
        in_order = len(paths) == len(others) and not (by_names and crossings(paths, others))
        likely |= (
            dict(zip(paths, others, strict=True)) if in_order else guess_pairs(paths, others)
        )
    return likely


def _with_strides(twin: Unpaired) -> Unpaired:
    """Returns the same layers with their strides added to their signatures. A shortcut may have the same kind and shape
    as the layer that it bypasses, but a different stride."""
    return twin._replace(
        with_signatures=[
            (layer, (*own, str(layer.settings.get("stride"))))
            for layer, own in twin.with_signatures
        ]
    )


def pairs_in_order(source: Twin, target: Twin, names: Names) -> dict[str, str]:
    """Returns a guess at which layers correspond, as a dict from paths of the source to paths of the target. The pairs
    in `names=` come first, then the other layers. Layers of the same kind and shape are paired in their order, or by
    names if the models have different numbers of such layers."""
    ours, theirs = _not_in_names(source, target, names)
    return {
        **names,
        **likely_pairs(
            _with_signatures(source, ours), _with_signatures(target, theirs), by_names=False
        ),
    }


def doubts_about_order(source: Twin, target: Twin, pairs: Pairs) -> Iterator[str]:
    """Yields a line about layers that `pair_layers` paired only by their order among the layers of the same kind.
    Yields nothing if all layers, regardless of their kinds, are in the same order in both models."""
    places = {layer.path: place for place, layer in enumerate(target.layers)}
    counterparts = {one.path: other.path for one, other in pairs if other.path in places}
    order = [
        places[counterparts[layer.path]]
        for layer in source.layers
        if layer.path in counterparts
    ]
    # all pairs are in the same order in both models, which is stronger evidence than the order within one kind
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
            f"not compared: which layer is which among {some_of(paths)}; their kinds are in different orders in the "
            "two models, so layers of the same kind are paired in their order; inputs= runs both models and compares "
            "their outputs"
        )


def check_pair(source: Twin, one: Layer, target: Twin, other: Layer) -> None:
    """Raises `StateError` if the source's layer `one` cannot become the target's layer `other`, because the two layers
    differ in kind or in the shapes of their parameters. Different shapes are allowed if the two layers have different
    values of a setting in `SHAPING`, because the result then lists this difference."""
    ours, theirs = source.shapes(one), target.shapes(other)
    same_kind = one.kind == other.kind
    # a setting that determines shapes differs: the result lists that setting, and the pairing may be right. A setting
    # that only one layer states is not listed, so it explains no difference
    if same_kind and any(
        other.settings.get(name, value) != value
        for name, value in one.settings.items()
        if name in SHAPING
    ):
        return
    differing = [
        f"{name or 'the tensor'} {shape} and {theirs[name]}"
        for name, shape in ours.items()
        # a parameter that the other layer lacks is not compared. The g of a weight norm may have another shape, because
        # it depends on the norm's axis; the result lists that difference
        if shape != theirs.get(name, shape) and name != layouts.WEIGHT_NORM[0]
    ]
    if same_kind and not differing:
        return
    hints = [
        f"kinds={{{layer.path!r}: {counterpart.kind!r}}}"
        for layer, counterpart in ((one, other), (other, one))
        if has_unknown_settings(layer)
    ]
    advice = "say "
    if hints and not same_kind:
        advice = f"pass {' or '.join(hints)} if names and shapes mislead, or say "
    # "" unless both are embeddings with different numbers of rows; if so, the message needs no "; " before it
    rows = advice_on_rows(one, ours.get("weight"), other, theirs.get("weight"))
    difference = (
        f"they have the shapes {', '.join(differing)}"
        if same_kind
        else f"they belong to layers of the kinds {one.kind} and {other.kind}"
    )
    raise StateError(
        f"{_part_names(one)} of {source.name} cannot become {_part_names(other)} of {target.name}: "
        f"{difference} (in PyTorch's layout); {advice}which layer is which with names={{{one.path!r}: ...}}, "
        f"or leave both out: skip=[{one.path!r}]{rows and '; '}{rows}"
    )


def _part_names(layer: Layer) -> str:
    """Returns the names of a layer's parameters as a string for a message."""
    return ", ".join(part.name for part in layer.parts)
