"""Removes the scopes of devices (`with device:`) temporarily, because PyTorch calls these
scopes for each operation and attribute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from xdevice_torch.modes import function_modes
from xdevice_torch.private import private

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# these functions access the stack of this thread's function modes, which PyTorch calls for each
# function call. Without these names no scope is set aside
count_function_modes: Callable[[], int] = private.get(
    "torch._C._len_torch_function_stack", lambda: 0
)
_mode_at: Callable[[int], Any] = private.get("torch._C._get_function_stack_at")
_pop: Callable[[], Any] = private.get("torch._C._pop_torch_function_stack")
_push: Callable[[Any], None] = private.get("torch._C._push_on_torch_function_stack")


def _scope_classes() -> tuple[type, ...]:
    """Returns a tuple with the class of PyTorch's device scopes, or an empty tuple if this
    version of PyTorch cannot list modes."""
    if function_modes is None:
        return ()
    # PyTorch has no public name for the class, so it is read from a scope that is entered here
    with torch.device("cpu"):
        return (type(function_modes()[-1]),)


SCOPES = _scope_classes()
"""A tuple with the class of the mode that `with torch.device(...)` enters; empty if PyTorch
does not reveal the class."""


def set_scopes_aside() -> Sequence[Any]:
    """Removes the scopes of devices from this thread and returns them, with the innermost
    first. If a mode of a different kind is active, removes nothing and returns an empty tuple,
    because that mode must receive each operation together with its scopes."""
    count = count_function_modes()
    for i in range(count):
        if not isinstance(_mode_at(i), SCOPES):
            return ()
    return [_pop() for _ in range(count)]


def put_scopes_back(scopes: Sequence[Any]) -> None:
    """Enters `scopes` again. `scopes` is the result of `set_scopes_aside`."""
    # in reverse order, because the innermost scope was removed first and must be entered last
    for scope in reversed(scopes):
        _push(scope)
