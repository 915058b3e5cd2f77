"""Removes the open scopes of devices (`with device:`) from a framework while functions of
xdevice compute.

At every operation, and whenever an attribute of a tensor is read, PyTorch runs code of each open scope, which takes 1
to 3 us each time. Functions of xdevice name the device of each tensor that they create, so they do not need the
scopes. The user's functions need them.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from xdevice.contract import Backend
    from xdevice.math.contract.arithmetic import Scopes


class ScopesRemoved:
    """`with ScopesRemoved(backend) as removed:` removes the open scopes of the backend's framework during the block.
    If `backend` is None, nothing is removed. `removed.with_scopes(function)` returns a function that calls `function`
    with the scopes open."""

    def __init__(self, backend: Backend | None) -> None:
        self._scopes = None if backend is None else backend.scopes
        # the scopes that were removed, in the form that the framework returned
        self._removed: Sequence[Any] = ()

    def __enter__(self) -> Self:
        if self._scopes is not None and self._scopes.are_open():
            self._removed = self._scopes.set_aside()
        return self

    def __exit__(self, *_: object) -> None:
        if self._scopes is not None and self._removed:
            self._scopes.put_back(self._removed)

    def with_scopes(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that calls `function` with the removed scopes open again. The
        returned function may be called only in this block."""
        scopes = self._scopes
        # no scopes were removed, so the function runs as it is
        if scopes is None or not self._removed:
            return function

        # `run` is called while the scopes are removed, and opens them again for the call of
        # `function`
        def run(*args: Any, **kwargs: Any) -> Any:
            scopes.put_back(self._removed)
            try:
                return function(*args, **kwargs)
            finally:
                self._removed = scopes.set_aside()

        return run


def without_scopes(scopes: Scopes | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls `function` while the scopes of its backend are removed. `scopes` contains the
    adapter's functions for removing scopes; if `scopes` is None, `function` itself is returned."""
    if scopes is None:
        return function
    are_open, set_aside, put_back = scopes

    # `updated=()`: attributes such as `__signature__` are not copied, because `inspect` finds
    # them through `__wrapped__`
    @wraps(function, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        if not are_open():
            return function(*args, **kwargs)
        removed = set_aside()
        try:
            return function(*args, **kwargs)
        # the scopes are also restored after an error, because they belong to the user's program
        finally:
            put_back(removed)

    return run
