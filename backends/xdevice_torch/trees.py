"""Functions for tensors in nested lists, tuples and dicts, which PyTorch's operations accept
and return, and which optimizers store."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def leaves(tree: Any) -> Iterator[Any]:
    """Yields the leaves of nested lists, tuples and dicts, that is, the objects that are not lists, tuples or dicts. If
    `tree` is not a list, tuple or dict, yields only `tree`."""
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        yield tree
        return
    for item in tree:
        yield from leaves(item)


def replaced(kind: type, function: Callable[[Any], Any], tree: Any) -> Any:
    """Returns a copy of nested lists, tuples and dicts in which each object `x` of the type
    `kind` is replaced by `function(x)`. All other objects stay the same."""
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, tuple):
        parts = [replaced(kind, function, item) for item in tree]
        # the constructor of a named tuple expects its fields one by one; `_make` accepts a list
        return tree._make(parts) if hasattr(tree, "_make") else type(tree)(parts)
    if not isinstance(tree, dict | list):
        return tree
    # a copy also has the attributes of a subclass, such as the default of a defaultdict
    new = copy.copy(tree)
    for key, item in tree.items() if isinstance(tree, dict) else enumerate(tree):
        new[key] = replaced(kind, function, item)
    return new
