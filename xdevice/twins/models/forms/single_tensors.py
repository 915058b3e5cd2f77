"""Finds parameters that the two models have in different forms. Examples are a parameter outside any known layer, a
norm or linear layer of the user's own class, and a bias that the model's code adds. One model may also have a
convolution where the other has a linear layer, or an embedding where the other has a plain tensor. A model is a `Twin`
here: it has layers, and `singles`, the tensors that belong to no known layer.

Such a parameter is the same array in both models, but with different shapes. Only its `Layer` is therefore rewritten,
with a rule for the new shape. This is done only if the counts of such layers in both models match, and if the shapes
fit. The model code that uses these layers is not read, and `State.differences` says so.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from xdevice.errors import StateError
from xdevice.twins.contract import layouts
from xdevice.twins.models.name_likeness import crossings, guess_pairs
from xdevice.twins.models.reading import classes_of, declared_layer, dialects_for, parent_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xdevice.twins.contract.layouts import Layer
    from xdevice.twins.models.reading import Names, Pairs, Twin

_KINDS_OF_OWN_CLASSES: Final = ("rms_norm", "layer_norm", "batch_norm", "linear")
"""The kinds that a module of an unknown class may have if it has exactly the parameters of that kind."""


def with_layers_of_own_classes(twin: Twin, other: Twin) -> Twin:
    """Reads some modules of unknown classes as norms or linear layers, and returns the changed twin. A form is a kind
    with its shape and parameters. Modules of one form are read in this way only if their number is exactly the number
    of layers of this form that the twin lacks compared with the other model. For linear layers, the other model's
    modules of unknown classes are counted too."""
    for kind in _KINDS_OF_OWN_CLASSES:
        lacking = _forms(other, kind) - _forms(twin, kind)
        candidates = _candidates(twin, kind)
        if kind == "linear":
            # the other model may have these layers in modules of unknown classes too
            unread = Counter(_form(other, layer) for layer in _candidates(other, kind))
            twin = _with_layers(
                twin, _rectangular(twin, _fitting(twin, candidates, lacking + unread))
            )
            # the classes of some programs compute `x @ weight`, where the weight has the shape (inputs, outputs); the
            # layers that are lacking are counted again, because the twin has more layers now
            lacking = _forms(other, kind) - _forms(twin, kind)
            turned = [_transposed(layer) for layer in _candidates(twin, kind)]
            candidates = _rectangular(twin, _fitting(twin, turned, lacking))
        else:
            candidates = _fitting(twin, candidates, lacking)
        twin = _with_layers(twin, candidates)
    return twin


def _candidates(twin: Twin, kind: str) -> list[Layer]:
    """Returns a layer of this kind for each module of an unknown class that has exactly the parameters of this kind."""
    # the variables of each module, by the module's path and the variable's name
    modules: dict[str, dict[str, Any]] = {}
    for layer, name in zip(twin.singles, twin.single_names, strict=True):
        modules.setdefault(parent_of(layer.path), {})[name] = twin.variables[name]
    # tensors directly in the model are in no module that could be a layer
    modules.pop("", None)
    dialects = dialects_for(twin.backend)
    layers = []
    for path, variables in modules.items():
        try:
            new = declared_layer(dialects, path, kind, variables)
        except StateError:  # the shapes do not fit this kind
            continue
        # the module must have a weight, and no variable that a layer of this kind lacks
        names = {part.of[0]: part.name for part in new.parts} if new is not None else {}
        if new is not None and "weight" in names and {*names.values()} == variables.keys():
            layers.append(new)
    return layers


def _fitting(twin: Twin, candidates: list[Layer], lacking: Counter[object]) -> list[Layer]:
    """Returns the candidates of a form (kind, shape and parameters) only if their number is exactly the number of
    layers of this form that the twin lacks. `candidates` are modules of the twin that could be read as layers, but are
    not among its layers yet. `lacking` maps each form to the number of layers that the twin lacks compared with the
    other model."""
    counts = Counter(_form(twin, layer) for layer in candidates)
    # with one layer more or one fewer, the choice would be a guess
    return [
        layer
        for layer in candidates
        if counts[_form(twin, layer)] == lacking[_form(twin, layer)]
    ]


def _rectangular(twin: Twin, layers: list[Layer]) -> list[Layer]:
    """Returns the linear layers with a known order of the weight's axes. The order is known if the weight is not
    square. The order is also known if another layer of the same class has a weight that is not square."""
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
    """Returns a linear layer with the axes of its weight in the other order: (inputs, outputs) instead of (outputs,
    inputs), or the reverse."""

    def turned(rule: layouts.Rule) -> layouts.Rule:
        """Returns the rule for a weight with its axes in the other order."""
        return layouts.TRANSPOSED if rule is layouts.SAME else layouts.SAME

    parts = [
        part._replace(rule=turned(part.rule)) if part.of == ("weight",) else part
        for part in layer.parts
    ]
    return layer._replace(parts=tuple(parts))


def _forms(twin: Twin, kind: str) -> Counter[object]:
    """Returns the number of layers of this kind in the model for each form (kind, shape and parameters)."""
    return Counter(_form(twin, layer) for layer in twin.layers if layer.kind == kind)


def _form(twin: Twin, layer: Layer) -> object:
    """Returns the form of a layer. Two layers have equal forms if they have the same kind, shape and parameters in
    PyTorch's terms."""
    names = {name for part in layer.parts for name in part.of} - {layouts.COUNTER}
    # the bias of a linear layer is ignored, because the code around the layer may add it
    return twin.signature(layer), frozenset(
        names - {"bias"} if layer.kind == "linear" else names
    )


