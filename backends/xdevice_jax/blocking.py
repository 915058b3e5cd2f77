"""Implements blocking mode for JAX: after each call of a compiled function, waits for the result.

From its second call on, JAX calls a compiled function in C++, where Python cannot wait for the result. Blocking mode
switches this fast path off, and empties the caches of the fast path. This does not require compiling the functions
again. All of this uses JAX's private API.
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
"""The functions that empty the caches of the fast path."""


_waited = Shared(per_thread=False)
"""Counts the open blocks of the process. The first block to open replaces JAX's functions, and the last block to close
restores them."""


def is_blocking() -> bool:
    """Whether the process is inside a `with backend.blocking():` block."""
    return _waited.is_wanted()


def blocking() -> AbstractContextManager[None]:
    """Returns a context manager. Inside its block, compiled functions in all threads return only when their results
    have been computed. Raises `UnsupportedError` if JAX lacks a private name that this requires."""
    private.require_names_for("blocking")
    return _waited.on(_patched)


def _patched() -> Callable[[], None]:
    """Switches blocking mode on, and returns a function that switches the mode off."""
    patches = Patches()
    patches.replace(*_EXECUTE, _waiting)
    # None means that a function has no fast path
    patches.replace(*_FAST_PATH, lambda original: lambda *args, **kwargs: None)
    # functions that were called before the block may already have fast paths
    for clear in _CLEAR:
        clear()
    return patches.__exit__


def _waiting(call: Any) -> Any:
    """Returns a replacement for JAX's method `call`, which runs a compiled function. The replacement returns only when
    the results have been computed, and raises the error of the computation."""

    def call_and_wait(self: Any, *args: Any) -> Any:
        """Replaces the method `call`: runs the compiled function `self`, and waits for its results."""
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
    """Waits after each call of a compiled function."""

    _blocks: bool
    """Whether this adapter has made JAX compute synchronously on the CPU, which is possible only before JAX is
    started."""

    def blocking(self) -> AbstractContextManager[Any]:
        """Returns a context manager in which each call of a compiled function returns only when its results have been
        computed."""
        # JAX's own setting is enough if there are no real GPUs or TPUs, because it affects only the CPU
        if self._blocks and self.count("gpu") == self.virtual and not self.count("tpu"):
            return nullcontext()
        return blocking()
