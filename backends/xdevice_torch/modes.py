"""Helpers for dispatch modes, through which PyTorch lets Python code see each operation of a thread."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .private import private

if TYPE_CHECKING:
    from collections.abc import Callable


_DispatchMode: Any = private["torch.utils._python_dispatch.TorchDispatchMode"]
dispatch_modes: Callable[[], list[Any]] = private[
    "torch.utils._python_dispatch._get_current_dispatch_mode_stack"
]
"""Returns the modes of this thread, the innermost last."""


function_modes: Callable[[], list[Any]] = private.get(
    "torch.overrides._get_current_function_mode_stack"
)
"""Returns the modes of this thread that see functions and attributes, such as scopes of devices, the innermost last."""


class Mode(_DispatchMode):  # type: ignore[misc]
    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # otherwise torch.compile would never compile a function whose first call is inside the mode


def put_on(mode: Mode) -> Callable[[], None]:
    mode.__enter__()
    return partial(_take_off, mode)


def _take_off(mode: Mode) -> None:
    """Ends a dispatch mode that need not be the innermost one. Its `__exit__` would end the innermost mode instead, so
    the modes inside it are ended first and entered again afterwards."""
    stack = dispatch_modes()
    inner = stack[next(place for place, one in enumerate(stack) if one is mode) + 1 :]
    # by the base class's methods, because a user's mode may do more when it is entered
    for one in reversed(inner):
        _DispatchMode.__exit__(one, None, None, None)
    mode.__exit__(None, None, None)
    for one in inner:
        _DispatchMode.__enter__(one)
