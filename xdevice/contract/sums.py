"""The loop of `Backend.total`, which is the same in every framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def add_up(total: Any, rest: Iterable[Any], mean: bool) -> Any:
    """`total`, in storage of its own and in the dtype to add in, with the rest added in their order; divided by their
    number for the mean. In place where tensors can be written."""
    count = 1
    for x in rest:
        total += x
        count += 1
    if mean:
        total /= count
    return total
