"""Reads two values for a comparison. If they are models with different layers, one model's state is converted to the
other model's names and layouts first; with `inputs=` both run, and their outputs are read.

If parameters were paired by name, a square kernel that should be transposed would be compared untransposed, and a
parameter that the two models name differently would seem to be missing. So `convert_state` pairs the layers, and a
parameter that it cannot map is reported as a difference. Only where a parameter of the same name belongs to the same
kind of layer and has the same layout in both models do names decide.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from xdevice.base.dtypes import dtype_name
from xdevice.containers import trees
from xdevice.contract.private import AbsentNameError
from xdevice.core import registry
from xdevice.errors import (
    ArgumentError,
    NotATensorError,
    StateError,
    UnsupportedError,
    XDeviceError,
)
from xdevice.twins import owners
from xdevice.twins.contract import layouts
from xdevice.twins.models.converting import convert_state
from xdevice.twins.models.differences import between
from xdevice.twins.models.optimizer_states import compare_optimizers
from xdevice.twins.models.pairing import pair_layers
from xdevice.twins.models.reading import read_model
from xdevice.twins.models.state import State
from xdevice.twins.tracing import distances, model_runs
from xdevice.twins.tracing.layerwise import TracedRun, TwoRuns

from . import parting
from .host_leaves import PYTHON, joined, leaves, read, read_leaf, read_tensor, unique_paths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xdevice.containers.trees import Leaf
    from xdevice.contract import Backend
    from xdevice.twins.contract.layouts import Layer, Part
    from xdevice.twins.tracing.model_runs import ModelRun

    from .host_leaves import HostLeaf


class ReadPair(NamedTuple):
    """The leaves of two values that are to be compared; leaves that belong together have the same path."""

    actual: list[HostLeaf]
    expected: list[HostLeaf]
    unmapped: dict[str, str]
    """Why a parameter has no counterpart in the other model, by the path of each such parameter."""
    settings: list[str] = []  # noqa: RUF012  # a NamedTuple's default, which nobody changes
    """Lines about settings of the two models that differ, or that could not be compared: because of them, the models
    may give different outputs although their parameters are equal."""
    stated_by_both: list[str] = []  # noqa: RUF012
    """Those lines of `settings` whose value both models tell."""
    modes: list[str] = []  # noqa: RUF012
    """A line for each pair of models of which one is in training mode. That alone is not a difference: the mode changes
    with each epoch."""

    def swapped(self) -> ReadPair:
        return self._replace(actual=self.expected, expected=self.actual)


class _LayeredModel(NamedTuple):
    """A model that consists of layers, with its backend."""

    backend: Backend
    itself: Any
    layers: list[Layer]

    @property
    def parts(self) -> list[Part]:
        return [part for layer in self.layers for part in layer.parts]

    def places(self) -> dict[str, _ParameterPlace]:
        """Where each parameter of a known layer is, by the parameter's name."""
        # read once: a model's variables are found by a walk over all its modules
        variables = dict(self.backend.variables(self.itself))
        return {
            part.name: _ParameterPlace(layer.kind, part, tuple(variables[part.name].shape))
            for layer in self.layers
            for part in layer.parts
        }


class _ParameterPlace(NamedTuple):
    """A parameter in its layer."""

    kind: str
    part: Part
    shape: tuple[int, ...]

    def is_like(self, other: _ParameterPlace) -> bool:
        """Whether `other` is the same parameter of a layer of the same kind, in the same layout."""
        one, two = self.part.rule, other.part.rule
        if (self.kind, self.part.of) != (other.kind, other.part.of):
            return False
        # most rules are shared constants
        if one is two:
            return True
        # many rules are made for one layer, so they are compared by what they do
        if self.shape != other.shape or one.refusal != two.refusal:
            return False
        # distinct numbers: if both rules put each at the same place, the layouts are one
        numbers = numpy.arange(math.prod(self.shape)).reshape(self.shape)
        pairs = zip(one.canonical(numbers), two.canonical(numbers), strict=True)
        return all(numpy.array_equal(mine, its) for mine, its in pairs)


