"""Lists in a `State` how two models differ, apart from the values of their parameters: differences that change outputs
or training, and everything that could not be compared. Two things are compared: the settings of paired layers, and the
layers without parameters.

Layers without parameters have no shapes, and the two models share no names for them, so they are paired by position. A
gap is the stretch between two consecutive layers that have parameters and are paired. Layers of the same kind in the
same gap are paired in their order. If one model has more layers of a kind in a gap than the other model, these layers
cannot be paired. They are then compared only if all layers of this kind have the same settings within each model.
Otherwise they are only counted.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice.contract.private import AbsentNameError
from xdevice.errors import UnsupportedError
from xdevice.twins.contract import layouts
from xdevice.twins.contract.operations import OTHER, WHOLE
from xdevice.twins.weights.added_parameters import advice_of_tensor, advice_on_added

from .reading import SHAPING, has_unknown_settings, parent_of, some_of

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator, Mapping

    from xdevice.contract import Backend
    from xdevice.twins.contract.layouts import Layer, Settings
    from xdevice.twins.tracing.model_runs import ModelRun

    from .by_inputs.runs import Runs
    from .reading import Names, Pairs, Twin
    from .state import State

    Gaps = dict[tuple[int, str], list[Layer]]
    """The layers without parameters, in one list for each gap and kind. The number of a gap is the number of the pair
    of layers before it, or -1 for the gap before the first pair."""
    Paddings = dict[str, dict[str, object]]
    """Each layer's setting `padding`, by the layer's path. It includes the zeros that a separate padding layer adds
    before the layer."""

_TENSOR: Final = "same"
"""The kind of a tensor that belongs to no layer."""
_RUN_BOTH: Final = "; inputs= runs both models and compares their outputs"
# functions whose outputs are at least 0
_NOT_NEGATIVE = ("relu", "relu6", "sigmoid", "hardsigmoid", "softplus")
_ALONE = (
    "activation", "dropout", "alpha_dropout", "max_pool", "avg_pool", "upsample", "pixel_shuffle", "batch_norm",
    "layer_norm", "rms_norm", "group_norm", "instance_norm", "local_response_norm",
)  # fmt: skip
"""Kinds of layers that only a layer of the same sort (see `_SORTS`) can replace. If only one model has a layer of such
a sort, the other model lacks this layer."""
_SORTS = ("pool", "norm")
"""Suffixes of kinds. Two kinds with the same suffix are of the same sort: one may replace the other, as avg_pool
replaces max_pool."""


class SettingDifference(NamedTuple):
    """A setting with different values in two paired layers."""

    where: str
    """A description of the place. For a pair, it is the path of the target's layer, or the layer's kind if the path is
    empty. For a layer that only one model has, it is the gap that contains the layer."""
    name: str
    ours: object
    """The value in the source; None if the source does not state it."""
    theirs: object
    """The value in the target; None if the target does not state it."""

    @property
    def is_on_one_side(self) -> bool:
        """Whether only one of the two layers has a value for the setting."""
        return None in (self.ours, self.theirs)

    def line(self, source: str, target: str) -> str:
        """Returns a line that describes the difference. `source` and `target` are the names of the two backends."""
        ours, theirs = _text(self.ours), _text(self.theirs)
        return f"{self.where}: {self.name} is {ours} in {source}, {theirs} in {target}"


class PlainComparison(NamedTuple):
    """The result of comparing the layers without parameters of two models."""

    differences: list[SettingDifference]
    """The settings in which paired layers differ, and the layers that are missing in one model."""
    activated: set[str]
    """The paths, in the source or the target, of the layers with parameters whose activation was compared."""
    uncompared: tuple[list[Layer], list[Layer]]
    """The layers of the source without a counterpart, and the layers of the target without a counterpart."""
    paddings: tuple[Paddings, Paddings] = ({}, {})
    """The paddings that include zeros of separate padding layers, for the source and for the target."""


class Pairing(NamedTuple):
    """The pairs of layers of two models, and all other results of pairing the models."""

    pairs: Pairs
    """The pairs of layers with parameters."""
    singles: Pairs
    """The pairs of tensors that are in no layer."""
    plain: PlainComparison
    """The comparison of the layers without parameters."""
    likely: Names
    """A guess at which tensors outside layers correspond. It maps paths of the source to paths of the target. It also
    contains pairs that are not in `singles`."""
    doubts: list[str]
    """Lines about questions that the pairing left open."""
    runs: Runs | None = None
    """The models with their inputs; None without `inputs=`, or if the target cannot run with these inputs."""
    computed: ModelRun | None = None
    """The run of the target with the converted values; None if pairing did not require such a run."""


class DifferenceLister:
    """Lists in `state` the differences between two models. `pairing` contains the pairs of their layers."""

    def __init__(self, source: Twin, target: Twin, pairing: Pairing, state: State) -> None:
        self._source, self._target, self._pairing, self._state = source, target, pairing, state
        self._by_functions: list[str] = []
        """Lines about activations that only one layer of a pair has. They are provisional, because the other model may
        call the activation as a function."""

    def list_pair(self, one: Layer, other: Layer) -> None:
        """Lists the settings that differ between two paired layers. `one` is the layer of the source, and `other` is
        the layer of the target. If only one of the two layers has an activation, the line about this activation is
        provisional: `list_rest` removes the line if the outputs agree."""
        plain = self._pairing.plain
        # the zeros of a separate padding layer are treated as part of the padding of the next layer
        ours, theirs = (
            {**layer.settings, **paddings.get(layer.path, {})}
            for layer, paddings in zip((one, other), plain.paddings, strict=True)
        )
        # equal settings are the usual case, and a deep model has many pairs
        if ours == theirs:
            return
        for difference in _differences_of_pair(one, other, ours, theirs, plain.activated):
            line = self._add(difference)
            # the other model may call the function in its code; equal outputs would show that (see `list_rest`)
            if difference.name == "activation" and difference.is_on_one_side:
                self._by_functions.append(line)

    def list_rest(self, has_inputs: bool) -> None:
        """Lists the unpaired layers, the differences between layers without parameters, a difference between the
        outputs, and everything that was not compared. Removes the provisional lines of `list_pair` if the outputs
        agree. Must be called after `list_pair` has been called for all pairs. `has_inputs` says whether the user passed
        `inputs=`."""
        self._list_unpaired(self._source, self._target, is_target=False)
        self._list_unpaired(self._target, self._source, is_target=True)
        self._add_lines(self._attentions_in_code())
        for difference in self._pairing.plain.differences:
            self._add(difference)
        runs = self._pairing.runs
        agree = runs is not None and self._outputs_agree(runs)
        if agree:
            # equal outputs show that the other model calls the activation as a function
            for line in self._by_functions:
                self._state.differences.remove(line)
                self._state.settings.remove(line)
        for line in self._doubts(agree):
            # a user who has passed inputs= needs no advice to pass it
            self._add_lines([line.removesuffix(_RUN_BOTH) if has_inputs else line])
        # gelu and its tanh form are so close that equal outputs may not distinguish them
        if runs is not None and agree and not self._knows_activations():
            self._state.differences += runs.doubts_about_gelu()

    def _add(self, difference: SettingDifference) -> str:
        """Adds a line about a difference to the state, and returns the line."""
        line = difference.line(self._source.name, self._target.name)
        self._add_lines([line])
        if not difference.is_on_one_side:
            # if only one framework states a setting, the other may still have the same value
            self._state.stated_by_both.append(line)
        return line

    def _add_lines(self, lines: Iterable[str]) -> None:
        """Adds lines to the state's `differences` and `settings`. Each of these lines may explain why equal parameters
        give different outputs."""
        for line in lines:
            self._state.differences.append(line)
            self._state.settings.append(line)

    # parameters without a counterpart

    def _list_unpaired(self, twin: Twin, other: Twin, is_target: bool) -> None:
        """Lists the parameters of `twin` that have no counterpart in `other` as unmapped, each with the reason.
        `is_target` says whether `twin` is the target."""
        pairing = self._pairing
        paired = {id(layer) for pair in (*pairing.pairs, *pairing.singles) for layer in pair}
        names = [
            part.name
            for layer in twin.layers
            if id(layer) not in paired
            for part in layer.parts
        ]
        if names:
            # there is specific advice for parameters of LoRA and of quantizers
            why = advice_on_added(names) or f"only {twin.name} has this layer, not {other.name}"
            self._state.unmapped |= dict.fromkeys(names, why)
        for layer in twin.singles:
            if id(layer) not in paired:
                name = layer.parts[0].name
                self._state.unmapped[name] = self._why_unpaired(layer.path, name, is_target)

    def _why_unpaired(self, path: str, name: str, is_target: bool) -> str:
        """Returns a message that says why a tensor outside any layer has no counterpart, and how the user can assign
        one. `path` and `name` are the path and the name of the tensor. `is_target` says whether the tensor is in the
        target."""
        # a parameter of LoRA or a quantizer has no counterpart at all, so a guess by its shape would be misleading
        if instead := advice_of_tensor(name):
            return instead
        # the guesses that contain this tensor, at most one
        likely = self._pairing.likely.items()
        pairs = [
            (source_path, target_path)
            for source_path, target_path in likely
            if path == (target_path if is_target else source_path)
        ]
        if pairs:
            source_path, target_path = pairs[0]
            return f"several tensors have this shape; a guess is names={{{source_path!r}: {target_path!r}}}"
        hint = (
            "pass names= to say to which tensor of the source it corresponds"
            if is_target
            else f"call settle({name!r}) if it is not needed"
        )
        hint += ", or pass kinds= with the kind of the layer to which it belongs"
        return (
            f"it belongs to no layer that xdevice knows, and the other model has no more tensors of its shape; "
            f"{hint}"
        )

    # whether the outputs agree

    def _outputs_agree(self, runs: Runs) -> bool:
        """Runs the target with the converted values. Adds a line to `differences` if its outputs differ from the
        source's outputs, or if the inputs cannot reveal a difference. Returns True only if the outputs agree and the
        inputs could have revealed a difference."""
        # a run is expensive, and pairing by inputs has usually run the target with these values already
        computed = self._pairing.computed or runs.run_with(self._state)
        distance = runs.distance_of_outputs(computed)
        self._state.differences += runs.outputs_not_compared(computed)
        ignores_inputs = distance <= runs.limit and runs.outputs_ignore_inputs()
        if distance <= runs.limit and not ignores_inputs:
            return True
        if ignores_inputs:
            # for example, a deep model at initial weights shrinks any input to nothing
            how = "are the same as on zeros, so they prove nothing; pass trained weights, or other inputs"
        # `distance_of_outputs` returns infinity if no difference can be computed
        elif math.isinf(distance):
            how = "have different shapes, or numbers that are not finite"
        else:
            how = (
                f"are off by {distance:.2g} of their largest value, or of their spread over the batch if that is "
                f"smaller"
            )
        where = runs.where(computed, self._pairing.pairs)
        self._state.differences.append(f"the outputs on inputs= {how}; {where}")
        return False

    # lines about everything that was not compared

    def _doubts(self, agree: bool) -> Iterator[str]:
        """Yields lines about everything that was not compared. If the outputs agree, only differences that affect
        training need to be mentioned."""
        has_model = self._source.model is not None
        if agree:
            if has_model:
                yield from self._layers_not_compared(only=("dropout",))
            return
        yield from self._pairing.doubts
        yield from self._layers_not_read()
        yield from self._single_tensors()
        if has_model:
            yield from self._flattened_images()
            yield from self._added_biases()
            yield from self._layers_not_compared()
            yield from self._doubts_about_axes()

    def _both_ways(self) -> Iterator[tuple[Twin, Layer, Layer]]:
        """Yields two entries for each pair of layers, one for the source's layer and one for the target's layer. An
        entry consists of the layer's model, the layer and its counterpart."""
        for one, other in self._pairing.pairs:
            yield self._source, one, other
            yield self._target, other, one

    def _attentions_in_code(self) -> Iterator[str]:
        """Yields a line that names the attentions that were assembled from linear layers. Their heads and scale are set
        in the model's code, which xdevice does not read."""
        attentions = [
            (twin, layer, other)
            for twin, layer, other in self._both_ways()
            if layer.settings.get(layouts.ASSEMBLED)
        ]
        if not attentions:
            return
        # the first attention is named, the others are counted
        twin, _, other = attentions[0]
        more = f" and {len(attentions) - 1} more" if len(attentions) > 1 else ""
        order = ""
        if any(len(part.of) > 1 for _, layer, _ in attentions for part in layer.parts):
            order = "; one linear layer is assumed to contain the rows of query, key and value in this order"
        yield (
            f"not compared: heads, scale and masks of {other.path or 'the attention'}{more}, because {twin.name} has "
            f"them in the code around linear layers{order}"
        )

    def _layers_not_read(self) -> Iterator[str]:
        """Yields a line that names the layers whose kind is known only from `kinds=`, names or shapes. xdevice does not
        know the code of these layers."""
        # a state never contains the settings of its layers, so layers of the source are listed only if the source is a
        # model
        is_model = self._source.model is not None
        paths = [
            other.path
            for one, other in self._pairing.pairs
            if one.kind != _TENSOR
            and ((is_model and has_unknown_settings(one)) or has_unknown_settings(other))
        ]
        if paths:
            yield (
                f"not compared: computation and settings of {some_of(paths)}, because the kind is known only from "
                f"kinds= or shapes"
            )

    def _single_tensors(self) -> Iterator[str]:
        """Yields a line that lists the paired tensors outside any known layer."""
        # a tensor to which kinds= gives the kind "same" (one array, in the same layout in both models) is treated as a
        # layer; nevertheless, it is not known how the code uses this tensor
        called_same = [pair for pair in self._pairing.pairs if pair[0].kind == _TENSOR]
        paths = [other.path for _, other in (*self._pairing.singles, *called_same)]
        if paths:
            yield (
                f"not compared: how the code uses {some_of(paths)}, which belong to no known layer; they are paired by "
                "name, or by their order among the tensors of the same shape"
            )

    def _flattened_images(self) -> Iterator[str]:
        """Yields a line for each linear layer that corresponds to a convolution over a whole image. The code of the
        model determines the order in which the image is flattened."""
        for twin, layer, other in self._both_ways():
            # `layer` is a convolution that is read as a linear layer
            if layer.settings.get(layouts.FLATTENS):
                yield (
                    f"not compared: the order in which the image is flattened for {other.path}, a convolution over "
                    f"the whole image in {twin.name}; channels first is assumed"
                )

    def _added_biases(self) -> Iterator[str]:
        """Yields a line that names the layers whose bias is a tensor outside any layer in one of the two models."""
        paths = [
            other.path
            for _, layer, other in self._both_ways()
            if layouts.BIAS_ADDED in layer.settings
        ]
        if paths:
            yield (
                f"not compared: where the bias of {some_of(paths)} is added; in one model, the bias is a tensor that "
                "belongs to no layer"
            )

    def _layers_not_compared(self, only: Collection[str] = ()) -> Iterator[str]:
        """Yields a line with the number of layers that could not be compared. If `only` is not empty, only layers of
        the kinds in `only` are counted. An activation inside a layer is a setting of that layer, and is not counted. If
        a backend cannot list layers without parameters, the line says so instead."""
        hint = f"calls of functions are not traced{_RUN_BOTH}"
        twins = (self._source, self._target)
        silent = [twin.name for twin in twins if twin.sequence is None]
        if silent:
            yield f"not compared: the layers without parameters, which {' and '.join(silent)} does not report; {hint}"
            return
        texts = []
        for twin, layers in zip(twins, self._pairing.plain.uncompared, strict=True):
            listed = {layer.path for layer in twin.layers}
            activated = {
                layer.path
                for layer in twin.layers
                if layer.settings.get("activation") is not None
            }
            # not counted: entries at the path of a layer with parameters, and activations
            # inside a layer, which are its settings
            counts = Counter(
                _name_of(layer)
                for layer in layers
                if layer.path not in listed and parent_of(layer.path) not in activated
                if not only or layer.kind in only
            )
            if counts:
                texts.append(
                    f"{', '.join(f'{count} {kind}' for kind, count in counts.items())} of {twin.name}"
                )
        if texts:
            yield f"not compared: {' and '.join(texts)}, which have no counterpart in the other model; {hint}"

    def _doubts_about_axes(self) -> Iterator[str]:
        """Yields a line that names the normalization layers that may normalize a different axis than their
        counterparts."""
        # if both layers have this setting, it is compared like any other; a norm that does not state it normalizes the
        # channels, which are the second axis in PyTorch
        doubts = [
            (twin, layer)
            for twin, layer, other in self._both_ways()
            if layouts.AXIS_IN_DOUBT in layer.settings
            and layouts.AXIS_IN_DOUBT not in other.settings
        ]
        if doubts:
            twin, layer = doubts[0]
            other = self._target if twin is self._source else self._source
            more = f" and {len(doubts) - 1} more" if len(doubts) > 1 else ""
            yield (
                f"not compared: the axis of {layer.path or layer.kind}{more}, which is "
                f"{layer.settings[layouts.AXIS_IN_DOUBT]} in {twin.name} and the second axis in {other.name}; these "
                f"are the same only if the code moves axes{_RUN_BOTH}"
            )

    def _knows_activations(self) -> bool:
        """Whether the activations of both models are layers, and were compared. This requires that each model has
        activation layers, and that every activation and every layer of an unknown class has a counterpart."""
        twins = (self._source, self._target)
        activations = [
            [layer for layer in twin.sequence or () if layer.kind == "activation"]
            for twin in twins
        ]
        uncompared = [
            layer.kind for layers in self._pairing.plain.uncompared for layer in layers
        ]
        return all(activations) and not {"activation", OTHER} & set(uncompared)


