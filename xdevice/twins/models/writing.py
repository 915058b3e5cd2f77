"""Fills a `State` with what the parameters of one model are in the layouts of another framework."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from xdevice.base import devices, floats
from xdevice.base.dtypes import FLOATS, dtype_name, host_dtype, name_of
from xdevice.contract import layouts
from xdevice.contract.conversion import owned
from xdevice.errors import ArgumentError, StateError
from xdevice.tensors.refusals import require_dtype
from xdevice.twins.weights.adapted import advice

from . import attentions, exercise, flattened, operations, views
from .pairing import SHAPING, in_doubt, pair_layers
from .settling import Runs
from .sides import shapes_of
from .state import State, tensors_are
from .trying import lend_values, pair_by_inputs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from xdevice.base.devices import Device
    from xdevice.contract import Backend
    from xdevice.contract.layouts import Layer, Part

    from .sides import Side

LIKE: Final = "like"
"""In place of a dtype: the dtypes of the target's variables."""


class How(NamedTuple):
    """What `convert_state` is told beside the two models and how they are paired."""

    device: object
    inputs: object
    dtype: str | None
    skip: tuple[str, ...]


class _Paired(NamedTuple):
    """Which layers of two models are one, and what was found out on the way."""

    pairs: Sequence[tuple[Layer, Layer]]
    bare: Sequence[tuple[Layer, Layer]]
    """The pairs of tensors that are in no layer."""
    compared: operations.Compared
    runs: Runs | None
    """None without `inputs=`, and if the target does not take them."""
    doubts: list[str]
    likely: Mapping[str, str]
    """A guess that has also the tensors which are not in `bare`."""


