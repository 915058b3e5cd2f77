"""Finds the settings in which two models differ, in layers with parameters and without.

Layers without parameters have no names in common and no shapes. They are paired by where they are: in the gap between
two paired layers with parameters, by kind and in their order. Where one model has more layers of a kind in a gap than
the other, the kind is compared only if all its layers in each model are set alike; other layers are only counted.
"""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from xdevice.contract import layouts, operations
from xdevice.errors import UnsupportedError

from .pairing import SHAPING
from .sides import some_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from xdevice.contract import Backend
    from xdevice.contract.layouts import Layer
    from xdevice.twins.tracing.inference import Run

    from .sides import Side

_NOT_NEGATIVE = ("relu", "relu6", "sigmoid", "hardsigmoid", "softplus")
_POOLS = ({"avg_pool", "max_pool"}, {"adaptive_avg_pool", "adaptive_max_pool"})
_ALONE = (
    "activation", "dropout", "alpha_dropout", "max_pool", "avg_pool", "upsample", "pixel_shuffle", "batch_norm",
    "layer_norm", "rms_norm", "group_norm", "instance_norm", "local_response_norm",
)  # fmt: skip
"""Kinds of layers whose work no layer of another kind does: if only one model has such a layer, the other lacks it."""
_SORTS = ("pool", "norm")
"""Ends of the names of kinds: a layer may take the place of a layer of another kind with the same end, as avg_pool that
of max_pool."""
_SET = frozenset(layouts.KINDS) - {"linear", "embedding", "prelu", "same"}
"""Kinds of layers that have settings which change their output."""
_MISSING = "missing"
RUN_BOTH = "; inputs= runs both models and compares their outputs"
_HINT = f"functions are not seen{RUN_BOTH}"


class Difference(NamedTuple):
    """One setting in which two paired layers differ."""

    where: str
    """The layer that has the setting, by its path, or by its kind if the path is empty."""
    name: str
    ours: object
    theirs: object

    @property
    def is_on_one_side(self) -> bool:
        return None in (self.ours, self.theirs)


class Compared(NamedTuple):
    """The result of comparing the layers without parameters of two models."""

    differences: list[Difference]
    settled: set[str]
    """The paths, in the source or the target, of the layers with parameters whose activation was compared."""
    uncompared: tuple[list[Layer], list[Layer]]
    """The layers without a counterpart, of the source and of the target."""
    padded: tuple[Mapping[str, object], ...] = ({}, {})
    """For the source and for the target: by a layer's path, its padding together with that of a separate padding layer
    before it."""


NOTHING = Compared([], set(), ([], []))


def of_pair(one: Layer, other: Layer, compared: Compared) -> list[Difference]:
    """The settings in which two paired layers with parameters differ. `compared` says which activations and paddings
    were found in layers of their own."""
    settled = compared.settled
    one, other = (
        layer._replace(settings={**layer.settings, "padding": known[layer.path]}) if layer.path in known else layer
        for known, layer in zip(compared.padded, (one, other), strict=True)
    )
    # where only `kinds=` or a name says what a layer is, the settings that its shapes do not show are unknown
    known = all(set(layer.settings).difference(SHAPING, layouts.TOLD) for layer in (one, other))
    found = []
    for name in dict.fromkeys((*one.settings, *other.settings)):
        told = name in one.settings and name in other.settings if name in (*SHAPING, *layouts.TOLD) else known
        ours, theirs = one.settings.get(name), other.settings.get(name)
        is_settled = name == "activation" and (one.path in settled or other.path in settled)
        if not told or is_settled or layouts.same_setting(ours, theirs):
            continue
        found.append(Difference(other.path or other.kind, name, ours, theirs))
    return found


def between(backend: Backend, actual: Any, expected: Any) -> list[str]:
    """A line for each setting that differs between two models of one framework, whose layers are paired by path."""
    try:
        ours, theirs = ({layer.path: layer for layer in backend.operations(model)} for model in (actual, expected))
    except UnsupportedError:
        return []
    lines = []
    for path in dict.fromkeys((*theirs, *ours)):
        one, other = ours.get(path), theirs.get(path)
        if one is None or other is None or one.kind != other.kind:
            kinds = [_name_of(layer) if layer else "nothing" for layer in (one, other)]
            lines += [f"{path or 'the model'}: it is {kinds[0]}, expected {kinds[1]}"] if kinds[0] != kinds[1] else []
            continue
        lines += [
            f"{path or other.kind}: {name} is {_value(one.settings[name])}, expected {_value(value)}"
            for name, value in other.settings.items()
            if name in one.settings and not layouts.same_setting(one.settings[name], value)
        ]
    return lines


