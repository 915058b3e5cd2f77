"""Recognizes the tensors of a file or dict without its module. Names and shapes show which framework or library wrote
the tensors, and which kinds the layers have.

All tensors of a state were written by the same program, so a single layer with a weight that is not square shows the
layout of all layers. If several dialects or kinds fit equally well, the error asks the user for the right one, and
suggests an argument to paste.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from xdevice.errors import ArgumentError, StateError, shown
from xdevice.twins.contract import layouts
from xdevice.twins.contract.dialects import DIALECTS

from .reading import (
    SHAPING,
    check_shapes,
    is_skipped,
    last_name,
    layer_in_dialect,
    module_of,
    paths_in,
    shapes_of,
    with_dots,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from xdevice.twins.contract.dialects import PartsOf
    from xdevice.twins.contract.layouts import Layer

    from .reading import Names, Signature, Twin, Variables

_OF_BACKENDS: Final = {"jax": ("torch", "flax", "haiku"), "numpy": tuple(DIALECTS)}
"""The dialects (ways to name and lay out tensors) that a backend's tensors may follow. Any other backend has one
dialect, with the backend's name."""
_ALONE: Final = (
    "linear", "conv", "conv_transpose", "batch_norm", "embedding", "layer_norm", "rms_norm", "group_norm",
    "instance_norm", "prelu", *layouts.RECURRENT,
)  # fmt: skip
"""The kinds of layers that consist of one module. If several kinds fit, the first one in this order is the guess."""
_HINTS: Final = (
    ("conv_transpose", r"deconv|transpose|upconv"),
    ("embedding", r"emb|wte|wpe|token|vocab|lookup"),
    ("group_norm", r"group|gn\d*$"),
    ("instance_norm", r"instance"),
    ("rms_norm", r"rms"),
    ("prelu", r"prelu|act"),
    ("layer_norm", r"layer_?norm|ln"),
)
"""Pairs of a kind and a pattern. The kind is the better guess for a layer whose name matches the pattern."""
# kinds whose parameters have one axis
_VECTORS: Final = ("layer_norm", "rms_norm", "group_norm", "instance_norm", "prelu")


def possible_dialects(origin: str, layout: str | None) -> dict[str, PartsOf]:
    """Returns the possible dialects (ways to name and lay out parameters) for tensors of the backend `origin`, by name.
    If the user passed `layout`, only that dialect is possible. If `origin` is not a known backend, all dialects are
    possible. Raises `ArgumentError` if `layout` is not a dialect."""
    if layout is not None:
        if layout not in DIALECTS:
            raise ArgumentError(
                f"layout= must be one of {', '.join(DIALECTS)}, not {shown(layout)}"
            )
        return {layout: DIALECTS[layout]}
    names = _OF_BACKENDS.get(origin, (origin,) if origin in DIALECTS else tuple(DIALECTS))
    return {name: DIALECTS[name] for name in names}


class Reading(NamedTuple):
    """The layers of a state, read in one dialect."""

    dialect: str
    """The name of the dialect."""
    layers: list[Layer]
    """The layers whose kinds are given, in the order of `kinds`, followed by the layers that names and shapes
    reveal."""
    lacking: list[str]
    """Paths with a given kind at which the state has no parameters of this kind."""
    doubts: dict[str, list[str]]
    """The possible kinds of each layer that may have several kinds, by the layer's path."""
    misfits: int
    """The number of layers with given kinds whose shapes contradict the dialect."""
    in_target: int
    """The number of layers whose kind and shape occur in the target."""
    explained: int
    """The number of tensors that belong to a layer."""

    @property
    def rank(self) -> tuple[int, int, int]:
        """A value for comparing readings; larger is better."""
        return -self.misfits, self.in_target, self.explained


def readings(
    dialects: Mapping[str, PartsOf],
    variables: Variables,
    kinds: Names,
    target: Twin | None,
    source_path_of: Names,
) -> list[Reading]:
    """Reads the state in each dialect, and returns the best readings: one, or several that are equally good.
    `variables` contains the tensors of the state. Three criteria decide, in this order: the fewest layers with shapes
    that contradict the dialect, the most layers that the target also has, and the most tensors that belong to a layer.
    `kinds` maps paths to kinds. `target` is the model passed as `like=`, or None. `source_path_of` maps paths of the
    target to paths of the state, if these differ."""
    every = [
        _read(name, parts_of, variables, kinds, target, source_path_of)
        for name, parts_of in dialects.items()
    ]
    # a shape that contradicts a dialect outweighs any number of names that agree
    most = max(one.rank for one in every)
    return [one for one in every if one.rank == most]