def read_pair(actual: object, expected: object, skip: Sequence[str] = ()) -> ReadPair:
    """Reads every leaf of both values, as `host_leaves.read` does. Two models of different frameworks are both read in
    the names and layouts of one of the two, without the layers at the paths of `skip`.

    Raises:
        UnsupportedError, NotBuiltError, ContainerError: as `host_leaves.read`. DTypeError: a model whose dtype the
            other framework lacks. ArgumentError: `skip` for values other than two models.
    """
    if skip and None in (_with_layers(actual), _with_layers(expected)):
        raise ArgumentError(
            "skip= says which layers of two models are not compared; give two models"
        )
    # the containers are walked first, so that models in them are matched as models
    ours, theirs = _unread_leaves(actual, expected), _unread_leaves(expected, actual)
    whole = ReadPair([], [], {}, [], [], [])
    for key, (path, value) in ours.items():
        pair = (
            _match(path, value, theirs.pop(key).value, skip)
            if key in theirs
            else ReadPair(list(read_leaf(path, value)), [], {})
        )
        whole.actual.extend(pair.actual)
        whole.expected.extend(pair.expected)
        whole.unmapped.update(pair.unmapped)
        for lines, of_pair in zip(whole[3:], pair[3:], strict=True):
            lines.extend(joined(path, line) for line in of_pair)
    # what only the expected side has; the comparison of paths reports it
    for path, value in theirs.values():
        whole.expected.extend(read_leaf(path, value))
    return whole


def _modes(ours: _LayeredModel, theirs: _LayeredModel) -> list[str]:
    """A line for two models of which one is in training mode and the other is not, or does not tell."""
    one, other = (model.backend.is_training(model.itself) for model in (ours, theirs))
    if one == other:
        return []
    # Keras passes the mode with each call, so that its models have none to read
    if one is None or other is None:
        silent = (ours if one is None else theirs).backend.name
        return [f"not compared: training or evaluation mode, which {silent} does not tell"]
    mode = {True: "training", False: "evaluation"}
    return [f"mode is {mode[one]} in actual, {mode[other]} in expected"]


