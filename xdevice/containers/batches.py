"""Batches: dicts, lists and tuples that hold only tensors, numbers and strings. A training loop moves one at each step,
so they are taken apart without a walk by `trees.flatten`, which is slower."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any, Final

from xdevice.core import registry

from .looks import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdevice.contract import Backend

    Batch = tuple[list[Any], dict[type, Backend], dict[int, Any]]
    """The tensors of a container in their order, the backends of their types, and the containers in it by `id`."""

_DEEPEST: Final = 16
"""How deeply a batch may be nested; a container that is nested more deeply is walked by `flatten`."""
_PLAINEST: Final = frozenset((dict, list, tuple))
_movable: Final = registry.movable


def flatten_batch(x: Any, batch: Batch | None = None, depth: int = _DEEPEST) -> Batch | None:
    """Returns the tensors in a dict, list or tuple, nested or not, that holds only tensors, numbers and strings.
    Returns None if it holds anything else, or the same container twice. In the call for a nested container, `batch` has
    what the outer calls have found so far.

    For three tensors that are on the device already, `to_device` takes
    1.8 us with this function and 2.9 us with `flatten`; for 1,000 tensors in lists of ten 0.24 and 0.5 ms.
    """
    tensors, backends, inner = batch = batch or ([], {}, {})
    if type(x) is dict:
        for key in x:
            if type(key) is not str and id(type(key)) not in PLAIN:
                return None
    elif type(x) is not list and type(x) is not tuple:
        return None
    cls: Any = None
    try:
        for child in x.values() if type(x) is dict else x:
            if type(child) is cls:
                tensors.append(child)
            elif type(child) in _movable:
                cls = type(child)
                backends[cls] = _movable[cls]
                tensors.append(child)
            elif type(child) in _PLAINEST:
                if not depth or id(child) in inner:
                    return None
                inner[id(child)] = child
                if flatten_batch(child, batch, depth - 1) is None:
                    return None
            elif id(type(child)) not in PLAIN:
                return None
    except Exception:  # a metaclass whose types cannot be hashed
        return None
    return batch


def rebuild_batch(x: Any, batch: Batch, changed: list[Any]) -> Any:
    """Returns a batch with other tensors, given in their order. If there are containers in it, a tuple in which nothing
    changes stays the same object."""
    _, _, inner = batch
    if inner or len(changed) < len(x):
        return _rebuild_inner(x, iter(changed))
    if type(x) is dict:
        return dict(zip(x, changed))  # noqa: B905  # `strict=True` takes 1.5 times as long; the lengths are equal
    return changed if type(x) is list else tuple(changed)


def _rebuild_inner(x: Any, changed: Iterator[Any]) -> Any:
    """Returns a container of a batch, with its tensors replaced by the next ones of `changed`."""
    new = []
    for child in x.values() if type(x) is dict else x:
        if type(child) in _movable:
            new.append(next(changed))
        else:
            new.append(_rebuild_inner(child, changed) if type(child) in _PLAINEST else child)
    if type(x) is dict:
        return dict(zip(x, new, strict=True))
    if type(x) is list:
        return new
    return x if all(map(is_, new, x)) else tuple(new)