# settings of paired layers


def _differences_of_pair(
    one: Layer, other: Layer, ours: Settings, theirs: Settings, activated: Collection[str]
) -> Iterator[SettingDifference]:
    """Yields the differences between the settings of two paired layers with parameters. `one` is the layer of the
    source, with the settings `ours`. `other` is the layer of the target, with the settings `theirs`. `activated`
    contains the paths of layers whose activations are left out, because they were already compared as separate
    layers."""
    # whether the settings of both layers were read: a layer whose kind comes from kinds= or names has only the settings
    # that its shapes show, or that mark its form
    is_read = all(
        set(settings).difference(SHAPING, layouts.STATED_BY_BOTH) for settings in (ours, theirs)
    )
    for name in dict.fromkeys((*ours, *theirs)):
        is_stated = name in ours and name in theirs
        # settings of these names are compared if both layers state them, because a layer that was not read may have
        # them too. A setting with any other name is compared only if all settings of both layers were read; a layer
        # that does not state it then lacks it
        is_comparable = is_stated if name in (*SHAPING, *layouts.STATED_BY_BOTH) else is_read
        if not is_comparable:
            continue
        if name == "activation" and (one.path in activated or other.path in activated):
            continue
        value, expected = ours.get(name), theirs.get(name)
        if not layouts.same_setting(value, expected):
            yield SettingDifference(other.path or other.kind, name, value, expected)


