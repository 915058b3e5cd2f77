"""Finds parameters that the two models have in different forms: a parameter that belongs to no known layer, a norm or a
linear layer of the user's own class, a bias that the model's code adds, a convolution in place of a linear layer, an
embedding in place of a plain tensor.

Each is the same array in another shape, so only its `Layer` is rewritten, with a rule for the shape. That is done only
if the counts of such layers in both models match, and if the shapes fit. The code around them is not read, as a line of
`not_compared` says.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from xdevice.errors import StateError
from xdevice.twins.contract import layouts
from xdevice.twins.models.name_likeness import crossings, guess
from xdevice.twins.models.reading import classes_of, declared_layer, parent_of, ways_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xdevice.twins.contract.layouts import Layer
    from xdevice.twins.models.reading import Names, Pairs, Twin

_OWN: Final = ("rms_norm", "layer_norm", "batch_norm", "linear")
"""Kinds that a module of an unknown class is taken for, if it has the parameters of that kind and no more."""


def with_own_classes(twin: Twin, other: Twin) -> Twin:
    """Takes modules of unknown classes for norms and linear layers, where the other model has exactly that many more
    with their shapes and parameters. For linear layers, the other model's modules of unknown classes count, too."""
    for kind in _OWN:
        lacking = _forms(twin=other, kind=kind) - _forms(twin, kind)
        candidates = _candidates(twin, kind)
        if kind == "linear":
            both = Counter(_form(other, layer) for layer in _candidates(other, kind))
            twin = _with_layers(
                twin, _rectangular(twin, _fitting(twin, candidates, lacking + both))
            )
            # some write `x @ weight`, with a weight of (I, O)
            lacking = _forms(other, kind) - _forms(twin, kind)
            turned = [_transposed(layer) for layer in _candidates(twin, kind)]
            candidates = _rectangular(twin, _fitting(twin, turned, lacking))
        else:
            candidates = _fitting(twin, candidates, lacking)
        twin = _with_layers(twin, candidates)
    return twin


def _candidates(twin: Twin, kind: str) -> list[Layer]:
    """The modules of unknown classes as layers of this kind, if they have its parameters and no more."""
    modules: dict[str, dict[str, Any]] = {}
    for layer, name in zip(twin.singles, twin.single_names, strict=True):
        modules.setdefault(parent_of(layer.path), {})[name] = twin.variables[name]
    # tensors of the model itself are in no module that could be a norm
    modules.pop("", None)
    ways = ways_of(twin.backend)
    layers = []
    for path, variables in modules.items():
        try:
            new = declared_layer(ways, path, kind, variables)
        except StateError:  # the shapes do not fit
            continue
        names = {part.of[0]: part.name for part in new.parts} if new is not None else {}
        if new is not None and "weight" in names and {*names.values()} == variables.keys():
            layers.append(new)
    return layers


def _fitting(twin: Twin, layers: list[Layer], lacking: Counter[object]) -> list[Layer]:
    """The layers of each form (kind, shape, parameters) of which the other model has exactly that many more."""
    counts = Counter(_form(twin, layer) for layer in layers)
    # one more or one less would be a guess
    return [
        layer for layer in layers if counts[_form(twin, layer)] == lacking[_form(twin, layer)]
    ]


def _rectangular(twin: Twin, layers: list[Layer]) -> list[Layer]:
    """The linear layers whose inputs' axis is known from a shape: their own, or that of another layer of their
    class."""
    classes = classes_of(twin.sequence)
    sizes = {layer.path: set(twin.shapes(layer)["weight"]) for layer in layers}
    # a square weight looks the same transposed, so another layer of its class must decide
    certain = {classes.get(path) for path, size in sizes.items() if len(size) == 2} - {None}
    return [
        layer
        for layer in layers
        if len(sizes[layer.path]) == 2 or classes.get(layer.path) in certain
    ]


def _transposed(layer: Layer) -> Layer:
    """A linear layer with its weight read in the other of the two orders, (inputs, outputs) or (outputs, inputs)."""

    def turned(rule: layouts.Rule) -> layouts.Rule:
        return layouts.TRANSPOSED if rule is layouts.SAME else layouts.SAME

    parts = [
        part._replace(rule=turned(part.rule)) if part.of == ("weight",) else part
        for part in layer.parts
    ]
    return layer._replace(parts=tuple(parts))