def of_operations(source: Side, target: Side, pairs: Sequence[tuple[Layer, Layer]]) -> Compared:
    """Compares the layers without parameters, in the order in which the models define them."""
    if source.sequence is None or target.sequence is None:
        return Compared([], set(), ([], []))
    return _compare(source.sequence, target.sequence, pairs)


def _compare(
    ours: Iterable[Layer], theirs: Iterable[Layer], pairs: Sequence[tuple[Layer, Layer]], *, by_calls: bool = False
) -> Compared:
    """Compares the layers without parameters, gap by gap (between two paired layers with parameters). With `by_calls`
    the layers are in the order of their calls: then a layer may come twice, and a layer that one model lacks is not
    listed, because comparing the outputs shows it."""
    plain = list(ours), list(theirs)
    here, there = (list(with_pads(side)) for side in plain)
    ours_by, theirs_by = ({pair[side].path: number for number, pair in enumerate(pairs)} for side in (0, 1))
    ends, others = _certain(here, ours_by), _certain(there, theirs_by)
    places = {number: f"behind {path}" for path, number in theirs_by.items()} | {-1: "at the beginning"}
    sure = {number: places[number] for number, end in others.items() if not by_calls and ends.get(number) == end}
    holders = {layer.path for layer in (*here, *there) if layer.parts}
    found = compare_gaps(gaps(here, ours_by), gaps(there, theirs_by), sure, holders)
    inside = {f"{layer.path}.activation": layer.path for layer in there if layer.parts}
    named = [one._replace(where=inside.get(one.where, one.where)) for one in found.differences]
    return found._replace(differences=named, padded=tuple(map(_paddings, plain, (here, there))))


def _paddings(plain: Iterable[Layer], padded: Iterable[Layer]) -> dict[str, object]:
    """The path and the padding of each layer in `padded` whose padding `with_pads` changed, by merging the layer of
    zeros before it."""
    own = {layer.path: layer.settings.get("padding") for layer in plain}
    found = {layer.path: layer.settings.get("padding") for layer in padded if layer.parts}
    return {path: padding for path, padding in found.items() if padding != own[path]}


def of_calls(
    source: Side, expected: Run, target: Side, computed: Run, pairs: Sequence[tuple[Layer, Layer]]
) -> Compared:
    """Compares the layers without parameters, in the order in which they are called."""
    return _compare(_layers_called(source, expected), _layers_called(target, computed), pairs, by_calls=True)


def _layers_called(side: Side, run: Run) -> Iterator[Layer]:
    known = {layer.path: layer for layer in side.sequence or side.layers}
    seen = {call.path for call in run.trace.calls}
    inside = {_holder(path): layer for path, layer in known.items() if layer.kind == "activation" and path not in seen}
    for call in run.trace.calls:
        layer = known.get(call.path)
        if layer is None:
            continue
        yield _counted_from_behind(layer, call.inputs[0].ndim) if call.inputs else layer
        if own := known.get(f"{call.path}()"):
            yield own
        if layer.parts and layer.settings.get("activation") is not None and call.path in inside:
            yield inside[call.path]


def _counted_from_behind(layer: Layer, axes: int) -> Layer:
    """The layer with `axes`, the number of its input's axes, as the setting `ndim`. With it an axis can be counted from
    the end: axis 1 of two is -1."""
    if "axis" not in layer.settings or "ndim" in layer.settings:
        return layer
    return layer._replace(settings={**layer.settings, "ndim": axes})


def _without_repeats(found: Iterable[Difference]) -> list[Difference]:
    """The differences, each once: a layer that is called twice repeats its own."""
    return list({(str(one)): one for one in found}.values())


Gaps = dict["tuple[int, str]", "list[Layer]"]
"""The layers without parameters, by two things: the number of the pair of layers that they follow (-1 if they come
before the first pair), and their kind."""