def read_settings(
    actual: object, expected: object, names: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Lines about the settings of two models: all of them, and those whose value both models tell. Empty for other
    values. Nothing is run."""
    ours, theirs = _with_layers(actual), _with_layers(expected)
    if ours is None or theirs is None:
        return [], []
    # the same classes under the same names: no pairing is needed to compare what they are set to
    if ours.backend is theirs.backend and not names and _are_laid_out_alike(ours, theirs):
        lines = between(ours.backend, actual, expected)
        return lines, lines
    try:
        # on the CPU, since nothing but the settings is read
        state = convert_state(
            ours.itself, theirs.backend, like=theirs.itself, names=dict(names), device="cpu"
        )
    except XDeviceError as error:
        # no error: the outputs may agree all the same
        return [
            f"not compared: what the layers are set to, since nothing says which is which: {_first_line(error)}"
        ], []
    dtypes = _dtypes_apart(ours, theirs)
    return [*dtypes, *state.settings], [*dtypes, *state.stated_by_both]


def _first_line(error: XDeviceError) -> str:
    # the lines after the first are advice for convert_state, which is not what the user called
    return str(error).partition("\n")[0]


def _dtypes_apart(ours: _LayeredModel, theirs: _LayeredModel) -> list[str]:
    """A line that names the dtypes of two models' parameters, if they differ."""
    one, other = (
        sorted(
            {
                dtype
                for _, x in model.backend.variables(model.itself)
                if _is_float(dtype := dtype_name(x.dtype))
            }
        )
        for model in (ours, theirs)
    )
    if one == other:
        return []
    return [
        f"dtype is {' and '.join(one)} in {ours.backend.name}, {' and '.join(other)} in {theirs.backend.name}"
    ]


def _is_float(dtype: str) -> bool:
    return "float" in dtype


def _unread_leaves(x: object, beside: object) -> dict[str, Leaf]:
    """The leaves of the value `x` by their paths, made unique. A `State`, which is a dict, is one leaf if it is
    compared with a model of its framework."""
    model = _with_layers(beside) if isinstance(x, State) else None
    # otherwise it is compared as the dict of tensors that it is
    is_one = isinstance(x, State) and model is not None and x.backend == model.backend.name
    nodes = [trees.Leaf("", x)] if is_one else leaves(x)
    return dict(zip(unique_paths(nodes), nodes, strict=True))


def _with_layers(x: object) -> _LayeredModel | None:
    """The model `x` with its layers; None if `x` has no layers, as a tensor, a variable or an optimizer."""
    backend = owners.backend_of_model(x)
    if backend is None:
        return None
    try:
        return _LayeredModel(backend, x, list(backend.layers(x)))
    except AbsentNameError:
        # the adapter lacks a private name of its framework, which is no model without layers
        raise
    except UnsupportedError:
        return None


def _match(path: str, actual: Any, expected: Any, skip: Sequence[str]) -> ReadPair:
    """The leaves of two values that have the same path: under the names of one model if a conversion is needed, else
    under their own."""
    ours, theirs = _with_layers(actual), _with_layers(expected)
    if isinstance(actual, State) and theirs is not None:
        return _match_with_state(path, actual, theirs)
    if isinstance(expected, State) and ours is not None:
        return _match_with_state(path, expected, ours).swapped()
    if ours is None or theirs is None:
        return _unconverted(path, actual, expected, {}, _optimizer_settings(actual, expected))
    # the same names of the same layers: only settings could hide a difference
    if ours.backend is theirs.backend and not skip and _are_laid_out_alike(ours, theirs):
        lines = between(ours.backend, actual, expected)
        pair = _unconverted(path, actual, expected, {}, lines)
    # a conversion goes only in the direction in which nothing has to be split
    elif _is_target(ours, theirs):
        pair = _convert(path, theirs, ours, skip).swapped()
    else:
        pair = _convert(path, ours, theirs, skip)
    if pair.unmapped and ours.backend is theirs.backend:
        # of one framework it says more which layers differ than that one of the two lacks some
        lines = between(ours.backend, actual, expected)
        pair = pair._replace(unmapped=_by_path(path, lines) or pair.unmapped)
    return pair._replace(modes=_modes(ours, theirs))


def _unconverted(
    path: str, actual: Any, expected: Any, unmapped: dict[str, str], settings: list[str]
) -> ReadPair:
    """The leaves of both values under their own names."""
    ours, theirs = (list(read_leaf(path, x)) for x in (actual, expected))
    return ReadPair(ours, theirs, unmapped, settings, settings)


def _optimizer_settings(actual: Any, expected: Any) -> list[str]:
    """Returns the differences between two optimizers. Empty for other values, and for optimizers whose formula is not
    known."""
    # optimizers are models without layers
    kinds = [registry.kind_of(type(x)) for x in (actual, expected)]
    if not all(kind is not None and kind.kind == "model" for kind in kinds):
        return []
    try:
        return compare_optimizers(actual, expected)
    except (UnsupportedError, NotATensorError):
        return []


def _by_path(path: str, lines: list[str]) -> dict[str, str]:
    """Lines such as `0: eps is 1e-05, expected 0.001`, by the path of the layer that they are about."""
    texts: dict[str, str] = {}
    for line in lines:
        # the line begins with the path of its layer
        place, _, text = joined(path, line).partition(": ")
        texts[place] = f"{texts[place]}; {text}" if place in texts else text
    return texts


def _are_laid_out_alike(ours: _LayeredModel, theirs: _LayeredModel) -> bool:
    """Whether each parameter of a layer of one model belongs, under the same name and in the same layout, to a layer of
    the same kind in the other model: PyTorch's Linear and the Conv1D of transformers have the same names, and one has
    its weight transposed."""
    here, there = ours.places(), theirs.places()
    if here.keys() != there.keys():
        return False
    return all(here[name].is_like(there[name]) for name in here)


def _is_target(ours: _LayeredModel, theirs: _LayeredModel) -> bool:
    """Whether `theirs` must be converted to `ours`, and not `ours` to `theirs`: because a parameter of `ours` is the
    sum of two biases, or the product of a weight norm, which cannot be split into the two parameters of `theirs`."""
    norms, others = (
        sum(part.of == layouts.NORMED[:1] for part in one.parts) for one in (ours, theirs)
    )
    return norms < others or any(part.rule.is_lossy for part in ours.parts)


def _convert(
    path: str, source: _LayeredModel, target: _LayeredModel, skip: Sequence[str]
) -> ReadPair:
    """The leaves of two models, those of `source` in the names and layouts of `target`; under their own names if a
    parameter has no counterpart."""
    try:
        # on the CPU, because both are compared on the host
        state = convert_state(
            source.itself, target.backend, like=target.itself, device="cpu", skip=skip
        )
    except StateError as error:
        return _unconverted(path, source.itself, target.itself, {path: str(error)}, [])
    # each side under its own names, so that the reader can find the parameters in the code
    if state.unmapped:
        unmapped = {joined(path, name): why for name, why in state.unmapped.items()}
        return _unconverted(path, source.itself, target.itself, unmapped, [])
    variables = dict(source.backend.variables(source.itself))
    converted = []
    for name, tensor in state.items():
        # one parameter may be made of several, such as a bias of two biases
        origins = state.origins[name]
        leaf = read_tensor(source.backend, joined(path, name), variables[origins[0]])
        origin = " and ".join(origins)
        value = target.backend.to_numpy(tensor)
        # device and dtype stay those of the source, which check_device and check_dtype look at
        converted.append(leaf._replace(value=value, origin=origin if origin != name else ""))
    needed = _read_needed(path, target, state)
    return ReadPair(converted, needed, {}, state.settings, state.stated_by_both)


def _match_with_state(path: str, state: State, model: _LayeredModel) -> ReadPair:
    tensors = [
        read_tensor(model.backend, joined(path, name), value) for name, value in state.items()
    ]
    unmapped = {
        # a parameter that a load has filled in anyway is no difference
        joined(path, name): why
        for name, why in state.unmapped.items()
        if name not in state
    }
    return ReadPair(tensors, _read_needed(path, model, state), unmapped)


def _read_needed(path: str, model: _LayeredModel, state: State) -> list[HostLeaf]:
    """Reads the variables of a model that `state` must contain: all but PyTorch's counts of batches and what was
    skipped, and each shared variable only once."""
    variables = dict(model.backend.variables(model.itself))
    counters = {part.name for part in model.parts if part.of == (layouts.COUNTER,)}
    # a variable that the model has under two names is in the state under one of them
    present = {id(variables[name]) for name in state if name in variables}
    return [
        read_tensor(model.backend, joined(path, name), variable)
        for name, variable in variables.items()
        if name in state
        or (id(variable) not in present and name not in counters and name not in state.skipped)
    ]


# what two models return


class ModelOutputs(NamedTuple):
    """The outputs of two models for the same inputs, and the traces of the two runs. Made by `run_pair`."""

    actual: list[HostLeaf]
    expected: list[HostLeaf]
    runs: tuple[ModelRun, ModelRun]
    names: Mapping[str, str]

    def aligned(self, one: HostLeaf, other: HostLeaf) -> HostLeaf:
        """An output of the actual model under the path, and with the axes, of one of the expected model."""
        ends = self.runs[0].has_channels_last, self.runs[1].has_channels_last
        value = distances.aligned(one.value, other.value, ends)
        return one._replace(path=other.path, value=value)

    def where(self) -> str:
        """A text that names the first layer whose output differs between two models, or the operation and the layer
        between a model and a function. Called when the outputs differ."""
        # a function has no layers to pair, only operations
        if any(run.subject.is_function for run in self.runs):
            return parting.where(*self.runs, self.names)
        try:
            # read after the run, which may have built lazy layers
            source, target = (read_model(run.backend, run.trace.model) for run in self.runs)
            pairs = pair_layers(source, target, self.names)
        except StateError as error:
            return f"the layers could not be paired, so none is named: {error}"
        ours, theirs = (
            TracedRun(run.trace.backend, run.trace.calls, [leaf.value for leaf in outputs])
            for run, outputs in zip(self.runs, (self.actual, self.expected), strict=True)
        )
        runs = TwoRuns(ours, theirs, pairs)
        if place := runs.first_difference():
            return place.text
        if len(self.actual) != len(self.expected):
            return "all layers agree"
        # no layer is off by itself, so the errors have added up
        place = runs.first_difference(strict=True)
        most = f"no layer is off by more than {runs.limit:g} of its largest value"
        return f"{most}, so that rounding alone may do this; at its greatest step {place.text if place else 'nothing'}"


def run_pair(actual: Any, expected: Any, inputs: Any, names: Mapping[str, str]) -> ModelOutputs:
    """Runs both models, or functions, and reads their outputs to the host. The axes of `actual`'s outputs are put into
    the order that `expected` has: channels last, or first.

    Raises:
        NotATensorError: an argument is neither a model nor a function, or `inputs` holds no tensors.
        UnsupportedError: a framework whose layers cannot be traced.
    """
    runs = model_runs.run_both(actual, expected, inputs)
    # outputs that are not tensors are left out
    ours, theirs = ([leaf for leaf in read(run.result) if leaf.owner != PYTHON] for run in runs)
    outputs = ModelOutputs(ours, theirs, runs, names)
    if len(ours) != len(theirs):
        return outputs
    return outputs._replace(actual=list(map(outputs.aligned, ours, theirs)))
