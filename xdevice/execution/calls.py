"""The check that a call of a function runs its body."""

from __future__ import annotations

import inspect
from typing import Any

from xdevice.errors import ArgumentError


def require_running(name: str, function: Any) -> None:
    """Raises `ArgumentError` for a generator function or a coroutine function: a call of it returns at once, and its
    body has not run. `name` is the name of the caller's function, for the error."""
    if (
        inspect.isgeneratorfunction(function)
        or inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise ArgumentError(
            f"{name}: {function!r:.100} does not run when it is called, because it is a generator or a coroutine "
            "function; pass a function that runs it, such as lambda: list(f(x)) or lambda: asyncio.run(f(x))"
        )