def _forms(twin: Twin, kind: str) -> Counter[object]:
    return Counter(_form(twin, layer) for layer in twin.layers if layer.kind == kind)


def _form(twin: Twin, layer: Layer) -> object:
    """The kind and shape of a layer, and the names of its parameters, in PyTorch's terms."""
    names = {name for part in layer.parts for name in part.of} - {layouts.COUNTER}
    # the code around a linear layer may add its bias
    return twin.signature(layer), frozenset(
        names - {"bias"} if layer.kind == "linear" else names
    )


def _with_layers(twin: Twin, new: Sequence[Layer]) -> Twin:
    """The twin with the layers `new` among its own, each at the place of its first variable, and no longer among the
    single tensors."""
    if not new:
        return twin
    names = {part.name for layer in new for part in layer.parts}
    places = {name: place for place, name in enumerate(twin.variables)}

    def place(layer: Layer) -> int:
        return places[layer.parts[0].name]

    layers = [*twin.layers, *new]
    in_order = list(map(place, twin.layers))
    # a model that does not define its layers in the order of its variables keeps its own order
    if in_order == sorted(in_order):
        layers.sort(key=place)
    return twin._replace(
        layers=layers, singles=[one for one in twin.singles if one.parts[0].name not in names]
    )


def with_biases(twin: Twin, other: Twin) -> Twin:
    """Gives each layer without a bias a neighbouring tensor outside all layers that fits as one, where the other model
    has exactly that many more layers of that shape with a bias. A graph convolution adds its bias after the sum over
    the neighbours."""
    lacking = Counter(map(other.signature, filter(_has_bias, other.layers)))
    lacking.subtract(map(twin.signature, filter(_has_bias, twin.layers)))
    biases: dict[object, list[Layer]] = {}
    for single in twin.singles:
        biases.setdefault((parent_of(single.path), twin.signature(single)[1]), []).append(
            single
        )
    owners: dict[object, list[Layer]] = {}
    for layer in twin.layers:
        if layer.kind in _BIASED and not _has_bias(layer):
            rows: Any = twin.signature(layer)[1]
            owners.setdefault((parent_of(layer.path), rows[:1]), []).append(layer)
    pairs = [
        (owners[place][0], biases[place][0])
        for place in owners
        if len(owners[place]) == 1 == len(biases.get(place, ()))
    ]
    counts = Counter(twin.signature(layer) for layer, _ in pairs)
    # as in `_fitting`: one bias more or one less would be a guess
    joined = {
        id(layer): layer._replace(
            parts=(*layer.parts, bias.parts[0]._replace(of=("bias",))),
            settings={**layer.settings, layouts.ADDED: True},
        )
        for layer, bias in pairs
        if counts[twin.signature(layer)] == lacking[twin.signature(layer)]
    }
    names = {layer.parts[-1].name for layer in joined.values()}
    twin = twin.with_layers([joined.get(id(layer), layer) for layer in twin.layers])
    return twin._replace(
        singles=[one for one in twin.singles if one.parts[0].name not in names]
    )


_BIASED: Final = ("linear", "conv")


def _has_bias(layer: Layer) -> bool:
    return layer.kind in _BIASED and any(part.of == ("bias",) for part in layer.parts)


def with_kinds(twin: Twin, other: Twin) -> Twin:
    """Takes convolutions that may cover the whole image, as 1x1 on a pooled one, for linear layers, and embeddings for
    plain tensors, where the other model has exactly that many more of these, and no convolution or embedding of that
    shape."""
    for way in (_as_linear, _as_single):
        ours, theirs = (
            Counter(one.signatures([*one.layers, *one.singles])) for one in (twin, other)
        )
        layers, singles = [], []
        for layer in twin.layers:
            new = way(twin, layer)
            own, form = twin.signature(layer), twin.signature(new or layer)
            if new is None or theirs[own] or ours[own] != theirs[form] - ours[form]:
                layers.append(layer)
            elif new.kind == "same":
                singles.append(new)
            else:
                layers.append(new)
        twin = twin._replace(layers=layers, singles=[*twin.singles, *singles])
    return twin


