"""Batches: dicts, lists and tuples that contain only tensors, numbers and strings. A training loop moves a batch at
each step, so this module flattens batches faster than `trees.flatten` does."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any, Final

from xdevice.core import registry

from .looks import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdevice.contract import Backend

    Batch = tuple[list[Any], dict[type, Backend], dict[int, Any]]
    """The tensors of a container in the order of the walk, the backend of each tensor type, and the inner containers by
    their `id`."""

_DEEPEST: Final = 16
"""The maximum depth to which a batch may be nested. `trees.flatten` handles containers that are nested more deeply."""
# the types of containers in a batch; `trees.flatten` handles their subclasses, which may have
# attributes
_BATCH_CONTAINERS: Final = frozenset((dict, list, tuple))
_movable: Final = registry.movable


def flatten_batch(x: Any, batch: Batch | None = None, depth: int = _DEEPEST) -> Batch | None:
    """Returns the `Batch` of a dict, list or tuple that contains only tensors, numbers, strings, None, and inner
    containers with the same restriction. Returns None if the container contains anything else, if it contains the same
    container twice, or if one of its tensor types has not been looked up yet. In a recursive call for an inner
    container, `batch` is the result so far, which the call extends. `depth` is the number of levels that may still
    follow.

    For three tensors that are already on the device, `to_device` takes 1.8 us with this function and 2.9 us with
    `trees.flatten`. For 1,000 tensors in lists of ten, the times are 0.24 ms and 0.5 ms.
    """
    # the loop below adds to these objects, which are the result
    tensors, backends, inner = batch = batch or ([], {}, {})
    if type(x) is dict:
        # keys of other types may hold tensors
        for key in x:
            if type(key) is not str and id(type(key)) not in PLAIN:
                return None
    elif type(x) is not list and type(x) is not tuple:
        return None
    # the type of the previous tensor; most batches contain tensors of only one type, which is then
    # looked up only once
    cls: Any = None
    try:
        for child in x.values() if type(x) is dict else x:
            if type(child) is cls:
                tensors.append(child)
            elif type(child) in _movable:
                cls = type(child)
                backends[cls] = _movable[cls]
                tensors.append(child)
            elif type(child) in _BATCH_CONTAINERS:
                # the container is nested too deeply, or is in two places, and must stay one container
                if not depth or id(child) in inner:
                    return None
                inner[id(child)] = child
                if flatten_batch(child, batch, depth - 1) is None:
                    return None
            elif id(type(child)) not in PLAIN:
                return None
    # a type whose metaclass does not allow hashing cannot be looked up in `_movable`
    except Exception:
        return None
    return batch


def rebuild_batch(x: Any, batch: Batch, changed: list[Any]) -> Any:
    """Returns a container like `x` with the tensors `changed`, which are in the order of the walk. `batch` is the
    result of `flatten_batch(x)`. If `x` contains other containers, an inner tuple in which nothing has changed stays
    the same object."""
    _, _, inner = batch
    # the values of `x` include containers, numbers or strings
    if inner or len(changed) < len(x):
        return _rebuild_inner(x, iter(changed))
    if type(x) is dict:
        return dict(zip(x, changed))  # noqa: B905  # `strict=True` takes 1.5 times as long; the lengths are equal
    return changed if type(x) is list else tuple(changed)


def _rebuild_inner(x: Any, changed: Iterator[Any]) -> Any:
    """Returns a container like `x` with each tensor replaced by the next tensor from `changed`. `x` is a container in a
    batch."""
    new = []
    for child in x.values() if type(x) is dict else x:
        if type(child) in _movable:
            new.append(next(changed))
        else:
            new.append(
                _rebuild_inner(child, changed) if type(child) in _BATCH_CONTAINERS else child
            )
    if type(x) is dict:
        return dict(zip(x, new, strict=True))
    if type(x) is list:
        return new
    # a tuple in which nothing has changed need not be copied, because it is immutable
    return x if all(map(is_, new, x)) else tuple(new)