def chosen_reading(equally_good: list[Reading], is_torch_assumed: bool) -> Reading:
    """Returns the first of several equally good readings. With `is_torch_assumed`, a first reading in PyTorch's dialect
    is returned even if other readings differ from it.

    Raises:
        StateError: if two readings lay out a parameter differently, so that the choice matters.
    """
    first = equally_good[0]
    # the user is not asked, because most dicts of arrays are laid out as in PyTorch
    if is_torch_assumed and first.dialect == "torch":
        return first
    for other in equally_good[1:]:
        counterparts = {layer.path: layer for layer in other.layers}
        for layer in first.layers:
            counterpart = counterparts.get(layer.path)
            if counterpart is not None and _rules(layer) != _rules(counterpart):
                raise StateError(
                    f"the framework of these tensors is unknown, and {layer.parts[0].name} is laid out differently in "
                    f"{first.dialect} and {other.dialect}; pass layout={first.dialect!r} or layout={other.dialect!r}"
                )
    return first


def _rules(layer: Layer) -> list[object]:
    """Returns the rules of a layer's parts, in order. Two layers with the same rules are laid out in the same way."""
    return [part.rule for part in layer.parts]


def _read(
    dialect: str,
    parts_of: PartsOf,
    variables: Variables,
    kinds: Names,
    target: Twin | None,
    source_path_of: Names,
) -> Reading:
    """Returns the reading of a state in one dialect. `variables` contains the tensors of the state, and `parts_of`
    returns the parts of a layer in this dialect. `kinds` maps paths to kinds. `target` is the model passed as `like=`,
    or None. `source_path_of` maps paths of the target to paths of the state, if these differ."""
    layers, lacking, misfits = [], [], 0
    # the target's layers, by the paths of their counterparts in the state
    target_at = (
        {}
        if target is None
        else {source_path_of.get(layer.path, layer.path): layer for layer in target.layers}
    )
    # first the layers with given kinds, then the layers that names and shapes reveal
    for path, kind in kinds.items():
        # the target's layer first, because it has exactly the parts of this layer, whereas `parts_of` returns the parts
        # that layers of the kind usually have
        layer = _as_in_target(
            dialect, target_at.get(path), variables, target
        ) or layer_in_dialect(parts_of, path, kind, variables)
        if layer is None:
            lacking.append(path)
            continue
        layers.append(layer)
        # at `layer.path`, which has dots where a path in kinds= may have slashes
        counterpart = target_at.get(layer.path)
        expected = (
            target.shapes(counterpart) if target is not None and counterpart is not None else {}
        )
        # a layer is counted once, whether its shapes contradict its own kind, its counterpart or both
        if not _fits(layer, variables) or _shapes_differ(layer, variables, expected):
            misfits += 1
    used = {part.name for layer in layers for part in layer.parts}
    by_names, doubts = _layers_by_names(
        parts_of, {name: x for name, x in variables.items() if name not in used}, target
    )
    places = {name: place for place, name in enumerate(variables)}
    # sorted in the order of the state, because layers may later be paired by their order
    layers += sorted(by_names, key=lambda layer: places[layer.parts[0].name])
    explained = sum(len(layer.parts) for layer in layers)
    target_signatures = () if target is None else target.signatures()
    fitting = [layer for layer in layers if _fits(layer, variables)]
    in_target = sum(
        signature in target_signatures for signature in _signatures(fitting, variables, target)
    )
    return Reading(dialect, layers, lacking, doubts, misfits, in_target, explained)


def _signatures(
    layers: Iterable[Layer], variables: Variables, target: Twin | None
) -> list[Signature]:
    """Returns the signatures of a state's layers, for comparison with the signatures of the target; [] without a
    target."""
    # a method of `Twin` computes signatures, so the variables of the state replace those of the target
    return [] if target is None else target._replace(variables=variables).signatures(layers)