def differing_layers(backend: Backend, actual: Any, expected: Any) -> list[str]:
    """Compares two models of the same framework. Returns a line for each layer that only one model has, and for each
    layer that has different kinds in the two models. Also returns a line for each setting that differs between two
    layers at the same path. Each line gives the value in `actual` first. The list is empty if the backend cannot list
    the operations of models. Raises `AbsentNameError` if the installed release of the framework lacks a private name
    that the backend needs."""
    try:
        ours, theirs = (
            {layer.path: layer for layer in backend.operations(model, backend.layers(model))}
            for model in (actual, expected)
        )
    # this `UnsupportedError` means that this release of the framework lacks a private name, which must not be hidden
    except AbsentNameError:
        raise
    except UnsupportedError:
        return []
    lines = []
    for path in dict.fromkeys((*theirs, *ours)):
        one, other = ours.get(path), theirs.get(path)
        if one is None or other is None or one.kind != other.kind:
            mine, its = (_name_of(layer) if layer else "nothing" for layer in (one, other))
            if mine != its:
                lines.append(f"{path or 'the model'}: it is {mine}, expected {its}")
            continue
        lines += [
            f"{path or other.kind}: {name} is {_stated(one, name)}, expected {_stated(other, name)}"
            for name in dict.fromkeys((*other.settings, *one.settings))
            if _differs(one, other, name)
        ]
    return lines


