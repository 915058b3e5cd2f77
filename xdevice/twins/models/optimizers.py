"""`compare_optimizers` and `convert_optimizer`: list how two optimizers differ, and convert the state
of one to the other.

An adapter reads an optimizer in PyTorch's terms (`contract.optimizers`). This module decides, for all frameworks, which
settings matter, what to write to make them equal, and what an optimizer's state means.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from xdevice.base.dtypes import dtype_name
from xdevice.contract import layouts
from xdevice.contract import optimizers as terms
from xdevice.core import registry
from xdevice.errors import NotATensorError, StateError, shown

from .sides import Side, check_kinds, model_side, some_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from xdevice.contract import Backend
    from xdevice.contract.layouts import Layer, Part
    from xdevice.contract.optimizers import Optimizer, Parameter

    from .state import State

    Array = np.ndarray[Any, Any]
    _Settings = Mapping[str, Any]


def compare_optimizers(source: Any, target: Any) -> list[str]:
    """What two optimizers of any frameworks do differently: a line for each difference, with what to set in `target`.

    Young: it may change in a minor version.

    The list is empty if equal gradients make equal steps. It covers the settings, formulas, clipping, schedules and
    groups of parameters; the groups are compared in their order. What a training loop does is not covered: a learning
    rate that it sets later, gradients that it clips. docs/reference/optimizers.md has the formulas.

    Args:
        source, target: an optimizer of PyTorch, Paddle, Keras or optax, a Gluon `Trainer` or `mx.optimizer.Optimizer`.

    | backend | known |
    |---|---|
    | torch | SGD, Adam, AdamW, RMSprop, Adagrad |
    | paddle | SGD, Momentum, Adam, AdamW, RMSProp, Adagrad |
    | mxnet | SGD, NAG, Adam, RMSProp, AdaGrad |
    | tensorflow | Keras's SGD, Adam, AdamW, RMSprop, Adagrad |
    | jax | optax's sgd, adam, adamw, rmsprop, adagrad, and chains of their steps |

    Raises:
        UnsupportedError: a class that is not in the table, or a subclass of one. NotATensorError: not an optimizer.

    Costs microseconds for each parameter; nothing is read from a device but Keras's learning rate.

    Example:
        >>> xdevice.compare_optimizers("sgd", "sgd")
        Traceback (most recent call last):
        xdevice.errors.NotATensorError: expected an optimizer of a framework, not 'sgd' of type str
    """
    ours, theirs = _read(source), _read(target)
    if source is target:
        return []
    one, other = _profiles(ours.optimizer), _profiles(theirs.optimizer)
    if len(one) == len(other) == 1:
        return [found.text for found in _differences(ours, one[0], theirs, other[0])]
    texts = []
    pairs = list(zip(one, other, strict=False))
    if len(one) != len(other):
        is_one = 1 in (len(one), len(other))
        pairs = list(product(one, other)) if is_one else pairs
        how = "each is compared with that one" if is_one else "only the first are compared"
        sorts = "1 sort" if len(one) == 1 else f"{len(one)} sorts"
        texts.append(f"groups: {ours} has parameters of {sorts}, {theirs} of {len(other)}; {how}")
    for number, (mine, its) in enumerate(pairs, start=1):
        texts += [f"group {number}: {found.text}" for found in _differences(ours, mine, theirs, its)]
    return list(dict.fromkeys(texts))


def convert_optimizer(
    source: Any,
    target: Any,
    state: State,
    *,
    models: tuple[Any, Any],
    kinds: Mapping[str, str] | None = None,
    strict: bool = True,
) -> list[str]:
    """Writes the state of an optimizer (moments, momenta, counts of steps) into one of another framework.

    Young: it may change in a minor version. Training goes on with `target` as it would have with `source`
    (docs/reference/optimizers.md). Costs a copy of the state through the host.

    Args:
        source, target: optimizers that `compare_optimizers` knows. Keras's target must be built:
            `optimizer.build(model.trainable_variables)`; the others may be fresh.
        state: what `convert_state(model, ..., like=other)` gave: it says which parameter was made of which.
        models: the two models, first that of `source`.
        kinds: the same as `convert_state` was given.
        strict: whether the two must agree in all that the state depends on, such as betas, and update the same
            parameters. False converts what there is of the state; you have to know whether that makes sense.

    Returns what the two optimizers do differently, parameter by parameter, in lines like those of `compare_optimizers`.

    Raises:
        StateError: the optimizers, or what they update, differ; `source` has taken no step. Nothing was written then.
        UnsupportedError, NotATensorError: as `compare_optimizers`. NotBuiltError: Keras's optimizer is not built.

    Example:
        >>> xdevice.convert_optimizer("sgd", "sgd", xdevice.convert_state({}, "numpy", kinds={}), models=(None, None))
        Traceback (most recent call last):
        xdevice.errors.NotATensorError: expected an optimizer of a framework, not 'sgd' of type str
    """
    ours, theirs = _read(source), _read(target)
    given = dict(kinds or {})
    check_kinds(given)
    sides = [_side(given, side, model) for side, model in zip((ours, theirs), models, strict=True)]
    pairs, wrong = _pair_up(ours, theirs, state, sides[0], sides[1])
    told, blocking = _tell_differences(ours, theirs, pairs)
    if ours.optimizer.kind != theirs.optimizer.kind:
        raise StateError(_refusal(ours, theirs, blocking, "a state is for an optimizer of its kind"))
    if strict and blocking:
        raise StateError(_refusal(ours, theirs, blocking, "make them equal, or strict=False converts what there is"))
    held = dict(ours.backend.variables(source))
    slots = dict(theirs.backend.variables(target))
    slots.update(theirs.backend.state_to_come(target, _lacking(pairs, slots)))
    values, more = _values(ours, theirs, pairs, held, slots)
    if more and not values:
        raise StateError(f"{ours} has no state yet, so there is nothing to convert; take a step first")
    if strict and (wrong or more):
        raise StateError(_refusal(ours, theirs, [*wrong, *more], "strict=False converts the rest"))
    for name, array in values.items():
        place = theirs.backend.device_of(slots[name])
        theirs.backend.write(slots[name], theirs.backend.from_numpy(array, place))
    theirs.backend.take_state(target, slots)
    return told


# reading


class _Read(NamedTuple):
    """An optimizer and its backend, which has read what the optimizer computes."""

    backend: Backend
    optimizer: Optimizer

    def __str__(self) -> str:
        return f"{self.backend.name}'s {self.optimizer.name}"


def _read(x: Any) -> _Read:
    backend = registry.owner_of(type(x))
    backend = backend or next((one for one in registry.list_loaded() if one.has_optimizer(x)), None)
    if backend is None:
        raise NotATensorError(
            f"expected an optimizer of a framework, not {shown(x, 60)} of type {type(x).__qualname__}"
        )
    return _Read(backend, backend.optimizer(x))


def _profiles(optimizer: Optimizer) -> list[_Settings]:
    """The different settings with which an optimizer updates its parameters, in the order of the parameters."""
    found: list[Any] = []
    for parameter in optimizer.parameters:
        if parameter.settings not in found:
            found.append(parameter.settings)
    return found or [optimizer.settings]


# comparing


class _Difference(NamedTuple):
    setting: str
    text: str


def _differences(ours: _Read, one: _Settings, theirs: _Read, other: _Settings) -> Iterator[_Difference]:
    if ours.optimizer.kind != theirs.optimizer.kind:
        kinds = f"{ours} is of the kind {ours.optimizer.kind}, {theirs} of the kind {theirs.optimizer.kind}"
        yield _Difference("kind", f"kind: {kinds}; these are different formulas, and no setting makes them equal")
        return
    for name in one:
        if layouts.same_setting(one[name], other[name]) and (name not in _CODE or one[name] is None):
            continue
        if _matters(name, ours.optimizer.kind, one, other):
            mine, its = (_show(name, settings) for settings in (one, other))
            yield _Difference(
                name, f"{name}: {mine} in {ours}, {its} in {theirs}; {_remedy(name, ours, one, theirs, other)}"
            )


def _matters(name: str, kind: str, one: _Settings, other: _Settings) -> bool:
    """Whether the setting `name` makes a difference to the steps of the optimizers `one` and `other`, given their other
    settings."""

    def are(setting: str, value: object) -> bool:
        return bool(one[setting] == value == other[setting])

    if name in ("nesterov", "dampening", "momentum_holds") and are("momentum", 0):
        return False
    if name == "momentum_holds":
        return not are("schedule", None)
    if name == "eps":
        return bool(
            one["eps_enters"] == other["eps_enters"]
        )  # otherwise the line for `eps_enters` tells the values too
    if name == "eps_enters":
        return not are("eps", 0)
    if name == "decay":
        plain = kind == "sgd" and are("momentum", 0) and terms.SIGN not in (one["decay"], other["decay"])
        return not (are("weight_decay", 0) or plain)
    return True


def _show(name: str, settings: _Settings) -> str:
    value = settings[name]
    if name == "eps_enters":
        return f"{_number(settings['eps'])} {value}"
    return _number(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    return f"{value:.6g}"


_CODE: Final = ("schedule", "hooks")
"""Settings whose values are code: nobody can tell whether two such values do the same."""
_NONE: Final = "no setting makes them equal"
_INTO_THE_LOSS: Final = "weight_decay=0 there, and weight_decay / 2 times the sum of squares added to the loss, does"


def _remedy(name: str, ours: _Read, one: _Settings, theirs: _Read, other: _Settings) -> str:
    if name in _REMEDIES:
        return _REMEDIES[name]
    if name in _CHOSEN_REMEDIES:
        found = _CHOSEN_REMEDIES[name](theirs, one, other)
        if found is not None:
            return found
    for side, wanted in ((theirs, one), (ours, other)):
        argument = side.optimizer.arguments.get(name)
        if argument is not None:
            return argument if " " in argument else f"{argument}={_write(wanted[name])} in {side} makes them equal"
    return _NONE


def _write(value: object) -> str:
    return _number(value) if isinstance(value, float) else repr(value)


def _of_eps(theirs: _Read, one: _Settings, other: _Settings) -> str | None:
    if "eps_enters" in theirs.optimizer.arguments:
        return None
    if terms.UNCORRECTED not in (one["eps_enters"], other["eps_enters"]):
        return f"{_NONE}: they come together only as eps goes to 0"
    root = math.sqrt(1 - one["beta2"])
    eps = one["eps"] * root if other["eps_enters"] == terms.UNCORRECTED else one["eps"] / root
    argument = theirs.optimizer.arguments.get("eps", "eps")
    return (
        f"{_NONE}, because the correction changes with each step: {argument}={eps:.3g} does for the first, and nearly "
        "does for gradients of 1e-2 or more"
    )


def _of_decay(theirs: _Read, one: _Settings, other: _Settings) -> str | None:
    if other["decay"] != terms.COUPLED and one["decay"] == terms.COUPLED:
        return f"{_NONE}: {_INTO_THE_LOSS}"
    if "decay" in theirs.optimizer.arguments:
        return None
    if one["decay"] == terms.DECOUPLED:
        return f"{_NONE}: weight_decay=0 there, and weights times 1 - lr weight_decay before each step, does"
    return f"{_NONE}: set weight_decay=0 on both sides, and put the decay into the loss"


_REMEDIES: Final = {
    "hooks": "they are code, which nothing reads: compare the optimizers step by step",
    "momentum_holds": f"{_NONE} but a constant learning rate: at each change, multiply the momentum that is a sum of "
    "steps by the new rate over the old one",
    "schedule": "give both the same learning rate for each step, and compare them step by step: a schedule is code",
}
_CHOSEN_REMEDIES: Final = {"eps_enters": _of_eps, "decay": _of_decay}


# converting: which parameter is which


class _Pair(NamedTuple):
    """A parameter of the target's optimizer, and the parameters of the source's optimizer that its numbers come
    from."""

    name: str
    parameter: Parameter
    sources: list[Parameter]
    places: Array
    """For each number of the parameter, its index in the numbers of all sources, one source behind the other."""


def _side(kinds: Mapping[str, str], read: _Read, model: Any) -> Side:
    found = registry.kind_of(type(model))
    if found is None or found.kind != "model" or found.backend is not read.backend:
        raise NotATensorError(
            f"models= are the two models, first that of the source: expected one of {read.backend.name}, not "
            f"{shown(model, 60)} of type {type(model).__qualname__}"
        )
    return model_side((read.backend, model), kinds)


def _pair_up(ours: _Read, theirs: _Read, state: State, source: Side, target: Side) -> tuple[list[_Pair], list[str]]:
    """The parameters of the two optimizers that correspond, and for each parameter without a counterpart the reason."""
    updated = {id(parameter.variable): parameter for parameter in ours.optimizer.parameters}
    names = {id(x): name for name, x in reversed(target.variables.items()) if name in state.origins}
    pairs: list[_Pair] = []
    wrong = []
    used: set[int] = set()
    for number, parameter in enumerate(theirs.optimizer.parameters):
        name = names.get(id(parameter.variable))
        if name is None:
            wrong.append(f"parameter {number} of {theirs}: the state has no tensor of models[1] for it")
            continue
        origins = [source.variables.get(origin) for origin in state.origins[name]]
        used.update(map(id, origins))
        places = _places(name, state.origins[name], source, target)
        if not all(id(x) in updated for x in origins):
            wrong.append(f"{name}: {ours} does not update {' and '.join(state.origins[name])}")
        elif isinstance(places, str):
            wrong.append(f"{name}: {places}")
        else:
            pairs.append(_Pair(name, parameter, [updated[id(x)] for x in origins], places))
    unused = [name for name, x in source.variables.items() if id(x) in updated and id(x) not in used]
    if unused:
        wrong.append(f"{theirs} updates nothing that was made of {some_of(unused)}")
    return _whole(pairs, wrong), wrong


def _places(name: str, origins: Sequence[str], source: Side, target: Side) -> Array | str:
    """For each number of the target's parameter `name`, its index among the numbers of the source's parameters; or a
    text that says why there is no such index."""
    layer = next((one for one in source.layers if set(origins) <= {part.name for part in one.parts}), None)
    part = next((part for one in target.layers for part in one.parts if part.name == name), None)
    if layer is None or part is None:
        return "no layer says what it is; pass kinds= as to convert_state"
    sizes = sum(math.prod(source.variables[origin].shape) for origin in origins)
    places, moved = (_number_elements(layer, part, origins, source, start) for start in (0, sizes))
    # if numbers are only moved, and not computed with, adding `sizes` to all of them adds `sizes` to the result
    if (moved - places != sizes).any() or len(np.unique(places)) < places.size:
        return f"it is computed from {' and '.join(origins)}, so it has moments of its own, which these do not give"
    return places


def _number_elements(layer: Layer, part: Part, origins: Sequence[str], source: Side, start: int) -> Array:
    """Numbers the elements of a source layer's parameters from `start`, and lays these numbers out as the target's
    parameter `part` is laid out."""
    found: dict[str, Array] = {}
    for own in sorted((one for one in layer.parts if one.name in origins), key=lambda one: origins.index(one.name)):
        shape = tuple(source.variables[own.name].shape)
        counted = np.arange(start, start + math.prod(shape), dtype="int64").reshape(shape)
        start += counted.size
        found.update(zip(own.of, own.rule.canonical(counted), strict=True))
    return np.asarray(part.rule.native(*(found[name] for name in part.of)))


def _whole(pairs: list[_Pair], wrong: list[str]) -> list[_Pair]:
    """The pairs whose source parameters go to the target completely, each number to one place. For each other pair the
    reason is added to `wrong`."""
    taken: Counter[int] = Counter()
    for pair in pairs:
        ends = np.cumsum([_size(parameter) for parameter in pair.sources])
        counts = np.bincount(np.searchsorted(ends, pair.places.reshape(-1), side="right"), minlength=len(ends))
        taken.update({id(parameter): int(count) for parameter, count in zip(pair.sources, counts, strict=True)})
    kept = []
    for pair in pairs:
        if all(taken[id(one)] == _size(one) for one in pair.sources):
            kept.append(pair)
        else:
            wrong.append(
                f"{pair.name}: its source is also another's, or has more than it, and a moment is of all of it"
            )
    return kept


def _size(parameter: Parameter) -> int:
    return math.prod(tuple(parameter.variable.shape))


# converting: what the state means


_PART_OF_STATE: Final = (
    "kind", "momentum", "dampening", "beta1", "beta2", "alpha", "centered", "amsgrad", "initial_accumulator_value",
    "maximize", "gradient_scale", "accumulation", "moving_average",
)  # fmt: skip
"""Settings that change what the numbers in an optimizer's state mean. Weight decay does too, unless it is decoupled
from the gradients."""


def _tell_differences(ours: _Read, theirs: _Read, pairs: list[_Pair]) -> tuple[list[str], list[str]]:
    """Lines for the differences between the two optimizers, and those lines that tell of a change in what the numbers
    of a state mean."""
    found: dict[_Difference, list[str]] = {}
    blocking = []
    whole = ("", ours.optimizer.settings, theirs.optimizer.settings)
    each = [(pair.name, one.settings, pair.parameter.settings) for pair in pairs for one in pair.sources]
    for name, one, other in each or [whole]:
        for difference in _differences(ours, one, theirs, other):
            names = found.setdefault(difference, [])
            names += [name] * (name not in names)
            if _is_part_of_state(difference.setting, one, other):
                blocking.append(difference)
    texts = {
        difference: difference.text if len(names) >= len(pairs) else f"{some_of(names)}: {difference.text}"
        for difference, names in found.items()
    }
    return list(texts.values()), [texts[difference] for difference in dict.fromkeys(blocking)]


def _is_part_of_state(setting: str, one: _Settings, other: _Settings) -> bool:
    coupled = one["decay"] != terms.DECOUPLED or other["decay"] != terms.DECOUPLED
    return setting in _PART_OF_STATE or (setting in ("decay", "weight_decay") and coupled)


def _refusal(ours: _Read, theirs: _Read, reasons: Sequence[str], instead: str) -> str:
    listed = "\n  ".join(reasons)
    return f"the state of {ours} does not fit {theirs}, and nothing was written; {instead}:\n  {listed}"


# converting: the values


def _lacking(pairs: Iterable[_Pair], held: Mapping[str, Any]) -> list[str]:
    return [name for pair in pairs for name in pair.parameter.state.values() if name not in held]


def _values(
    ours: _Read, theirs: _Read, pairs: Iterable[_Pair], held: Mapping[str, Any], slots: Mapping[str, Any]
) -> tuple[dict[str, Array], list[str]]:
    """What to write into each slot of the target (an array of its state, by name), and the reasons why some slots get
    nothing."""
    values: dict[str, Array] = {}
    wrong = []
    for pair in pairs:
        came = [_canonical(ours, parameter, held) for parameter in pair.sources]
        for slot, name in pair.parameter.state.items():
            array = _native(slot, pair, came)
            if array is None:
                if slot != terms.STEP:
                    wrong.append(f"{pair.name}: {ours} keeps no {_plain(slot)} for it")
                continue
            wanted = dtype_name(slots[name].dtype)
            if slot == terms.STEP or slot in terms.POWERS:
                array = np.full(tuple(slots[name].shape), array, wanted)
            if array.dtype.name != wanted:
                wrong.append(f"{pair.name}: the {slot} is {array.dtype.name}, and {wanted} in {theirs}; cast before")
            elif name in values and (values[name] != array).any():
                wrong.append(f"{pair.name}: {theirs} counts the steps of all parameters as one, and they differ here")
            else:
                values[name] = array
    return values, wrong


def _canonical(ours: _Read, parameter: Parameter, held: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a parameter in PyTorch's terms; empty if the parameter has no state yet."""
    there = {slot: ours.backend.to_numpy(held[name]) for slot, name in parameter.state.items() if name in held}
    found: dict[str, Any] = {}
    for slot, array in there.items():
        if slot in terms.FORMS:
            rate = terms.FORMS[slot] * float(str(parameter.settings["lr"]))
            if rate:  # with a rate of 0 the momentum cannot be recovered
                found[_plain(slot)] = array / np.asarray(rate, array.dtype)
        elif slot == terms.STEP:
            found[slot] = int(array.reshape(-1)[0])
        elif slot not in terms.POWERS:
            found[slot] = array
    if terms.POWERS[1] in there:
        found[terms.STEP] = _steps(
            float(there[terms.POWERS[1]].reshape(-1)[0]), float(str(parameter.settings["beta2"]))
        )
    return found


