"""Reads two values for a comparison. If the values are models with different layers, the state of one model is first
converted to the names and layouts of the other. With `inputs=`, both models run, and their outputs are read.

Names alone are not enough to pair parameters: a square kernel that should be transposed would be compared untransposed,
and a parameter with different names in the two models would seem to be missing. Therefore `convert_state` pairs the
layers, and a parameter that it cannot map is reported as a difference. Parameters are paired by name only if each name
belongs to the same kind of layer in the same layout in both models.
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
from xdevice.twins.models.differences import differing_layers
from xdevice.twins.models.optimizer_states import compare_optimizers
from xdevice.twins.models.pairing import pair_layers
from xdevice.twins.models.reading import read_model
from xdevice.twins.models.state import State
from xdevice.twins.tracing import distances, model_runs
from xdevice.twins.tracing.layerwise import TracedRun, TwoRuns

from . import parting
from .host_leaves import (
    PYTHON,
    joined_path,
    leaves,
    read_leaf,
    read_leaves,
    read_tensor,
    unique_paths,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xdevice.containers.trees import Leaf
    from xdevice.contract import Backend
    from xdevice.twins.contract.layouts import Layer, Part
    from xdevice.twins.tracing.model_runs import ModelRun

    from .host_leaves import HostLeaf


class ReadPair(NamedTuple):
    """The leaves of two values that are to be compared. Corresponding leaves have the same path."""

    actual: list[HostLeaf]
    expected: list[HostLeaf]
    unmapped: dict[str, str]
    """The parameters that have no counterpart in the other model, as a dict from their paths to the reasons."""
    settings: list[str] = []  # noqa: RUF012  # the default of a NamedTuple, which nothing modifies
    """Lines about settings of the two models that differ or could not be compared. These settings may be the reason why
    models with equal parameters return different outputs."""
    stated_by_both: list[str] = []  # noqa: RUF012
    """The lines in `settings` about values that both models state. These values certainly differ."""
    modes: list[str] = []  # noqa: RUF012
    """A line for each pair of models whose modes (training or evaluation) differ or could not be compared. Models that
    differ only in their mode are treated as equal, because the mode changes in each epoch."""

    def swapped(self) -> ReadPair:
        """Returns the same pair with `actual` and `expected` exchanged."""
        return self._replace(actual=self.expected, expected=self.actual)


class _LayeredModel(NamedTuple):
    """A model that consists of layers, with its backend."""

    backend: Backend
    itself: Any
    layers: list[Layer]

    @property
    def parts(self) -> list[Part]:
        """The parts of all layers. A part is a parameter with the rule for its layout."""
        return [part for layer in self.layers for part in layer.parts]

    def places(self) -> dict[str, _ParameterPlace]:
        """Returns a dict that maps the name of each parameter of a known layer to its `_ParameterPlace`."""
        # called only once, because it walks over all modules of the model to find the variables
        variables = dict(self.backend.variables(self.itself))
        return {
            part.name: _ParameterPlace(layer.kind, part, tuple(variables[part.name].shape))
            for layer in self.layers
            for part in layer.parts
        }


class _ParameterPlace(NamedTuple):
    """Describes a parameter of a layer: the kind of the layer, the parameter as a `Part`, and the parameter's shape."""

    kind: str
    part: Part
    shape: tuple[int, ...]

    def is_like(self, other: _ParameterPlace) -> bool:
        """Whether `other` is the same parameter of a layer of the same kind, in the same layout."""
        rule, other_rule = self.part.rule, other.part.rule
        if (self.kind, self.part.of) != (other.kind, other.part.of):
            return False
        # a shortcut: most rules are constants that many layers share
        if rule is other_rule:
            return True
        # any other rule was made for a single layer, and two such rules are compared by their effect on numbers
        if self.shape != other.shape or rule.refusal != other_rule.refusal:
            return False
        # the numbers are all different: if both rules put each number at the same place, the layouts are the same
        numbers = numpy.arange(math.prod(self.shape)).reshape(self.shape)
        pairs = zip(rule.canonical(numbers), other_rule.canonical(numbers), strict=True)
        return all(numpy.array_equal(mine, its) for mine, its in pairs)