def _as_linear(twin: Twin, layer: Layer) -> Layer | None:
    """A convolution as the linear layer that it equals on an image of its kernel's size; None if it equals none."""
    # groups mix only some of the channels, which no linear layer does
    if layer.kind != "conv" or layer.settings.get("groups", 1) != 1:
        return None
    shape: Any = twin.signature(layer)[-1]
    is_plain = _is_each(layer.settings.get("stride"), 1) and _is_each(
        layer.settings.get("padding"), 0
    )
    if not isinstance(shape, tuple) or not is_plain:
        return None
    flat = shape[0], math.prod(shape[1:])
    parts = tuple(
        part._replace(rule=layouts.reshaped(part.rule, flat, shape))
        if part.of == ("weight",)
        else part
        for part in layer.parts
    )
    # without settings, nobody has read what the layer is set to, and that is listed
    settings: dict[str, object] = (
        {"activation": layer.settings.get("activation")} if layer.settings else {}
    )
    if math.prod(shape[2:]) != 1:
        settings[layouts.FLATTENS] = True
    return layer._replace(kind="linear", parts=parts, settings=settings)


def _is_each(setting: object, usual: int) -> bool:
    """Whether a setting is `usual`, for each axis, or is not stated."""
    return setting is None or set(
        setting if isinstance(setting, tuple | list) else [setting]
    ) <= {usual}


def _as_single(twin: Twin, layer: Layer) -> Layer | None:
    """An embedding as a tensor that is in no layer; None for any other layer."""
    if layer.kind != "embedding":
        return None
    (part,) = layer.parts
    (shape,) = twin.shapes(layer).values()
    rule = layouts.reshaped(part.rule, [size for size in shape if size != 1], shape)
    return layer._replace(kind="same", parts=(part._replace(of=("",), rule=rule),), settings={})


# pairing


def pair_singles(source: Twin, target: Twin, names: Names) -> list[dict[str, str]]:
    """Pairs the tensors that belong to no layer: by `names=`, by their paths, or else in their order among those of one
    shape, if both models have equally many of that shape and the names do not contradict it. Returns these pairs, by
    their paths. If tensors are left that fit, it also returns the pairs with the rest paired in order, and with the
    rest paired by names."""
    ours, theirs = (
        {layer.path: twin.signature(layer)[1:] for layer in twin.singles}
        for twin in (source, target)
    )
    sure = {here: there for here, there in names.items() if here in ours and there in theirs}
    for here, there in sure.items():
        if ours[here] != theirs[there]:
            raise StateError(
                f"names= says {here!r}: {there!r}, whose shapes are {ours[here]} and {theirs[there]}"
            )
    # names= may pair a tensor with one of another path although both models have a tensor at its own path
    taken = {*sure, *sure.values()}
    sure |= {
        path: path
        for path, form in ours.items()
        if path not in taken and theirs.get(path) == form
    }
    # whole shapes first, with the axes of length 1, which tell more
    _pair_alike(_whole_shapes(source), _whole_shapes(target), sure)
    in_order, likely = _pair_alike(ours, theirs, sure)
    return [sure, *(pairs for pairs in (sure | in_order, sure | likely) if pairs != sure)]


def _whole_shapes(twin: Twin) -> dict[str, object]:
    """The shapes of the tensors in no layer, by path, with their axes of length 1."""
    return {
        layer.path: tuple(twin.variables[layer.parts[0].name].shape) for layer in twin.singles
    }


def _pair_alike(
    ours: Mapping[str, object], theirs: Mapping[str, object], sure: dict[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Adds to `sure` the pairs of paths whose order is clear. Returns the pairs of the others, in order and by
    names."""
    in_order: dict[str, str] = {}
    likely: dict[str, str] = {}
    for form in dict.fromkeys(ours.values()):
        here = [path for path, own in ours.items() if own == form and path not in sure]
        there = [
            path for path, own in theirs.items() if own == form and path not in sure.values()
        ]
        pairs = dict(zip(here, there, strict=False))
        if len(here) == len(there) and not crossings(here, there):
            sure |= pairs
        else:
            in_order |= pairs
            likely |= guess(here, there)
    return in_order, likely


def pairs_of(source: Twin, target: Twin, paths: Mapping[str, str]) -> Pairs:
    ours, theirs = ({layer.path: layer for layer in twin.singles} for twin in (source, target))
    return [(ours[here], theirs[there]) for here, there in paths.items()]
