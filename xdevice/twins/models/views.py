"""Finds what one model has in another form than the other: a parameter that belongs to no known layer, a norm of the
user's own class, a convolution in place of a linear layer, an embedding in place of a plain tensor.

Each is the same array in another shape, so only its `Layer` is rewritten, with a rule for the shape. That is done
where the counts of both models say that it is meant, and only if the shapes fit. What the code around it computes is
not read, which `in_code` lists.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from xdevice.contract import layouts
from xdevice.contract.layouts import Layer, Part
from xdevice.errors import StateError

from .likeness import crossings, guess
from .pairing import signature
from .sides import Side, declared_layer, shapes_of, some_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_NORMS: Final = ("rms_norm", "layer_norm")
"""Kinds that an own class with no more than a weight, or a weight and a bias, is taken for."""


def with_bare(side: Side) -> Side:
    """Lists the variables that belong to no known layer, each as a layer of its own, whose axes of length 1 do not
    count."""
    return side._replace(bare=tuple(_bare(name, tuple(side.variables[name].shape)) for name in side.unknown))


def _bare(name: str, shape: Sequence[int]) -> Layer:
    return Layer(name.replace("/", "."), "same", (Part(name, ("",), layouts.squeezed(shape)),), {})


def with_norms(side: Side, other: Side) -> Side:
    """Takes modules of unknown classes for norms, where the other model has exactly so many more norms of their shape
    and parameters."""
    groups: dict[str, dict[str, Any]] = {}
    for layer in side.bare:
        name = layer.parts[0].name
        groups.setdefault(_owner(layer), {})[name] = side.variables[name]
    for kind in _NORMS:
        wanted = _norms(other, kind) - _norms(side, kind)
        found = [declared_layer(side.backend, path, kind, names) for path, names in groups.items() if path]
        fitting = [layer for layer in found if layer is not None and wanted[_form(side, layer)]]
        counts = Counter(_form(side, layer) for layer in fitting)
        taken = [layer for layer in fitting if counts[form := _form(side, layer)] == wanted[form]]
        side = _moved(side, taken)
        groups = {path: names for path, names in groups.items() if path not in {layer.path for layer in taken}}
    return side


def _owner(layer: Layer) -> str:
    return layer.path.rpartition(".")[0]


def _norms(side: Side, kind: str) -> Counter[object]:
    return Counter(_form(side, layer) for layer in side.layers if layer.kind == kind)


def _form(side: Side, layer: Layer) -> object:
    return signature(side, layer), frozenset(name for part in layer.parts for name in part.of)


def _moved(side: Side, taken: Sequence[Layer]) -> Side:
    """`side` with `taken` among its layers, each at the place of its first variable, and no longer among the bare
    ones."""
    if not taken:
        return side
    names = {part.name for layer in taken for part in layer.parts}
    places = {name: place for place, name in enumerate(side.variables)}
    every = sorted((*side.layers, *taken), key=lambda layer: places[layer.parts[0].name])
    bare = tuple(layer for layer in side.bare if layer.parts[0].name not in names)
    return side._replace(
        layers=every if _in_order(side.layers, places) else [*side.layers, *taken],
        bare=bare,
        unknown=[name for name in side.unknown if name not in names],
    )


def _in_order(layers: Sequence[Layer], places: Mapping[str, int]) -> bool:
    found = [places[layer.parts[0].name] for layer in layers]
    return found == sorted(found)


def with_kinds(side: Side, other: Side) -> Side:
    """Takes convolutions that may see the whole image, as 1x1 on a pooled one, for linear layers, and embeddings for
    plain tensors, where the other model has exactly so many more of these, and no convolution or embedding of that
    shape."""
    for way in (_as_linear, _as_bare):
        ours, theirs = (Counter(signature(one, layer) for layer in (*one.layers, *one.bare)) for one in (side, other))
        made = {id(layer): (signature(side, layer), way(side, layer)) for layer in side.layers}
        changed: dict[int, Layer] = {}
        for layer in side.layers:
            own, new = made[id(layer)]
            if new is None or theirs[own]:
                continue
            form = signature(side, new)
            if ours[own] == theirs[form] - ours[form]:
                changed[id(layer)] = new
        if changed:
            bare = tuple(new for new in changed.values() if new.kind == "same")
            kept = [changed.get(id(layer), layer) for layer in side.layers]
            side = side._replace(layers=[one for one in kept if one.kind != "same"], bare=(*side.bare, *bare))
    return side


def _as_linear(side: Side, layer: Layer) -> Layer | None:
    if layer.kind != "conv" or layer.settings.get("groups", 1) != 1:
        return None
    found = signature(side, layer)[-1]
    if not isinstance(found, tuple) or any(
        set(_numbers(layer.settings.get(name), usual)) - {usual} for name, usual in (("stride", 1), ("padding", 0))
    ):
        return None
    flat = found[0], math.prod(found[1:])
    is_flattening = {layouts.FLATTENS: True} if math.prod(found[2:]) != 1 else {}
    parts = tuple(
        part._replace(rule=layouts.reshaped(part.rule, flat, found)) if part.of == ("weight",) else part
        for part in layer.parts
    )
    settings = {"activation": layer.settings.get("activation"), **is_flattening}
    return layer._replace(kind="linear", parts=parts, settings=settings)


def _numbers(value: object, usual: int) -> Sequence[object]:
    return value if isinstance(value, tuple | list) else (usual,) if value is None else (value,)


def _as_bare(side: Side, layer: Layer) -> Layer | None:
    if layer.kind != "embedding":
        return None
    (part,) = layer.parts
    (shape,) = shapes_of(side.variables, layer).values()
    rule = layouts.reshaped(part.rule, [size for size in shape if size != 1], shape)
    return layer._replace(kind="same", parts=(part._replace(of=("",), rule=rule),), settings={})


# pairing


def pair_bare(source: Side, target: Side, renamed: Mapping[str, str]) -> list[dict[str, str]]:
    """Pairs the tensors that belong to no layer: by `names=`, by their paths, or else in their order among those of one
    shape, if both models have equally many of that shape and the names do not contradict it. Gives these pairs, by
    their paths; and, if tensors are left that fit, the same with these in their order, and with these by names."""
    forms = [{layer.path: signature(side, layer)[1:] for layer in side.bare} for side in (source, target)]
    whole = [{layer.path: (_shape(side, layer),) for layer in side.bare} for side in (source, target)]
    ours, theirs = forms
    found = {here: there for here, there in renamed.items() if here in ours and there in theirs}
    for here, there in found.items():
        if ours[here] != theirs[there]:
            raise StateError(f"names= says {here!r}: {there!r}, whose shapes are {ours[here]} and {theirs[there]}")
    taken = set(found.values())
    found |= {path: path for path in ours if path not in {*found, *taken} and theirs.get(path) == ours[path]}
    _pair_alike(whole[0], whole[1], found)
    in_order, likely = _pair_alike(ours, theirs, found)
    return [found, *(way for way in (found | in_order, found | likely) if way != found)]


def _pair_alike(
    ours: Mapping[str, object], theirs: Mapping[str, object], found: dict[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Adds to `found` the pairs of paths with one value, where their order is clear. Gives for the others their pairs
    in their order, and by their names."""
    in_order: dict[str, str] = {}
    likely: dict[str, str] = {}
    for form in dict.fromkeys(ours.values()):
        here = [path for path, own in ours.items() if own == form and path not in found]
        there = [path for path, own in theirs.items() if own == form and path not in found.values()]
        paired = dict(zip(here, there, strict=False))
        if len(here) == len(there) and not crossings(here, there):
            found |= paired
        else:
            in_order |= paired
            likely |= guess(here, there)
    return in_order, likely