def _differs(one: Layer, other: Layer, name: str) -> bool:
    """Whether the setting `name` differs between two layers of the same kind and the same framework. An adapter leaves
    out a setting that no other framework has if it has its usual value, so a setting that only one layer states
    differs. The only exception is `ndim`, which is known only in some models."""
    if name not in one.settings or name not in other.settings:
        return name != "ndim"
    return not layouts.same_setting(one.settings[name], other.settings[name])


def _stated(layer: Layer, name: str) -> str:
    """Returns the setting `name` of a layer as a string, or "not set" if the layer does not state it."""
    return _text(layer.settings[name]) if name in layer.settings else "not set"


def _name_of(layer: Layer) -> str:
    """Returns the function of an activation, the class of an unknown layer, or the kind of any other layer."""
    return str(layer.settings.get("function", layer.settings.get("type", layer.kind)))


def _text(value: object) -> str:
    """Returns a setting as a string. Floats have six significant digits, because some frameworks store them in
    float32."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# layers without parameters


def compare_by_definition(source: Twin, target: Twin, pairs: Pairs) -> PlainComparison:
    """Compares the layers without parameters in the order in which the models define them. The
    comparison is empty if a backend cannot list such layers, or if neither model has any."""
    ours, theirs = source.sequence, target.sequence
    if ours is None or theirs is None or all(layer.parts for layer in (*ours, *theirs)):
        return PlainComparison(differences=[], activated=set(), uncompared=([], []))
    return _compare(ours, theirs, pairs)


def compare_by_calls(
    source: Twin, expected: ModelRun, target: Twin, computed: ModelRun, pairs: Pairs
) -> PlainComparison:
    """Compares the layers without parameters in the order in which two runs called them. `expected` is a run of the
    source, and `computed` is a run of the target."""
    return _compare(
        list(_called(source, expected)), list(_called(target, computed)), pairs, is_called=True
    )


def _called(twin: Twin, run: ModelRun) -> Iterator[Layer]:
    """Yields the layers of a model in the order in which a run called them. A layer that was called twice is yielded
    twice. Calls of layers that the model does not list are left out."""
    # all layers, or only the layers with parameters if the backend cannot list the others
    layers = {layer.path: layer for layer in twin.sequence or twin.layers}
    called = {call.path for call in run.trace.calls}
    # the activations that belong to a layer and were not recorded as calls, by the path of that layer
    inside = {
        parent_of(path): layer
        for path, layer in layers.items()
        if layer.kind == "activation" and path not in called
    }
    for call in run.trace.calls:
        layer = layers.get(call.path)
        if layer is None:
            continue
        if call.inputs and "axis" in layer.settings and "ndim" not in layer.settings:
            # with the number of axes, an axis can be counted from the end: axis 1 of two axes is -1
            yield layer._replace(settings={**layer.settings, "ndim": call.inputs[0].ndim})
        else:
            yield layer
        # the entry for the code of the layer's class, if the class is the user's own, has the layer's path followed by
        # "()"
        if code_of_layer := layers.get(f"{call.path}()"):
            yield code_of_layer
        # the layer computed its activation itself, as its last step
        if layer.parts and layer.settings.get("activation") is not None and call.path in inside:
            yield inside[call.path]


def _compare(
    ours: list[Layer], theirs: list[Layer], pairs: Pairs, is_called: bool = False
) -> PlainComparison:
    """Compares the layers without parameters, gap by gap. With `is_called`, the layers are in the order of their calls,
    and a layer may appear twice. Layers that are missing in one model are then not listed, because a comparison of the
    outputs reveals them."""
    sources, targets = list(with_pads(ours)), list(with_pads(theirs))
    # the number of the pair that each layer with parameters is in, by its path
    source_numbers, target_numbers = (
        {pair[side].path: number for number, pair in enumerate(pairs)} for side in (0, 1)
    )
    # gaps in which a layer that only one model has is reported as missing in the other
    missing_at: dict[int, str] = {}
    if not is_called:
        # a gap qualifies if no other code is called in it, and if it ends at the same pair in both models
        source_ends = _gaps_without_code(sources, source_numbers)
        places = {number: f"after {path}" for path, number in target_numbers.items()} | {
            -1: "at the beginning"
        }
        missing_at = {
            number: places[number]
            for number, next_number in _gaps_without_code(targets, target_numbers).items()
            if source_ends.get(number) == next_number
        }
    # an activation inside a layer is compared as a setting of the layer
    owners = {layer.path for layer in (*sources, *targets) if layer.parts}
    comparison = compare_gaps(
        gaps(sources, source_numbers), gaps(targets, target_numbers), missing_at, owners
    )
    # a difference of an activation inside a layer is reported at the path of the layer
    owner_of = {f"{layer.path}.activation": layer.path for layer in targets if layer.parts}
    differences = [
        difference._replace(where=owner_of.get(difference.where, difference.where))
        for difference in comparison.differences
    ]
    return comparison._replace(
        differences=differences,
        paddings=(_paddings(ours, sources), _paddings(theirs, targets)),
    )


# gaps


def gaps(sequence: Iterable[Layer], numbers: Mapping[str, int]) -> Gaps:
    """Returns the layers of a sequence that have no parameters, grouped by gap and kind (see `Gaps`). `numbers` maps
    the path of a paired layer with parameters to the number of its pair."""
    by_gap: Gaps = {}
    # the number of the pair before the gap
    before = -1
    for layer in sequence:
        if layer.parts:
            before = numbers.get(layer.path, before)
        else:
            by_gap.setdefault((before, layer.kind), []).append(layer)
    return by_gap


def _gaps_without_code(sequence: Iterable[Layer], numbers: Mapping[str, int]) -> dict[int, int]:
    """Returns the gaps in which the model calls nothing except the layers of `sequence`. The result is a dict from the
    number of the pair before a gap to the number of the pair after the gap. `numbers` maps the path of a paired layer
    with parameters to the number of its pair."""
    pair_after = {}
    # only for a model that consists of one line is it known that nothing is called before the first layer
    pair_before, line, is_certain = -1, WHOLE, True
    for layer in sequence:
        # only between consecutive layers of the same line is nothing else called
        is_certain = is_certain and line != "" and layer.line == line and layer.kind != OTHER
        line = layer.line
        # this layer has parameters and is missing in the other model
        if layer.parts and layer.path not in numbers:
            is_certain = False
        elif layer.parts:
            number = numbers[layer.path]
            if is_certain:
                pair_after[pair_before] = number
            pair_before, is_certain = number, True
    # code may follow the last layer, unless the model consists of one line of layers only. The end of the model counts
    # as the pair after the last one
    if is_certain and line == WHOLE:
        pair_after[pair_before] = len(numbers)
    return pair_after


def compare_gaps(
    ours: Gaps, theirs: Gaps, missing_at: Mapping[int, str], owners: Container[str]
) -> PlainComparison:
    """Compares the layers without parameters of the source (`ours`) and of the target (`theirs`), gap by gap.
    `missing_at` contains only the gaps in which no function is called. It maps the number of each gap to a description
    of its place. If only one model has a layer in such a gap, the layer is reported as missing in the other model,
    unless a layer of another kind may replace it. `owners` contains the paths of the layers with parameters."""
    differences: list[SettingDifference] = []
    # the layers of both models that are not compared in their gaps
    our_rest: list[Layer] = []
    their_rest: list[Layer] = []
    activated: set[str] = set()
    for gap in dict.fromkeys((*ours, *theirs)):
        number, kind = gap
        sources, targets = ours.get(gap, []), theirs.get(gap, [])
        # modules of unknown classes may compute anything, so equal numbers of them prove nothing
        is_paired = len(sources) == len(targets) and kind != OTHER
        if not is_paired and not (
            number in missing_at and _is_missing(gap, sources, targets, ours, theirs)
        ):
            our_rest += sources
            their_rest += targets
            continue
        # in a gap, the first layer of a kind is paired with the first one of the other model, and so on; a surplus
        # layer is paired with None, and is missing in the other model, where no function is called in its place
        for source, target in zip_longest(sources, targets):
            if source is not None and target is not None:
                differences += _differences_between(source, target)
                activated.update((parent_of(source.path), parent_of(target.path)))
            # an activation inside a layer with parameters is listed as a setting of that layer
            elif (lone := source or target) is not None and parent_of(lone.path) not in owners:
                differences.append(_missing_layer(missing_at[number], source, target))
    # if all layers of a kind have equal settings, it does not matter which is paired with which
    in_both = {kind for _, kind in theirs} - {OTHER}
    for kind in dict.fromkeys(kind for _, kind in ours if kind in in_both):
        if uniform := _uniform_layers(kind, ours, theirs):
            # the layers that the gaps have not paired; if there are none, the gaps have found all differences
            unpaired = [layer for layer in (*our_rest, *their_rest) if layer.kind == kind]
            if unpaired:
                differences += _differences_of_kind(kind, *uniform, differences)
                activated.update(parent_of(layer.path) for layer in unpaired)
            our_rest, their_rest = (
                [layer for layer in side if layer.kind != kind]
                for side in (our_rest, their_rest)
            )
    # a layer that is called twice produces its differences twice; they are compared as strings, because a setting may
    # have no hash
    by_text = {str(difference): difference for difference in differences}
    # without "", which is no layer's path, but the parent of the layers directly in the model
    return PlainComparison(
        list(by_text.values()),
        activated=activated - {""},
        uncompared=(_unique(our_rest), _unique(their_rest)),
    )


def _unique(layers: Iterable[Layer]) -> list[Layer]:
    """Returns the layers without duplicates. A layer that was called twice is in `layers` twice."""
    return list({layer.path: layer for layer in layers}.values())


def _is_missing(
    gap: tuple[int, str], sources: list[Layer], targets: list[Layer], ours: Gaps, theirs: Gaps
) -> bool:
    """Whether the layers that only one model has in a gap are really missing in the other model. The other model may
    instead have layers of another kind. `gap` consists of the number of the gap and the kind of the layers. `sources`
    and `targets` contain the layers of this kind that the source and the target have in the gap. `ours` and `theirs`
    contain all gaps of the source and of the target."""
    number, kind = gap
    # the kinds that the model with fewer layers has in the gap: a layer of the same sort (see `_SORTS`) may take the
    # place of the missing one
    other_kinds = [
        other_kind
        for place, other_kind in (theirs if len(sources) > len(targets) else ours)
        if place == number
    ]
    return kind in _ALONE and not any(
        kind.endswith(sort) and other_kind.endswith(sort)
        for sort in _SORTS
        for other_kind in other_kinds
    )


def _missing_layer(place: str, one: Layer | None, other: Layer | None) -> SettingDifference:
    """Returns the difference for a layer that only one of the two models has. `one` is the layer of the source and
    `other` the layer of the target; one of the two is None. `place` describes the place in the model, such as "after
    features.3"."""
    # only an activation has a function; of any other layer, the difference says only that it is there
    texts = [
        "missing" if layer is None else layer.settings.get("function", "there")
        for layer in (one, other)
    ]
    kind = next(layer.kind for layer in (one, other) if layer is not None)
    return SettingDifference(place, kind, *texts)


