"""Helpers for dispatch modes. A dispatch mode is an object whose `__torch_dispatch__` PyTorch
calls for each operation of the thread that has entered the mode."""

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
"""Returns the dispatch modes that this thread has entered, the innermost last."""


function_modes: Callable[[], list[Any]] = private.get(
    "torch.overrides._get_current_function_mode_stack"
)
"""Returns the function modes of this thread, the innermost last. A function mode, such as the
scope of a device, sees calls of PyTorch's functions and reads of attributes. The name is None
if this version of PyTorch lacks the function."""


class Mode(_DispatchMode):  # type: ignore[misc]
    """The base class of xdevice's dispatch modes."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Tells torch.compile that it may compile functions inside the mode."""
        # otherwise torch.compile would never compile a function whose first call is inside the
        # mode
        return True


def enter_mode(mode: Mode) -> Callable[[], None]:
    """Enters a dispatch mode in this thread. Returns a function that ends the mode, and that
    must be called in the same thread."""
    mode.__enter__()
    return partial(_exit_mode, mode)


def _exit_mode(mode: Mode) -> None:
    """Ends a dispatch mode, which need not be the innermost mode. `mode.__exit__` alone would
    end the innermost mode, so the modes inside `mode` are ended first and entered again
    afterwards."""
    stack = dispatch_modes()
    # by identity, because a user's mode may define `__eq__`
    inner = stack[next(i for i, other in enumerate(stack) if other is mode) + 1 :]
    # by the base class's methods, because the `__enter__` and `__exit__` of a user's mode may
    # do more
    for other in reversed(inner):
        _DispatchMode.__exit__(other, None, None, None)
    mode.__exit__(None, None, None)
    for other in inner:
        _DispatchMode.__enter__(other)