def _with_layers(twin: Twin, new: Sequence[Layer]) -> Twin:
    """Returns the twin with the layers `new` inserted, each at the place of its first variable. The variables of these
    layers are no longer listed as single tensors."""
    if not new:
        return twin
    names = {part.name for layer in new for part in layer.parts}
    indices = {name: index for index, name in enumerate(twin.variables)}

    def index_of(layer: Layer) -> int:
        """Returns the index of a layer's first variable among the variables of the model."""
        return indices[layer.parts[0].name]

    layers = [*twin.layers, *new]
    in_order = list(map(index_of, twin.layers))
    # a model that does not define its layers in the order of its variables keeps its own order
    if in_order == sorted(in_order):
        layers.sort(key=index_of)
    return twin._replace(
        layers=layers, singles=[one for one in twin.singles if one.parts[0].name not in names]
    )


def with_added_biases(twin: Twin, other: Twin) -> Twin:
    """Reads some tensors outside any layer as biases of layers without a bias, and returns the changed twin. Such a
    tensor and layer must be in the same module, and their shapes must fit. For each shape, the number of such pairs
    must also equal the number of layers with a bias that the twin lacks compared with the other model. A graph
    convolution, for example, adds its bias after the sum over the neighbours."""
    # by signature, which depends on the weight only: it is the same for a layer with a bias and for one without
    lacking = Counter(map(other.signature, filter(_has_bias, other.layers)))
    lacking.subtract(map(twin.signature, filter(_has_bias, twin.layers)))
    # the single tensors, by their module and their shape
    biases: dict[object, list[Layer]] = {}
    for single in twin.singles:
        biases.setdefault((parent_of(single.path), twin.signature(single)[1]), []).append(
            single
        )
    # the layers without a bias, by the same kind of key: their module, and the shape that a bias would have, which is
    # the first size in the shape of the weight
    unbiased: dict[object, list[Layer]] = {}
    for layer in twin.layers:
        if layer.kind in _BIASED and not _has_bias(layer):
            shape: Any = twin.signature(layer)[1]
            unbiased.setdefault((parent_of(layer.path), shape[:1]), []).append(layer)
    # the tensor is certainly the bias of the layer only if the module has just one such layer and one such tensor
    pairs = [
        (unbiased[key][0], biases[key][0])
        for key in unbiased
        if len(unbiased[key]) == 1 == len(biases.get(key, ()))
    ]
    counts = Counter(twin.signature(layer) for layer, _ in pairs)
    # the numbers must agree: with one bias more or one fewer, the choice would be a guess
    joined = {
        id(layer): layer._replace(
            parts=(*layer.parts, bias.parts[0]._replace(of=("bias",))),
            settings={**layer.settings, layouts.BIAS_ADDED: True},
        )
        for layer, bias in pairs
        if counts[twin.signature(layer)] == lacking[twin.signature(layer)]
    }
    # the last part of each of these layers is the bias that was added
    names = {layer.parts[-1].name for layer in joined.values()}
    twin = twin.with_layers([joined.get(id(layer), layer) for layer in twin.layers])
    return twin._replace(
        singles=[layer for layer in twin.singles if layer.parts[0].name not in names]
    )


