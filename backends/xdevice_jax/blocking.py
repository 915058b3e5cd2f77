"""Blocking mode for JAX: waits after each call of a compiled function.

From the second call of a compiled function on, JAX calls it in C++, where Python cannot wait
for the result. Blocking mode switches this fast path off, and empties its caches; the functions
need not be compiled again for that. All of this uses JAX's private API.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import jax

from xdevice.contract.blocking import Blocking
from xdevice.contract.patching import Patches, Shared

from .private import private

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_EXECUTE = private.place("jax._src.interpreters.pxla.ExecuteReplicated.__call__")
_FAST_PATH = private.place("jax._src.pjit._get_fastpath_data")
_CLEAR = (
    private["jax._src.pjit._cpp_pjit_cache_fun_only"].clear,
    private["jax._src.pjit._cpp_pjit_cache_explicit_attributes"].clear,
    private["jax._src.lib.xla_client._xla.PjitFunctionCache"].clear_all,
)
"""The functions that empty the caches of fast paths."""


_waited = Shared(per_thread=False)
"""Counts the open blocks of the process: the first replaces JAX's functions, and the last puts
them back."""


def is_blocking() -> bool:
    """Whether the process is inside a `with backend.blocking():` block."""
    return _waited.is_wanted()


def blocking() -> AbstractContextManager[None]:
    """Returns a context manager: inside its block, a compiled function returns, in every
    thread, only when its results are computed. Raises `UnsupportedError` if JAX lacks a private
    name that this needs."""
    private.require("blocking")
    return _waited.on(_patched)


def _patched() -> Callable[[], None]:
    """Switches blocking mode on, and returns a function that switches the mode off."""
    patches = Patches()
    patches.replace(*_EXECUTE, _waiting)
    # None means that there is no fast path for a function
    patches.replace(*_FAST_PATH, lambda original: lambda *args, **kwargs: None)
    # functions that were called before the block have fast paths already
    for clear in _CLEAR:
        clear()
    return patches.__exit__


def _waiting(call: Any) -> Any:
    """Returns JAX's method `call`, which runs a compiled function, wrapped so that the call
    returns only when the results are computed, and raises the error of the computation."""

    def call_and_wait(self: Any, *args: Any) -> Any:
        """Runs the compiled function `self` and waits for its results. Replaces the method
        `call`."""
        result = call(self, *args)
        try:
            jax.block_until_ready(result)
        except Exception as error:
            # as long as a failed array exists, even in a traceback, every sync() fails
            del result
            raise error.with_traceback(None) from None
        return result

    return call_and_wait


class JaxBlocking(Blocking):
    """Waiting after each call of a compiled function."""

    _blocks: bool
    """Whether this adapter made JAX's CPU compute synchronously before JAX was started."""

    def blocking(self) -> AbstractContextManager[Any]:
        """Returns a context manager in which each call of a compiled function returns only when
        its results are computed."""
        # JAX's own setting is enough if there are no real GPUs or TPUs, because it concerns the
        # CPU only
        if self._blocks and self.count("gpu") == self.virtual and not self.count("tpu"):
            return nullcontext()
        return blocking()
