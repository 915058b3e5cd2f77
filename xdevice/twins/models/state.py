"""Defines `State`, a dict of named tensors of one framework. Also defines `Writer`, which fills a `State` with the
parameters of another framework's model, and `write_named`, which writes named tensors into a model.

All parameters are converted in two steps. First, each parameter of the source is converted into the parameters that a
PyTorch layer would have. Then these parameters are converted into the parameters of the target.
"""

from __future__ import annotations

import math
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from xdevice.base import devices, dtypes, floats
from xdevice.base.dtypes import FLOATS, host_dtype
from xdevice.contract.conversion import copy_in_c_order
from xdevice.core import registry
from xdevice.errors import NotATensorError, StateError, shown
from xdevice.tensors import unlisted
from xdevice.tensors.refusals import require_dtype, why_not_writable
from xdevice.twins import owners
from xdevice.twins.contract import layouts
from xdevice.twins.weights.format import FileTensor

from .forms import pixel_order
from .reading import SHAPING, some_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from xdevice.base.devices import Device
    from xdevice.contract import Backend
    from xdevice.twins.contract.layouts import Layer, Part

    from .reading import Array, Request, Twin

LIKE: Final = "like"
"""The value of `dtype=` that requests the dtypes of the target's variables."""
_MOST: Final = 12
"""The maximum number of reasons that an error lists."""


class State(dict[str, Any]):
    """A dict of named tensors of one framework, the result of `convert_state`. `print` shows the source of each tensor.

    Experimental: it may change in a minor version.

    Attributes:
        backend: the name of the tensors' framework.
        origins: a dict from the name of each tensor to the names of its source tensors.
        unmapped: a dict from names to reasons, for tensors of the source that were not converted and for variables of
            `like` that got no value. `state[name] = x` sets the value of a variable of `like`, and removes its name
            from `unmapped`; `settle` removes any name.
        differences: lines about settings that differ, such as eps or padding, if they affect outputs or training; about
            everything that was not compared; and, with `inputs=`, about outputs that differ.
        settings: the lines of `differences` about settings of layers that differ or could not be compared. They may
            explain why equal parameters lead to different outputs.
        pairs: a dict from paths of the source's layers to paths of `like`'s layers, in the form that `names=` accepts.
        done: a line for each step that adapted the source, such as removing a prefix or reordering pixels.
        skipped: the names of the variables of `like` that `skip=` leaves unchanged.

    Example:
        >>> import numpy as np
        >>> weights = {"fc.weight": np.ones((2, 3), "float32")}
        >>> state = xdevice.models.convert_state(weights, "numpy", kinds={"fc": "linear"})
        >>> print(state)
        1 tensor for numpy:
          fc.weight  float32 (2, 3)  from fc.weight
    """

    def __init__(self, backend: str) -> None:
        super().__init__()
        self.backend = backend
        self.origins: dict[str, tuple[str, ...]] = {}
        self.unmapped: dict[str, str] = {}
        self.differences: list[str] = []
        self.settings: list[str] = []
        # the lines in `settings` about values that both models state
        self.stated_by_both: list[str] = []
        self.pairs: dict[str, str] = {}
        # by the name of a tensor, the end of the tensor's line in `print`: how its shape changed
        self._shape_notes: dict[str, str] = {}
        self.done: list[str] = []
        self.skipped: list[str] = []

    def __setitem__(self, name: str, value: Any) -> None:
        """Sets a tensor, and removes its name from `unmapped`."""
        super().__setitem__(name, value)
        getattr(self, "unmapped", {}).pop(name, None)  # unpickling sets items before attributes

    def settle(self, *names: str) -> None:
        """Removes names from `unmapped` because you have dealt with these tensors or do not need them.

        A tensor of the source that you have split or merged by hand stays in `unmapped` until you call this method, and
        strict loading fails until then. For a variable of the model without a value, calling this method is not enough:
        strict loading fails until you set the variable with `state[name] = x`.

        Raises:
            StateError: if a name is not in `unmapped`; in that case no name is removed.

        Costs nothing.

        Example:
            >>> state = xdevice.models.convert_state({}, "numpy", kinds={})
            >>> state.settle("fc.weight")
            Traceback (most recent call last):
            xdevice.errors.StateError: 'fc.weight' is not in unmapped, which contains none
        """
        for name in names:
            if name not in self.unmapped:
                raise StateError(
                    f"{shown(name)} is not in unmapped, which contains {some_of(self.unmapped)}"
                )
        # a name that was passed twice can be deleted only once
        for name in dict.fromkeys(names):
            del self.unmapped[name]

    def __str__(self) -> str:
        """Returns a string with a line for each tensor and its source, followed by lines for the steps, the unmapped
        names and the differences."""
        count = f"{len(self)} tensor{'' if len(self) == 1 else 's'} for {self.backend}"
        width = max(map(len, self), default=0)
        lines = [f"{count}:" if self else count]
        for name, value in self.items():
            origin = (
                f"  from {' and '.join(self.origins[name])}" if name in self.origins else ""
            )
            lines.append(
                f"  {name:{width}}  {_form(value)}{origin}{self._shape_notes.get(name, '')}"
            )
        unmapped = [f"{name}: {why}" for name, why in self.unmapped.items()]
        for title, texts in (
            ("done", self.done),
            ("not mapped", unmapped),
            ("differences", self.differences),
        ):
            if texts:
                lines += [f"{title}:", *(f"  {text}" for text in texts)]
        return "\n".join(lines)