_BIASED: Final = ("linear", "conv")


def _has_bias(layer: Layer) -> bool:
    """Whether a layer is a linear layer or a convolution, and has a bias."""
    return layer.kind in _BIASED and any(part.of == ("bias",) for part in layer.parts)


def with_changed_kinds(twin: Twin, other: Twin) -> Twin:
    """Reads some layers as another kind, and returns the changed twin. A convolution that may cover the whole image,
    such as a 1x1 convolution on a pooled image, is read as a linear layer. An embedding is read as a tensor outside any
    layer. Layers of one shape are rewritten only if the other model has no layer of the old kind with this shape, and
    has exactly that many more layers of the new kind."""
    for rewrite in (_as_linear, _as_single):
        ours, theirs = (
            Counter(model.signatures([*model.layers, *model.singles]))
            for model in (twin, other)
        )
        layers, singles = [], []
        for layer in twin.layers:
            new = rewrite(twin, layer)
            old_form, new_form = twin.signature(layer), twin.signature(new or layer)
            # kept if the kind cannot be changed (`new` is None), or if the other model has layers of the old form. With
            # any other count, it would be unclear which of the layers to rewrite
            if (
                new is None
                or theirs[old_form]
                or ours[old_form] != theirs[new_form] - ours[new_form]
            ):
                layers.append(layer)
            elif new.kind == "same":
                singles.append(new)
            else:
                layers.append(new)
        twin = twin._replace(layers=layers, singles=[*twin.singles, *singles])
    return twin


def _as_linear(twin: Twin, layer: Layer) -> Layer | None:
    """Returns a convolution as a linear layer. The two are equivalent on an image of the size of the kernel. Returns
    None for any other layer, and for a convolution with groups, a stride or a padding."""
    # with groups, an output depends on only some of the channels, unlike the output of a linear layer
    if layer.kind != "conv" or layer.settings.get("groups", 1) != 1:
        return None
    # the shape of the weight; the signature of a layer without a weight has only the kind, a string
    shape: Any = twin.signature(layer)[-1]
    is_plain = _is_each(layer.settings.get("stride"), 1) and _is_each(
        layer.settings.get("padding"), 0
    )
    if not isinstance(shape, tuple) or not is_plain:
        return None
    flat = shape[0], math.prod(shape[1:])
    parts = tuple(
        part._replace(rule=layouts.with_torch_shape(part.rule, flat, shape))
        if part.of == ("weight",)
        else part
        for part in layer.parts
    )
    # a layer without settings must not get any, because it is listed as a layer whose settings are not known
    settings: dict[str, object] = (
        {"activation": layer.settings.get("activation")} if layer.settings else {}
    )
    # a kernel of one pixel only multiplies channels; over a larger one, the order of the pixels is in question
    if math.prod(shape[2:]) != 1:
        settings[layouts.FLATTENS] = True
    return layer._replace(kind="linear", parts=parts, settings=settings)


def _is_each(setting: object, usual: int) -> bool:
    """Whether a setting equals `usual` on every axis. Also true for None, which means that the setting is not stated. A
    setting is a single number or one number for each axis."""
    return setting is None or set(
        setting if isinstance(setting, tuple | list) else [setting]
    ) <= {usual}


