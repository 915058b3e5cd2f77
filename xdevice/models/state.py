"""`convert_state` and `load_state`: convert a model's parameters to another framework, and write them into a model.

`contract/layouts.py` says how each framework lays out the parameters of each kind of layer.

All parameters go by way of PyTorch's layout: each parameter of the source becomes the parameters of PyTorch that it
stands for, and these become the parameters of the target. What a parameter means is known from its layer, of the source
or of the target, or from `kinds`; its name or shape alone never decides it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from xdevice.base import devices, floats
from xdevice.base.dtypes import dtype_name
from xdevice.contract import Backend, layouts
from xdevice.contract.layouts import Layer, Part
from xdevice.core import registry
from xdevice.errors import ArgumentError, NotATensorError, StateError, shown
from xdevice.tensors.refusals import lack_of_memory, require_dtype

from . import folding, operations
from .pairing import SHAPING, pair_layers
from .settling import Runs, lend_values, pair_by_inputs
from .sides import (
    Side,
    check_kinds,
    check_told,
    flat_side,
    kinds_with,
    model_of,
    model_side,
    shapes_of,
    some_of,
    write_variables,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class State(dict[str, Any]):
    """Named tensors of one framework: what `convert_state` gives. A dict; `print` shows what each tensor came from.

    Young: it may change in a minor version.

    Attributes:
        backend: the name of the framework that the tensors are of.
        origins: for each name, the names of the source's tensors that the tensor was made of.
        unmapped: names, each with the reason: tensors of the source that found no place, and variables of `like` that
            were not filled. `state[name] = x` takes out a name of `like`, `settle` any name.
        differences: a line for each difference that is not in the values, but changes outputs or training: another eps,
            momentum, padding, pool, activation or dropout's mode; what could not be compared; with `inputs=`, outputs
            that differ.
        settings: those lines of `differences` that say why equal parameters may give other outputs: what two layers set
            differently, and what could not be compared.

    Example:
        >>> import numpy as np
        >>> state = xdevice.convert_state({"fc.weight": np.ones((2, 3), "float32")}, "numpy", kinds={"fc": "linear"})
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

    def __setitem__(self, name: str, value: Any) -> None:
        """Sets a tensor, and takes its name out of `unmapped`."""
        super().__setitem__(name, value)
        getattr(self, "unmapped", {}).pop(name, None)  # unpickling sets items before attributes

    def settle(self, *names: str) -> None:
        """Takes names out of `unmapped`, to say that you have dealt with these tensors or do not need them.

        A tensor of the source that you split or merged by hand stays in `unmapped` until you call this, and strict
        loading fails. A variable of the model that has no value yet is still missing when loading: `state[name] = x`
        gives it one.

        Raises:
            StateError: a name is not in `unmapped`; then no name was taken out.

        Costs nothing.

        Example:
            >>> state = xdevice.convert_state({}, "numpy", kinds={})
            >>> state.settle("fc.weight")
            Traceback (most recent call last):
            xdevice.errors.StateError: 'fc.weight' is not in unmapped, which has none
        """
        for name in names:
            if name not in self.unmapped:
                raise StateError(f"{shown(name)} is not in unmapped, which has {some_of(self.unmapped)}")
        for name in dict.fromkeys(names):
            del self.unmapped[name]

    def load_into(self, model: Any, *, strict: bool = True) -> None:
        """The same as `xdevice.load_state(model, self, strict=strict)`.

        Raises:
            StateError: as `load_state` does.

        Costs one copy of each tensor.

        Example:
            >>> state = xdevice.convert_state({}, "numpy", kinds={})
            >>> state.load_into("no model")
            Traceback (most recent call last):
            xdevice.errors.NotATensorError: expected a model to load into, not 'no model' of type str
        """
        load_state(model, self, strict=strict)

    def __str__(self) -> str:
        count = f"{len(self)} tensor{'' if len(self) == 1 else 's'} for {self.backend}"
        wide = max(map(len, self), default=0)
        lines = [f"{count}:" if self else f"{count}"]
        for name, value in self.items():
            origin = f"  from {' and '.join(self.origins[name])}" if name in self.origins else ""
            lines.append(f"  {name:{wide}}  {dtype_name(value.dtype)} {tuple(value.shape)}{origin}")
        lines += ["not mapped:"] * bool(self.unmapped) + [f"  {name}: {why}" for name, why in self.unmapped.items()]
        lines += ["differences:"] * bool(self.differences) + [f"  {text}" for text in self.differences]
        return "\n".join(lines)


