"""Checks that calling a function runs its body."""

from __future__ import annotations

import inspect
from typing import Any

from xdevice.errors import ArgumentError


def refuse_generator_function(name: str, function: Any) -> None:
    """Raises `ArgumentError` for a generator function or a coroutine function, because a call of such a function
    returns without running its body. `name` is the name of the calling function to show in the error message."""
    if (
        inspect.isgeneratorfunction(function)
        or inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise ArgumentError(
            f"{name}: {function!r:.100} does not run when it is called, because it is a generator or a coroutine "
            "function; pass a function that runs it, such as lambda: list(f(x)) or lambda: asyncio.run(f(x))"
        )