_dtype_name = cache(dtypes.dtype_name)  # there are many tensors, but few dtypes


# writing the parameters of one model


class _Value(NamedTuple):
    """A parameter in PyTorch's layout, and the variable of the source from which it was read."""

    array: Array
    origin: str
    """The name of the source's variable."""
    place: Device
    """The device of the source's variable."""


class Writer:
    """Fills a `State` layer by layer, and also lists the tensors that could not be mapped. `source` is the model to
    convert, `target` is the backend to convert to, and `like` is the target's model, or None."""

    def __init__(
        self,
        source: Twin,
        target: Backend,
        like: Twin | None,
        state: State,
        request: Request,
    ) -> None:
        self._source, self._target, self._like, self._state = source, target, like, state
        self._dtype, device = request.dtype, request.device
        self._device = None if device is None else target.require(devices.parse(device))
        # true in a run of `xdevice parity` that requests float64 or jitter
        self._changes_floats = bool(floats.setting())
        self._supported: set[tuple[Device, str]] = set()
        """The pairs of a device and a dtype that the target is known to support."""
        self._casts: dict[tuple[str, str], list[str]] = {}
        """The names of the tensors whose dtype differs in the target, by the pair of dtypes."""
        self._first_names: dict[int, str] = {}
        """The name under which each variable of the target first got a value, by the `id` of the variable."""
        self._uses: dict[int, list[tuple[int, str, str]]] = {}
        """The variables of the target that were made from a variable of the source, by the `id` of the source's
        variable. An entry consists of the `id` and the name of the target's variable, and the path of the source's
        layer."""

    def put_without_like(self, layer: Layer) -> None:
        """Writes a layer into the state in the target's layout, but under the source's names. Used for a conversion
        without `like`."""
        parts = [
            part._replace(name=layouts.join(layer.path, part.name))
            for part in self._target.parts(layer.kind, layer.settings)
        ]
        # a layer after a flattened image may count the pixels in another order than the target
        layer, lines = pixel_order.reordered(
            layer,
            counterpart=None,
            is_last=partial(pixel_order.puts_channels_last, self._target),
        )
        self._state.done += lines
        self._fill(layer, parts)

    def put(self, layer: Layer, other: Layer, like: Twin) -> None:
        """Writes a layer into the state, under the names and in the layout of its counterpart `other`, a layer of the
        target's model `like`. If the shapes of the two layers cannot agree, lists both layers as unmapped."""
        why = self._why_shapes_differ(layer, other) or self._why_norms_differ(
            layer, other, like
        )
        if why:
            self.list_unmapped([layer, other], why)
            return
        # these parameters follow a flattened image, whose pixels each model may count in its own order
        if any(part.rule.order for part in (*layer.parts, *other.parts)):
            layer, lines = pixel_order.reordered(
                layer, other, partial(pixel_order.has_channels_last, like)
            )
            other, more = pixel_order.reordered(
                other, layer, partial(pixel_order.has_channels_last, self._source)
            )
            self._state.done += [*lines, *more]
        self._fill(layer, other.parts)

    def finish(self) -> None:
        """Adds a line to `differences` for the tensors that have a different dtype in the target. Must be called after
        all layers have been written."""
        for (dtype, wanted), names in self._casts.items():
            self._state.differences.append(
                f"{_tensors_are(names)} {dtype}, but {wanted} in {self._target.name}; pass dtype='like' to cast first"
            )

    def _list_difference(self, difference: str) -> None:
        """Adds the line `difference` to `differences`. Does nothing if there is no model of the target."""
        if self._like is not None:
            self._state.differences.append(difference)

    def list_unmapped(self, layers: Iterable[Layer], why: str) -> None:
        """Lists all parameters of these layers as unmapped, for the reason `why`."""
        for layer in layers:
            for part in layer.parts:
                self._state.unmapped[part.name] = why

    # mismatches

    def _why_shapes_differ(self, layer: Layer, other: Layer) -> str:
        """Returns a message with the settings in `SHAPING` that differ, and so prevent the shapes of two layers from
        agreeing. Returns "" if there are no such settings."""
        ours, theirs = layer.settings, other.settings
        return "; ".join(
            f"{name} is {ours[name]} in {self._source.name}, {theirs[name]} in {self._target.name}"
            for name in SHAPING
            if name in ours and name in theirs and ours[name] != theirs[name]
        )

    def _why_norms_differ(self, layer: Layer, other: Layer, like: Twin) -> str:
        """Returns a message if the weight norms of two layers cannot be converted because they are computed over
        different axes. Returns "" if the axes are the same, or if a layer has no weight norm."""
        # PyTorch's name of the lengths, one of the two parameters of a weight norm; their shape reveals the axes
        g = layouts.WEIGHT_NORM[0]
        if not (_has(g, layer.parts) and _has(g, other.parts)):
            return ""
        ours, theirs = self._source.shapes(layer)[g], like.shapes(other)[g]
        if ours == theirs:
            return ""
        return (
            f"the weight norms are over different axes: in PyTorch's layout, {g} is {ours} in {self._source.name}, "
            f"{theirs} in {self._target.name}; build one of the layers with another dim"
        )

    # one layer

    def _fill(self, layer: Layer, parts: Sequence[Part]) -> None:
        """Writes the parameters of a layer into `parts`, the parameters of its counterpart, and lists the parameters
        that only one of the two layers has."""
        values = self._read(layer)
        # these three calls change `values` so that it has the parameters that `parts` require
        self._fit_spectral(layer, values, parts)
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
        # PyTorch's names of all parameters that some part of the target uses; the source may have more
        used = {name for part in parts for name in part.of}
        for name, value in values.items():
            if name not in used:
                self._list_unused(layer, name, value)

    def _read(self, layer: Layer) -> dict[str, _Value]:
        """Returns a layer's parameters in PyTorch's layout, by PyTorch's names. Parameters that cannot be converted are
        left out, and are listed as unmapped."""
        values = {}
        for part in layer.parts:
            if part.rule.refusal is not None:
                self._state.unmapped[part.name] = part.rule.refusal
                continue
            stored, place = self._values_of(part.name)
            # a shortcut, because most parameters are laid out as in PyTorch
            arrays = (stored,) if part.rule is layouts.SAME else part.rule.canonical(stored)
            for name, array in zip(part.of, arrays, strict=True):
                values[name] = _Value(array, part.name, place)
        return values

    def _values_of(self, name: str) -> tuple[Array, Device]:
        """Returns the values of a variable of the source as an array, and the device of the variable. A tensor of a
        file is on the CPU. A variable on the meta device has no values. In that case, returns an array of zeros with
        the same shape and dtype, which uses almost no memory."""
        value, backend = self._source.variables[name], self._source.backend
        # a tensor of a file is not read before it is needed, so that only one tensor is in memory at a time
        if isinstance(value, FileTensor):
            return value.read(), devices.CPU
        place = backend.device_of(value)
        if place.kind == "meta":
            return np.broadcast_to(
                np.zeros((), host_dtype(_dtype_name(value.dtype))), tuple(value.shape)
            ), place
        return backend.peek(value), place

    def _fit_norm(self, layer: Layer, values: dict[str, _Value], parts: Sequence[Part]) -> None:
        """Changes `values` if only one of the two layers has a weight norm: merges the two parameters of the norm into
        one weight, or splits one weight into two parameters. The outputs then agree, but training differs, so a line is
        added to `differences`."""
        # PyTorch's names of the two parameters of a weight norm: the lengths and the directions
        g, v = layouts.WEIGHT_NORM
        # whether the target's layer has a weight norm, which is possible only with `like`
        is_wanted = _has(g, parts)
        # either both layers have a weight norm, or neither has one
        if is_wanted == (g in values):
            return
        if g in values:
            norm, direction = values.pop(g), values.pop(v)
            values["weight"] = direction._replace(
                array=layouts.weight_of_norm(norm.array, direction.array)
            )
        # there is no weight if `_read` has left it out because its values cannot be converted
        elif self._like is not None and "weight" in values:
            weight = values.pop("weight")
            shape = self._like.shapes(layer._replace(parts=tuple(parts)))[g]
            for name, array in zip(
                (g, v), layouts.norm_of_weight(weight.array, shape), strict=True
            ):
                values[name] = weight._replace(array=array)
        name = self._source.name if is_wanted else self._target.name
        self._list_difference(
            f"{layer.path}: {name} has no weight norm here; the norm affects training only"
        )

    def _fit_spectral(
        self, layer: Layer, values: dict[str, _Value], parts: Sequence[Part]
    ) -> None:
        """Replaces the parameters of a spectral norm in `values` by one weight if the target has no such norm. The
        reverse is impossible: the vectors u and v of a spectral norm are learned together with the weight, and the
        source does not have them."""
        if layouts.SPECTRAL_NORM[0] not in values or _has(layouts.SPECTRAL_NORM[0], parts):
            return
        original, u, v = (values.pop(name) for name in layouts.SPECTRAL_NORM)
        # a state of tensors does not have this setting; in that case `weight_of_spectral` determines the axis
        axis = layer.settings.get(layouts.SPECTRAL_AXIS)
        array = layouts.weight_of_spectral(
            original.array, u.array, v.array, axis if isinstance(axis, int) else None
        )
        values["weight"] = original._replace(array=array)
        self._list_difference(
            f"{layer.path}: {self._target.name} has no spectral norm here; the norm affects training only"
        )

    def _fit_biases(self, values: dict[str, _Value], parts: Sequence[Part]) -> None:
        """Adds zeros to `values` for biases that the source lacks, if the target stores them in one array with biases
        that the source has. Some attentions have no bias for their keys, because such a bias would not change the
        softmax."""
        for part in parts:
            lacking = [
                name for name in part.of if name not in values and name.endswith(".bias")
            ]
            # a part without any bias in the source is listed as missing, and not filled with zeros
            if not lacking or len(lacking) == len(part.of):
                continue
            # another parameter of the same array, which supplies the origin and the device
            sibling = next(values[name] for name in part.of if name in values)
            for name in lacking:
                # a bias has one number for each row of the weight of the same projection
                weight = values[name.replace(".bias", ".weight")].array
                values[name] = sibling._replace(
                    array=np.zeros_like(weight, shape=weight.shape[:1])
                )
                self._state.differences.append(
                    f"{part.name}: {self._source.name} has no {name}, so it is set to zeros"
                )

    def _list_missing(self, part: Part, missing: list[str]) -> None:
        """Lists a parameter of the target that gets no value, because the source lacks the parameters `missing`
        (PyTorch's names). A count of batches is listed as a difference. Any other parameter is listed as unmapped.
        Without `like`, `part` is not listed if the source has none of its parameters."""
        if part.of == (layouts.COUNTER,):
            self._list_difference(
                f"{part.name}: {self._source.name} does not count batches, so this count is unchanged"
            )
        # without `like`, the target's layer may be built without this part, such as a bias
        elif self._like is not None or len(missing) < len(part.of):
            self._state.unmapped[part.name] = (
                f"{self._source.name} has no {' and no '.join(missing)} for it"
            )

    def _list_unused(self, layer: Layer, name: str, value: _Value) -> None:
        """Lists a parameter of the source that the target does not use: as a difference if it is a count of batches,
        otherwise as unmapped. `name` is the parameter's name in PyTorch. A parameter without effect is not listed if
        another parameter from the same variable of the source was converted."""
        state, origin, lacks = self._state, value.origin, f"{self._target.name} has no {name}"
        if name == layouts.COUNTER:
            state.differences.append(
                f"{origin}: left out, because {self._target.name} does not count batches"
            )
        # only the biases of an attention's projections have names with a dot, such as "k_proj.bias". One variable may
        # contain three such biases, and the branch below does not list it if another of the three was converted. So a
        # bias that is not all zeros is always listed here; on meta it is not known whether a bias is all zeros
        elif name.endswith(".bias") and (value.array.any() or value.place.kind == "meta"):
            state.unmapped[origin] = f"{lacks}, and a bias can be left out only if it is zero"
        # any other parameter, including a bias of zeros, is listed unless another parameter of the same variable was
        # converted
        elif not any(origin in names for names in state.origins.values()):
            state.unmapped[origin] = f"{lacks} in this {layer.kind} layer"

    # one tensor

    def _write(self, layer: Layer, part: Part, values: list[_Value]) -> None:
        """Writes one tensor of the target, which `part` describes. `layer` is the layer of the source, and `values`
        contains its values for PyTorch's parameters in `part.of`. If the values do not fit the target's layout, lists
        the tensor as unmapped."""
        arrays = [value.array for value in values]
        try:
            array = arrays[0] if part.rule is layouts.SAME else part.rule.native(*arrays)
        except layouts.UnfitError as error:
            self._state.unmapped[part.name] = str(error)
            return
        if self._changes_floats:
            array = floats.take(array)
        # one variable of the source may contain several of PyTorch's parameters; its name is then listed once
        names = tuple(dict.fromkeys([value.origin for value in values]))
        # of several variables, only the first is looked up: two tied layers are assumed to share all of them
        first_source = self._source.variables[names[0]]
        variable = None if self._like is None else self._like.variables[part.name]
        target_dtype = None if variable is None else _dtype_name(variable.dtype)
        dtype = _dtype_name(array.dtype)
        requested = target_dtype if self._dtype == LIKE else self._dtype
        # counters and other integers keep their dtype, because dtype= is for floats
        if requested is not None and requested != dtype and dtype in FLOATS:
            array, dtype = array.astype(host_dtype(requested)), requested
        if target_dtype is not None and target_dtype != dtype:
            self._casts.setdefault((dtype, target_dtype), []).append(part.name)
        # in this order, because the first call stores the first name of the variable, which the second one reads
        if variable is not None:
            self._refuse_two_values(part.name, id(variable), array)
            self._list_split_variable(layer, part.name, id(variable), id(first_source))
        # a tensor is on one device, so the device of the first value decides for a tensor made from several
        device = self._place(values[0].place, variable)
        # checked once for each device and dtype
        if (device, dtype) not in self._supported:
            # the device of a variable of the target exists, but a meta device comes from the source, and the target may
            # not have one
            if variable is None or device.kind == "meta":
                self._target.require(device)
            require_dtype(self._target, dtype, part.name, "cast the model first", place=device)
            self._supported.add((device, dtype))
        self._state[part.name] = self._tensor(array, device)
        self._state.origins[part.name] = names
        # there is no note on a tensor made from several variables, because it has none of their shapes anyway
        self._state._shape_notes[part.name] = (
            _shape_note(tuple(first_source.shape), array.shape) if len(names) == 1 else ""
        )

    def _place(self, place: Device, variable: Any) -> Device:
        """Returns the device for a value in the target. `place` is the device of the source's variable. `variable` is
        the target's variable, or None. A variable that is on the meta device in the source has no values, so it stays
        on the meta device. Other values are put on the meta device only if `device=` is meta."""
        if place.kind == "meta":
            return place
        if self._device is not None:
            return self._device
        if variable is not None:
            place = self._target.device_of(variable)
        return devices.CPU if place.kind == "meta" else place

    def _tensor(self, array: Array, place: Device) -> Any:
        """Returns the array as a tensor of the target's framework on the device `place`."""
        if place.kind == "meta":
            return self._target.full(array.shape, 0, place, array.dtype.name)
        # an empty array has no memory that the tensor could use
        if place is not devices.CPU or not array.size:
            return self._target.from_numpy(array, place)
        # the tensor uses the memory of the array, so no other array may share that memory
        return self._target.from_buffer(copy_in_c_order(array))

    def _refuse_two_values(self, name: str, target_id: int, array: Array) -> None:
        """Raises `StateError` if a variable of the target has two names (is tied) and would get a different value under
        each of them. `target_id` is the `id` of the variable, and `array` is the value under the name `name`."""
        first_name = self._first_names.setdefault(target_id, name)
        if first_name == name:
            return
        value = self._state[first_name]
        # on meta, tied tensors have no values that could differ
        is_known = self._target.device_of(value).kind != "meta"
        # a NaN is unequal to itself, and a tied weight that has one is still tied
        if is_known and not np.array_equal(self._target.peek(value), array, equal_nan=True):
            raise StateError(
                f"{first_name} and {name} are the same variable in {self._target.name}, but {self._source.name} has "
                f"two different values; untie the two names in like="
            )

    def _list_split_variable(
        self, layer: Layer, name: str, target_id: int, source_id: int
    ) -> None:
        """If a variable of the source becomes two variables of the target, lists this as a difference. `layer` is the
        layer of the source, and `name` is the name of the target's variable. `target_id` and `source_id` are the `id`s
        of the two variables."""
        uses = self._uses.setdefault(source_id, [])
        # a tied variable of the target is entered once, under its first name
        if self._first_names[target_id] == name:
            uses.append((target_id, name, layer.path))
        # a layer may split one of its own parameters, such as in_proj_weight, which is not a tie
        for other_id, other_name, path in uses:
            if other_id != target_id and path != layer.path:
                self._state.differences.append(
                    f"{other_name} and {name} are one parameter in {self._source.name}, but two in {self._target.name}"
                )
                return


