"""Lists in a `State` what is not in the values, but changes outputs or training, and what could not be compared."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from xdevice.twins.contract import layouts
from xdevice.twins.contract.operations import OTHER
from xdevice.twins.weights.added_parameters import advice

from . import layer_settings
from .by_inputs import exercise
from .twin import SHAPING, parent_of, some_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from xdevice.twins.contract.layouts import Layer

    from .by_inputs.runs import Runs
    from .plain_layers import PlainComparison
    from .state import State
    from .twin import Names, Pairs, Twin

_SET: Final = frozenset(layouts.KINDS) - {"linear", "embedding", "prelu", "same"}
"""Kinds of layers that have settings which change their output."""
_RUN_BOTH: Final = "; inputs= runs both models and compares their outputs"


class Pairing(NamedTuple):
    """Which layers of two models are one, and what was learned on the way."""

    pairs: Pairs
    singles: Pairs
    """The pairs of tensors that are in no layer."""
    plain: PlainComparison
    likely: Names
    """A guess that has also the tensors which are not in `singles`."""
    doubts: list[str]
    runs: Runs | None = None
    """None without `inputs=`, and if the target does not take them."""


class Lister:
    """Lists the differences between two models, whose layers are paired."""

    def __init__(self, source: Twin, target: Twin, pairing: Pairing, state: State) -> None:
        self._source, self._target, self._pairing, self._state = source, target, pairing, state
        self._by_functions: list[str] = []
        """Lines about activations that only one layer of a pair has: the other model may call the activation as a
        function."""

    def list_pair(self, one: Layer, other: Layer) -> None:
        """Lists the settings in which two paired layers differ."""
        plain = self._pairing.plain
        ours, theirs = (
            {**layer.settings, **paddings.get(layer.path, {})}
            for layer, paddings in zip((one, other), plain.paddings, strict=True)
        )
        if ours == theirs:
            return
        for difference in layer_settings.of_pair(one, other, ours, theirs, plain.activated):
            line = self._add(difference)
            if difference.name == "activation" and difference.is_on_one_side:
                self._by_functions.append(line)

    def list_rest(self, has_inputs: bool) -> None:
        """Lists what is in no pair, what layers without parameters do differently, and whether the outputs differ."""
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
            self._add_lines([line.removesuffix(_RUN_BOTH) if has_inputs else line])
        if runs is not None and agree and not self._knows_activations():
            self._state.differences += exercise.unexercised(runs)

    def _add(self, difference: layer_settings.SettingDifference) -> str:
        line = difference.line(self._source.name, self._target.name)
        self._add_lines([line])
        return line

    def _add_lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._state.differences.append(line)
            self._state.settings.append(line)

    # what has no counterpart

    def _list_unpaired(self, twin: Twin, other: Twin, is_target: bool) -> None:
        pairing = self._pairing
        paired = {id(layer) for pair in (*pairing.pairs, *pairing.singles) for layer in pair}
        names = [part.name for layer in twin.layers if id(layer) not in paired for part in layer.parts]
        if names:
            why = advice(names) or f"only {twin.name} has this layer, not {other.name}"
            self._state.unmapped |= dict.fromkeys(names, why)
        for layer in twin.singles:
            if id(layer) not in paired:
                name = layer.parts[0].name
                self._state.unmapped[name] = self._why_unpaired(layer.path, name, is_target)

    def _why_unpaired(self, path: str, name: str, is_target: bool) -> str:
        """Why a tensor that belongs to no layer has no counterpart, and how to give it one."""
        likely = self._pairing.likely.items()
        pairs = [(here, there) for here, there in likely if path == (there if is_target else here)]
        if pairs:
            here, there = pairs[-1]
            return f"it fits several by its shape; a guess is names={{{here!r}: {there!r}}}"
        what = "names= says which tensor it is" if is_target else f"settle({name!r}) says that it is not needed"
        return f"no layer that xdevice knows has it, and no tensor of its shape is left on the other side; {what}"

    # whether the outputs agree

    def _outputs_agree(self, runs: Runs) -> bool:
        """Runs the target with the converted values, and adds a line to `differences` if its outputs differ from the
        source's. Returns whether they agree."""
        with runs.lending(self._state):
            computed = runs.run()
            apart = runs.outputs_apart(computed)
            self._state.differences += runs.not_compared(computed)
            is_blind = apart <= runs.limit and exercise.is_blind(runs)
            if apart <= runs.limit and not is_blind:
                return True
            where = runs.where(computed, self._pairing.pairs)
        if is_blind:
            # as those of a deep model at initial weights, which shrinks any input to nothing
            how = "are what they are on zeros, so that they tell nothing: give trained weights, or other inputs"
        elif math.isinf(apart):
            how = "have other shapes, or numbers that are not finite"
        else:
            how = f"are off by {apart:.2g} of their largest value, or of their spread over the batch if that is smaller"
        self._state.differences.append(f"the outputs on inputs= {how}; {where}")
        return False

    # what was not compared

    def _doubts(self, agree: bool) -> Iterator[str]:
        """Lines about what was not compared. If the outputs agree, only what shows in training is in doubt."""
        has_model = self._source.model is not None
        if not agree:
            yield from self._pairing.doubts
        if not agree and has_model:
            yield from self._unread()
            yield from self._single_tensors()
            yield from self._flattened_images()
        if has_model:
            yield from self._uncounted(only=("dropout",) if agree else ())
        if not agree and has_model:
            yield from self._axes()

    def _both_ways(self) -> Iterator[tuple[Twin, Layer, Layer]]:
        """For each pair, and for each of its two layers, the twin, the layer and its counterpart."""
        for one, other in self._pairing.pairs:
            yield self._source, one, other
            yield self._target, other, one

    def _attentions_in_code(self) -> Iterator[str]:
        """A line that names the attentions that were put together from linear layers: the model's code sets their heads
        and scale, and xdevice does not read that code."""
        attentions = [each for each in self._both_ways() if each[1].settings.get(layouts.FOLDED)]
        if not attentions:
            return
        twin, _, other = attentions[0]
        more = f" and {len(attentions) - 1} more" if len(attentions) > 1 else ""
        order = ""
        if any(len(part.of) > 1 for _, layer, _ in attentions for part in layer.parts):
            order = ", one of them with the rows of query, key and value, taken in that order"
        yield (
            f"not compared: heads, scale and masks of {other.path or 'the attention'}{more}, which in {twin.name} are "
            f"in the code around linear layers{order}"
        )

    def _unread(self) -> Iterator[str]:
        """A line that names the layers whose settings are unknown, because only `kinds=` says what these layers are."""
        paths = [
            other.path
            for one, other in self._pairing.pairs
            if one.kind in _SET and (_is_unread(one) or _is_unread(other))
        ]
        if paths:
            be = "is" if len(paths) == 1 else "are"
            yield f"not compared: what {some_of(paths)} {be} set to, whose kind is told by kinds= or the shapes"

    def _single_tensors(self) -> Iterator[str]:
        if self._pairing.singles:
            yield (
                f"not compared: what the code does with {some_of(other.path for _, other in self._pairing.singles)}, "
                "which no known layer has; they are paired by name, or in their order among those of one shape"
            )

    def _flattened_images(self) -> Iterator[str]:
        """Lines that name the linear layers which are convolutions over a whole image on the other side: which order a
        flattened image has, the code decides."""
        for twin, layer, other in self._both_ways():
            if layer.settings.get(layouts.FLATTENS):
                yield (
                    f"not compared: the order in which the image is flattened for {other.path}, a convolution over "
                    f"the whole of it in {twin.name}; channels first is taken"
                )

    def _uncounted(self, only: Collection[str]) -> Iterator[str]:
        """A line that counts the layers that could not be compared; if `only` is not empty, just those of the kinds in
        `only`. An activation inside a layer is a setting of that layer, and is not counted."""
        hint = f"functions are not seen{_RUN_BOTH}"
        twins = (self._source, self._target)
        silent = [twin.name for twin in twins if twin.sequence is None]
        if silent:
            yield f"not compared: the layers without parameters, which {' and '.join(silent)} does not report; {hint}"
            return
        texts = []
        for twin, layers in zip(twins, self._pairing.plain.uncompared, strict=True):
            listed = {layer.path for layer in twin.layers}
            activated = {layer.path for layer in twin.layers if layer.settings.get("activation") is not None}
            counts = Counter(
                layer_settings.name_of(layer)
                for layer in layers
                if layer.path not in listed and parent_of(layer.path) not in activated
                if layer.kind != "rescaling" and (not only or layer.kind in only)
            )
            if counts:
                texts.append(f"{', '.join(f'{count} {kind}' for kind, count in counts.items())} of {twin.name}")
        if texts:
            yield f"not compared: {' and '.join(texts)}, which have nothing of their kind beside; {hint}"

    def _axes(self) -> Iterator[str]:
        """A line that names the normalization layers that may work over another axis than their counterparts."""
        doubts = [
            (twin, layer)
            for twin, layer, other in self._both_ways()
            if layouts.AXIS in layer.settings and layouts.AXIS not in other.settings
        ]
        if doubts:
            twin, layer = doubts[0]
            beside = self._target if twin is self._source else self._source
            more = f" and {len(doubts) - 1} more" if len(doubts) > 1 else ""
            yield (
                f"not compared: the axis of {layer.path or layer.kind}{more}, {layer.settings[layouts.AXIS]} in "
                f"{twin.name}, the second in {beside.name}: the same only where the code moves axes{_RUN_BOTH}"
            )

    def _knows_activations(self) -> bool:
        """Whether the activations of both models are layers, and were compared."""
        twins = (self._source, self._target)
        each = [[layer for layer in twin.sequence or () if layer.kind == "activation"] for twin in twins]
        left = [layer.kind for layers in self._pairing.plain.uncompared for layer in layers]
        return all(each) and not {"activation", OTHER} & set(left)


def _is_unread(layer: Layer) -> bool:
    return layer.settings.keys() <= {*SHAPING, *layouts.TOLD} and layouts.FOLDED not in layer.settings