def read_pair(actual: object, expected: object, skip: Sequence[str] = ()) -> ReadPair:
    """Reads every leaf of both values into host memory. If the parameters of two models differ in name or layout, both
    models are read with the names and layouts of one of the two. Layers at the paths in `skip` are left out.

    Raises:
        UnsupportedError: if a tensor is symbolic.
        NotBuiltError: if a model has no variables yet.
        ContainerError: if a container contains itself or cannot be walked.
        DTypeError: if the other framework lacks the dtype of a model.
        ArgumentError: if `skip` has paths and the values are not two models.
    """
    if skip and None in (_with_layers(actual), _with_layers(expected)):
        raise ArgumentError(
            "skip= lists layers to leave out when two models are compared, but actual and expected are not both models"
        )
    # the leaves are listed before anything is read, so that two models at the same path are still models when they are
    # matched
    ours, theirs = _unread_leaves(actual, expected), _unread_leaves(expected, actual)
    # new lists are passed, because the lists are extended below and the default lists are shared by all pairs
    whole = ReadPair([], [], {}, [], [], [])
    # a key is a path that was made unique
    for key, (path, value) in ours.items():
        # after all calls of `pop`, `theirs` contains only the leaves that `actual` lacks
        pair = (
            _read_matching(path, value, theirs.pop(key).value, skip)
            if key in theirs
            else ReadPair(list(read_leaf(path, value)), expected=[], unmapped={})
        )
        whole.actual.extend(pair.actual)
        whole.expected.extend(pair.expected)
        whole.unmapped.update(pair.unmapped)
        # `settings` and all later fields are lists of lines, to each of which the path of the pair is added
        for lines, of_pair in zip(whole[3:], pair[3:], strict=True):
            lines.extend(joined_path(path, line) for line in of_pair)
    # the leaves that only `expected` has; the comparison of paths reports these leaves
    for path, value in theirs.values():
        whole.expected.extend(read_leaf(path, value))
    return whole


def _modes(ours: _LayeredModel, theirs: _LayeredModel) -> list[str]:
    """Returns a list with one line if only one of two models is in training mode, or if only one of them states its
    mode. `ours` is the actual model. Otherwise returns an empty list."""
    our_mode, their_mode = (model.backend.is_training(model.itself) for model in (ours, theirs))
    if our_mode == their_mode:
        return []
    # a Keras model has no mode that could be read, because each call passes the mode as an argument
    if our_mode is None or their_mode is None:
        silent = (ours if our_mode is None else theirs).backend.name
        return [
            f"not compared: training or evaluation mode, which a model of {silent} does not state"
        ]
    mode = {True: "training", False: "evaluation"}
    return [f"mode is {mode[our_mode]} in actual, {mode[their_mode]} in expected"]


