"""Writes the parameters of the source into a `State`, in the layouts of the target.

All parameters go by way of PyTorch's layout: each parameter of the source becomes the parameters of PyTorch that it
stands for, and these become the parameters of the target.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from xdevice.base import devices, floats
from xdevice.base.dtypes import FLOATS, dtype_name, host_dtype, name_of
from xdevice.contract.conversion import owned
from xdevice.errors import StateError
from xdevice.tensors.refusals import require_dtype
from xdevice.twins.contract import layouts

from .forms import pixel_order
from .state import tensors_are
from .twin import SHAPING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from xdevice.base.devices import Device
    from xdevice.contract import Backend
    from xdevice.twins.contract.layouts import Layer, Part

    from .state import State
    from .twin import Array, Twin

LIKE: Final = "like"
"""In place of a dtype: the dtypes of the target's variables."""


class _Value(NamedTuple):
    """A parameter in PyTorch's layout, and the source's variable that it was made of: its name, and where it is."""

    array: Array
    origin: str
    place: Device


class Writer:
    """Fills a `State`, layer by layer, and lists in it the tensors that could not be mapped. `like` is the target's
    model, if there is one."""

    def __init__(
        self, source: Twin, target: Backend, like: Twin | None, state: State, device: object, dtype: str | None
    ) -> None:
        self._source, self._target, self._like, self._state, self._dtype = source, target, like, state, dtype
        self._device = None if device is None else target.require(devices.parse(device))
        self._possible: set[tuple[Device, str]] = set()
        """The devices and dtypes that the target was seen to have."""
        self._casts: dict[tuple[str, str], list[str]] = {}
        """The names of the tensors that have another dtype in the target, by the two dtypes."""
        self._first_names: dict[int, str] = {}
        """The names of the target's variables that have got their values, by the `id` of the variable."""
        self._uses: dict[int, list[tuple[int, str, str]]] = {}
        """What was made of a variable of the source, by its `id`: the `id` of the target's variable, its name, and the
        path of the source's layer."""

    def put_freely(self, layer: Layer) -> None:
        """Writes a layer under its own names, as the target lays it out."""
        parts = [
            part._replace(name=layouts.join(layer.path, part.name))
            for part in self._target.parts(layer.kind, layer.settings)
        ]
        layer, lines = pixel_order.reordered(layer, None, partial(pixel_order.puts_channels_last, self._target))
        self._state.done += lines
        self._fill(layer, parts)

    def put(self, layer: Layer, other: Layer, like: Twin) -> None:
        """Writes a layer into its counterpart, `other`. Both are listed as not mapped if their shapes cannot agree."""
        why = self._shapes_apart(layer, other) or self._norms_apart(layer, other, like)
        if why:
            self.leave([layer, other], why)
            return
        if any(part.rule.order for part in (*layer.parts, *other.parts)):
            one, lines = pixel_order.reordered(layer, other, partial(pixel_order.has_channels_last, like))
            other, more = pixel_order.reordered(other, one, partial(pixel_order.has_channels_last, self._source))
            layer = one
            self._state.done += [*lines, *more]
        self._fill(layer, other.parts)

    def finish(self) -> None:
        """Lists the tensors whose dtype is another one in the target."""
        for (came, wanted), names in self._casts.items():
            self._state.differences.append(
                f"{tensors_are(names)} {came}, {wanted} in {self._target.name}; dtype='like' casts before loading"
            )

    def leave(self, layers: Iterable[Layer], why: str) -> None:
        for layer in layers:
            for part in layer.parts:
                self._state.unmapped[part.name] = why

    # what does not fit

    def _shapes_apart(self, layer: Layer, other: Layer) -> str:
        ours, theirs = layer.settings, other.settings
        return "; ".join(
            f"{name} is {ours[name]} in {self._source.name}, {theirs[name]} in {self._target.name}"
            for name in SHAPING
            if name in ours and name in theirs and ours[name] != theirs[name]
        )

    def _norms_apart(self, layer: Layer, other: Layer, like: Twin) -> str:
        g = layouts.NORMED[0]
        if not (_has(g, layer.parts) and _has(g, other.parts)):
            return ""
        ours, theirs = self._source.shapes(layer)[g], like.shapes(other)[g]
        if ours == theirs:
            return ""
        return (
            f"the weight norms are over other axes: in PyTorch's layout, {g} is {ours} in {self._source.name}, "
            f"{theirs} in {self._target.name}; build one with another dim"
        )

    # one layer

    def _fill(self, layer: Layer, parts: Sequence[Part]) -> None:
        values = self._read(layer)
        self._fit_norm(layer, values, parts)
        self._fit_biases(values, parts)
        for part in parts:
            missing = [name for name in part.of if name not in values]
            if part.rule.refusal is not None:
                self._state.unmapped[part.name] = part.rule.refusal
            elif missing:
                self._list_missing(part, missing)
            else:
                self._write(layer, part, [values[name] for name in part.of])
        used = {name for part in parts for name in part.of}
        for name, value in values.items():
            if name not in used:
                self._list_unused(layer, name, value)

    def _read(self, layer: Layer) -> dict[str, _Value]:
        """A layer's parameters in PyTorch's layout, by PyTorch's names."""
        values = {}
        for part in layer.parts:
            if part.rule.refusal is not None:
                self._state.unmapped[part.name] = part.rule.refusal
                continue
            values_there, place = self._source.read(part.name)
            for name, array in zip(part.of, part.rule.canonical(values_there), strict=True):
                values[name] = _Value(array, part.name, place)
        return values

    def _fit_norm(self, layer: Layer, values: dict[str, _Value], parts: Sequence[Part]) -> None:
        """Merges the two parameters of a weight norm into one weight, or splits one weight into two parameters, where
        only one of the two layers has a weight norm. Outputs are equal then, training is not."""
        g, v = layouts.NORMED
        is_wanted = _has(g, parts)
        if is_wanted == (g in values):
            return
        if g in values:
            norm, direction = values.pop(g), values.pop(v)
            values["weight"] = direction._replace(array=layouts.of_norm(norm.array, direction.array))
        elif self._like is not None and "weight" in values:
            weight = values.pop("weight")
            shape = self._like.shapes(layer._replace(parts=tuple(parts)))[g]
            for name, array in zip((g, v), layouts.to_norm(weight.array, shape), strict=True):
                values[name] = weight._replace(array=array)
        if self._like is not None:
            name = self._source.name if is_wanted else self._target.name
            self._state.differences.append(f"{layer.path}: {name} has no weight norm here; it affects training only")

    def _fit_biases(self, values: dict[str, _Value], parts: Sequence[Part]) -> None:
        """Adds zeros for a bias that the source lacks where the target has it in one array with others: some
        attentions have no bias for their keys, which does not change a softmax."""
        for part in parts:
            lacking = [name for name in part.of if name not in values and name.endswith(".bias")]
            if not lacking or len(lacking) == len(part.of):
                continue
            beside = next(values[name] for name in part.of if name in values)
            for name in lacking:
                weight = values[name.replace(".bias", ".weight")].array
                values[name] = beside._replace(array=np.zeros_like(weight, shape=weight.shape[:1]))
                self._state.differences.append(
                    f"{part.name}: {self._source.name} has no {name}, and zeros are in its place"
                )

    def _list_missing(self, part: Part, missing: list[str]) -> None:
        if part.of == (layouts.COUNTER,):
            if self._like is not None:
                self._state.differences.append(f"{part.name}: {self._source.name} does not count batches; it stays")
        elif self._like is not None or len(missing) < len(part.of):
            self._state.unmapped[part.name] = f"{self._source.name} has no {' and no '.join(missing)} for it"

    def _list_unused(self, layer: Layer, name: str, value: _Value) -> None:
        state, origin, lacks = self._state, value.origin, f"{self._target.name} has no {name}"
        if name == layouts.COUNTER:
            state.differences.append(f"{origin}: left out, because {self._target.name} does not count batches")
        # a bias of zeros changes nothing; on meta nobody knows
        elif name.endswith(".bias") and (value.array.any() or value.place.kind == "meta"):
            state.unmapped[origin] = f"{lacks}, and only zeros can be left out"
        elif not any(origin in names for names in state.origins.values()):
            state.unmapped[origin] = f"{lacks} in this {layer.kind}"

    # one tensor

    def _write(self, layer: Layer, part: Part, values: list[_Value]) -> None:
        try:
            array = part.rule.native(*[value.array for value in values])
        except layouts.UnfitError as error:
            self._state.unmapped[part.name] = str(error)
            return
        # a run of `xdevice parity` that asks for float64, or for jitter
        if floats.setting():
            array = floats.take(array)
        names = tuple(dict.fromkeys([value.origin for value in values]))
        first = self._source.variables[names[0]]
        variable = None if self._like is None else self._like.variables[part.name]
        wanted = None if variable is None else dtype_name(variable.dtype)
        came, cast = name_of(array.dtype), wanted if self._dtype == LIKE else self._dtype
        if cast is not None and cast != came and came in FLOATS:
            array, came = array.astype(host_dtype(cast)), cast
        if wanted is not None and wanted != came:
            self._casts.setdefault((came, wanted), []).append(part.name)
        if variable is not None:
            self._check_ties(layer, part.name, id(variable), id(first), array)
        place = self._place(values[0].place, variable)
        # once for each device and dtype, of which a model has few
        if (place, came) not in self._possible:
            self._target.require(place)
            require_dtype(self._target, came, part.name, "cast the model first", place=place)
            self._possible.add((place, came))
        self._state[part.name] = self._tensor(array, place)
        self._state.origins[part.name] = names
        self._state._forms[part.name] = _form_of(tuple(first.shape), array.shape) if len(names) == 1 else ""

    def _place(self, place: Device, variable: Any) -> Device:
        """Where the value of a variable of the target is to be, made of one of the source that is at `place`. What is
        on meta in the source stays there, because it has no values; and values do not go to meta unless `device=` says
        so."""
        if place.kind == "meta":
            return place
        if self._device is not None:
            return self._device
        if variable is not None:
            place = self._target.device_of(variable)
        return devices.CPU if place.kind == "meta" else place

    def _tensor(self, array: Array, place: Device) -> Any:
        if place.kind == "meta":
            return self._target.full(array.shape, 0, place, array.dtype.name)
        # an empty array has no memory that could be taken over
        if place is not devices.CPU or not array.size:
            return self._target.from_numpy(array, place)
        # the tensor takes the memory over, so nobody else may have it
        return self._target.from_buffer(owned(array))

    def _check_ties(self, layer: Layer, name: str, variable: int, first: int, array: Array) -> None:
        """Raises `StateError` if one variable of the target would get two values. Lists, as a difference, a variable of
        the source that becomes two variables of the target."""
        before = self._first_names.setdefault(variable, name)
        if before != name:
            values = self._state[before]
            is_known = self._target.device_of(values).kind != "meta"
            if is_known and not np.array_equal(self._target.peek(values), array):
                raise StateError(
                    f"{before} and {name} are one variable of {self._target.name}, and "
                    f"{self._source.name} has two different values for it; untie them in like="
                )
        uses = self._uses.setdefault(first, [])
        if before == name:
            uses.append((variable, name, layer.path))
        # a layer may itself split a parameter, as in_proj_weight; that is no tie
        for other, other_name, path in uses:
            if other != variable and path != layer.path:
                self._state.differences.append(
                    f"{other_name} and {name} are one parameter in {self._source.name}, two in {self._target.name}"
                )
                return


def _has(name: str, parts: Iterable[Part]) -> bool:
    return any(name in part.of for part in parts)


def _form_of(shape: Sequence[int], own: Sequence[int]) -> str:
    """What was done to an array of this shape beside exchanging its axes."""
    size, own_size = math.prod(shape), math.prod(own)
    if size == own_size:
        return "" if sorted(shape) == sorted(own) else ", reshaped"
    return ", a part of it" if size > own_size else ""
