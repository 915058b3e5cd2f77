"""Defines `compare_optimizers`, which lists how two optimizers differ, and `convert_optimizer`, which converts the
state of one optimizer to another.

Each adapter describes its optimizers in PyTorch's terms (`contract.optimizers`). For all frameworks, this module
decides which settings matter, how the user can make them equal, and how to interpret the numbers in an optimizer's
state.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from xdevice.base.dtypes import dtype_name
from xdevice.core import registry
from xdevice.errors import NotATensorError, StateError, shown
from xdevice.twins.contract import layouts
from xdevice.twins.contract import optimizers as terms

from .reading import check_kinds, read_model, some_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from xdevice.contract import Backend
    from xdevice.twins.contract.layouts import Layer, Part
    from xdevice.twins.contract.optimizers import Optimizer, Parameter

    from .reading import Names, Twin
    from .state import State

    Array = np.ndarray[Any, Any]
    _Settings = Mapping[str, Any]


def compare_optimizers(source: Any, target: Any) -> list[str]:
    """Lists the differences between two optimizers of any frameworks. Each line names a setting that removes the
    difference, if there is one.

    Experimental: it may change in a minor version.

    The list is empty if equal gradients lead to equal steps. The comparison covers settings, formulas, clipping,
    schedules and groups of parameters. Groups are compared in order. It does not cover the actions of a training loop,
    such as setting a learning rate later or clipping gradients. docs/reference/optimizers.md lists the formulas.

    Args:
        source, target: optimizers of PyTorch, Paddle, Keras or optax, or a Gluon `Trainer`, or an
            `mx.optimizer.Optimizer`.

    | backend | known |
    |---|---|
    | torch | SGD, Adam, AdamW, RMSprop, Adagrad |
    | paddle | SGD, Momentum, Adam, AdamW, RMSProp, Adagrad |
    | mxnet | SGD, NAG, Adam, RMSProp, AdaGrad |
    | tensorflow | Keras's SGD, Adam, AdamW, RMSprop, Adagrad |
    | jax | optax's sgd, adam, adamw, rmsprop, adagrad, and chains of their steps |

    Raises:
        UnsupportedError: if the class of an optimizer is not in the table, even if it is a subclass of one in the
            table.
        NotATensorError: if `source` or `target` is not an optimizer.

    Takes microseconds for each parameter; nothing is read from a device except Keras's learning rate.

    Example:
        >>> xdevice.models.compare_optimizers("sgd", "sgd")
        Traceback (most recent call last):
        xdevice.errors.NotATensorError: expected an optimizer from a supported framework, not 'sgd' of type str
    """
    ours, theirs = _read(source), _read(target)
    # an optimizer agrees with itself, even in its schedule, which is code and cannot be compared
    if source is target:
        return []
    our_groups, their_groups = _groups(ours.optimizer), _groups(theirs.optimizer)
    # if each optimizer has one group, the lines need no number
    if len(our_groups) == len(their_groups) == 1:
        return list(_differences(ours, our_groups[0], theirs, their_groups[0]).values())
    lines = []
    pairs = list(zip(our_groups, their_groups, strict=False))
    if len(our_groups) != len(their_groups):
        # `zip` has dropped the surplus groups of one optimizer
        how = "the surplus groups are not compared"
        if 1 in (len(our_groups), len(their_groups)):
            # one optimizer has the same settings for all parameters, so these can be compared with the settings of each
            # group
            pairs = list(product(our_groups, their_groups))
            how = "each group is compared with the single group"
        groups = "1 group" if len(our_groups) == 1 else f"{len(our_groups)} groups"
        lines.append(
            f"groups: {ours} has {groups} of settings, but {theirs} has {len(their_groups)}; {how}"
        )
    for number, (our_settings, their_settings) in enumerate(pairs, start=1):
        lines += [
            f"group {number}: {line}"
            for line in _differences(ours, our_settings, theirs, their_settings).values()
        ]
    return list(dict.fromkeys(lines))


def convert_optimizer(
    source: Any,
    target: Any,
    state: State,
    *,
    models: tuple[Any, Any],
    kinds: Mapping[str, str] | None = None,
    strict: bool = True,
) -> list[str]:
    """Writes the state of an optimizer (moments, momenta, counts of steps) into an optimizer of another framework.

    Experimental: it may change in a minor version. Training continues with `target` as it would have with `source`
    (docs/reference/optimizers.md). Copies the state through the host.

    Args:
        source, target: optimizers that `compare_optimizers` accepts. A Keras target must be built with
            `optimizer.build(model.trainable_variables)`; any other target may be new.
        state: the result of `convert_state(model, ..., like=other)`, which records the origin of each parameter.
        models: the two models, the source's first.
        kinds: the same as for `convert_state`.
        strict: whether both optimizers must agree in all settings that affect the state, such as betas, and must update
            the same parameters. With False, the state is converted as far as possible, but may be meaningless.

    Returns the differences between the optimizers, by parameter, as lines in the form of `compare_optimizers`.

    Raises:
        StateError: if the optimizers differ, or `source` has no state; in that case nothing is written.
        UnsupportedError, NotATensorError: as with `compare_optimizers`. NotBuiltError: if a Keras target is not built.

    Example:
        >>> state = xdevice.models.convert_state({}, "numpy", kinds={})
        >>> xdevice.models.convert_optimizer("sgd", "sgd", state, models=(None, None))
        Traceback (most recent call last):
        xdevice.errors.NotATensorError: expected an optimizer from a supported framework, not 'sgd' of type str
    """
    ours, theirs = _read(source), _read(target)
    check_kinds(kinds or {})
    source_model, target_model = (
        _twin(read, model, kinds) for read, model in zip((ours, theirs), models, strict=True)
    )
    pairs, unpaired = _pair_up(ours, theirs, state, source_model, target_model)
    lines, blocking = _sorted_differences(ours, theirs, pairs)
    # not possible even with strict=False, because the arrays of the two states have different meanings
    if ours.optimizer.kind != theirs.optimizer.kind:
        raise _refusal(ours, theirs, blocking, "use an optimizer of the same kind")
    if strict and blocking:
        raise _refusal(
            ours,
            theirs,
            blocking,
            "make the settings equal, or pass strict=False to convert as much as possible",
        )
    sources, targets = (
        dict(ours.backend.variables(source)),
        dict(theirs.backend.variables(target)),
    )
    # a new optimizer does not create its state before its first step
    to_come = [
        name for pair in pairs for name in pair.parameter.state.values() if name not in targets
    ]
    targets.update(theirs.backend.state_to_come(target, to_come))
    # all values are computed before the first is written, because an error must leave the target unchanged
    values, unfilled = _values(ours, theirs, pairs, sources, targets)
    # if no slot was filled, all lines have the same cause, and a single message about it is more helpful than a list
    if unfilled and not values:
        raise StateError(
            f"{ours} has no state yet, so there is nothing to convert; take a step first"
        )
    if strict and (unpaired or unfilled):
        raise _refusal(
            ours, theirs, [*unpaired, *unfilled], "pass strict=False to convert the rest"
        )
    for name, array in values.items():
        device = theirs.backend.device_of(targets[name])
        theirs.backend.write(targets[name], theirs.backend.from_numpy(array, device))
    # this gives a new optimizer its state; some backends also have counters that are not tensors
    theirs.backend.take_state(target, targets)
    return lines


# reading


class _ReadOptimizer(NamedTuple):
    """The description of an optimizer, and the backend that read it."""

    backend: Backend
    optimizer: Optimizer

    def __str__(self) -> str:
        """Returns the name of the optimizer for messages, such as "torch's Adam"."""
        return f"{self.backend.name}'s {self.optimizer.name}"


def _read(x: Any) -> _ReadOptimizer:
    """Returns the description of `x`, an optimizer of any framework. Raises `NotATensorError` if `x` belongs to no
    framework, and `UnsupportedError` if it is not an optimizer of a known class."""
    backend = registry.owner_of(type(x))
    # optax's optimizers are tuples of functions, whose type the registry does not know
    backend = backend or next(
        (one for one in registry.list_loaded() if one.has_optimizer(x)), None
    )
    if backend is None:
        raise NotATensorError(
            f"expected an optimizer from a supported framework, not {shown(x, 60)} of type {type(x).__qualname__}"
        )
    return _ReadOptimizer(backend, backend.optimizer(x))


def _groups(optimizer: Optimizer) -> list[_Settings]:
    """Returns the settings of an optimizer's groups of parameters, without duplicates, in the order of the parameters.
    If the optimizer has no parameters yet, returns its common settings."""
    groups: list[_Settings] = []
    for parameter in optimizer.parameters:
        if parameter.settings not in groups:
            groups.append(parameter.settings)
    return groups or [optimizer.settings]


def _twin(read: _ReadOptimizer, model: Any, kinds: Names | None) -> Twin:
    """Returns the model of an optimizer, as a `Twin`. Raises `NotATensorError` if `model` is not a model of the
    optimizer's framework, and `StateError` if `kinds` does not fit it."""
    # JAX modules are refused here, because the state of optax is not converted
    owner = registry.owner_and_kind(type(model))
    if owner is None or owner.kind != "model" or owner.backend is not read.backend:
        raise NotATensorError(
            f"models= must contain the models of the two optimizers, the source's first: expected a model of "
            f"{read.backend.name}, not {shown(model, 60)} of type {type(model).__qualname__}"
        )
    return read_model(read.backend, model, kinds)


