"""What the verbs do with a batch, which is what `contents` would do, in a fraction of the time.

Where the answer is an error, `contents` gives it: it knows the way to each tensor.
"""

from __future__ import annotations

from xdevice.base.devices import Device, plain
from xdevice.containers import batches
from xdevice.core import registry
from xdevice.errors import DeviceNotFoundError, UnsupportedError

from . import leaves

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from xdevice.contract import Backend

    One = Callable[[Backend, str, Any, Device], Any]

_movable = registry.movable


def transferred(x: Any, target: Device, one: One) -> Any:
    """`to_device` and `copy_to` of a container of `OWN`; None if it is not a batch, or cannot be there."""
    flat = batches.flat(x)
    tensors = batches.tensors(x) if flat is None else flat
    if not tensors:
        return None if tensors is None else x
    kinds = batches.types(tensors)
    try:
        if type(target) is not Device:
            for cls in kinds:
                _movable[cls].require(target)
            target = plain(target)
        here = _places(tensors, kinds) if one is not leaves.copy else set()
        if target in here and len(here) == 1:
            return x
        for cls in kinds:
            _movable[cls].require(target)
    except (DeviceNotFoundError, UnsupportedError):
        return None
    if len(set(map(id, tensors))) < len(tensors):
        flat, tensors = None, list({id(tensor): tensor for tensor in tensors}.values())
    try:
        if one is leaves.move and target not in here and len(kinds) == 1:
            moved = _movable[kinds.pop()].move_all(tensors, target)
        else:
            moved = [one(_movable[type(tensor)], "tensor", tensor, target) for tensor in tensors]
    except UnsupportedError:  # one of texts, which stays
        return None
    if flat is not None:
        return batches.refilled(x, moved)
    return batches.rebuilt(x, dict(zip(map(id, tensors), moved, strict=True)))


def places(x: Any) -> set[Device] | None:
    """Where the tensors in a container of `OWN` are; None if it is not a batch, or they do not say so."""
    flat = batches.flat(x)
    return _said(batches.tensors(x) if flat is None else flat)


def places_of_all(xs: tuple[Any, ...]) -> set[Device] | None:
    """Where the tensors among the arguments of a verb, and in the batches among them, are; None if one is neither."""
    if len(xs) == 1 and type(xs[0]) in batches.OWN:
        return places(xs[0])
    if not all(type(x) in batches.OWN or type(x) in _movable for x in xs):
        return None
    return _said(batches.tensors(xs))


def _said(tensors: list[Any] | None) -> set[Device] | None:
    if not tensors:
        return None if tensors is None else set()
    try:
        return _places(tensors, batches.types(tensors))
    except UnsupportedError:
        return None


def _places(tensors: list[Any], kinds: set[type]) -> set[Device]:
    if len(kinds) > 1:
        return {registry.probes[type(x)](x) for x in tensors}
    [cls] = kinds
    return _movable[cls].devices_of(cls, tensors)
