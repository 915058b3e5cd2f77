"""Batches: Python's own dicts, lists and tuples, nested, of tensors, numbers, texts and None.

They are what a training loop moves at each step, and need none of the care that `trees` takes of other containers. What
holds anything else is not a batch. For a batch the rules are those of `trees`.
"""

from __future__ import annotations

from operator import is_

from xdevice.core import registry

TYPE_CHECKING = False  # the verbs import this: typing would take a third of the time
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Final

PLAIN: Final = frozenset(map(id, (type(None), bool, int, float, complex, str, bytes)))
"""The `id`s of the types that hold nothing: a type may refuse to be hashed."""

OWN: Final = frozenset((dict, list, tuple))
"""The types of the containers that may be batches."""

_DEEPEST: Final = 16
"""How deep a batch is nested at most, so that what contains itself ends."""

_tensors: Final = registry.movable


def flat(x: Any) -> list[Any] | None:
    """What is in a container of `OWN` in which there is nothing but tensors; None for another."""
    if type(x) is dict:
        for key in x:
            if type(key) is not str and id(type(key)) not in PLAIN:
                return None
        x = x.values()
    cls: Any = None
    try:
        for child in x:
            if type(child) is not cls:
                cls = type(child)
                if cls not in _tensors:
                    return None
    except Exception:  # a metaclass whose types cannot be hashed
        return None
    return list(x)


def types(tensors: Sequence[Any]) -> set[type]:
    """The types that there are, which are few."""
    found: set[type] = set()
    cls = None
    for x in tensors:
        if type(x) is not cls:
            cls = type(x)
            found.add(cls)
    return found


def tensors(x: Any) -> list[Any] | None:
    """The tensors in a container of `OWN`, each as often as it is there; None if it is not a batch."""
    found: list[Any] = []
    try:
        return found if _gather(x, found, _DEEPEST) else None
    except Exception:  # a metaclass whose types cannot be hashed
        return None


def _gather(x: Any, found: list[Any], depth: int) -> bool:
    if type(x) is dict:
        for key in x:
            if type(key) is not str and id(type(key)) not in PLAIN:
                return False
        x = x.values()
    for child in x:
        cls = type(child)
        if id(cls) in PLAIN:
            continue
        if cls in OWN:
            if not depth or not _gather(child, found, depth - 1):
                return False
        elif cls in _tensors:
            found.append(child)
        else:
            return False
    return True


def rebuilt(x: Any, new: dict[int, Any]) -> Any:
    """A batch with others for its tensors, by their `id`s. A tuple in which nothing changes stays the same, and what
    stands in two places stays one."""
    if id(x) in new:
        return new[id(x)]
    children = list(x.values() if type(x) is dict else x)
    changed = [
        new[id(child)] if type(child) in _tensors else rebuilt(child, new) if type(child) in OWN else child
        for child in children
    ]
    new[id(x)] = x if type(x) is tuple and all(map(is_, changed, children)) else refilled(x, changed)
    return new[id(x)]


def refilled(x: Any, children: Sequence[Any]) -> Any:
    """A container of `OWN` with others for all that is in it."""
    # strict takes as long again, and as many were taken out
    return dict(zip(x, children)) if type(x) is dict else type(x)(children)  # noqa: B905
