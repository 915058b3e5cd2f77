"""Finds the state, a flat dict of tensors by name, in a value that a program saved or passed. The value may be a dict
of dicts and lists, as in JAX's libraries. It may also be the dict of a training program, with counts and an optimizer's
state in addition to the weights."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xdevice.core import registry
from xdevice.errors import NotATensorError, StateError, listed, shown

from .format import FileTensor

if TYPE_CHECKING:
    from collections.abc import Iterable

# the keys under which training programs save the states of optimizers and schedulers, such as "optim",
# "optimizer_state" and "opt_states"
_OPTIMIZER: Final = re.compile(
    r"opt(im|imi[sz]er)?s?(_?states?)?|optimizer_state_dict|scheduler.*|scaler", re.IGNORECASE
)
_PARAMS: Final = "params"
"""The key of the learned parameters in dicts of Flax and Haiku."""
_COLLECTIONS: Final = ("batch_stats", "state")
"""The keys of the collections that Flax and Haiku store next to `params`, for the same modules."""


class FoundState(NamedTuple):
    """The state that was found in a value, and its place in the value."""

    state: Mapping[str, Any]
    key: str = ""
    """The key under which the value contains the state, or several keys joined by " and ". If it is "", the value as a
    whole is the state, and the names in the state begin with the keys of the value."""
    left: tuple[str, ...] = ()
    """The keys of the value that are not part of the state."""


class _Part(NamedTuple):
    """The tensors in the value of one key, and whether this value contains anything else."""

    tensors: dict[str, Any]
    """The tensors in the value, by their paths in the value; a value that is itself a tensor has the path ""."""
    is_pure: bool
    """Whether the value contains nothing but tensors."""


def find_state(saved: Any, where: str) -> FoundState:
    """Finds the state in a value that a program saved, and returns it. A tensor in inner dicts and lists is named by
    its path, such as `encoder.0.weight`. `where` names the value, for messages.

    Raises:
        NotATensorError: if the value contains no tensors, or is not a container.
        StateError: if the value contains several states, and it is not clear which state is meant.
    """
    if isinstance(saved, dict) and is_state(saved):
        return FoundState(saved)
    children = _children(saved)
    if children is None:
        raise NotATensorError(
            f"{where} contains an object of type {type(saved).__qualname__}; expected a dict of tensors by name"
        )
    parts = {str(key): _part(value) for key, value in children}
    # the states of optimizers are left out, because their moments have the names and shapes of the weights, and would
    # be treated as a second state
    parts = {key: part for key, part in parts.items() if not _OPTIMIZER.fullmatch(key)}
    # `states` has the keys whose values are containers with nothing but tensors, and `direct_tensors` the keys whose
    # values are tensors themselves
    states = {
        key: part.tensors
        for key, part in parts.items()
        if part.is_pure and part.tensors.keys() != {""}
    }
    direct_tensors = {
        key: part.tensors[""] for key, part in parts.items() if part.tensors.keys() == {""}
    }
    # all keys, including those of optimizers
    keys = [str(key) for key, _ in children]
    # a dict of Flax or Haiku
    if _PARAMS in states:
        return _with_collections(states, keys)
    # whether the values of some keys are something else, such as the state of an optimizer or a count
    is_mixed = len(states) + len(direct_tensors) < len(keys)
    # a 0-d tensor may be a count or a loss, so only a tensor with axes is treated as a weight
    has_direct_weights = any(
        len(getattr(value, "shape", ())) for value in direct_tensors.values()
    )
    # the dict of a training program, with its only state under one key. The values of the other keys are not weights,
    # or are empty, as in {"ema": None}
    filled = {key: state for key, state in states.items() if state}
    if len(filled) == 1 and not has_direct_weights:
        (key,) = filled
        return FoundState(filled[key], key, left=_others(keys, [key]))
    # two states with the same names, such as a model and its moving average. If nothing else is in the dict, they are
    # treated as parts of one state, such as two equal layers
    if is_mixed and len({frozenset(state) for state in filled.values()}) < len(filled):
        raise StateError(
            f"{where} contains several states, {listed(map(repr, filled), 8)}; pass one of them"
        )
    # otherwise all these tensors together are one state, and their names begin with the keys. Tensors next to other
    # things, in a value that is not pure, are left out
    state = direct_tensors | {
        f"{key}.{name}": value
        for key, tensors in states.items()
        for name, value in tensors.items()
    }
    if not state:
        # the key of the first value that is not a tensor, for the message
        key = next((key for key, value in children if not _is_tensor(value)), "")
        raise NotATensorError(
            f"{where} contains no tensors: the value of {shown(key)} is of type "
            f"{type(dict(children).get(key)).__qualname__}; expected a dict of tensors by name"
        )
    return FoundState(state, left=_others(keys, [*states, *direct_tensors]))


def is_state(saved: Mapping[Any, Any]) -> bool:
    """Whether a dict is a state itself: all its keys are strings, and all its values are tensors. This is also
    true for an empty dict."""
    return all(isinstance(key, str) and _is_tensor(value) for key, value in saved.items())


def _with_collections(states: Mapping[str, dict[str, Any]], keys: list[str]) -> FoundState:
    """Returns the state of a dict of Flax or Haiku. It consists of the learned parameters, and of running statistics
    under other keys. All statistics under a key are left out if one of them has the same name as a parameter. `states`
    contains the tensors under each key, and `keys` are all keys of the dict."""
    state = dict(states[_PARAMS])
    taken = [_PARAMS]
    for key in _COLLECTIONS:
        # left out if both contain an array of the same name, because one of the two arrays would be lost
        if key in states and not state.keys() & states[key].keys():
            state |= states[key]
            taken.append(key)
    return FoundState(state, key=" and ".join(taken), left=_others(keys, taken))


def _others(keys: Iterable[str], taken: Iterable[str]) -> tuple[str, ...]:
    """Returns the keys that are not in `taken`, each once, in their order."""
    others = dict.fromkeys(keys)
    for key in taken:
        others.pop(key, None)
    return tuple(others)


def _is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of a file, or a tensor or variable of a framework. Returns False for a
    symbolic tensor."""
    owner = registry.owner_and_kind(type(value))
    return isinstance(value, FileTensor) or (owner is not None and owner.kind != "symbol")