def _uniform_layers(
    kind: str, ours: Gaps, theirs: Gaps
) -> tuple[list[Layer], list[Layer]] | None:
    """Returns two lists with all layers of a kind: the layers of the source, and the layers of the target. Returns None
    if the layers of this kind do not have the same settings within each model. Also returns None if the two models have
    different activations and never have them in the same gap. Each model may then also use the other model's
    activation, as a function or as a layer of an unknown class."""
    sources, targets = (
        [
            layer
            for (_, kind_of_gap), layers in by_gap.items()
            if kind_of_gap == kind
            for layer in layers
        ]
        for by_gap in (ours, theirs)
    )
    if any(
        _differences_between(layers[0], layer)
        for layers in (sources, targets)
        for layer in layers
    ):
        return None
    # the layers of each model are alike, so comparing the first ones is enough; neither list is empty, because
    # `compare_gaps` passes only kinds that both models have
    is_another = sources[0].settings.get("function") != targets[0].settings.get("function")
    # a gap is a pair of a number and a kind
    share_a_gap = any(gap in theirs for gap in ours if gap[1] == kind)
    return (sources, targets) if share_a_gap or not is_another else None


def _differences_of_kind(
    kind: str, ours: list[Layer], theirs: list[Layer], differences: list[SettingDifference]
) -> list[SettingDifference]:
    """Returns the differences between the layers of one kind in the source (`ours`) and in the target (`theirs`).
    Within each model all these layers have the same settings (see `_uniform_layers`), so only the first of each list is
    compared. Settings that `differences` already lists for a layer in `theirs` are left out."""
    where = f"{theirs[0].path} and every other {kind}" if len(theirs) > 1 else theirs[0].path
    paths = {layer.path for layer in theirs}
    reported = {difference.name for difference in differences if difference.where in paths}
    return [
        difference._replace(where=where)
        for difference in _differences_between(ours[0], theirs[0])
        if difference.name not in reported
    ]