def _shape(side: Side, layer: Layer) -> tuple[int, ...]:
    return tuple(side.variables[layer.parts[0].name].shape)


def pairs_of(source: Side, target: Side, paths: Mapping[str, str]) -> list[tuple[Layer, Layer]]:
    ours, theirs = ({layer.path: layer for layer in side.bare} for side in (source, target))
    return [(ours[here], theirs[there]) for here, there in paths.items()]


def in_code(bare: Sequence[tuple[Layer, Layer]]) -> Iterator[str]:
    if bare:
        yield (
            f"not compared: what the code does with {some_of(other.path for _, other in bare)}, which no known layer "
            "has; they are paired by name, or in their order among those of one shape"
        )


def in_flattening(pairs: Iterable[tuple[Layer, Layer]], source: Side, target: Side) -> Iterator[str]:
    """A line that names the linear layers which are convolutions over a whole image on the other side: which order a
    flattened image has, the code decides."""
    found = [
        (other.path, side.backend.name)
        for pair in pairs
        for side, layer, other in zip((source, target), pair, reversed(pair), strict=True)
        if layer.settings.get(layouts.FLATTENS)
    ]
    for path, name in found:
        yield (
            f"not compared: the order in which the image is flattened for {path}, a convolution over the whole of it "
            f"in {name}; channels first is taken"
        )


def in_order_only(paths: Sequence[str]) -> Iterator[str]:
    if paths:
        yield (
            f"not compared: which layer is which of {some_of(paths)}, whose kinds come in different orders; they are "
            "paired in their order among their kind, and inputs= runs both models and compares their outputs"
        )


def unpaired(name: str, is_target: bool, likely: Mapping[str, str]) -> str:
    """Why a tensor that belongs to no layer has no counterpart, and how to give it one."""
    path = name.replace("/", ".")
    other = {there: here for here, there in likely.items()}.get(path) if is_target else likely.get(path)
    if other is None:
        what = f"settle({name!r}) says that it is not needed" if not is_target else "names= says which tensor it is"
        return f"no layer that xdevice knows has it, and no tensor of its shape is left on the other side; {what}"
    here, there = (other, path) if is_target else (path, other)
    return f"it fits several by its shape; a guess is names={{{here!r}: {there!r}}}"