def _children(value: Any) -> list[tuple[Any, Any]] | None:
    """Returns the direct contents of a dict, list, tuple or dataclass, as pairs of a key and a value; None for anything
    else."""
    if isinstance(value, Mapping):
        # JAX sorts the keys of dicts as strings, with Dense_10 before Dense_2. Such keys are sorted by their numbers
        # here, which is the order of the layers
        keys = list(value)
        is_sorted = all(isinstance(key, str) for key in keys) and keys == sorted(keys)
        return [
            (key, value[key]) for key in (sorted(keys, key=_by_number) if is_sorted else keys)
        ]
    # a NamedTuple: the names of its fields describe the contents better than numbers
    fields = getattr(value, "_fields", None)
    if isinstance(value, tuple) and fields is not None:
        return list(zip(fields, value, strict=True))
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def _by_number(key: str) -> list[tuple[int, int | str]]:
    """Returns a sort key that compares the numbers in names as numbers, so that Dense_2 comes before Dense_10."""
    # pairs, because an int and a string cannot be compared with each other
    return [
        (0, int(piece)) if piece.isdigit() else (1, piece) for piece in re.split(r"(\d+)", key)
    ]


def _part(value: Any) -> _Part:
    """Returns the tensors in a value, at any depth, as a `_Part`."""
    if _is_tensor(value):
        return _Part({"": value}, is_pure=True)
    children = _children(value)
    # in the state of a PyTorch optimizer, the keys are ints, the numbers of the parameters; it is not read as tensors
    if children is None or (
        isinstance(value, Mapping) and not all(isinstance(key, str) for key, _ in children)
    ):
        # in JAX's containers, None means that there are no parameters
        return _Part({}, is_pure=value is None)
    tensors: dict[str, Any] = {}
    is_pure = True
    for key, child in children:
        part = _part(child)
        is_pure = is_pure and part.is_pure
        tensors |= {
            f"{key}.{name}" if name else str(key): x for name, x in part.tensors.items()
        }
    return _Part(tensors, is_pure)