# comparing


def _differences(
    ours: _ReadOptimizer,
    our_settings: _Settings,
    theirs: _ReadOptimizer,
    their_settings: _Settings,
) -> dict[str, str]:
    """Returns the differences between two optimizers, as a dict from the name of a setting to a line about it."""
    kind = ours.optimizer.kind
    # the settings of two different formulas have no common meaning
    if kind != theirs.optimizer.kind:
        kinds = f"{ours} is of the kind {kind}, {theirs} of the kind {theirs.optimizer.kind}"
        return {
            "kind": f"kind: {kinds}; these are different formulas, and no setting makes them equal"
        }
    lines = {}
    for name in our_settings:
        # two schedules with the same name may still do different things
        is_code = name in _CODE and our_settings[name] is not None
        if layouts.same_setting(our_settings[name], their_settings[name]) and not is_code:
            continue
        if _matters(name, kind, our_settings, their_settings):
            mine, its = _text(name, our_settings), _text(name, their_settings)
            remedy = _remedy(name, ours, our_settings, theirs, their_settings)
            lines[name] = f"{name}: {mine} in {ours}, {its} in {theirs}; {remedy}"
    return lines


def _matters(name: str, kind: str, our_settings: _Settings, their_settings: _Settings) -> bool:
    """Whether a difference in the setting `name` makes two optimizers of this kind take different steps. The difference
    may have no effect, depending on the other settings."""

    def both(setting: str, value: object) -> bool:
        """Whether the setting has this value in both optimizers."""
        return bool(our_settings[setting] == value == their_settings[setting])

    # without momentum these settings have no effect
    if name in ("nesterov", "dampening", "momentum_holds") and both("momentum", 0):
        return False
    if name == "momentum_holds":
        # a momentum that sums gradients and one that sums steps differ by the learning rate, which cancels out while
        # the rate is constant
        return not both("schedule", None)
    if name == "eps":  # otherwise the line about eps_enters has both values
        return bool(our_settings["eps_enters"] == their_settings["eps_enters"])
    if name == "eps_enters":
        return not both("eps", 0)
    if name == "decay":
        # whether added to a plain gradient or subtracted from the weight, the decay changes the weight w by lr *
        # weight_decay * w
        is_plain = (
            kind == "sgd"
            and both("momentum", 0)
            and terms.SIGN not in (our_settings["decay"], their_settings["decay"])
        )
        return not (is_plain or both("weight_decay", 0))
    return True