class Writer:
    """Fills a `State`, layer by layer, and lists in it the tensors that could not be mapped."""

    def __init__(self, source: Side, target: Backend, state: State, how: How) -> None:
        self._source, self._target, self._state, self._how = source, target, state, how
        self._device = None if how.device is None else devices.parse(how.device)
        if self._device is not None:
            self._device = target.require(self._device)
        self._by_functions: list[str] = []
        """Lines about activations that only one layer of a pair has: the other model may call the activation as a
        function."""
        self._casts: dict[tuple[str, str], list[str]] = {}
        """The names of the tensors that have another dtype in the target, by the two dtypes."""
        self._made: dict[int, str] = {}
        """The names of the target's variables that have got their values, by the `id` of the variable."""
        self._uses: dict[int, list[tuple[int, str, str]]] = {}
        """What was made of a variable of the source, by its `id`: the `id` of the target's variable, its name, and the
        path of the source's layer."""

    def put_freely(self, layers: Iterable[Layer]) -> None:
        for layer in layers:
            parts = [
                part._replace(name=layouts.join(layer.path, part.name))
                for part in self._target.parts(layer.kind, layer.settings)
            ]
            ordered, lines = flattened.in_order(layer, None, partial(flattened.puts_channels_last, self._target))
            self._state.done += lines
            self._fill(ordered, parts, None)
        self._state.differences += flattened.in_doubt(self._source, self._target)

    def put_all(self, source: Side, wanted: Side, renamed: Mapping[str, str], inputs: object) -> None:
        found = self._pair(source, wanted, renamed, inputs)
        for one, other in (*found.pairs, *found.bare):
            self._state.pairs[one.path] = other.path
            self.put(one, other, wanted, found.compared)
        self.list_rest([*found.pairs, *found.bare], wanted, found.likely)
        for line in attentions.in_code(found.pairs, source, wanted):
            self._list_doubt(line)
        self.list_differences(found.compared.differences)
        agree = found.runs is not None and self._list_outputs(found.runs, wanted, found.pairs)
        for line in self._by_functions if agree else ():
            self._state.differences.remove(line)
            self._state.settings.remove(line)
        for line in self._doubts(found, source, wanted, agree):
            self._list_doubt(line if inputs is None else line.removesuffix(operations.RUN_BOTH))
        if found.runs is not None and agree and not operations.knows_activations(source, wanted, found.compared):
            self._state.differences += filter(None, [exercise.unexercised(found.runs)])

    def _pair(self, source: Side, wanted: Side, renamed: Mapping[str, str], inputs: object) -> _Paired:
        ways = views.pair_bare(source, wanted, renamed)
        runs = None if inputs is None else Runs(source, wanted, inputs)
        try:
            return self._pair_by(source, wanted, renamed, runs, ways)
        except StateError as error:
            if error.pairs:
                error.pairs = {**ways[-1], **error.pairs}
            raise

    def _pair_by(
        self, source: Side, wanted: Side, renamed: Mapping[str, str], runs: Runs | None, ways: list[dict[str, str]]
    ) -> _Paired:
        every = [views.pairs_of(source, wanted, way) for way in ways]
        doubts: list[str] = []
        if runs is not None:
            try:
                values = [partial(self._values, bare, wanted) for bare in every]
                pairs, run, number, left = pair_by_inputs(runs, renamed, values)
                compared = operations.of_calls(source, runs.expected, wanted, run, pairs)
                doubts = [left, *views.in_order_only(in_doubt(source, wanted, pairs))] if left else []
                return _Paired(pairs, every[number], compared, runs, doubts, ways[-1])
            except ArgumentError as error:  # the target does not take them
                doubts = [f"inputs= settles nothing: {error}"]
        pairs = pair_layers(source, wanted, renamed)
        doubts += views.in_order_only(in_doubt(source, wanted, pairs))
        compared = operations.of_operations(source, wanted, pairs)
        return _Paired(pairs, every[0], compared, None, doubts, ways[-1])

    def _doubts(self, found: _Paired, source: Side, wanted: Side, agree: bool) -> Iterator[str]:
        """Lines about what was not compared. If the outputs agree, only what shows in training is in doubt."""
        if not agree:
            yield from found.doubts
        if source.model is not None and not agree:
            yield from filter(None, [operations.unread(found.pairs)])
            yield from views.in_code(found.bare)
            yield from views.in_flattening(found.pairs, source, wanted)
        only = ("dropout",) if agree else ()
        yield from filter(None, [operations.tell_uncounted(source, wanted, found.compared, only)])
        yield from () if agree else operations.axes_in_doubt(found.pairs, source, wanted)

    def _values(self, bare: Sequence[tuple[Layer, Layer]], wanted: Side, pairs: Sequence[tuple[Layer, Layer]]) -> State:
        """What the target's variables become by these pairs. Empty if one would become two values."""
        tried = Writer(self._source, self._target, State(self._target.name), self._how)
        try:
            for one, other in (*pairs, *bare):
                tried.put(one, other, wanted, operations.NOTHING)
        except StateError:
            return State(self._target.name)
        return tried._state

    def _list_outputs(self, runs: Runs, wanted: Side, pairs: Sequence[tuple[Layer, Layer]]) -> bool:
        """Runs the target with the converted values, and adds a line to `differences` if its outputs differ from the
        source's. Returns whether they agree."""
        with lend_values(wanted, self._state):
            computed = runs.plain()
            found = runs.outputs_apart(computed)
            self._state.differences += filter(None, [runs.uncounted(computed)])
            is_blind = found <= runs.limit and exercise.is_blind(runs)
            if found <= runs.limit and not is_blind:
                return True
            where = runs.where(computed, pairs)
        how = (
            "are what they are on zeros, so that they tell nothing: give trained weights, or other inputs"
            if is_blind
            else "have other shapes, or numbers that are not finite"
            if math.isinf(found)
            else f"are off by {found:.2g} of their largest value, or of their spread over the batch if that is smaller"
        )
        self._state.differences.append(f"the outputs on inputs= {how}; {where}")
        return False

    def put(self, layer: Layer, other: Layer, wanted: Side, compared: operations.Compared) -> None:
        found = operations.of_pair(layer, other, compared)
        self.list_differences(found)
        self._by_functions += [self._show(one) for one in found if one.name == "activation" and one.is_on_one_side]
        shaping = [name for name in SHAPING if layer.settings.get(name) != other.settings.get(name)]
        told = [name for name in shaping if name in layer.settings and name in other.settings]
        if told:
            why = "; ".join(
                f"{name} is {layer.settings[name]} in {self._source.backend.name}, "
                f"{other.settings[name]} in {self._target.name}"
                for name in told
            )
            self._leave([layer, other], why)
            return
        if why := self._norms_apart(layer, other, wanted):
            self._leave([layer, other], why)
            return
        layer, lines = flattened.in_order(layer, other, partial(flattened.has_channels_last, wanted))
        other, more = flattened.in_order(other, layer, partial(flattened.has_channels_last, self._source))
        self._state.done += [*lines, *more]
        self._fill(layer, other.parts, wanted)

    def list_rest(self, pairs: list[tuple[Layer, Layer]], wanted: Side, likely: Mapping[str, str]) -> None:
        paired = {id(layer) for pair in pairs for layer in pair}
        for side, other in ((self._source, wanted), (wanted, self._source)):
            extra = [layer for layer in side.layers if id(layer) not in paired]
            added = advice(part.name for layer in extra for part in layer.parts)
            self._leave(extra, added or f"only {side.backend.name} has this layer, not {other.backend.name}")
            lone = [layer for layer in side.bare if id(layer) not in paired]
            for name in (part.name for layer in lone for part in layer.parts):
                self._state.unmapped[name] = views.unpaired(name, side is wanted, likely)

    def _leave(self, layers: list[Layer], why: str) -> None:
        for layer in layers:
            for part in layer.parts:
                self._state.unmapped[part.name] = why

    def list_differences(self, found: Iterable[operations.Difference]) -> None:
        for one in found:
            self._list_doubt(self._show(one))

    def _show(self, found: operations.Difference) -> str:
        return operations.show(found, self._source.backend.name, self._target.name)

    def _list_doubt(self, line: str) -> None:
        self._state.differences.append(line)
        self._state.settings.append(line)

    def _fill(self, layer: Layer, parts: Iterable[Part], wanted: Side | None) -> None:
        arrays, origins = self._read(layer)
        parts = tuple(parts)
        self._fit_norm(layer, arrays, origins, parts, wanted)
        self._fit_biases(arrays, origins, parts)
        used: set[str] = set()
        for part in parts:
            missing = [name for name in part.of if name not in arrays]
            used.update(part.of)
            if part.rule.refusal is not None:
                self._state.unmapped[part.name] = part.rule.refusal
            elif missing:
                self._list_missing(part, missing, origins, wanted)
            else:
                self._write(layer, part, arrays, origins, wanted)
        for name in [name for name in arrays if name not in used]:
            self._list_unused(layer, origins[name], name, arrays[name])

    def _read(self, layer: Layer) -> tuple[dict[str, Any], dict[str, str]]:
        """A layer's parameters as arrays in PyTorch's layout, by PyTorch's names; and for each of these names the
        parameter's name in the source."""
        arrays, origins = {}, {}
        for part in layer.parts:
            if part.rule.refusal is not None:
                self._state.unmapped[part.name] = part.rule.refusal
                continue
            host = self._source.read(part.name)
            for name, array in zip(part.of, part.rule.canonical(host), strict=True):
                arrays[name], origins[name] = array, part.name
        return arrays, origins

    def _norms_apart(self, layer: Layer, other: Layer, wanted: Side) -> str:
        g = layouts.NORMED[0]
        if not _has(g, layer.parts):
            return ""
        shapes = [shapes_of(side.variables, one).get(g) for side, one in ((self._source, layer), (wanted, other))]
        if None in shapes or shapes[0] == shapes[1]:
            return ""
        return (
            f"the weight norms are over other axes: in PyTorch's layout, {g} is {shapes[0]} in "
            f"{self._source.backend.name}, {shapes[1]} in {self._target.name}; build one with another dim"
        )

    def _fit_norm(
        self,
        layer: Layer,
        arrays: dict[str, Any],
        origins: dict[str, str],
        parts: tuple[Part, ...],
        wanted: Side | None,
    ) -> None:
        """Merges the two parameters of a weight norm into one weight, or splits one weight into two parameters, where
        only one of the two layers has a weight norm. Outputs are equal then, training is not."""
        g, v = layouts.NORMED
        if _has(g, parts) == (g in arrays):
            return
        if g in arrays:
            origins["weight"] = origins[v]
            arrays["weight"] = layouts.of_norm(arrays.pop(g), arrays.pop(v))
        elif wanted is not None and "weight" in arrays:
            shape = shapes_of(wanted.variables, layer._replace(parts=parts))[g]
            arrays[g], arrays[v] = layouts.to_norm(arrays.pop("weight"), shape)
            origins[g] = origins[v] = origins["weight"]
        if wanted is not None:
            name = self._source.backend.name if _has(g, parts) else self._target.name
            self._state.differences.append(f"{layer.path}: {name} has no weight norm here; it affects training only")

    def _fit_biases(self, arrays: dict[str, Any], origins: dict[str, str], parts: tuple[Part, ...]) -> None:
        """Adds zeros for a bias that the source lacks where the target has it in one array with others: some
        attentions have no bias for their keys, which does not change a softmax."""
        for part in parts:
            lacking = [name for name in part.of if name not in arrays and name.endswith(".bias")]
            for name in lacking if len(lacking) < len(part.of) else ():
                weight = name.replace(".bias", ".weight")
                arrays[name] = np.zeros_like(arrays[weight], shape=arrays[weight].shape[:1])
                origins[name] = next(origins[other] for other in part.of if other in origins)
                self._state.differences.append(
                    f"{part.name}: {self._source.backend.name} has no {name}, and zeros are in its place"
                )

    def _list_missing(self, part: Part, missing: list[str], origins: Mapping[str, str], wanted: Side | None) -> None:
        if part.of == (layouts.COUNTER,):
            if wanted is not None:
                self._state.differences.append(
                    f"{part.name}: {self._source.backend.name} does not count batches; it stays"
                )
            return
        present = [origins[name] for name in part.of if name in origins]
        if wanted is not None or present:
            self._state.unmapped[part.name] = f"{self._source.backend.name} has no {' and no '.join(missing)} for it"

    def _list_unused(self, layer: Layer, origin: str, name: str, array: Any) -> None:
        if name == layouts.COUNTER:
            self._state.differences.append(f"{origin}: left out, because {self._target.name} does not count batches")
        elif name.endswith(".bias") and (array.any() or self._source.place_of(origin).kind == "meta"):
            self._state.unmapped[origin] = f"{self._target.name} has no {name}, and only zeros can be left out"
        elif not any(origin in names for names in self._state.origins.values()):
            self._state.unmapped[origin] = f"{self._target.name} has no {name} in this {layer.kind}"

    def _write(
        self, layer: Layer, part: Part, arrays: Mapping[str, Any], origins: Mapping[str, str], wanted: Side | None
    ) -> None:
        try:
            array = floats.take(part.rule.native(*(arrays[name] for name in part.of)))
        except layouts.UnfitError as error:
            self._state.unmapped[part.name] = str(error)
            return
        names = tuple(dict.fromkeys(origins[name] for name in part.of))
        first = self._source.variables[names[0]]
        variable = None if wanted is None else wanted.variables[part.name]
        place = self._place(names[0], variable)
        cast = self._how.dtype
        if variable is not None and cast == LIKE:
            cast = dtype_name(variable.dtype)
        came = name_of(array.dtype)
        if cast not in (None, came) and came in FLOATS:
            array = array.astype(host_dtype(cast))
        if variable is not None:
            self._check_form(part.name, variable, array)
            self._check_ties(layer, part.name, id(variable), id(first), array)
        self._target.require(place)
        require_dtype(self._target, name_of(array.dtype), part.name, "cast the model first", place=place)
        self._state[part.name] = self._tensor(array, place)
        self._state.origins[part.name] = names
        self._state._forms[part.name] = _form_of(tuple(first.shape), array.shape) if len(names) == 1 else ""

    def _place(self, name: str, variable: Any) -> Device:
        """Where the value of a variable of the target is to be, made of that of the source's `name`. What is on meta in
        the source stays there, because it has no values; and values do not go to meta unless `device=` says so."""
        place = self._source.place_of(name)
        if place.kind == "meta":
            return place
        own = self._device or (place if variable is None else self._target.device_of(variable))
        return own if own.kind != "meta" or self._device else devices.CPU

    def _tensor(self, array: Any, place: Device) -> Any:
        if place.kind == "meta":
            return self._target.full(array.shape, 0, place, array.dtype.name)
        if place is not devices.CPU or not array.size:
            return self._target.from_numpy(array, place)
        return self._target.from_buffer(owned(array))

    def _check_form(self, name: str, variable: Any, array: Any) -> None:
        wanted, came = dtype_name(variable.dtype), name_of(array.dtype)
        if wanted != came:
            self._casts.setdefault((came, wanted), []).append(name)

    def finish(self) -> None:
        for (came, wanted), names in self._casts.items():
            self._state.differences.append(
                f"{tensors_are(names)} {came}, {wanted} in {self._target.name}; dtype='like' casts before loading"
            )

    def _check_ties(self, layer: Layer, name: str, variable: int, first: int, array: Any) -> None:
        """Raises `StateError` if one variable of the target would get two values. Lists, as a difference, a variable of
        the source that becomes two variables of the target."""

        before = self._made.setdefault(variable, name)
        values = self._state[before] if before != name else None
        held = None if values is None or self._target.device_of(values).kind == "meta" else self._target.peek(values)
        if held is not None and (held.shape != array.shape or (held != array).any()):
            raise StateError(
                f"{before} and {name} are one variable of {self._target.name}, and "
                f"{self._source.backend.name} has two different values for it; untie them in like="
            )
        uses = self._uses.setdefault(first, [])
        if before == name:
            uses.append((variable, name, layer.path))
        for other, known, path in uses:
            if other != variable and path != layer.path:
                self._state.differences.append(
                    f"{known} and {name} are one parameter in {self._source.backend.name}, two in {self._target.name}"
                )
                return


def _has(name: str, parts: Iterable[Part]) -> bool:
    return any(name in part.of for part in parts)


def _form_of(shape: Sequence[int], own: Sequence[int]) -> str:
    """What was done to an array of this shape beside exchanging its axes."""
    if math.prod(shape) != math.prod(own):
        return ", a part of it" if math.prod(shape) > math.prod(own) else ""
    return "" if sorted(shape) == sorted(own) else ", reshaped"