def convert_state(
    source: Any,
    backend: str | Backend,
    *,
    like: Any = None,
    kinds: Mapping[str, str] | None = None,
    names: Mapping[str, str] | None = None,
    device: object = None,
    inputs: object = None,
) -> State:
    """The parameters and running statistics of a model, in the layouts of another framework.

    Young: it may change in a minor version. Gives a `State`, whose `unmapped` and `differences` say what could not be
    kept: read them, or print it. Dtypes stay; the tensors share no memory with the source and do not require gradients.
    docs/reference/models.md has the layouts, and says how layers are paired. Costs a copy of every tensor through the
    host, 0.2 s for a ResNet-50; with `inputs=` the source also runs once, and the target at least twice.

    Args:
        source: a built model of PyTorch, Paddle, Gluon or Keras; or a flat dict of tensors by name, those of JAX and
            NumPy with PyTorch's layouts and names.
        backend: the target: "torch", "paddle", "mxnet", "tensorflow" (Keras), "jax", "numpy", or a `Backend`.
        like: a built model of the target. The result has the names and devices of `like`; without it, the source's.
        kinds: the kind of layers in a dict, or of layers in a model whose class is your own: `{"fc": "linear"}`.
        names: which layer of the source is which of `like`, for layers where that is unclear: `{"fc1": "head.dense"}`.
        device: where to put the tensors; without it, they are where their counterparts in `like` or the source are.
        inputs: a batch, as the source takes it: tells layers apart that look alike, and compares the models' outputs.

    Raises:
        StateError: layers that pair in several ways or in none, or tensors whose kind is unknown or does not fit.
        DTypeError, DeviceNotFoundError: the target lacks the dtype or the device, or would narrow the dtype.
        NotATensorError, NotBuiltError, UnsupportedError, ArgumentError: an argument is not what is said above.

    Example:
        >>> list(xdevice.convert_state({"fc.weight": xdevice.zeros(2, 3)}, "numpy", kinds={"fc": "linear"}))
        ['fc.weight']
    """
    model = registry.kind_of(type(backend))
    if model is not None:
        raise ArgumentError(
            f"the second argument is the target's name, not a {type(backend).__qualname__}; to convert for this one, "
            f"write convert_state(source, {model.backend.name!r}, like=...)"
        )
    target = registry.load(backend.name if isinstance(backend, Backend) else backend)
    given, renamed = dict(kinds or {}), dict(names or {})
    check_kinds(given)
    wanted = None if like is None else model_side(model_of(like, target), {renamed.get(k, k): given[k] for k in given})
    owner = registry.backend_of_model(source)
    if owner is not None:
        origin = model_side((owner, source), given)
    else:
        origin = flat_side(source, kinds_with(given, wanted, renamed))
    check_told(given, renamed, origin, wanted)
    if inputs is not None and (wanted is None or origin.model is None):
        raise StateError("inputs= is what two models are called with; give a model, and another one as like=")
    if wanted is None and renamed:
        raise StateError("names= says which layer of like= is meant; give like=, the model")
    origin, wanted = folding.alike(origin, wanted)
    state = State(target.name)
    writer = _Writer(origin, target, state, device)
    if wanted is None:
        for layer in origin.layers:
            writer.put_freely(layer)
    else:
        writer.put_all(origin, wanted, renamed, inputs)
    for name in origin.unknown:
        state.unmapped[name] = (
            f"no layer that xdevice knows has it; kinds={{{name!r}: 'same'}} takes it as it is, and "
            f"settle({name!r}) says that it is not needed"
        )
    return state


def load_state(model: Any, state: Mapping[str, Any], *, strict: bool = True) -> None:
    """Writes named tensors into the variables of a model, in place.

    Young: it may change in a minor version.

    Args:
        model: a built model: a PyTorch Module, a Paddle or Keras Layer or Model, a Gluon Block.
        state: tensors of the model's framework by the model's names: what `convert_state(..., like=model)` gives.
        strict: whether every variable must be given, and `unmapped` of a `State` be empty. With False, variables that
            are not given stay as they are. A name that the model does not have, or another shape or dtype, is
            always an error.

    A variable with several names is given by one of them, or by all with one value. PyTorch's `num_batches_tracked`
    may always be missing. What a `State` lists in `differences` is not an error.

    Raises:
        StateError: the state does not fit; all reasons are listed, and nothing was written.
        NotATensorError: `model` is not a model. NotBuiltError: the model has no variables yet.

    Costs one copy of each tensor.

    Example:
        >>> xdevice.load_state([], {})
        Traceback (most recent call last):
        xdevice.errors.NotATensorError: expected a model to load into, not [] of type list
    """
    backend = registry.backend_of_model(model)
    if backend is None:
        raise NotATensorError(
            f"expected a model to load into, not {shown(model, 60)} of type {type(model).__qualname__}"
        )
    variables = dict(backend.variables(model))
    wrong = [*_misfits(backend, model, variables, state)]
    if strict:
        wrong += _missing(backend, model, variables, state)
    if wrong:
        raise StateError(
            f"the state does not fit this {type(model).__qualname__} of {backend.name}, and nothing was written:\n  "
            + "\n  ".join(wrong)
        )
    write_variables(backend, model, state)
    backend.take_state(model, variables)


