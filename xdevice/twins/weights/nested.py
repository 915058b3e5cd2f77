"""Finds the state, a flat dict of tensors by name, in a value that a program has saved or holds. Such a value may be a
dict of dicts and lists, as JAX's libraries use, or a training program's dict, with counts and an optimizer's state
next to the weights."""

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

# the keys of training programs for the states of optimizers and schedulers, such as "optim",
# "optimizer_state" and "opt_states"
_OPTIMIZER: Final = re.compile(
    r"opt(im|imi[sz]er)?s?(_?states?)?|optimizer_state_dict|scheduler.*|scaler", re.IGNORECASE
)
_PARAMS: Final = "params"
"""The key of the learned parameters in dicts of Flax and Haiku."""
_COLLECTIONS: Final = ("batch_stats", "state")
"""The collections that Flax and Haiku keep next to `params`, for the same modules."""


class Found(NamedTuple):
    """The state that was found in a value, and where."""

    state: Mapping[str, Any]
    key: str = ""
    """The key under which the value has the state, or several keys joined by " and "; "" if the value as a whole is
    the state, or the names in the state begin with its keys."""
    left: tuple[str, ...] = ()
    """The keys of the value that are not part of the state."""


class _Part(NamedTuple):
    """The tensors in the value of one key, and whether the value holds anything else."""

    tensors: dict[str, Any]
    """The tensors in it, by the path to them; under the name "" if the key holds a tensor itself."""
    is_pure: bool
    """Whether it holds nothing but tensors."""


def state_in(saved: Any, where: str) -> Found:
    """Finds the state in a value that a program has saved, and returns it. Tensors in inner dicts and lists get the
    path to them as their name, such as `encoder.0.weight`. `where` names the value, for messages.

    Raises:
        NotATensorError: if the value has no tensors, or is not a container. StateError: if it has several states, any
            of which may be meant.
    """
    if isinstance(saved, dict) and is_state(saved):
        return Found(saved)
    children = _children(saved)
    if children is None:
        raise NotATensorError(
            f"{where} holds an object of type {type(saved).__qualname__}; expected a dict of tensors by name"
        )
    parts = {str(key): _part(value) for key, value in children}
    # optimizers are left out: their moments have the names and shapes of the weights, and would
    # count as a second state
    parts = {key: part for key, part in parts.items() if not _OPTIMIZER.fullmatch(key)}
    # keys that hold several tensors and nothing else, and keys that hold a tensor themselves
    states = {
        key: part.tensors
        for key, part in parts.items()
        if part.is_pure and part.tensors.keys() != {""}
    }
    direct = {
        key: part.tensors[""] for key, part in parts.items() if part.tensors.keys() == {""}
    }
    names = [str(key) for key, _ in children]
    # a dict of Flax or Haiku
    if _PARAMS in states:
        return _with_collections(states, names)
    # whether some keys hold something else, such as an optimizer or a count
    is_mixed = len(states) + len(direct) < len(names)
    # a tensor without axes may be a count or a loss, so only one with axes belongs to a state
    has_direct_weights = any(len(getattr(value, "shape", ())) for value in direct.values())
    # a training program's dict: its only state is under one key, and the other keys are no weights, or hold
    # nothing, as {"ema": None}
    filled = {key: state for key, state in states.items() if state}
    if len(filled) == 1 and not has_direct_weights:
        (key,) = filled
        return Found(filled[key], key, _others(names, [key]))
    # two states with the same names, such as a model and its moving average
    if is_mixed and len({frozenset(state) for state in filled.values()}) < len(filled):
        raise StateError(
            f"{where} holds several states, {listed(map(repr, filled), 8)}; pass one of them"
        )
    # otherwise everything together is one state, in which the names begin with the keys
    state = direct | {
        f"{key}.{name}": value
        for key, tensors in states.items()
        for name, value in tensors.items()
    }
    if not state:
        # the first value that is no tensor, for the message
        key = next((key for key, value in children if not _is_tensor(value)), "")
        raise NotATensorError(
            f"{where} holds no tensor: {shown(key)} is of type {type(dict(children).get(key)).__qualname__}; "
            f"expected a dict of tensors by name"
        )
    return Found(state, "", _others(names, [*states, *direct]))


def is_state(saved: Mapping[Any, Any]) -> bool:
    """Whether a dict is a state already: all its keys are texts, and all its values tensors. An empty dict is one."""
    return all(isinstance(key, str) and _is_tensor(value) for key, value in saved.items())


def _with_collections(states: Mapping[str, dict[str, Any]], names: list[str]) -> Found:
    """The state of a dict of Flax or Haiku: the learned parameters, joined with the running statistics, which are under
    another key. Statistics are left out if one has the name of a parameter. `names` are all keys of the dict."""
    state = dict(states[_PARAMS])
    taken = [_PARAMS]
    for key in _COLLECTIONS:
        # not if both have an array of the same name: one of the two arrays would be lost
        if key in states and not state.keys() & states[key].keys():
            state |= states[key]
            taken.append(key)
    return Found(state, " and ".join(taken), _others(names, taken))


def _others(names: Iterable[str], taken: Iterable[str]) -> tuple[str, ...]:
    """The names without those in `taken`, each once, in their order."""
    left = dict.fromkeys(names)
    for name in taken:
        left.pop(name, None)
    return tuple(left)


def _is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of a file, or a tensor or variable of a framework; symbolic tensors do not count."""
    owner = registry.kind_of(type(value))
    return isinstance(value, FileTensor) or (owner is not None and owner.kind != "symbol")


def _children(value: Any) -> list[tuple[Any, Any]] | None:
    """The direct contents of a dict, list, tuple or dataclass, as pairs of a key and a value; None for anything
    else."""
    if isinstance(value, Mapping):
        # JAX sorts the keys of dicts as texts, with Dense_10 before Dense_2: such keys are put into the
        # order of the numbers, which is that of the layers
        keys = list(value)
        is_sorted = all(isinstance(key, str) for key in keys) and keys == sorted(keys)
        return [
            (key, value[key]) for key in (sorted(keys, key=_by_number) if is_sorted else keys)
        ]
    # a NamedTuple: its fields name the contents better than numbers
    fields = getattr(value, "_fields", None)
    if isinstance(value, tuple) and fields is not None:
        return list(zip(fields, value, strict=True))
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def _by_number(key: str) -> list[tuple[int, int | str]]:
    """A key for `sorted` that compares the numbers in names as numbers, so that Dense_2 comes before Dense_10."""
    # pairs, because an int and a text cannot be compared with each other
    return [
        (0, int(piece)) if piece.isdigit() else (1, piece) for piece in re.split(r"(\d+)", key)
    ]


def _part(value: Any) -> _Part:
    """Returns the tensors in the value of a key, at any depth, as a `_Part`."""
    if _is_tensor(value):
        return _Part({"": value}, True)
    children = _children(value)
    # a PyTorch optimizer's state has ints as keys, the numbers of the parameters, and is no state here
    if children is None or (
        isinstance(value, Mapping) and not all(isinstance(key, str) for key, _ in children)
    ):
        # in JAX's containers None stands for no parameters
        return _Part({}, value is None)
    tensors: dict[str, Any] = {}
    is_pure = True
    for key, child in children:
        part = _part(child)
        is_pure = is_pure and part.is_pure
        tensors |= {
            f"{key}.{name}" if name else str(key): x for name, x in part.tensors.items()
        }
    return _Part(tensors, is_pure)
