"""`convert_state` and `load_state`: convert a model's parameters to another framework, and write them into a model.

`contract/layouts.py` says how each framework lays out the parameters of each kind of layer.

All parameters go by way of PyTorch's layout: each parameter of the source becomes the parameters of PyTorch that it
stands for, and these become the parameters of the target. What a parameter means is known from its layer, of the source
or of the target, or from `kinds`; its name or shape alone never decides it.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice.base import devices, floats
from xdevice.base.dtypes import FLOATS, dtype_name, host_dtype, name_of
from xdevice.contract import Backend, layouts
from xdevice.contract.conversion import owned
from xdevice.contract.layouts import Layer, Part
from xdevice.core import registry
from xdevice.errors import ArgumentError, NotATensorError, StateError, shown
from xdevice.tensors.refusals import lack_of_memory, require_dtype
from xdevice.weights.disk import replacing, target_of

from . import exercise, folding, given, maps, operations, views
from .adapted import advice
from .pairing import SHAPING, in_doubt, pair_layers, spelled_out
from .settling import Runs
from .sides import (
    Side,
    check_kinds,
    check_told,
    flat_side,
    is_skipped,
    kinds_with,
    model_of,
    model_side,
    shapes_of,
    some_of,
    write_variables,
)
from .trying import lend_values, pair_by_inputs

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from xdevice.base.devices import Device

_LIKE: Final = "like"
_MOST: Final = 12
"""How many reasons an error names."""


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
        pairs: which layer of the source became which of `like`, by path: a dict that `names=` takes again.
        done: a line for each thing that was done to make the source fit: a prefix taken off, a nested state taken out.
        skipped: the names of the variables of `like` that stay as they are, because `skip=` says so.

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
        self.pairs: dict[str, str] = {}
        self._forms: dict[str, str] = {}
        self.done: list[str] = []
        self.skipped: list[str] = []
        self._steps: dict[str, maps.Step] = {}

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

    def save_map(self, path: str | os.PathLike[str]) -> None:
        """Writes which tensor became which, and how it was laid out otherwise, into a JSON file.

        `xdevice convert MAP IN OUT` does the same to another checkpoint of the model, one tensor at a time and without
        either framework. The map needs no values: both models may be on meta. docs/reference/files.md has its format.

        Raises:
            StateError: a tensor was filled by hand or computed from values (a weight norm), or is still in `unmapped`.
            FilePathError: the file cannot be written.

        Costs a millisecond for ten tensors.

        Example:
            >>> import os, tempfile
            >>> state = xdevice.convert_state({"fc.weight": xdevice.ones(2, 3)}, "numpy", kinds={"fc": "linear"})
            >>> state.save_map(os.path.join(tempfile.mkdtemp(), "map.json"))
        """
        if self.unmapped:
            raise StateError(f"{some_of(self.unmapped)} are not mapped: fill or settle them first")
        by_hand = [name for name in self if name not in self._steps]
        if by_hand:
            raise StateError(f"{some_of(by_hand)} were filled by hand, which a map cannot do")
        text = maps.text(self.backend, {name: self._steps[name] for name in self})
        with replacing(target_of(path)) as new, open(new, "w", encoding="utf-8") as file:
            file.write(text)

    def __str__(self) -> str:
        count = f"{len(self)} tensor{'' if len(self) == 1 else 's'} for {self.backend}"
        wide = max(map(len, self), default=0)
        lines = [f"{count}:" if self else f"{count}"]
        for name, value in self.items():
            origin = f"  from {' and '.join(self.origins[name])}" if name in self.origins else ""
            origin += self._forms.get(name, "")
            lines.append(f"  {name:{wide}}  {dtype_name(value.dtype)} {tuple(value.shape)}{origin}")
        lines += ["done:"] * bool(self.done) + [f"  {text}" for text in self.done]
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
    dtype: object = None,
    skip: Iterable[str] = (),
) -> State:
    """The parameters and running statistics of a model, in the layouts of another framework.

    Young: it may change in a minor version. Gives a `State`, whose `unmapped` and `differences` say what could not be
    kept: print it. The tensors share no memory with the source and do not require gradients. docs/reference/models.md
    says how layers are paired and laid out. Costs a copy of every tensor; with `inputs=`, a few runs of both models.

    Args:
        source: a built model; a dict of tensors, those of JAX and NumPy as PyTorch has them; or a checkpoint's path.
        backend: the target: "torch", "paddle", "mxnet", "tensorflow" (Keras), "jax", "numpy", or a `Backend`.
        like: a built model of the target. The result has the names and devices of `like`; without it, the source's.
        kinds: the kind of layers in a dict, or of your own classes, by path, `*` or class: `{"MyNorm": "rms_norm"}`.
        names: which layer of the source is which of `like`, where that is unclear: `{"blocks.*.fc1": "h.*.dense"}`.
        device: where to put the tensors; without it, they are where their counterparts in `like` or the source are.
        inputs: a batch, as the source takes it: tells layers apart that look alike, and compares the models' outputs.
        dtype: what floats are cast to: "bfloat16", or "like" for the dtypes of `like`.
        skip: paths of layers, of either model, that are left out with all below them: a head of another size.

    Raises:
        StateError: layers that pair in several ways or in none, or tensors whose kind is unknown or does not fit.
        DTypeError, DeviceNotFoundError: the target lacks the dtype or the device, or would narrow the dtype.
        NotATensorError, NotBuiltError, UnsupportedError, ArgumentError: an argument is not what is said above.

    Example:
        >>> list(xdevice.convert_state({"fc.weight": xdevice.zeros(2, 3)}, "numpy", kinds={"fc": "linear"}))
        ['fc.weight']
    """
    done: list[str] = []
    with given.opened(source, done) as whole:
        cast = None if dtype is None else _LIKE if dtype == _LIKE else dtype_name(dtype)
        how = _How(device, inputs, cast, given.check_skip(skip))
        return _convert(whole, backend, like, dict(kinds or {}), dict(names or {}), how, done)


class _How(NamedTuple):
    """What `convert_state` is told beside the two models and how they are paired."""

    device: object
    inputs: object
    dtype: str | None
    skip: tuple[str, ...]


def _convert(
    source: Any,
    backend: str | Backend,
    like: Any,
    kinds: dict[str, str],
    renamed: dict[str, str],
    how: _How,
    done: list[str],
) -> State:
    model = registry.kind_of(type(backend))
    if model is not None:
        raise ArgumentError(
            f"the second argument is the target's name, not a {type(backend).__qualname__}; to convert for this one, "
            f"write convert_state(source, {model.backend.name!r}, like=...)"
        )
    target = registry.load(backend.name if isinstance(backend, Backend) else backend)
    state = State(target.name)
    state.done = done
    check_kinds(kinds)
    wanted = None if like is None else model_side(model_of(like, target), {renamed.get(k, k): kinds[k] for k in kinds})
    owner = registry.backend_of_model(source)
    if owner is not None:
        origin = model_side((owner, source), kinds)
    else:
        declared = kinds_with(kinds, wanted, renamed)
        named = given.state_of(source, declared, state.done)
        origin = flat_side(named, declared, how.skip)
    sides = [side for side in (origin, wanted) if side is not None]
    given.require_used(how.skip, sides)
    for side, what in zip(sides, ("left out", "stay as they are"), strict=False):
        names = [name for name in side.variables if is_skipped(name, how.skip)]
        done += [f"{some_of(names)} of {side.backend.name} {what}, as skip= says"] * bool(names)
        state.skipped = names if side is wanted else []
    origin = given.without(origin, how.skip)
    wanted = None if wanted is None else given.without(wanted, how.skip)
    check_told(kinds, renamed, origin, wanted)
    if how.inputs is not None and (wanted is None or origin.model is None):
        raise StateError("inputs= is what two models are called with; give a model, and another one as like=")
    if wanted is None and renamed:
        raise StateError("names= says which layer of like= is meant; give like=, the model")
    origin, wanted = folding.alike(origin, wanted)
    renamed = spelled_out(renamed, origin)
    writer = _Writer(origin, target, state, how)
    if wanted is None:
        for layer in origin.layers:
            writer.put_freely(layer)
    else:
        writer.put_all(origin, wanted, renamed, how.inputs)
    for name in origin.unknown if wanted is None else ():
        state.unmapped[name] = (
            f"no layer that xdevice knows has it; kinds={{{name!r}: 'same'}} takes it as it is, and "
            f"settle({name!r}) says that it is not needed"
        )
    writer.finish()
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
        more = [f"and {len(wrong) - _MOST} more"] * (len(wrong) > _MOST)
        raise StateError(
            f"the state does not fit this {type(model).__qualname__} of {backend.name}, and nothing was written:\n  "
            + "\n  ".join((*wrong[:_MOST], *more))
        )
    write_variables(backend, model, state)
    backend.take_state(model, variables)


# loading


def _misfits(backend: Backend, model: Any, variables: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[str]:
    written: dict[int, str] = {}
    casts: dict[tuple[str, str], list[str]] = {}
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
        if there != here and tuple(variable.shape) == tuple(value.shape):
            casts.setdefault((dtype_name(value.dtype), dtype_name(variable.dtype)), []).append(name)
        elif there != here:
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
    for (came, expected), names in casts.items():
        yield f"{_tensors(names)} {came}, expected {expected}; dtype='like' of convert_state casts"


def _missing(backend: Backend, model: Any, variables: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[str]:
    given = {id(variables[name]) for name in state if name in variables}
    counters = {part.name for layer in backend.layers(model) for part in layer.parts if part.of == (layouts.COUNTER,)}
    unmapped, skipped = (state.unmapped, state.skipped) if isinstance(state, State) else ({}, ())
    for name, variable in variables.items():
        if id(variable) not in given and name not in counters and name not in unmapped and name not in skipped:
            yield f"{name}: missing; strict=False leaves it as it is"
    for name, why in unmapped.items():
        if name not in state:
            yield f"{name}: {why}; strict=False loads the rest"


def _tensors(names: list[str]) -> str:
    return f"{names[0]}: it is" if len(names) == 1 else f"{len(names)} tensors are"


def _form(x: Any) -> str:
    return f"{dtype_name(x.dtype)} {tuple(x.shape)}"


def _form_of(shape: Sequence[int], own: Sequence[int]) -> str:
    """What was done to an array of this shape beside exchanging its axes."""
    if math.prod(shape) != math.prod(own):
        return ", a part of it" if math.prod(shape) > math.prod(own) else ""
    return "" if sorted(shape) == sorted(own) else ", reshaped"


def _is_writable(backend: Backend, variable: Any) -> bool:
    return backend.tensor_of(variable) is not None or backend.can_write(variable)


def _equal(backend: Backend, one: Any, other: Any) -> bool:
    return backend.to_numpy(one).tobytes() == backend.to_numpy(other).tobytes()


# writing


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


class _Writer:
    """Fills a `State`, layer by layer, and lists in it the tensors that could not be mapped."""

    def __init__(self, source: Side, target: Backend, state: State, how: _How) -> None:
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

    def put_freely(self, layer: Layer) -> None:
        parts = [
            part._replace(name=layouts.join(layer.path, part.name))
            for part in self._target.parts(layer.kind, layer.settings)
        ]
        self._fill(layer, parts, None)

    def put_all(self, source: Side, wanted: Side, renamed: Mapping[str, str], inputs: object) -> None:
        found = self._pair(source, wanted, renamed, inputs)
        for one, other in (*found.pairs, *found.bare):
            self._state.pairs[one.path] = other.path
            self.put(one, other, wanted, found.compared)
        self.list_rest([*found.pairs, *found.bare], wanted, found.likely)
        for line in folding.in_code(found.pairs, source, wanted):
            self._list_doubt(line)
        self.list_differences(found.compared.differences)
        agree = found.runs is not None and self._list_outputs(found.runs, wanted, found.pairs)
        for line in self._by_functions if agree else ():
            self._state.differences.remove(line)
            self._state.settings.remove(line)
        for line in self._doubts(found, source, wanted, agree):
            self._list_doubt(line)
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
        only = ("dropout",) if agree else ()
        yield from filter(None, [operations.tell_uncounted(source, wanted, found.compared, only)])
        yield from () if agree else operations.axes_in_doubt(found.pairs, source, wanted)

    def _values(self, bare: Sequence[tuple[Layer, Layer]], wanted: Side, pairs: Sequence[tuple[Layer, Layer]]) -> State:
        """What the target's variables become by these pairs. Empty if one would become two values."""
        tried = _Writer(self._source, self._target, State(self._target.name), self._how)
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
            host = self._source.read(part.name)
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
        place = self._place(names[0], None if wanted is None else wanted.variables[part.name])
        cast = self._how.dtype
        if wanted is not None:
            variable = wanted.variables[part.name]
            cast = dtype_name(variable.dtype) if cast == _LIKE else cast
        came = name_of(array.dtype)
        if cast not in (None, came) and came in FLOATS:
            array = array.astype(host_dtype(cast))
        if wanted is not None:
            self._check_form(part.name, variable, array)
            self._check_ties(layer, part.name, id(variable), id(first), array)
        self._target.require(place)
        require_dtype(self._target, name_of(array.dtype), part.name, "cast the model first", place=place)
        self._state[part.name] = self._tensor(array, place)
        self._state.origins[part.name] = names
        self._state._forms[part.name] = _form_of(tuple(first.shape), array.shape) if len(names) == 1 else ""
        self._state._steps[part.name] = maps.step(layer, part, self._source.variables, cast)

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
                f"{_tensors(names)} {came}, {wanted} in {self._target.name}; dtype='like' casts before loading"
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
