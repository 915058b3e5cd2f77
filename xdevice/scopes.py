"""`with device:`, one stack per thread.

The stack holds the native context managers, because a `Device` is interned and so cannot hold them itself.
"""

from __future__ import annotations

from contextvars import ContextVar

from . import selection

TYPE_CHECKING = False  # importing typing would take a third of the time of `import xdevice`
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Any

    from .devices import Device

_entered: ContextVar[tuple[tuple[Device, AbstractContextManager[Any]], ...]] = ContextVar("xdevice_scopes", default=())


def current() -> Device | None:
    """The device of the innermost `with device:` of this thread."""
    stack = _entered.get()
    return stack[-1][0] if stack else None


def enter(device: Device) -> None:
    backend = selection.current()
    backend.require(device)
    native = backend.scope(device)
    native.__enter__()
    _entered.set((*_entered.get(), (device, native)))


def leave(exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
    stack = _entered.get()
    _entered.set(stack[:-1])
    stack[-1][1].__exit__(exc_type, exc, trace)