def _text(name: str, settings: _Settings) -> str:
    """Returns the setting `name` as a string for a message. The string for `eps_enters` also contains the value of
    eps."""
    value = settings[name]
    if name == "eps_enters":
        return f"{_number(settings['eps'])} {value}"
    return _number(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    """Returns a number as a string for a message."""
    # six digits, because some frameworks store settings in float32
    return f"{value:.6g}"


_CODE: Final = ("schedule", "hooks")
"""Settings whose values are code. xdevice cannot determine whether the code of two optimizers does the same."""
_NONE: Final = "no setting makes them equal"
# the advice for settings that no argument can make equal
_REMEDIES: Final = {
    "hooks": "xdevice does not read the code of hooks: compare the optimizers step by step",
    "momentum_holds": f"{_NONE} except a constant learning rate; whenever the rate changes, multiply the momentum that "
    f"is a sum of steps by new rate / old rate",
    "schedule": "give both the same learning rate at each step, and compare their steps, because a schedule is code",
}


def _remedy(
    name: str,
    ours: _ReadOptimizer,
    our_settings: _Settings,
    theirs: _ReadOptimizer,
    their_settings: _Settings,
) -> str:
    """Returns advice that names an argument with which the setting `name` becomes equal in both optimizers. An argument
    of the target's optimizer is preferred. If no argument can make the setting equal, returns the reason or other
    advice."""
    remedy = _REMEDIES.get(name)
    if name == "eps_enters" and name not in theirs.optimizer.arguments:
        remedy = _remedy_of_eps(theirs, our_settings, their_settings)
    if name == "decay":
        remedy = _remedy_of_decay(theirs, our_settings, their_settings)
    if remedy is not None:
        return remedy
    for read, settings in ((theirs, our_settings), (ours, their_settings)):
        argument = read.optimizer.arguments.get(name)
        if argument is not None:
            value = settings[name]
            text = _number(value) if isinstance(value, float) else repr(value)
            # if no argument controls the setting, the adapter has a sentence in place of the argument's name
            return (
                argument if " " in argument else f"{argument}={text} in {read} makes them equal"
            )
    return _NONE


def _remedy_of_eps(
    theirs: _ReadOptimizer, our_settings: _Settings, their_settings: _Settings
) -> str:
    """Returns advice for two optimizers that add eps at different places in the formula. The advice names the closest
    setting of the target, if there is one."""
    if terms.UNCORRECTED not in (our_settings["eps_enters"], their_settings["eps_enters"]):
        return f"{_NONE}: they agree only as eps approaches 0"
    # at the first step, the root of the corrected second moment is 1 / sqrt(1 - beta2) times the uncorrected root
    root = math.sqrt(1 - our_settings["beta2"])
    eps = (
        our_settings["eps"] * root
        if their_settings["eps_enters"] == terms.UNCORRECTED
        else our_settings["eps"] / root
    )
    argument = theirs.optimizer.arguments.get("eps", "eps")
    return (
        f"{_NONE}, because the correction changes with each step: {argument}={eps:.3g} makes the first step equal, "
        f"and later steps nearly equal for gradients of 1e-2 or more"
    )


def _remedy_of_decay(
    theirs: _ReadOptimizer, our_settings: _Settings, their_settings: _Settings
) -> str | None:
    """Returns advice on how to make the target decay weights as the source does. Returns None if an argument of the
    target controls the decay."""
    # a coupled decay adds the gradient of this sum to the gradient
    if our_settings["decay"] == terms.COUPLED != their_settings["decay"]:
        instead = f"set weight_decay=0 in {theirs}, and add weight_decay / 2 times the sum of squares to the loss"
    elif "decay" in theirs.optimizer.arguments:
        return None
    elif our_settings["decay"] == terms.DECOUPLED:
        instead = f"set weight_decay=0 in {theirs}, and multiply the weights by 1 - lr * weight_decay before each step"
    else:
        instead = "set weight_decay=0 on both sides, and add the decay to the loss"
    return f"{_NONE}: {instead}"


# converting: which parameter is which


class _ParameterPair(NamedTuple):
    """A parameter of the target's optimizer, with its sources: the corresponding parameters of the source's
    optimizer."""

    name: str
    parameter: Parameter
    sources: list[Parameter]
    places: Array
    """For each element of the parameter, the index of the corresponding element in the sources. The elements of all
    sources are numbered consecutively, one source after the other. The array has the shape of the parameter."""


def _pair_up(
    ours: _ReadOptimizer, theirs: _ReadOptimizer, state: State, source: Twin, target: Twin
) -> tuple[list[_ParameterPair], list[str]]:
    """Returns two lists: the pairs of parameters with a state that can be converted, and lines about all other
    parameters. There is a line with the reason for each of the target's other parameters, and one line that names the
    parameters that only the source updates. `source` and `target` are the models. For each variable of `target`,
    `state` records the variables of `source` from which it was converted."""
    # the parameters of the source's optimizer, by the `id` of the model's variable
    updated = {id(parameter.variable): parameter for parameter in ours.optimizer.parameters}
    # the names of the target's variables, by `id`; reversed, so that a tied weight's first name overwrites the others
    name_of = {
        id(x): name
        for name, x in reversed(list(target.variables.items()))
        if name in state.origins
    }
    pairs = []
    unpaired = []
    used: set[int] = set()
    for number, parameter in enumerate(theirs.optimizer.parameters):
        name = name_of.get(id(parameter.variable))
        if name is None:
            unpaired.append(
                f"parameter {number} of {theirs}: it is not in models[1], or `state` has no tensor for it"
            )
            continue
        origins = state.origins[name]
        # the `id` of None, for a variable that the model lacks, is not in `updated`
        ids = [id(source.variables.get(origin)) for origin in origins]
        # even if the pair is refused below, because the line about that pair is enough
        used.update(ids)
        places = _places(name, origins, source, target)
        if not updated.keys() >= set(ids):
            unpaired.append(f"{name}: {ours} does not update {' and '.join(origins)}")
        elif isinstance(places, str):
            unpaired.append(f"{name}: {places}")
        else:
            pairs.append(
                _ParameterPair(
                    name, parameter, [updated[source_id] for source_id in ids], places
                )
            )
    unused = [
        name for name, x in source.variables.items() if id(x) in updated and id(x) not in used
    ]
    if unused:
        unpaired.append(
            f"{theirs} updates no parameter that was converted from {some_of(unused)}"
        )
    # by the `id` of the source's parameter, how often its elements are used
    taken = _elements_taken(pairs)
    # two kinds of sources are left out: a source whose elements are copied into several parameters, because its moments
    # belong to the sum of the parameters' gradients; and a source that is used only in part, because the rest of its
    # moments would be lost. A source that is divided among parameters is converted, because each of its elements is
    # used exactly once
    complete = []
    for pair in pairs:
        if all(taken[id(one)] == _size(one) for one in pair.sources):
            complete.append(pair)
        else:
            unpaired.append(
                f"{pair.name}: moments are converted only if each element of its source is used by exactly one "
                f"parameter, but some elements are used by none or by several"
            )
    return complete, unpaired


def _places(name: str, origins: Sequence[str], source: Twin, target: Twin) -> Array | str:
    """Returns, for each element of the target's parameter `name`, the index of the corresponding element in the
    source's parameters `origins`. The elements of all `origins` are numbered consecutively, one parameter after the
    other. If the elements do not correspond one to one, returns the reason as a string."""
    layer = next(
        (one for one in source.layers if set(origins) <= {part.name for part in one.parts}),
        None,
    )
    part = next(
        (part for one in target.layers for part in one.parts if part.name == name), None
    )
    if layer is None or part is None:
        return "it is in no known layer; pass the same kinds= as to convert_state"
    count = sum(math.prod(source.variables[origin].shape) for origin in origins)
    places, shifted_places = (
        _number_elements(layer, part, origins, source, start) for start in (0, count)
    )
    # the same numbers are converted twice, the second time with `count` added. If the conversion only moves elements
    # and does not compute with them, the results differ by exactly `count`. If it moves them one to one, no number
    # occurs twice
    if (shifted_places - places != count).any() or len(np.unique(places)) < places.size:
        return f"it is computed from {' and '.join(origins)}, so its moments cannot be derived from their moments"
    return places


def _number_elements(
    layer: Layer, part: Part, origins: Sequence[str], source: Twin, start: int
) -> Array:
    """Numbers the elements of the parameters `origins`, starting from `start`, and returns these numbers in the layout
    of the target's parameter `part`. `layer` is the source's layer that has the parameters `origins`."""
    numbers: dict[str, Array] = {}
    parts = {one.name: one for one in layer.parts}
    # the numbers are converted in the same way as the weights
    for source_part in (parts[origin] for origin in origins):
        shape = tuple(source.variables[source_part.name].shape)
        end = start + math.prod(shape)
        counted = np.arange(start, end, dtype="int64").reshape(shape)
        start = end
        numbers.update(zip(source_part.of, source_part.rule.canonical(counted), strict=True))
    return np.asarray(part.rule.native(*(numbers[name] for name in part.of)))


def _elements_taken(pairs: list[_ParameterPair]) -> Counter[int]:
    """Counts the elements of the source's parameters that the target's parameters use. Returns a dict from the `id` of
    each source parameter to the number of its used elements; an element that is used twice is counted twice. A pair is
    converted only if every element of its sources is used exactly once."""
    taken: Counter[int] = Counter()
    for pair in pairs:
        # `places` contains indices among the elements of all sources of a pair: an index belongs to the first source
        # that ends after it
        ends = np.cumsum(list(map(_size, pair.sources)))
        counts = np.bincount(
            np.searchsorted(ends, pair.places.reshape(-1), side="right"), minlength=len(ends)
        )
        taken.update(
            {
                id(parameter): int(count)
                for parameter, count in zip(pair.sources, counts, strict=True)
            }
        )
    return taken


def _size(parameter: Parameter) -> int:
    """Returns the number of elements of a parameter."""
    return math.prod(parameter.variable.shape)


# converting: what the state means


_PART_OF_STATE: Final = (
    "kind", "momentum", "dampening", "beta1", "beta2", "alpha", "centered", "amsgrad", "initial_accumulator_value",
    "maximize", "gradient_scale", "accumulation", "moving_average",
)  # fmt: skip
"""Settings that change the meaning of the numbers in an optimizer's state. The settings of weight decay also change it,
unless the decay is decoupled from the gradients."""


def _sorted_differences(
    ours: _ReadOptimizer, theirs: _ReadOptimizer, pairs: list[_ParameterPair]
) -> tuple[list[str], list[str]]:
    """Returns two lists: the lines about all differences between the two optimizers, and the lines about settings that
    change the meaning of the numbers in a state."""
    # the parameters that each line is about, as a dict, which preserves their order
    names_of: dict[str, dict[str, None]] = {}
    blocking = []
    # without pairs, the common settings are compared
    common = ("", ours.optimizer.settings, theirs.optimizer.settings)
    of_pairs = [
        (pair.name, source_parameter.settings, pair.parameter.settings)
        for pair in pairs
        for source_parameter in pair.sources
    ]
    for name, our_settings, their_settings in of_pairs or [common]:
        for setting, line in _differences(ours, our_settings, theirs, their_settings).items():
            names_of.setdefault(line, {})[name] = None
            if _is_part_of_state(setting, our_settings, their_settings):
                blocking.append(line)
    lines = {
        # a line that applies to all parameters needs no names; without pairs, the only name is ""
        line: line if len(names) >= len(pairs) else f"{some_of(names)}: {line}"
        for line, names in names_of.items()
    }
    return list(lines.values()), [lines[line] for line in dict.fromkeys(blocking)]


def _is_part_of_state(setting: str, our_settings: _Settings, their_settings: _Settings) -> bool:
    """Whether a difference in this setting changes the meaning of the numbers in an optimizer's state."""
    # unless both decays are decoupled, at least one of them is part of the moments
    is_coupled = not our_settings["decay"] == their_settings["decay"] == terms.DECOUPLED
    return setting in _PART_OF_STATE or (setting in ("decay", "weight_decay") and is_coupled)


def _refusal(
    ours: _ReadOptimizer, theirs: _ReadOptimizer, reasons: Sequence[str], instead: str
) -> StateError:
    """Returns an error with the reasons why a state cannot be converted (`reasons`), and with advice on what to do
    (`instead`)."""
    lines = "\n  ".join(reasons)
    return StateError(
        f"the state of {ours} does not fit {theirs}, so nothing was written; {instead}:\n  {lines}"
    )


# converting: the values


def _values(
    ours: _ReadOptimizer,
    theirs: _ReadOptimizer,
    pairs: Iterable[_ParameterPair],
    sources: Mapping[str, Any],
    slots: Mapping[str, Any],
) -> tuple[dict[str, Array], list[str]]:
    """Returns two things: the values for the target's slots, by name, and lines that say why some slots get no value. A
    slot is a named tensor of an optimizer's state. `sources` contains the tensors of the source's state by name, and
    `slots` contains the tensors of the target's state by name."""
    values: dict[str, Array] = {}
    unfilled = []
    for pair in pairs:
        # a parameter may be made from several of the source, such as one weight for queries, keys and values
        states = [_canonical(ours, parameter, sources) for parameter in pair.sources]
        counts = {state[terms.STEP] for state in states if terms.STEP in state}
        if len(counts) > 1:
            unfilled.append(
                f"{pair.name}: it is computed from parameters with different counts of steps: "
                f"{', '.join(map(str, sorted(counts)))}"
            )
            continue
        for slot, name in pair.parameter.state.items():
            array = _native(slot, pair, states)
            if array is None:
                # if the formula of the source needs no count of steps, the formula of the target needs none either
                if slot != terms.STEP:
                    unfilled.append(f"{pair.name}: {ours} stores no {_torch_name(slot)} for it")
                continue
            wanted = dtype_name(slots[name].dtype)
            if slot == terms.STEP or slot in terms.POWERS:
                # `array` is one number here, and the target stores it as an array of some shape
                array = np.full(tuple(slots[name].shape), array, wanted)
            if array.dtype.name != wanted:
                came = array.dtype.name
                unfilled.append(
                    f"{pair.name}: the {slot} is {came}, but {wanted} in {theirs}; cast it first"
                )
            # Keras has one count of steps for all parameters
            elif name in values and (values[name] != array).any():
                unfilled.append(
                    f"{pair.name}: {theirs} has one count of steps for all parameters, but {ours} has different counts"
                )
            else:
                values[name] = array
    return values, unfilled


def _canonical(
    ours: _ReadOptimizer, parameter: Parameter, sources: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the state of a parameter in PyTorch's terms, by PyTorch's names; an empty dict if the parameter has no
    state yet. A momentum is left out if it was stored after multiplication by a learning rate of 0, because it cannot
    be recovered. `sources` contains the tensors of the whole state, by name."""
    state: dict[str, Any] = {}
    settings: _Settings = parameter.settings
    for slot, name in parameter.state.items():
        if name not in sources:
            continue
        array = ours.backend.to_numpy(sources[name])
        if slot in terms.FORMS:
            # the stored momentum was multiplied by this factor, and cannot be recovered if the factor is 0
            if factor := terms.FORMS[slot] * float(settings["lr"]):
                state[_torch_name(slot)] = array / np.asarray(factor, array.dtype)
        elif slot == terms.STEP:
            state[slot] = int(array.reshape(-1)[0])
        # only the power of beta2 is read: beta2 is closer to 1 than beta1, so its power takes more steps to become 0
        elif slot == terms.POWERS[1]:
            state[terms.STEP] = _steps(float(array.reshape(-1)[0]), float(settings["beta2"]))
        elif slot not in terms.POWERS:
            state[slot] = array
    return state


def _steps(power: float, beta: float) -> int:
    """Returns t, the number of steps that an optimizer has taken, computed from a power of beta. `power` is beta^(t +
    1). If the stored power of beta has become 0, the result is only a lower bound. This is sufficient, because Adam's
    correction is 1 for any large t. Returns 0 for a beta that is not between 0 and 1, because the powers of such a beta
    do not reveal t."""
    if not 0 < beta < 1:
        return 0
    # in place of a power that has become 0, which has no logarithm
    smallest = float(np.finfo("float32").tiny)
    return max(round(math.log(max(power, smallest)) / math.log(beta)) - 1, 0)


def _torch_name(slot: str) -> str:
    """Returns PyTorch's name of a slot. For both forms of a momentum in `terms.FORMS`, PyTorch's name is
    "momentum_buffer"."""
    return "momentum_buffer" if slot in terms.FORMS else slot


def _native(slot: str, pair: _ParameterPair, states: list[dict[str, Any]]) -> Any:
    """Returns the value of the target's slot: a number if the slot is a count or a power, and otherwise an array. The
    value is computed from `states`, which contains the states of the source's parameters in PyTorch's terms. Returns
    None if one of `states` lacks the value. All `states` have the same count of steps."""
    wanted = terms.STEP if slot in terms.POWERS else _torch_name(slot)
    if any(wanted not in state for state in states):
        return None
    settings: _Settings = pair.parameter.settings
    # the default is never used: `steps` is needed only for a count or a power, and in that case all states have a count
    steps = states[0].get(terms.STEP, 0)
    if slot == terms.STEP:
        return steps
    if slot in terms.POWERS:
        return settings["beta1" if slot == terms.POWERS[0] else "beta2"] ** (steps + 1)
    # a parameter of the target may be made from several parameters of the source, or have another layout
    array = np.concatenate([state[wanted].reshape(-1) for state in states])[pair.places]
    return (
        array * np.asarray(terms.FORMS[slot] * settings["lr"], array.dtype)
        if slot in terms.FORMS
        else array
    )