def _as_in_target(
    dialect: str, counterpart: Layer | None, variables: Variables, target: Twin | None
) -> Layer | None:
    """Returns `counterpart`, a layer of the target, but without settings that do not affect the shapes of its
    parameters. Returns None if `dialect` is not a dialect of the target's framework. Also returns None unless
    `variables`, the tensors of the state, include all parameters of the layer with the same names and shapes."""
    if (
        counterpart is None
        or target is None
        or dialect not in _OF_BACKENDS.get(target.name, (target.name,))
    ):
        return None
    for part in counterpart.parts:
        value = variables.get(part.name)
        if value is None or tuple(value.shape) != tuple(target.variables[part.name].shape):
            return None
    # only settings that the shapes of weights reveal, because a state says nothing about other settings
    return counterpart._replace(
        settings={
            name: counterpart.settings[name] for name in SHAPING if name in counterpart.settings
        }
    )


def _shapes_differ(
    layer: Layer, variables: Variables, expected: Mapping[str, tuple[int, ...]]
) -> bool:
    """Whether the shape of a parameter of the layer differs from its shape in `expected`, which may lack some
    parameters."""
    shapes = shapes_of(variables, layer)
    return any(expected.get(name, shape) != shape for name, shape in shapes.items())


def _fits(layer: Layer, variables: Variables) -> bool:
    """Whether the shapes of a layer fit its kind. A bias must have one element for each output. False if a rule of the
    layout cannot be applied to these shapes."""
    try:
        check_shapes(layer, variables)
        shapes = shapes_of(variables, layer)
    except (StateError, ValueError, IndexError):
        return False
    # a linear layer has the same parameter names as a norm, but its weight has two axes
    if layer.kind in _VECTORS and any(len(shape) != 1 for shape in shapes.values()):
        return False
    weight, bias = shapes.get("weight"), shapes.get("bias")
    if weight is None or bias is None:
        return True
    # the number of groups of a transposed convolution is unknown here, and only the bias has the outputs of all groups
    is_transposed = layer.kind == "conv_transpose"
    return bias[0] % weight[1] == 0 if is_transposed else bias[:1] == weight[:1]


# kinds by names and shapes


def _layers_by_names(
    parts_of: PartsOf, variables: Variables, target: Twin | None
) -> tuple[list[Layer], dict[str, list[str]]]:
    """Returns two things. The first is a list of the layers that the names and shapes of tensors reveal. The second is
    a dict from the path of each layer with several possible kinds to a list of these kinds. The first kind in this list
    is the guess, and is the kind of the returned layer."""
    # the tensors of each module
    groups: dict[str, dict[str, object]] = {}
    for name, tensor in variables.items():
        groups.setdefault(module_of(name), {})[name] = tensor
    layers: list[Layer] = []
    doubts: dict[str, list[str]] = {}
    used: set[str] = set()
    # the path of each group and of the modules around it, the outermost first, because an attention or a recurrent
    # layer may contain several groups
    around = [["", *reversed(list(paths_in(group)))] for group in groups]
    # first attentions and recurrent layers, which consist of several modules
    for path in dict.fromkeys(chain.from_iterable(around)):
        # the tensors in modules inside the module at this path: `is_skipped` is true for the path and everything inside
        # it
        below = {
            name: tensor
            for name, tensor in variables.items()
            if is_skipped(module_of(name), [path]) and module_of(name) != path
        }
        # a recurrent layer of Keras or Flax has its parameters in a separate module, the cell
        cells = [
            _complete_layer(parts_of, path, kind, below) for kind in layouts.RECURRENT if below
        ]
        for layer in (_attention(parts_of, path, variables), *cells):
            # a layer around or inside one that was found already would have the same tensors
            if layer is not None and not used & {part.name for part in layer.parts}:
                layers.append(layer)
                used |= {part.name for part in layer.parts}
    target_signatures = () if target is None else target.signatures()
    # then the layers that consist of one module
    for path, tensors in groups.items():
        # some of these tensors already belong to a layer, for example the tensors of a linear layer inside an attention
        if used & tensors.keys():
            continue
        possible = [
            layer
            for kind in _ALONE
            if (layer := _complete_layer(parts_of, path, kind, tensors)) is not None
        ]
        if not possible:
            continue
        # the first one is the guess
        possible = _likely_first(possible)
        if target is not None:
            # a kind cannot be right if the target has no layer of this kind and shape. If that rules out all kinds, the
            # layer has no counterpart, so only the guess remains, and the user is not asked for the kind
            own_signatures = _signatures(possible, variables, target)
            in_target = [
                layer
                for layer, signature in zip(possible, own_signatures, strict=True)
                if signature in target_signatures
            ]
            possible = in_target or possible[:1]
        if len(possible) > 1:
            doubts[path] = [layer.kind for layer in possible]
        layers.append(possible[0])
    return layers, doubts