# loading


def _misfits(backend: Backend, model: Any, variables: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[str]:
    written: dict[int, str] = {}
    for name, value in state.items():
        if name not in variables:
            yield f"{name}: the model has no such variable; it has {some_of(variables)}"
            continue
        variable = variables[name]
        owner = registry.kind_of(type(value))
        if owner is None or owner.kind != "tensor" or owner.backend is not backend:
            yield f"{name}: got a {type(value).__qualname__}, expected a tensor of {backend.name}; use convert_state"
            continue
        there, here = _form(variable), _form(value)
        if there != here:
            yield f"{name}: got {here}, expected {there}"
        elif not (backend.has_layers(model) or _is_writable(backend, variable)):
            yield f"{name}: the variable cannot be written"
        elif lack := lack_of_memory(backend, variable):
            yield f"{name}: the variable {lack}"
        elif backend.device_of(value).kind == "meta":
            yield f"{name}: it is on meta, where it has no values"
        first = written.setdefault(id(variable), name)
        if first != name and there == here and not _equal(backend, value, state[first]):
            yield f"{name} and {first} are one variable in the model, but two different values were given"


def _missing(backend: Backend, model: Any, variables: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[str]:
    given = {id(variables[name]) for name in state if name in variables}
    counters = {part.name for layer in backend.layers(model) for part in layer.parts if part.of == (layouts.COUNTER,)}
    unmapped = state.unmapped if isinstance(state, State) else {}
    for name, variable in variables.items():
        if id(variable) not in given and name not in counters and name not in unmapped:
            yield f"{name}: missing; strict=False leaves it as it is"
    for name, why in unmapped.items():
        if name not in state:
            yield f"{name}: {why}; strict=False loads the rest"


def _form(x: Any) -> str:
    return f"{dtype_name(x.dtype)} {tuple(x.shape)}"


def _is_writable(backend: Backend, variable: Any) -> bool:
    return backend.tensor_of(variable) is not None or backend.can_write(variable)


def _equal(backend: Backend, one: Any, other: Any) -> bool:
    return backend.to_numpy(one).tobytes() == backend.to_numpy(other).tobytes()


# writing


class _Writer:
    """Fills a `State`, layer by layer, and lists in it the tensors that could not be mapped."""

    def __init__(self, source: Side, target: Backend, state: State, device: object) -> None:
        self._source, self._target, self._state = source, target, state
        self._device = None if device is None else devices.parse(device)
        if self._device is not None:
            self._device = target.require(self._device)
        self._by_functions: list[str] = []
        """Lines about activations that only one layer of a pair has: the other model may call the activation as a
        function."""
        self._made: dict[int, tuple[str, int, str]] = {}
        """For each variable of the target that has got its value, by the `id` of the variable: its name, the `id` of
        the source's variable, and the path of the source's layer."""

    def put_freely(self, layer: Layer) -> None:
        parts = [
            part._replace(name=layouts.join(layer.path, part.name))
            for part in self._target.parts(layer.kind, layer.settings)
        ]
        self._fill(layer, parts, None)

    def put_all(self, source: Side, wanted: Side, renamed: Mapping[str, str], inputs: object) -> None:
        runs = None if inputs is None else Runs(source, wanted, inputs)
        if runs is None:
            pairs = pair_layers(source, wanted, renamed)
            compared = operations.of_operations(source, wanted, pairs)
        else:
            pairs, computed = pair_by_inputs(runs, renamed)
            compared = operations.of_calls(source, runs.expected, wanted, computed, pairs)
        for one, other in pairs:
            self.put(one, other, wanted, compared)
        self.list_rest(pairs, wanted)
        for line in folding.in_code(pairs, source, wanted):
            self._list_doubt(line)
        self.list_differences(compared.differences)
        agree = runs is not None and self._list_outputs(runs, wanted, pairs)
        for line in self._by_functions if agree else ():
            self._state.differences.remove(line)
            self._state.settings.remove(line)
        if source.model is not None and not agree and (line := operations.unread(pairs)):
            self._list_doubt(line)
        only = ("dropout",) if agree else ()
        uncounted = operations.tell_uncounted(source, wanted, compared, only)
        doubts = () if agree else operations.axes_in_doubt(pairs, source, wanted)
        for line in filter(None, (uncounted, *doubts)):
            self._list_doubt(line)

    def _list_outputs(self, runs: Runs, wanted: Side, pairs: list[tuple[Layer, Layer]]) -> bool:
        """Runs the target with the converted values, and adds a line to `differences` if its outputs differ from the
        source's. Returns whether they agree."""
        with lend_values(wanted, self._state):
            computed = runs.plain()
            found = runs.outputs_apart(computed)
            if found <= runs.limit:
                return True
            where = runs.where(computed, pairs)
        far = (
            "have other shapes, or numbers that are not finite"
            if math.isinf(found)
            else f"are {found:.2g} of what they are apart"
        )
        self._state.differences.append(f"the outputs on inputs= {far}; {where}")
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
        self._fill(layer, other.parts, wanted)

    def list_rest(self, pairs: list[tuple[Layer, Layer]], wanted: Side) -> None:
        paired = {id(layer) for pair in pairs for layer in pair}
        for side, other in ((self._source, wanted), (wanted, self._source)):
            extra = [layer for layer in side.layers if id(layer) not in paired]
            self._leave(extra, f"only {side.backend.name} has this layer, not {other.backend.name}")
        for name in wanted.unknown:
            self._state.unmapped[name] = (
                f"no layer of {self._target.name} that xdevice knows has it; kinds={{{name!r}: 'same'}} "
                "fills it with the tensor of that name"
            )

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
            self._list_unused(layer, origins[name], name)

    def _read(self, layer: Layer) -> tuple[dict[str, Any], dict[str, str]]:
        """A layer's parameters as arrays in PyTorch's layout, by PyTorch's names; and for each of these names the
        parameter's name in the source."""
        arrays, origins = {}, {}
        for part in layer.parts:
            if part.rule.refusal is not None:
                self._state.unmapped[part.name] = part.rule.refusal
                continue
            host = self._source.backend.to_numpy(self._source.variables[part.name])
            for name, array in zip(part.of, part.rule.canonical(host), strict=True):
                arrays[name], origins[name] = array, part.name
        return arrays, origins

    def _norms_apart(self, layer: Layer, other: Layer, wanted: Side) -> str:
        g = layouts.NORMED[0]
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
        shape = None if wanted is None else shapes_of(wanted.variables, layer._replace(parts=parts)).get(g)
        if (shape is None) == (g not in arrays):
            return
        if shape is None:
            origins["weight"] = origins[v]
            arrays["weight"] = layouts.of_norm(arrays.pop(g), arrays.pop(v))
        elif "weight" in arrays:
            arrays[g], arrays[v] = layouts.to_norm(arrays.pop("weight"), shape)
            origins[g] = origins[v] = origins["weight"]
        if wanted is not None:
            name = self._target.name if shape is None else self._source.backend.name
            self._state.differences.append(f"{layer.path}: {name} has no weight norm here; it affects training only")

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

    def _list_unused(self, layer: Layer, origin: str, name: str) -> None:
        if name == layouts.COUNTER:
            self._state.differences.append(f"{origin}: left out, because {self._target.name} does not count batches")
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
        place = self._device or self._source.backend.device_of(first)
        if wanted is not None:
            variable = wanted.variables[part.name]
            place = self._device or self._target.device_of(variable)
            self._check_form(part.name, variable, array)
            self._check_ties(layer, part.name, id(variable), id(first), array)
        self._target.require(place)
        require_dtype(self._target, array.dtype.name, part.name, "cast the model first", place=place)
        # a new array in C order; np.ascontiguousarray would give a number an axis
        self._state[part.name] = self._target.from_numpy(np.array(array, order="C"), place)
        self._state.origins[part.name] = names

    def _check_form(self, name: str, variable: Any, array: Any) -> None:
        wanted, came = dtype_name(variable.dtype), array.dtype.name
        if wanted != came:
            self._state.differences.append(f"{name}: {came} came, {wanted} in {self._target.name}; cast before loading")

    def _check_ties(self, layer: Layer, name: str, variable: int, first: int, array: Any) -> None:
        """Raises `StateError` if one variable of the target would get two values. Lists, as a difference, a variable of
        the source that becomes two variables of the target."""

        before = self._made.setdefault(variable, (name, first, layer.path))
        held = None if before[0] == name else self._target.to_numpy(self._state[before[0]])
        if held is not None and (held.shape != array.shape or (held != array).any()):
            raise StateError(
                f"{before[0]} and {name} are one variable of {self._target.name}, and "
                f"{self._source.backend.name} has two different values for it; untie them in like="
            )
        for other, (known, origin, path) in self._made.items():
            if origin == first and other != variable and path != layer.path:
                self._state.differences.append(
                    f"{known} and {name} are one parameter in {self._source.backend.name}, two in {self._target.name}"
                )
                return