def _as_single(twin: Twin, layer: Layer) -> Layer | None:
    """Returns a `Layer` that describes the weight of an embedding as a tensor outside layers; None for any other
    layer."""
    if layer.kind != "embedding":
        return None
    (part,) = layer.parts
    (shape,) = twin.shapes(layer).values()
    # axes of length 1 are dropped, because all tensors outside layers are compared without such axes
    rule = layouts.with_torch_shape(part.rule, [size for size in shape if size != 1], shape)
    return layer._replace(kind="same", parts=(part._replace(of=("",), rule=rule),), settings={})


# pairing


def pair_singles(source: Twin, target: Twin, names: Names) -> list[dict[str, str]]:
    """Pairs the tensors that belong to no layer. They are paired by `names=`, by equal paths, or by their order among
    the tensors of the same shape. The order is used only if both models have the same number of such tensors and the
    names do not contradict it. Returns a list of pairings; each pairing is a dict from paths of the source to paths of
    the target. The first pairing contains only the sure pairs. If other tensors may correspond, two more pairings
    follow. They add to the sure pairs the other tensors, paired by order in the first and by names in the second.
    Raises `StateError` if `names=` pairs two tensors of different shapes."""
    # a signature consists of the kind, which is the same for all of these tensors, and the shape
    ours, theirs = (
        {layer.path: twin.signature(layer)[1:] for layer in twin.singles}
        for twin in (source, target)
    )
    sure = {
        source_path: target_path
        for source_path, target_path in names.items()
        if source_path in ours and target_path in theirs
    }
    for source_path, target_path in sure.items():
        if ours[source_path] != theirs[target_path]:
            raise StateError(
                f"names= pairs {source_path!r} with {target_path!r}, but their shapes are "
                f"{ours[source_path]} and {theirs[target_path]}"
            )
    # names= may pair a tensor with a tensor at another path although both models have a tensor at its own path
    taken = {*sure, *sure.values()}
    sure |= {
        path: path
        for path, shape in ours.items()
        if path not in taken and theirs.get(path) == shape
    }
    # first by their complete shapes, because axes of length 1 distinguish more tensors; this adds pairs to `sure`, and
    # what remains in doubt is paired in the second call
    _pair_same_shapes(_whole_shapes(source), _whole_shapes(target), sure)
    in_order, likely = _pair_same_shapes(ours, theirs, sure)
    return [sure, *(pairs for pairs in (sure | in_order, sure | likely) if pairs != sure)]


def _whole_shapes(twin: Twin) -> dict[str, object]:
    """Returns a dict from the path of each tensor outside layers to its shape, including axes of length 1."""
    return {
        layer.path: tuple(twin.variables[layer.parts[0].name].shape) for layer in twin.singles
    }


def _pair_same_shapes(
    ours: Mapping[str, object], theirs: Mapping[str, object], sure: dict[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Pairs tensors of the same shape by their order if both models have the same number of them and the names do not
    contradict the order. Adds these pairs to `sure`, a dict from paths of the source to paths of the target. Returns
    two more dicts for the tensors of all other shapes: the first pairs them by order, and the second by names. `ours`
    and `theirs` map the path of each tensor to its shape; tensors in `sure` are left out."""
    in_order: dict[str, str] = {}
    likely: dict[str, str] = {}
    # only tensors of the same shape can be mistaken for one another
    for shape in dict.fromkeys(ours.values()):
        source_paths = [
            path
            for path, shape_of_path in ours.items()
            if shape_of_path == shape and path not in sure
        ]
        target_paths = [
            path
            for path, shape_of_path in theirs.items()
            if shape_of_path == shape and path not in sure.values()
        ]
        pairs = dict(zip(source_paths, target_paths, strict=False))
        if len(source_paths) == len(target_paths) and not crossings(source_paths, target_paths):
            sure |= pairs
        else:
            in_order |= pairs
            likely |= guess_pairs(source_paths, target_paths)
    return in_order, likely


def pairs_of(source: Twin, target: Twin, paths: Mapping[str, str]) -> Pairs:
    """Returns the pairs of single tensors as pairs of layers. `paths` is a pairing returned by `pair_singles`."""
    ours, theirs = ({layer.path: layer for layer in twin.singles} for twin in (source, target))
    return [
        (ours[source_path], theirs[target_path]) for source_path, target_path in paths.items()
    ]
