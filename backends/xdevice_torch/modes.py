"""Helpers for dispatch modes. A dispatch mode is an object with a method `__torch_dispatch__`. PyTorch calls this
method for each operation of a thread that has entered the mode."""

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
"""Returns the dispatch modes that this thread has entered, with the innermost last."""


function_modes: Callable[[], list[Any]] = private.get(
    "torch.overrides._get_current_function_mode_stack"
)
"""Returns the function modes of this thread, with the innermost last. PyTorch calls a function mode, such as the scope
of a device, whenever a program calls a function of PyTorch or reads an attribute of a tensor. `function_modes` is None
if this version of PyTorch lacks the function."""


class Mode(_DispatchMode):  # type: ignore[misc]
    """The base class of xdevice's dispatch modes."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Tells torch.compile that it may compile functions inside the mode."""
        # otherwise torch.compile would never compile a function that is first called inside the mode
        return True


def enter_mode(mode: Mode) -> Callable[[], None]:
    """Enters a dispatch mode in this thread. Returns a function that exits the mode; it must be
    called in the same thread."""
    mode.__enter__()
    return partial(_exit_mode, mode)


def _exit_mode(mode: Mode) -> None:
    """Exits a dispatch mode, which need not be the innermost mode. `mode.__exit__` would exit the innermost mode, so
    the modes inside `mode` are exited first and entered again afterwards."""
    stack = dispatch_modes()
    # compares by identity, because a user's mode may define `__eq__`
    position = next(i for i, active in enumerate(stack) if active is mode)
    inner_modes = stack[position + 1 :]
    # calls the methods of the base class, because the `__enter__` and `__exit__` of a user's
    # mode may do more
    for inner in reversed(inner_modes):
        _DispatchMode.__exit__(inner, None, None, None)
    mode.__exit__(None, None, None)
    for inner in inner_modes:
        _DispatchMode.__enter__(inner)