def _attention(parts_of: PartsOf, path: str, variables: Variables) -> Layer | None:
    """Returns the attention at a path if packed weights or an axis of heads distinguish it from four linear layers;
    otherwise None."""
    layer = layer_in_dialect(parts_of, path, layouts.ATTENTION, variables)
    if layer is None:
        return None
    is_packed = any(len(part.of) > 1 for part in layer.parts)
    # Flax and Keras have a separate axis for the heads, which no linear layer has
    has_heads = any(len(variables[part.name].shape) == 3 for part in layer.parts)
    # `with_shape_settings` later decides from all shapes whether it really is packed
    return layer._replace(settings={"packed": True}) if is_packed or has_heads else None


def _complete_layer(parts_of: PartsOf, path: str, kind: str, own: Variables) -> Layer | None:
    """Returns the layer of this kind that consists of exactly the tensors `own`, including a weight, or None if these
    tensors do not form such a layer."""
    layer = layer_in_dialect(parts_of, path, kind, own)
    # a tensor that layers of this kind do not have shows that the kind is wrong
    if layer is None or len(layer.parts) != len(own) or not _fits(layer, own):
        return None
    names = {name for part in layer.parts for name in part.of}
    # a batch norm may be built without a weight, but never without its mean
    needed = (
        layouts.MEAN
        if kind == "batch_norm"
        else "weight_ih_l0"
        if kind in layouts.RECURRENT
        else "weight"
    )
    return layer if needed in names else None


def _likely_first(possible: list[Layer]) -> list[Layer]:
    """Returns the possible layers of one path, starting with the layers of kinds that the last name in the path
    suggests."""
    word = last_name(possible[0].path).lower()
    meant = [kind for kind, pattern in _HINTS if re.search(pattern, word)]
    return sorted(possible, key=lambda layer: layer.kind not in meant)


# asking the user for the kinds


def suggested_kinds(unknown: Iterable[str], reading: Reading) -> str:
    """Returns a guess at the argument `kinds=` for the tensors named `unknown`, as a string. Tensors in a layer of the
    reading get the kind of this layer; other tensors get the kind "same". A long guess is truncated."""
    names = list(unknown)
    kinds = {
        layer.path: layer.kind
        for layer in reading.layers
        if any(part.name in names for part in layer.parts)
    }
    owned = {part.name for layer in reading.layers for part in layer.parts}
    kinds |= {with_dots(name): "same" for name in names if name not in owned}
    short = dict(_with_patterns(kinds))
    # at most 12 entries if the whole guess would make the message unreadable
    return (
        f"kinds={short}"
        if len(str(short)) < 1000
        else f"kinds={dict(list(short.items())[:12])} and so on"
    )


def _with_patterns(kinds: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the items of `kinds`. Paths that have the same kind and differ only in their numbers are replaced by one
    pattern, with a `*` for each number."""
    # the kinds of the paths that each pattern matches
    groups: dict[str, dict[str, str]] = {}
    for path, kind in kinds.items():
        # only a name that is a plain number, such as the index of a block, becomes `*`: fc1 and fc2 may have different
        # kinds
        groups.setdefault(re.sub(r"(?<![^.])\d+(?![^.])", "*", path), {})[path] = kind
    for pattern, kind_of in groups.items():
        # the pattern if it matches several paths and all of them have the same kind, otherwise the paths as they are
        if len(kind_of) > 1 and len(set(kind_of.values())) == 1:
            yield pattern, next(iter(kind_of.values()))
        else:
            yield from kind_of.items()