def _differences_between(one: Layer, other: Layer) -> list[SettingDifference]:
    """Returns the differences between the settings of two layers without parameters. `one` is the layer of the source,
    and `other` is the layer of the target. Settings that only one of the two layers states are left out. If the layers
    compute different functions, returns only this difference."""
    where = other.path or other.kind
    if not layouts.same_setting(one.settings.get("function"), other.settings.get("function")):
        # the settings of two different functions have no common meaning, so only the names are listed
        return [
            SettingDifference(
                where, "activation", one.settings["function"], other.settings["function"]
            )
        ]
    ours, theirs = _with_axis(one, other), _with_axis(other, one)
    return [
        SettingDifference(where, name, value, theirs[name])
        for name, value in ours.items()
        if name in theirs and not layouts.same_setting(value, theirs[name])
    ]


def _with_axis(layer: Layer, other: Layer) -> Settings:
    """Returns the settings of `layer` with the axis counted from the end, and without `ndim`, the number of axes.
    Returns the settings unchanged if `layer` has no axis, or if neither `layer` nor its counterpart `other` has
    `ndim`."""
    # two paired layers have the same number of axes
    axes = layer.settings.get("ndim", other.settings.get("ndim"))
    if not isinstance(axes, int) or "axis" not in layer.settings:
        return layer.settings
    axis = layer.settings["axis"]
    if axis is None:
        # PyTorch's softmax without a `dim` uses axis 0 for an input with 0, 1 or 3 axes, and otherwise axis 1
        axis = 0 if axes in (0, 1, 3) else 1
    settings = {
        **layer.settings,
        "axis": axis - axes if isinstance(axis, int) and axis >= 0 else axis,
    }
    settings.pop("ndim", None)
    return settings