def _steps(power: float, beta: float) -> int:
    """The number of steps t that were taken, from `power`, which is beta^(t + 1). If the power is 0 any large t is
    right: Adam's correction is 1 then."""
    smallest = float(np.finfo("float32").tiny)
    return max(round(math.log(max(power, smallest)) / math.log(beta)) - 1, 0) if 0 < beta < 1 else 0


def _plain(slot: str) -> str:
    return "momentum_buffer" if slot in terms.FORMS else slot


def _native(slot: str, pair: _Pair, came: list[dict[str, Any]]) -> Any:
    """The value of the target's slot, computed from `came`, the state of its source parameters in PyTorch's terms; None
    if `came` lacks it."""
    wanted = terms.STEP if slot in terms.POWERS else _plain(slot)
    if any(wanted not in one for one in came):
        return None
    settings: Mapping[str, Any] = pair.parameter.settings
    if slot == terms.STEP:
        return came[0][slot]
    if slot in terms.POWERS:
        return settings["beta1" if slot == terms.POWERS[0] else "beta2"] ** (came[0][terms.STEP] + 1)
    flat = np.concatenate([one[wanted].reshape(-1) for one in came])
    array = flat[pair.places]
    return array * np.asarray(terms.FORMS[slot] * settings["lr"], array.dtype) if slot in terms.FORMS else array