def gaps(sequence: Iterable[Layer], numbers: Mapping[str, int]) -> Gaps:
    found: Gaps = {}
    behind = -1
    for layer in sequence:
        if layer.parts:
            behind = numbers.get(layer.path, behind)
        else:
            found.setdefault((behind, layer.kind), []).append(layer)
    return found


def _certain(sequence: Iterable[Layer], numbers: Mapping[str, int]) -> dict[int, int]:
    """The gaps between paired layers in which the model calls no function beside the layers of the sequence. Maps the
    number of the pair before each gap to the number of the pair behind it."""
    found = {}
    behind, line, is_known = -1, operations.WHOLE, True
    for layer in sequence:
        is_known = is_known and line != "" and layer.line == line and layer.kind != operations.OTHER
        line = layer.line
        if layer.parts and layer.path not in numbers:
            is_known = False
        elif layer.parts:
            number = numbers[layer.path]
            if is_known:
                found[behind] = number
            behind, is_known = number, True
    if is_known and line == operations.WHOLE:
        found[behind] = len(numbers)
    return found


def with_pads(sequence: Iterable[Layer]) -> Iterator[Layer]:
    """The layers, with each layer that only adds zeros merged into the padding of the convolution or pool behind it."""
    before: list[Layer] = []
    for layer in sequence:
        if before and before[-1].kind == "pad":
            padded = _merge_pad(before[-1], layer, before[-2] if len(before) > 1 else None)
            if padded is not None:
                before[-1] = padded
                continue
        before.append(layer)
    yield from before


def _merge_pad(pad: Layer, layer: Layer, behind: Layer | None) -> Layer | None:
    own, added = layer.settings.get("padding"), pad.settings["padding"]
    is_zeros = pad.settings["mode"] == "constant" and pad.settings["value"] == 0
    zeros_are_least = behind is not None and behind.settings.get("function") in _NOT_NEGATIVE
    takes = layer.kind in ("conv", "avg_pool") or (layer.kind == "max_pool" and zeros_are_least)
    if not (is_zeros and takes and isinstance(own, tuple) and isinstance(added, tuple) and len(own) == len(added)):
        return None
    sides = [
        ((one + more, two + more) if isinstance(more, int) else None)
        for (one, two), more in zip(added, own, strict=True)
    ]
    if None in sides:
        return None
    known = [side for side in sides if side is not None]
    told = tuple(one for one, _ in known) if all(one == two for one, two in known) else tuple(known)
    counted = {"count_include_pad": True} if layer.kind == "avg_pool" else {}
    return layer._replace(settings={**layer.settings, "padding": told, **counted})


def compare_gaps(ours: Gaps, theirs: Gaps, sure: Mapping[int, str], holders: Container[str]) -> Compared:
    """Compares the two models' layers in each gap between paired layers with parameters. `sure` has the gaps in which
    no function is called, each with a text for where it is: a layer that only one model has there is missing in the
    other. `holders` are the paths of layers with parameters."""
    differences: list[Difference] = []
    left, right = [], []
    settled: set[str] = set()
    alike_kinds = {kind: both for kind in _kinds(ours) & _kinds(theirs) if (both := _uniform(kind, ours, theirs))}
    for gap in dict.fromkeys((*ours, *theirs)):
        one, other = ours.get(gap, []), theirs.get(gap, [])
        if len(one) == len(other) and gap[1] != "other":
            for pair in zip(one, other, strict=True):
                differences += _of_operation(*pair)
                settled.update(_holder(layer.path) for layer in pair)
        elif gap[0] in sure and _is_lacking(gap, one, other, ours, theirs):
            for mine, yours in zip_longest(one, other):
                if mine is not None and yours is not None:
                    differences += _of_operation(mine, yours)
                    settled.update((_holder(mine.path), _holder(yours.path)))
                elif not _is_inside(mine or yours, holders):  # otherwise it is listed as a setting of that layer
                    differences.append(_lone(sure[gap[0]], mine, yours))
        else:
            left += one
            right += other
    for kind, (one, other) in alike_kinds.items():
        rest = [layer for layer in (*left, *right) if layer.kind == kind]
        if rest:
            differences += _of_kind(kind, one, other, differences)
            settled.update(_holder(layer.path) for layer in rest)
        left = [layer for layer in left if layer.kind != kind]
        right = [layer for layer in right if layer.kind != kind]
    for mine, yours in list(_other_pools(ours, theirs, left, right)):
        differences.append(Difference(yours.path, "pool", mine.kind, yours.kind))
        left = [layer for layer in left if layer is not mine]
        right = [layer for layer in right if layer is not yours]
    for layers, is_ours in ((left, True), (right, False)):
        differences += [found for layer in layers if layer.kind == "rescaling" for found in _of_lone(layer, is_ours)]
    return Compared(_without_repeats(differences), settled - {""}, (_once(left), _once(right)))


