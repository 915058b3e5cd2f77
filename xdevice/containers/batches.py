"""Batches: dicts, lists and tuples that hold only tensors, numbers and strings. A training loop moves one at each step,
so they are taken apart here, in less time than `trees.flatten` takes."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any, Final

from xdevice.core import registry

from .looks import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdevice.contract import Backend

    Batch = tuple[list[Any], dict[type, Backend], dict[int, Any]]
    """The tensors of a container in the order of the walk, the backends of their types, and the containers in it by
    `id`."""

_DEEPEST: Final = 16
"""How deeply a batch may be nested. A container that is nested more deeply is left to
`trees.flatten`."""
# the containers of a batch; their subclasses may have attributes, and are left to
# `trees.flatten`
_BATCH_CONTAINERS: Final = frozenset((dict, list, tuple))
_movable: Final = registry.movable


def flatten_batch(x: Any, batch: Batch | None = None, depth: int = _DEEPEST) -> Batch | None:
    """Returns the tensors in a dict, list or tuple that contains only tensors, numbers,
    strings, None, and further containers of this kind. Returns None if it contains anything
    else, if it contains the same container twice, or if one of its tensor types has not been
    looked up yet. In the call for a nested container, `batch` has the result so far, which the
    call adds to, and `depth` is how many more levels are allowed.

    For three tensors that are on the device already, `to_device` takes 1.8 us with this
    function and 2.9 us with `trees.flatten`; for 1,000 tensors in lists of ten, 0.24 and 0.5
    ms.
    """
    tensors, backends, inner = batch = batch or ([], {}, {})
    if type(x) is dict:
        # other keys may hold tensors
        for key in x:
            if type(key) is not str and id(type(key)) not in PLAIN:
                return None
    elif type(x) is not list and type(x) is not tuple:
        return None
    # the type of the previous tensor: most batches have only one, which is then looked up once
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
                # too deep, or in two places, where it has to stay one container
                if not depth or id(child) in inner:
                    return None
                inner[id(child)] = child
                if flatten_batch(child, batch, depth - 1) is None:
                    return None
            elif id(type(child)) not in PLAIN:
                return None
    # a type whose metaclass refuses to be hashed cannot be looked up in `_movable`
    except Exception:
        return None
    return batch


def rebuild_batch(x: Any, batch: Batch, changed: list[Any]) -> Any:
    """Returns a container like `x` with the tensors `changed`, which are in the order of the walk. `batch` is the
    result of `flatten_batch(x)`. If `x` contains containers, a tuple in which nothing changes stays the same
    object."""
    _, _, inner = batch
    # `x` has containers, or numbers and strings, among its values
    if inner or len(changed) < len(x):
        return _rebuild_inner(x, iter(changed))
    if type(x) is dict:
        return dict(zip(x, changed))  # noqa: B905  # `strict=True` takes 1.5 times as long; the lengths are equal
    return changed if type(x) is list else tuple(changed)


def _rebuild_inner(x: Any, changed: Iterator[Any]) -> Any:
    """Returns a container like `x`, which is part of a batch, with its tensors replaced by the
    next ones of `changed`."""
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
    # a tuple in which nothing changes need not be copied, because it is immutable
    return x if all(map(is_, new, x)) else tuple(new)