def _has(name: str, parts: Iterable[Part]) -> bool:
    """Whether one of the parts corresponds to PyTorch's parameter `name`."""
    return any(name in part.of for part in parts)


def _shape_note(shape: Sequence[int], new: Sequence[int]) -> str:
    """Returns a note for the line about a tensor. The note says how the shape changed from `shape` to `new`. Returns ""
    if nothing changed or only the order of the axes changed. Also returns "" if the tensor became larger, because it
    then contains all values of the source's tensor. The other values are repetitions, zeros for a second bias that the
    source lacks, or zeros that `differences` or (for `names=`) `done` mentions."""
    size, new_size = math.prod(shape), math.prod(new)
    if size == new_size:
        return "" if sorted(shape) == sorted(new) else ", reshaped"
    return ", a part of it" if size > new_size else ""


# loading


def write_named(model: Any, state: Mapping[str, Any], *, strict: bool) -> None:
    """Writes named tensors into the variables of a model, in place, for `load(state, into=model)`.

    For a variable with several names, `state` may contain one or more of these names. If it contains several, their
    values must be equal. PyTorch's `num_batches_tracked` may always be missing. The `differences` of a `State` are not
    errors.

    Raises:
        StateError: if tensors do not fit; with `strict`, also if a variable is missing. In both cases nothing is
            written.
        NotATensorError: if `model` is not a model.
        UnsupportedError: with `strict`, if the model contains layers or parameters that its framework does not list.
    """
    backend = owners.backend_of_model(model)
    if backend is None:
        raise NotATensorError(
            f"expected a model to load into, not {shown(model, 60)} of type {type(model).__qualname__}"
        )
    if strict:
        # the parameters of layers in a plain list are not among the model's variables, and would silently keep their
        # values
        unlisted.refuse(backend, model, "loading into")
    variables = dict(backend.variables(model))
    wrong = []
    has_other_names = False
    if unknown := [name for name in state if name not in variables]:
        wrong.append(
            f"{some_of(unknown)}: the model has no such variable; it has {some_of(variables)}"
        )
        # a state that was converted without like= has different names: a single line about this replaces the lines
        # about the variables
        has_other_names = isinstance(state, State) and not state.pairs
    if has_other_names:
        wrong.append(
            "the state was converted without like=; pass this model as like= to get its names"
        )
    wrong += _misfits(backend, model, variables, state)
    if strict and not has_other_names:
        wrong += _missing(backend, model, variables, state)
    if len(wrong) > _MOST:
        wrong[_MOST:] = [f"and {len(wrong) - _MOST} more"]
    if wrong:
        raise StateError(
            f"the state does not fit this {type(model).__qualname__} of {backend.name}, so nothing was written:\n  "
            + "\n  ".join(wrong)
        )
    write_variables(backend, model, variables, state)
    # modules of PyTorch with extra state have their own method to restore it
    backend.take_state(model, variables)