# zeros around an image


def with_pads(sequence: Iterable[Layer]) -> Iterator[Layer]:
    """Yields the layers, but merges each layer that only adds zeros into the padding of the convolution or pool after
    it. The two layers must be consecutive in a line, a chain of layers with nothing called in between. Layers of other
    lines may come between the two in `sequence`."""
    merged: list[Layer | None] = []
    # the indices in `merged` of the layers of each line
    places: dict[str, list[int]] = {}
    for layer in sequence:
        line = places.setdefault(layer.line, [])
        # the last layer of the line so far, which may be a padding layer, and the layer before it
        pad = merged[line[-1]] if line else None
        before = merged[line[-2]] if len(line) > 1 else None
        padded = _merge_pad(pad, layer, before) if pad and pad.kind == "pad" else None
        # the padding layer is removed; None keeps the indices of the layers after it
        if padded is not None:
            merged[line.pop()] = None
        line.append(len(merged))
        merged.append(padded or layer)
    yield from filter(None, merged)


def _merge_pad(pad: Layer, layer: Layer, before: Layer | None) -> Layer | None:
    """Adds the zeros of the padding layer `pad` to the padding of `layer`, which is the next layer, and returns the
    merged layer. Returns None if the merged layer would compute something else. `before` is the layer before `pad` in
    the same line, or None."""
    own_padding, added = layer.settings.get("padding"), pad.settings["padding"]
    is_zeros = pad.settings["mode"] == "constant" and pad.settings["value"] == 0
    zeros_are_least = before is not None and before.settings.get("function") in _NOT_NEGATIVE
    # a max pool ignores its own padding, but zeros in the image change a maximum, unless all numbers are at least 0
    can_take_zeros = layer.kind in ("conv", "avg_pool") or (
        layer.kind == "max_pool" and zeros_are_least
    )
    # three cases cannot be merged: the new pixels are not zeros, the layer cannot pad with such zeros, or its own
    # padding is not known as numbers for the same axes
    if not (
        is_zeros
        and can_take_zeros
        and isinstance(own_padding, tuple)
        and isinstance(added, tuple)
        and len(own_padding) == len(added)
    ):
        return None
    # a padding with a pair of numbers, one for each side, is not merged
    if not all(isinstance(own, int) for own in own_padding):
        return None
    sides = tuple(
        (start + own, end + own) for (start, end), own in zip(added, own_padding, strict=True)
    )
    is_even = all(start == end for start, end in sides)
    settings = {
        **layer.settings,
        "padding": tuple(start for start, _ in sides) if is_even else sides,
    }
    if layer.kind == "avg_pool":
        # the zeros of a separate layer are part of the image, so the average counts them
        settings["count_include_pad"] = True
    return layer._replace(settings=settings)


def _paddings(plain: Iterable[Layer], padded: Iterable[Layer]) -> Paddings:
    """Returns the new padding of each layer with parameters whose padding `with_pads` changed. `plain` contains the
    layers before the change, and `padded` contains the layers that `with_pads` yielded."""
    own = {layer.path: layer.settings.get("padding") for layer in plain}
    return {
        layer.path: {"padding": layer.settings["padding"]}
        for layer in padded
        if layer.parts and layer.settings.get("padding") != own[layer.path]
    }