def _is_lacking(gap: tuple[int, str], one: list[Layer], other: list[Layer], ours: Gaps, theirs: Gaps) -> bool:
    """Whether the layers that only one model has in the gap (the place and kind in `gap`) are missing in the other
    model, rather than there as layers of another kind."""
    number, kind = gap
    beside = [name for at, name in (theirs if len(one) > len(other) else ours) if at == number]
    return kind in _ALONE and not any(kind.endswith(end) and name.endswith(end) for end in _SORTS for name in beside)


def _lone(place: str, one: Layer | None, other: Layer | None) -> Difference:
    told = [_MISSING if layer is None else layer.settings.get("function", "there") for layer in (one, other)]
    kind = next(layer.kind for layer in (one, other) if layer is not None)
    return Difference(place, kind, *told)


def _is_inside(layer: Layer | None, holders: Container[str]) -> bool:
    """Whether the layer is an activation inside a layer with parameters."""
    return layer is not None and _holder(layer.path) in holders


def _other_pools(ours: Gaps, theirs: Gaps, left: list[Layer], right: list[Layer]) -> Iterator[tuple[Layer, Layer]]:
    """Pairs of pools in the same gap between paired layers, each alone of its kind there: one takes the mean and the
    other the maximum."""
    for number, kind in ours:
        for there, other_kind in theirs:
            if there != number or {kind, other_kind} not in _POOLS:
                continue
            mine = [layer for layer in ours[number, kind] if layer in left]
            other = [layer for layer in theirs[there, other_kind] if layer in right]
            if len(mine) == len(other) == 1:
                yield mine[0], other[0]


def _once(layers: list[Layer]) -> list[Layer]:
    return list({layer.path: layer for layer in layers}.values())


def _of_lone(layer: Layer, is_ours: bool) -> list[Difference]:
    """The settings of a rescaling layer that only one model has, as differences from None."""
    return [
        Difference(layer.path, name, *((value, None) if is_ours else (None, value)))
        for name, value in layer.settings.items()
        if value not in (0, 0.0) or name != "offset"
    ]


def _kinds(found: Gaps) -> set[str]:
    return {kind for _, kind in found if kind != "other"}


def _uniform(kind: str, ours: Gaps, theirs: Gaps) -> tuple[list[Layer], list[Layer]] | None:
    """All layers of a kind, if those of each model have the same settings; otherwise None. Also None if the two models'
    layers are different activations that never stand between the same paired layers: each activation may be in the
    other model too, as a function or as a layer of an unknown class."""
    every = [[layer for (_, own), layers in side.items() if own == kind for layer in layers] for side in (ours, theirs)]
    if any(not _same(layers[0], layer) for layers in every for layer in layers):
        return None
    one, other = every
    is_another = one[0].settings.get("function") != other[0].settings.get("function")
    meet = any(place in theirs for place in ours if place[1] == kind)
    return (one, other) if meet or not is_another else None


def _same(one: Layer, other: Layer) -> bool:
    return not _of_operation(one, other)


def _of_kind(kind: str, one: list[Layer], other: list[Layer], known: list[Difference]) -> list[Difference]:
    """The differences between the source's layers of a kind and the target's, if all those of one model have the same
    settings. Leaves out what is in `known`."""
    where = f"{other[0].path} and every other {kind}" if len(other) > 1 else other[0].path
    listed = {(found.where, found.name) for found in known}
    paths = {layer.path for layer in other}
    return [
        found._replace(where=where)
        for found in _of_operation(one[0], other[0])
        if not any(path in paths and name == found.name for path, name in listed)
    ]


def _of_operation(one: Layer, other: Layer) -> list[Difference]:
    where = other.path or other.kind
    if not layouts.same_setting(one.settings.get("function"), other.settings.get("function")):
        return [Difference(where, "activation", *(layer.settings["function"] for layer in (one, other)))]
    one, other = _with_axis(one, other), _with_axis(other, one)
    return [
        Difference(where, name, ours, theirs)
        for name, ours in one.settings.items()
        if name in other.settings and not layouts.same_setting(ours, theirs := other.settings[name])
    ]