def read_settings(
    actual: object, expected: object, names: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Returns two lists of lines about settings that differ between two models or could not be compared. The first list
    contains all lines; the second contains only the lines about settings that both models state. `names` maps layers of
    `actual` to layers of `expected`. Both lists are empty if a value has no layers. Neither model runs."""
    ours, theirs = _with_layers(actual), _with_layers(expected)
    if ours is None or theirs is None:
        return [], []
    # both models have the same kinds of layers under the same names, so their settings can be compared without pairing.
    # Within one framework, a setting that a model does not state has its usual value, so both lists are the same
    if ours.backend is theirs.backend and not names and _are_laid_out_alike(ours, theirs):
        lines = differing_layers(ours.backend, actual, expected)
        return lines, lines
    try:
        # on the CPU, because only the settings of the result are used
        state = convert_state(
            ours.itself, theirs.backend, like=theirs.itself, names=dict(names), device="cpu"
        )
    except XDeviceError as error:
        # this is not an error here, because the outputs may agree nevertheless
        return [
            f"not compared: the settings of the layers, because the layers could not be paired: {_first_line(error)}"
        ], []
    dtypes = _dtype_difference(ours, theirs)
    return [*dtypes, *state.settings], [*dtypes, *state.stated_by_both]


def _first_line(error: XDeviceError) -> str:
    """Returns the first line of an error's message."""
    # the other lines are advice about convert_state, which the user has not called
    return str(error).partition("\n")[0]


def _dtype_difference(ours: _LayeredModel, theirs: _LayeredModel) -> list[str]:
    """Returns a list with one line if the parameters of the two models have different float dtypes; otherwise an empty
    list."""
    our_dtypes, their_dtypes = (
        sorted(
            {
                dtype
                for _, x in model.backend.variables(model.itself)
                if _is_float(dtype := dtype_name(x.dtype))
            }
        )
        for model in (ours, theirs)
    )
    if our_dtypes == their_dtypes:
        return []
    return [
        f"dtype is {' and '.join(our_dtypes)} in {ours.backend.name}, "
        f"{' and '.join(their_dtypes)} in {theirs.backend.name}"
    ]


def _is_float(dtype: str) -> bool:
    """Whether `dtype` is the name of a float dtype, such as "bfloat16"."""
    return "float" in dtype


def _unread_leaves(x: object, counterpart: object) -> dict[str, Leaf]:
    """Returns the leaves of the value `x` by unique paths. `counterpart` is the value with which `x` is compared. A
    `State`, which is a dict, is treated as one leaf if `counterpart` is a model of the state's framework."""
    model = _with_layers(counterpart) if isinstance(x, State) else None
    # any other `State` is compared as a dict of tensors
    is_one_leaf = isinstance(x, State) and model is not None and x.backend == model.backend.name
    nodes = [trees.Leaf("", x)] if is_one_leaf else leaves(x)
    return dict(zip(unique_paths(nodes), nodes, strict=True))


def _with_layers(x: object) -> _LayeredModel | None:
    """Returns the model `x` with its layers, or None if `x` has no layers, like a tensor, a variable or an
    optimizer."""
    backend = owners.backend_of_model(x)
    if backend is None:
        return None
    try:
        return _LayeredModel(backend, x, list(backend.layers(x)))
    except AbsentNameError:
        # this is an `UnsupportedError` too, but it means that this version of the framework lacks a private name, and
        # not that `x` has no layers
        raise
    except UnsupportedError:
        return None


def _read_matching(path: str, actual: Any, expected: Any, skip: Sequence[str]) -> ReadPair:
    """Reads two values that have the same path. If the values are two models, and one model has to be converted, both
    are read under the names of the unconverted model. Any other values are read under their own names. Layers at the
    paths in `skip` are left out."""
    ours, theirs = _with_layers(actual), _with_layers(expected)
    # a `State` already has the names of the model for which it was converted
    if isinstance(actual, State) and theirs is not None:
        return _read_with_state(path, actual, theirs)
    if isinstance(expected, State) and ours is not None:
        return _read_with_state(path, expected, ours).swapped()
    if ours is None or theirs is None:
        return _read_unconverted(
            path,
            actual,
            expected,
            unmapped={},
            settings=_optimizer_settings(actual, expected),
        )
    # models with the same names in the same layouts need no conversion; their settings are compared too, because the
    # parameters do not reveal settings
    if ours.backend is theirs.backend and not skip and _are_laid_out_alike(ours, theirs):
        lines = differing_layers(ours.backend, actual, expected)
        pair = _read_unconverted(path, actual, expected, unmapped={}, settings=lines)
    # conversion may be impossible in one direction, because a parameter cannot be split
    elif _is_expected_converted(ours, theirs):
        pair = _read_converted(path, theirs, ours, skip).swapped()
    else:
        pair = _read_converted(path, ours, theirs, skip)
    if pair.unmapped and ours.backend is theirs.backend:
        # for two models of the same framework, lines about the layers are more helpful than the names of the parameters
        # that one model lacks. The names are reported only if there are no such lines
        lines = differing_layers(ours.backend, actual, expected)
        pair = pair._replace(unmapped=_texts_by_path(path, lines) or pair.unmapped)
    return pair._replace(modes=_modes(ours, theirs))


def _read_unconverted(
    path: str, actual: Any, expected: Any, unmapped: dict[str, str], settings: list[str]
) -> ReadPair:
    """Returns the leaves of both values under their own names, together with `unmapped` and `settings`. `settings`
    contains lines about settings that both values state."""
    ours, theirs = (list(read_leaf(path, x)) for x in (actual, expected))
    return ReadPair(ours, theirs, unmapped, settings, settings)


def _optimizer_settings(actual: Any, expected: Any) -> list[str]:
    """Returns a line for each difference between two optimizers. The list is empty for other values, and for optimizers
    with an unknown formula."""
    # the registry treats an optimizer as a model without layers
    kinds = [registry.owner_and_kind(type(x)) for x in (actual, expected)]
    if not all(kind is not None and kind.kind == "model" for kind in kinds):
        return []
    try:
        return compare_optimizers(actual, expected)
    except (UnsupportedError, NotATensorError):
        return []


def _texts_by_path(path: str, lines: list[str]) -> dict[str, str]:
    """Returns lines such as `0: eps is 1e-05, expected 0.001` as a dict. Each key is `path` joined with the path of a
    layer. The value is the rest of the line about the layer. If there are several lines about the same layer, their
    texts are joined."""
    texts: dict[str, str] = {}
    for line in lines:
        # a line begins with its layer's path and a colon
        layer_path, _, text = joined_path(path, line).partition(": ")
        texts[layer_path] = f"{texts[layer_path]}; {text}" if layer_path in texts else text
    return texts


def _are_laid_out_alike(ours: _LayeredModel, theirs: _LayeredModel) -> bool:
    """Whether both models have parameters with the same names, and each name belongs to the same kind of layer in the
    same layout. Equal names do not suffice: PyTorch's Linear and the Conv1D in transformers have parameters with the
    same names, but one of these classes stores its weight transposed."""
    our_places, their_places = ours.places(), theirs.places()
    if our_places.keys() != their_places.keys():
        return False
    return all(our_places[name].is_like(their_places[name]) for name in our_places)


def _is_expected_converted(ours: _LayeredModel, theirs: _LayeredModel) -> bool:
    """Whether `theirs` (the expected model) must be converted to `ours`, because the opposite direction is impossible.
    In that case a parameter of `ours` is the sum of two biases, or the product of a weight norm, and cannot be split
    into the two parameters of `theirs`."""
    # a weight norm stores a weight as two parts, and its first parts are counted here; the model with more weight norms
    # is converted
    our_norms, their_norms = (
        sum(part.of == layouts.WEIGHT_NORM[:1] for part in model.parts)
        for model in (ours, theirs)
    )
    return our_norms < their_norms or any(part.rule.is_lossy for part in ours.parts)


def _read_converted(
    path: str, source: _LayeredModel, target: _LayeredModel, skip: Sequence[str]
) -> ReadPair:
    """Reads two models, both with the names and layouts of `target`. If a parameter has no counterpart, both models are
    read under their own names, and `unmapped` gives the reason. Layers at the paths in `skip` are left out."""
    try:
        # on the CPU, because both models are compared on the host
        state = convert_state(
            source.itself, target.backend, like=target.itself, device="cpu", skip=skip
        )
    except StateError as error:
        return _read_unconverted(
            path, source.itself, target.itself, unmapped={path: str(error)}, settings=[]
        )
    # the models' own names are used, which users find in their code
    if state.unmapped:
        unmapped = {joined_path(path, name): why for name, why in state.unmapped.items()}
        return _read_unconverted(path, source.itself, target.itself, unmapped, settings=[])
    variables = dict(source.backend.variables(source.itself))
    converted = []
    for name, tensor in state.items():
        # a parameter may be made from several parameters, such as a bias from two biases; the first of these has the
        # device
        origins = state.origins[name]
        leaf = read_tensor(source.backend, joined_path(path, name), variables[origins[0]])
        origin = " and ".join(origins)
        value = target.backend.to_numpy(tensor)
        # the device and the dtype of the source are kept for check_device and check_dtype
        converted.append(leaf._replace(value=value, origin=origin if origin != name else ""))
    needed = _read_needed(path, target, state)
    return ReadPair(converted, needed, {}, state.settings, state.stated_by_both)


def _read_with_state(path: str, state: State, model: _LayeredModel) -> ReadPair:
    """Reads a `State` and the model for which it was converted, under the model's names. In the result, `actual`
    contains the tensors of the state."""
    tensors = [
        read_tensor(model.backend, joined_path(path, name), value)
        for name, value in state.items()
    ]
    unmapped = {
        # a name for which the state has a tensor nevertheless can be compared
        joined_path(path, name): why
        for name, why in state.unmapped.items()
        if name not in state
    }
    return ReadPair(tensors, _read_needed(path, model, state), unmapped)


def _read_needed(path: str, model: _LayeredModel, state: State) -> list[HostLeaf]:
    """Reads the variables of a model that `state` must contain: all variables except PyTorch's counts of batches and
    the skipped ones. A shared variable is read only once."""
    variables = dict(model.backend.variables(model.itself))
    counters = {part.name for part in model.parts if part.of == (layouts.COUNTER,)}
    # if the model has a variable under two names, the state contains one of these names
    present = {id(variables[name]) for name in state if name in variables}
    return [
        read_tensor(model.backend, joined_path(path, name), variable)
        for name, variable in variables.items()
        if name in state
        or (id(variable) not in present and name not in counters and name not in state.skipped)
    ]


# comparing with inputs=: the outputs of two models, and the place where the models start to differ


class ModelOutputs(NamedTuple):
    """The outputs of two models or functions for the same inputs, and the traces of the two runs, as returned by
    `run_pair`. `names` maps layers or logged names of `actual` to those of `expected`."""

    actual: list[HostLeaf]
    expected: list[HostLeaf]
    runs: tuple[ModelRun, ModelRun]
    names: Mapping[str, str]

    def aligned(self, ours: HostLeaf, theirs: HostLeaf) -> HostLeaf:
        """Returns `ours`, an output of the actual model, with the path of `theirs`, an output of the expected model,
        and with its channels on the same axis as in `theirs`."""
        channels_last = self.runs[0].has_channels_last, self.runs[1].has_channels_last
        value = distances.aligned(ours.value, theirs.value, channels_last)
        return ours._replace(path=theirs.path, value=value)

    def where(self) -> str:
        """Returns a message that names the first layer whose output differs between the two models. If one of them is a
        function, the message names the first operation that differs. Must be called only if the outputs differ."""
        # a function has no layers to pair, only operations
        if any(run.subject.is_function for run in self.runs):
            return parting.where(*self.runs, self.names)
        try:
            # read after the run, because the run may have built lazy layers
            source, target = (read_model(run.backend, run.trace.model) for run in self.runs)
            pairs = pair_layers(source, target, self.names)
        except StateError as error:
            return f"the layers could not be paired, so no layer is named: {error}"
        ours, theirs = (
            TracedRun(run.trace.backend, run.trace.calls, [leaf.value for leaf in outputs])
            for run, outputs in zip(self.runs, (self.actual, self.expected), strict=True)
        )
        runs = TwoRuns(ours, theirs, pairs)
        if first := runs.first_difference():
            return first.text
        # outputs of different numbers were not compared, so nothing but the number is known to differ
        if len(self.actual) != len(self.expected):
            return "all layers agree"
        # each layer is within the limit, so the cause is an accumulation of small errors
        first = runs.first_difference(strict=True)
        most = f"no layer is off by more than {runs.limit:g} of its largest value, so rounding alone may be the cause"
        return f"{most}; where the error grows most, {first.text if first else 'nothing'}"


def run_pair(actual: Any, expected: Any, inputs: Any, names: Mapping[str, str]) -> ModelOutputs:
    """Runs both models or functions on `inputs`, and copies their outputs to the host. If both return the same number
    of tensors, the channels of the outputs of `actual` are moved to the same axis as in `expected`. `names` maps layers
    or logged names of `actual` to those of `expected`.

    Raises:
        NotATensorError: if an argument is neither a model nor a function, or if `inputs` contains anything but tensors.
        ArgumentError: if a function's framework is unclear, or if a model fails on `inputs`.
        DTypeError, UnsupportedError: if a backend lacks the dtype of an input, or cannot call its models with `inputs`.
    """
    runs = model_runs.run_both(actual, expected, inputs)
    # a model may also return numbers and None, which are not compared
    ours, theirs = (
        [leaf for leaf in read_leaves(run.result) if leaf.owner != PYTHON] for run in runs
    )
    outputs = ModelOutputs(ours, theirs, runs, names)
    if len(ours) != len(theirs):
        return outputs
    return outputs._replace(actual=list(map(outputs.aligned, ours, theirs)))
