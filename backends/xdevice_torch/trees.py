"""Tensors in the lists, tuples and dicts that PyTorch's operations take and return, and that optimizers keep."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def leaves(tree: Any) -> Iterator[Any]:
    """Yields the objects in nested lists, tuples and dicts that are none of these."""
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        yield tree
        return
    for inside in tree:
        yield from leaves(inside)


def replaced(kind: type, function: Callable[[Any], Any], tree: Any) -> Any:
    """Returns nested lists, tuples and dicts with `function` applied to each object of type `kind` in them."""
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, tuple):
        parts = [replaced(kind, function, inside) for inside in tree]
        return tree._make(parts) if hasattr(tree, "_make") else type(tree)(parts)
    if not isinstance(tree, dict | list):
        return tree
    new = copy.copy(tree)
    for key, inside in tree.items() if isinstance(tree, dict) else enumerate(tree):
        new[key] = replaced(kind, function, inside)
    return new
