"""Bypasses the scopes of devices (`with device:`), which PyTorch calls for each operation and
attribute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from xdevice_torch.modes import function_modes
from xdevice_torch.private import private

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# the stack of this thread's modes that see each function call; without these names no scope is
# set aside
count_function_modes: Callable[[], int] = private.get(
    "torch._C._len_torch_function_stack", lambda: 0
)
_mode_at: Callable[[int], Any] = private.get("torch._C._get_function_stack_at")
_pop: Callable[[], Any] = private.get("torch._C._pop_torch_function_stack")
_push: Callable[[Any], None] = private.get("torch._C._push_on_torch_function_stack")


def _scope_classes() -> tuple[type, ...]:
    """Returns a tuple with the class of PyTorch's device scopes; an empty tuple if PyTorch has
    no way to list modes."""
    if function_modes is None:
        return ()
    # PyTorch has no public name for the class, so a scope is entered to see it
    with torch.device("cpu"):
        return (type(function_modes()[-1]),)


SCOPES = _scope_classes()
"""The class of the mode that `with torch.device(...)` enters, in a tuple; empty if PyTorch does
not show it."""


def set_scopes_aside() -> Sequence[Any]:
    """Removes the scopes of devices from this thread and returns them, the innermost first. If
    a mode of another kind is active, removes no scope and returns an empty tuple, because that
    mode has to see each operation inside its scopes."""
    count = count_function_modes()
    for i in range(count):
        if not isinstance(_mode_at(i), SCOPES):
            return ()
    return [_pop() for _ in range(count)]


def put_scopes_back(scopes: Sequence[Any]) -> None:
    """Reopens the scopes that `set_scopes_aside` has returned."""
    # reversed, because the innermost one was removed first and has to be opened last
    for scope in reversed(scopes):
        _push(scope)