def write_variables(
    backend: Backend, model: Any, variables: Mapping[str, Any], values: Mapping[str, Any]
) -> None:
    """Writes each of `values` into the model's variable of the same name. `variables` contains the model's variables by
    name. Each value must have the dtype and the shape of its variable, but may be on another device."""

    def on_its_device(name: str) -> Any:
        """Returns the value with this name on the device of its variable."""
        place, value = backend.device_of(variables[name]), values[name]
        return value if backend.device_of(value) is place else backend.move(value, place)

    # JAX arrays are immutable, so the modules get new arrays
    if backend.has_layers(model):
        backend.write_layers(model, {name: on_its_device(name) for name in values})
        return
    for name in values:  # one at a time, so that no second copy of a model is on its device
        backend.write(variables[name], on_its_device(name))


def _misfits(
    backend: Backend, model: Any, variables: Mapping[str, Any], state: Mapping[str, Any]
) -> Iterator[str]:
    """Yields a line for each tensor that cannot be written into the variable of the same name. Tensors with the same
    mismatch of dtypes share one line."""
    # the first name in `state` of each variable, by the `id` of the variable
    first_names: dict[int, str] = {}
    casts: dict[tuple[str, str], list[str]] = {}
    for name, value in state.items():
        if name not in variables:
            continue
        variable = variables[name]
        owner = registry.owner_and_kind(type(value))
        if owner is None or owner.kind != "tensor" or owner.backend is not backend:
            yield f"{name}: expected a tensor of {backend.name}, got {type(value).__qualname__}; use convert_state"
            continue
        # before everything else, because the comparison of two values of a tied variable would raise an error
        if backend.device_of(value).kind == "meta":
            yield f"{name}: it is on the meta device, where it has no values"
            continue
        expected, actual = _form(variable), _form(value)
        # the dtypes differ, and not the shapes
        if expected != actual and tuple(variable.shape) == tuple(value.shape):
            casts.setdefault(
                (_dtype_name(value.dtype), _dtype_name(variable.dtype)), []
            ).append(name)
        elif expected != actual:
            yield f"{name}: got {actual}, expected {expected}"
        # the variables of a JAX module need not be writable, because the module gets new ones
        elif not (backend.has_layers(model) or _is_writable(backend, variable)):
            yield f"{name}: the variable is read-only"
        elif lack := why_not_writable(backend, variable):
            yield f"{name}: the variable {lack}"
        first = first_names.setdefault(id(variable), name)
        # checkpoints contain a tied weight under each of its names, with equal values
        if first != name and expected == actual and not _equal(backend, value, state[first]):
            yield f"{name} and {first} are the same variable in the model, but have different values in the state"
    for (dtype, wanted), names in casts.items():
        yield f"{_tensors_are(names)} {dtype}, expected {wanted}; pass dtype='like' to convert_state to cast"