def _with_axis(layer: Layer, other: Layer) -> Layer:
    """The layer with its axis counted from the end, if the layer or `other` knows the number of axes."""
    axes = layer.settings.get("ndim", other.settings.get("ndim"))
    if not isinstance(axes, int) or "axis" not in layer.settings:
        return layer
    axis = layer.settings["axis"]
    if axis is None:  # PyTorch's softmax chooses its axis by the number of axes
        axis = 0 if axes in (0, 1, 3) else 1
    settings = {**layer.settings, "axis": axis - axes if isinstance(axis, int) and axis >= 0 else axis}
    return layer._replace(settings={name: value for name, value in settings.items() if name != "ndim"})


def _holder(path: str) -> str:
    """The path of the layer that the activation at `path` is inside of, if there is such a layer."""
    return path.rpartition(".")[0]


def tell_uncounted(source: Side, target: Side, compared: Compared, only: Container[str]) -> str:
    """A line that counts the layers that could not be compared; if `only` is not empty, just those of the kinds in
    `only`. "" if there are none. An activation inside a layer is a setting of that layer, and is not counted."""
    silent = [side.backend.name for side in (source, target) if side.sequence is None]
    if source.model is None:
        return ""
    if silent:
        return f"not compared: the layers without parameters, which {' and '.join(silent)} does not report; {_HINT}"
    parts = []
    for side, layers in zip((source, target), compared.uncompared, strict=True):
        listed = {layer.path for layer in side.layers if layer.settings.get("activation") is not None}
        paired = {layer.path for layer in side.layers}
        counted = Counter(
            _name_of(layer)
            for layer in layers
            if _holder(layer.path) not in listed
            and layer.path not in paired
            and layer.kind != "rescaling"
            and (not only or layer.kind in only)
        )
        if counted:
            parts.append(f"{', '.join(f'{n} {kind}' for kind, n in counted.items())} of {side.backend.name}")
    return f"not compared: {' and '.join(parts)}, which have nothing of their kind beside; {_HINT}" if parts else ""


def knows_activations(source: Side, target: Side, compared: Compared) -> bool:
    """Whether the activations of both models are layers, and were compared."""
    every = [[layer for layer in side.sequence or () if layer.kind == "activation"] for side in (source, target)]
    return all(every) and not any(
        layer.kind in ("activation", "other") for side in compared.uncompared for layer in side
    )


def unread(pairs: Iterable[tuple[Layer, Layer]]) -> str:
    """A line that names the layers whose settings are unknown, because only the user's `kinds` says what these layers
    are."""
    found = [
        other.path for one, other in pairs if one.kind in _SET and any(_is_unread(layer) for layer in (one, other))
    ]
    be = "is" if len(found) == 1 else "are"
    return (
        f"not compared: what {some_of(found)} {be} set to, whose kind is told by kinds= or the shapes" if found else ""
    )


def _is_unread(layer: Layer) -> bool:
    return set(layer.settings) <= {*SHAPING, *layouts.TOLD} and layouts.FOLDED not in layer.settings


def axes_in_doubt(pairs: Iterable[tuple[Layer, Layer]], source: Side, target: Side) -> Iterator[str]:
    """Yields a line that names the normalization layers that may work over another axis than their counterparts, if
    there are any."""
    found = [
        (layer, side.backend.name, other.backend.name)
        for pair in pairs
        for layer, beside, side, other in ((*pair, source, target), (*reversed(pair), target, source))
        if layouts.AXIS in layer.settings and layouts.AXIS not in beside.settings
    ]
    if found and source.model is not None:
        layer, here, there = found[0]
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        yield (
            f"not compared: the axis of {layer.path or layer.kind}{more}, {layer.settings[layouts.AXIS]} in {here}, "
            f"the second in {there}: the same only where the code moves axes{RUN_BOTH}"
        )


def _name_of(layer: Layer) -> str:
    return str(layer.settings.get("function", layer.settings.get("type", layer.kind)))


def show(found: Difference, source: str, target: str) -> str:
    return f"{found.where}: {found.name} is {_value(found.ours)} in {source}, {_value(found.theirs)} in {target}"


def _value(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
