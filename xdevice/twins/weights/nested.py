"""Finds the state, a flat dict of tensors by name, in a value that a program has saved or holds: a dict of dicts and
lists, as JAX's libraries have it, or a training program's dict, with counts and an optimizer next to the weights."""

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

_OPTIMIZER: Final = re.compile(
    r"opt(im|imi[sz]er)?s?(_?states?)?|optimizer_state_dict|scheduler.*|scaler", re.IGNORECASE
)
_PARAMS: Final = "params"
_COLLECTIONS: Final = ("batch_stats", "state")
"""The collections that Flax and Haiku keep next to `params`, for the same modules."""


class Found(NamedTuple):
    state: Mapping[str, Any]
    key: str = ""
    """The key of the state; "" if the value is nothing but the state."""
    left: tuple[str, ...] = ()
    """The keys of everything that is not part of the state."""


class _Part(NamedTuple):
    """The contents of one key: its tensors by name, and whether there is anything else."""

    tensors: dict[str, Any]
    is_pure: bool


def state_in(saved: Any, where: str) -> Found:
    """The state in what a program saved. Tensors in dicts and lists have the path to them as their name.

    Raises:
        NotATensorError: it has no tensors. StateError: it has several states, any of which may be meant.
    """
    if isinstance(saved, dict) and is_state(saved):
        return Found(saved)
    children = _children(saved)
    if children is None:
        raise NotATensorError(
            f"{where} holds a {type(saved).__qualname__}; expected a dict of tensors by name"
        )
    parts = {str(key): _part(value) for key, value in children}
    # an optimizer's moments have the names and shapes of the weights, and would count as a second state
    parts = {key: part for key, part in parts.items() if not _OPTIMIZER.fullmatch(key)}
    states = {
        key: part.tensors
        for key, part in parts.items()
        if part.is_pure and part.tensors.keys() != {""}
    }
    own = {key: part.tensors[""] for key, part in parts.items() if part.tensors.keys() == {""}}
    names = [str(key) for key, _ in children]
    # Flax's and Haiku's own name for what is learned
    if _PARAMS in states:
        return _with_collections(states, names)
    is_mixed = len(states) + len(own) < len(names)
    # a count or a loss may be a tensor of no axes
    is_own = any(len(getattr(value, "shape", ())) for value in own.values())
    # a training program's dict: the other keys are counts, or the optimizer's
    if len(states) == 1 and not is_own:
        ((key, state),) = states.items()
        return Found(state, key, _others(names, [key]))
    if is_mixed and len({frozenset(state) for state in states.values()}) < len(states):
        raise StateError(
            f"{where} holds several states, {listed(map(repr, states), 8)}: give one of them"
        )
    state = own | {
        f"{key}.{name}": value
        for key, tensors in states.items()
        for name, value in tensors.items()
    }
    if not state:
        key = next((key for key, value in children if not _is_tensor(value)), "")
        raise NotATensorError(
            f"{where} holds no tensor: {shown(key)} is a {type(dict(children).get(key)).__qualname__}; expected a dict "
            "of tensors by name"
        )
    return Found(state, "", _others(names, [*states, *own]))


def is_state(saved: Mapping[Any, Any]) -> bool:
    return all(isinstance(key, str) and _is_tensor(value) for key, value in saved.items())


def _with_collections(states: Mapping[str, dict[str, Any]], names: list[str]) -> Found:
    """The learned parameters, joined with the running statistics that Flax and Haiku keep under another key."""
    state = dict(states[_PARAMS])
    taken = [_PARAMS]
    for key in _COLLECTIONS:
        # another name for one array: it would be lost
        if key in states and not state.keys() & states[key].keys():
            state |= states[key]
            taken.append(key)
    return Found(state, " and ".join(taken), _others(names, taken))


def _others(names: Iterable[str], taken: Iterable[str]) -> tuple[str, ...]:
    """The names without those in `taken`."""
    left = dict.fromkeys(names)
    for name in taken:
        left.pop(name, None)
    return tuple(left)


def _is_tensor(value: Any) -> bool:
    owner = registry.kind_of(type(value))
    return isinstance(value, FileTensor) or (owner is not None and owner.kind != "symbol")


def _children(value: Any) -> list[tuple[Any, Any]] | None:
    """The direct contents of a container, with its keys; None for anything else."""
    if isinstance(value, Mapping):
        # JAX sorts the keys of dicts as texts, so that Dense_10 comes before Dense_2
        keys = list(value)
        is_sorted = all(isinstance(key, str) for key in keys) and keys == sorted(keys)
        return [
            (key, value[key]) for key in (sorted(keys, key=_by_number) if is_sorted else keys)
        ]
    # a NamedTuple, whose fields are the names that its program knows
    fields = getattr(value, "_fields", None)
    if isinstance(value, tuple) and fields is not None:
        return list(zip(fields, value, strict=True))
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def _by_number(key: str) -> list[tuple[int, int | str]]:
    """A key for sorting by the numbers in a name: Dense_2 comes before Dense_10."""
    return [
        (0, int(piece)) if piece.isdigit() else (1, piece) for piece in re.split(r"(\d+)", key)
    ]


def _part(value: Any) -> _Part:
    """The tensors in the contents of a key, by name."""
    if _is_tensor(value):
        return _Part({"": value}, True)
    children = _children(value)
    # the state of an optimizer of PyTorch has the numbers of parameters as keys
    if children is None or (
        isinstance(value, Mapping) and not all(isinstance(key, str) for key, _ in children)
    ):
        # JAX's None has no parameters
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