def _missing(
    backend: Backend, model: Any, variables: Mapping[str, Any], state: Mapping[str, Any]
) -> Iterator[str]:
    """Yields a line for each variable of the model for which `state` has no value. Counts of batches never need a
    value. If `state` is a `State`, variables in `skipped` need no value either, but there is also a line for each name
    in `unmapped` without a value."""
    present = {id(variables[name]) for name in state if name in variables}
    # a plain dict has neither of these attributes
    unmapped, skipped = (
        (state.unmapped, state.skipped) if isinstance(state, State) else ({}, ())
    )
    missing = [
        name for name, variable in variables.items()
        if id(variable) not in present and name not in unmapped and name not in skipped
    ]  # fmt: skip
    # the layers are read only if variables are missing, to determine which of these are counters
    parts = (part for layer in backend.layers(model) for part in layer.parts) if missing else ()
    counters = {part.name for part in parts if part.of == (layouts.COUNTER,)}
    yield from (
        f"{name}: the state has no value for it; pass strict=False to leave it unchanged"
        for name in missing
        if name not in counters
    )
    for name, why in unmapped.items():
        if name not in state:
            yield f"{name}: {why}; pass strict=False to load the rest"


def _tensors_are(names: list[str]) -> str:
    """Returns the beginning of a line about tensors: the tensor's name if there is only one, or otherwise their
    number."""
    return f"{names[0]}: it is" if len(names) == 1 else f"{len(names)} tensors are"


def _form(x: Any) -> str:
    """Returns the dtype and the shape of a tensor as a string."""
    return f"{_dtype_name(x.dtype)} {tuple(x.shape)}"


def _is_writable(backend: Backend, variable: Any) -> bool:
    """Whether values can be written into a variable. An object that contains a tensor, such as a tf.Variable, is always
    writable."""
    return backend.tensor_of(variable) is not None or backend.can_write(variable)


def _equal(backend: Backend, one: Any, other: Any) -> bool:
    """Whether two tensors, possibly on different devices, have the same values. NaN is treated as equal to NaN."""
    # a NaN is unequal to itself, and a tied weight that has one is still tied
    return np.array_equal(backend.to_numpy(one), backend.to_numpy(other), equal_nan=True)
