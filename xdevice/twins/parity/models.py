"""Reads two values for a comparison. If they are models of two frameworks, one model's state is converted to the other
model's names and layouts first.

If parameters were paired by name, a square kernel that should be transposed would be compared untransposed, and a
parameter that the two frameworks name differently would seem to be missing. So `convert_state` pairs the layers, and a
parameter that it cannot map is reported as a difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from xdevice.containers import trees
from xdevice.contract.private import AbsentNameError
from xdevice.errors import ArgumentError, StateError, UnsupportedError
from xdevice.twins import owners
from xdevice.twins.contract import layouts
from xdevice.twins.models import layer_settings
from xdevice.twins.models.converting import convert_state
from xdevice.twins.models.state import State

from . import readings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xdevice.containers.trees import Leaf
    from xdevice.contract import Backend
    from xdevice.twins.contract.layouts import Layer

    from .readings import Reading


class Pair(NamedTuple):
    """The leaves of two values that are to be compared; leaves that belong together have the same path."""

    actual: list[Reading]
    expected: list[Reading]
    unmapped: dict[str, str]
    """Why a parameter has no counterpart in the other model, by the path of each such parameter."""
    settings: list[str] = []  # noqa: RUF012  # a NamedTuple's default, which nobody changes
    """Lines about settings of the two models that differ, or that could not be compared: because of them, the models
    may give different outputs although their parameters are equal."""


class _Model(NamedTuple):
    """A model that consists of layers, with its backend."""

    backend: Backend
    itself: Any
    layers: list[Layer]


def read_pair(actual: object, expected: object, skip: Sequence[str] = ()) -> Pair:
    """Reads every leaf of both values, as `readings.read` does. Two models of different frameworks are both read in the
    names and layouts of one of the two, without the layers at the paths of `skip`.

    Raises:
        UnsupportedError, NotBuiltError, ContainerError: as `readings.read`. DTypeError: a model whose dtype the other
            framework lacks. ArgumentError: `skip` for other values than two models.
    """
    if skip and None in (_model(actual), _model(expected)):
        raise ArgumentError("skip= says which layers of two models are not compared; give two models")
    ours, theirs = _nodes(actual, expected), _nodes(expected, actual)
    there = {leaf.path: leaf.value for leaf in theirs}
    matched = {leaf.path: _match(leaf.path, leaf.value, there[leaf.path], skip) for leaf in ours if leaf.path in there}
    pairs = {path: pair for path, pair in matched.items() if pair is not None}
    return Pair(
        [reading for leaf in ours for reading in (pairs[leaf.path].actual if leaf.path in pairs else _read(leaf))],
        [reading for leaf in theirs for reading in (pairs[leaf.path].expected if leaf.path in pairs else _read(leaf))],
        {path: why for pair in pairs.values() for path, why in pair.unmapped.items()},
        [_join(path, line) for path, pair in pairs.items() for line in pair.settings],
    )


def _nodes(x: object, beside: object) -> list[Leaf]:
    """The leaves of the value `x`. A `State`, which is a dict, is one leaf if it is compared with a model of its
    framework."""
    model = _model(beside) if isinstance(x, State) else None
    is_one = isinstance(x, State) and model is not None and x.backend == model.backend.name
    return [trees.Leaf("", x)] if is_one else readings.leaves(x)


def _read(leaf: Leaf) -> list[Reading]:
    return list(readings.read_leaf(leaf.path, leaf.value))


def _match(path: str, actual: Any, expected: Any, skip: Sequence[str]) -> Pair | None:
    """The readings of two leaves if both are models, or one is a model and the other a `State`. None if no conversion
    is needed: then the two leaves are compared under their own names."""
    ours, theirs = _model(actual), _model(expected)
    if isinstance(actual, State) and theirs is not None:
        return _beside_state(path, actual, theirs)
    if isinstance(expected, State) and ours is not None:
        return _swap(_beside_state(path, expected, ours))
    if ours is None or theirs is None:
        return None
    if ours.backend is theirs.backend and not skip:
        lines = layer_settings.between(ours.backend, ours.itself, theirs.itself)
        return _apart(path, ours, theirs, {})._replace(settings=lines) if lines else None
    if _is_target(ours, theirs):
        return _swap(_convert(path, theirs, ours, skip))
    return _convert(path, ours, theirs, skip)


def _is_target(ours: _Model, theirs: _Model) -> bool:
    """Whether `theirs` must be converted to `ours`, and not `ours` to `theirs`: because a parameter of `ours` is the
    sum of two biases, or the product of a weight norm, which cannot be split into the two parameters of `theirs`."""
    parts, others = ([part for layer in one.layers for part in layer.parts] for one in (ours, theirs))
    products, made = (sum(part.of == layouts.NORMED[:1] for part in every) for every in (parts, others))
    return any(part.rule.is_lossy for part in parts) or products < made


def _model(x: object) -> _Model | None:
    """The model `x` with its layers; None if `x` has no layers, as a tensor, a variable or an optimizer."""
    backend = owners.backend_of_model(x)
    if backend is None:
        return None
    try:
        return _Model(backend, x, list(backend.layers(x)))
    except AbsentNameError:
        raise
    except UnsupportedError:
        return None


def _swap(pair: Pair) -> Pair:
    return Pair(pair.expected, pair.actual, pair.unmapped, pair.settings)


def _convert(path: str, source: _Model, target: _Model, skip: Sequence[str]) -> Pair:
    try:
        state = convert_state(source.itself, target.backend, like=target.itself, device="cpu", skip=skip)
    except StateError as error:
        return _apart(path, source, target, {path: str(error)})
    if state.unmapped:
        return _apart(path, source, target, {_join(path, name): why for name, why in state.unmapped.items()})
    variables = dict(source.backend.variables(source.itself))
    made = []
    for name, tensor in state.items():
        origin = readings.read_tensor(source.backend, "", variables[state.origins[name][0]])
        value = target.backend.to_numpy(tensor)
        first = " and ".join(state.origins[name])
        made.append(origin._replace(path=_join(path, name), value=value, origin=first if first != name else ""))
    return Pair(made, _read_needed(path, target, state), {}, state.settings)


def _apart(path: str, source: _Model, target: _Model, unmapped: dict[str, str]) -> Pair:
    """The readings of both models under their own names, for models whose layers cannot be paired."""
    ours, theirs = (list(readings.read_leaf(path, side.itself)) for side in (source, target))
    return Pair(ours, theirs, unmapped)


def _beside_state(path: str, state: State, model: _Model) -> Pair:
    given = [readings.read_tensor(model.backend, _join(path, name), value) for name, value in state.items()]
    unmapped = {_join(path, name): why for name, why in state.unmapped.items() if name not in state}
    return Pair(given, _read_needed(path, model, state), unmapped)


def _read_needed(path: str, model: _Model, given: State) -> list[Reading]:
    """Reads the variables of a model that `given` must contain: all but PyTorch's counts of batches and what was
    skipped, and each shared variable only once."""
    variables = dict(model.backend.variables(model.itself))
    counters = {part.name for layer in model.layers for part in layer.parts if part.of == (layouts.COUNTER,)}
    held = {id(variables[name]) for name in given if name in variables}
    return [
        readings.read_tensor(model.backend, _join(path, name), variable)
        for name, variable in variables.items()
        if name in given or (id(variable) not in held and name not in counters and name not in given.skipped)
    ]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}".lstrip(".")
