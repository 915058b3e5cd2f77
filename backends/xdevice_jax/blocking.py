"""Blocking mode for JAX: waits after each call of a compiled function.

From the second call of a compiled function on, JAX calls it in C++, where Python cannot wait for the result. Blocking
mode switches this fast path off, and empties its caches; the functions need not be compiled again for that. All of this
uses JAX's private API.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import jax

from xdevice.contract.blocking import Blocking
from xdevice.contract.hooks import Patches

try:
    from jax._src import pjit
    from jax._src.interpreters import pxla
    from jax._src.lib import xla_client
except ImportError:
    pjit = pxla = xla_client = None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from xdevice.contract.primitives import Primitives


@contextmanager
def blocking(backend: Primitives) -> Iterator[None]:
    caches = _caches()
    if caches is None:
        raise backend.unsupported(
            f"blocking mode in {backend.version} once it is imported: its private API has changed",
            "set XDEVICE_BLOCKING=1 before the program starts, which holds for the CPU; or call xdevice.sync()",
        )
    with Patches() as patches:
        patches.replace(pxla.ExecuteReplicated, "__call__", _waiting)
        patches.replace(pjit, "_get_fastpath_data", lambda original: lambda *args, **kwargs: None)
        for clear in caches:
            clear()
        yield


def _waiting(call: Any) -> Any:
    def call_and_wait(self: Any, *args: Any) -> Any:
        result = call(self, *args)
        try:
            jax.block_until_ready(result)
        except Exception as error:
            # as long as a failed array lives, even in a traceback, every sync() fails
            del result
            raise error.with_traceback(None) from None
        return result

    return call_and_wait


def _caches() -> list[Callable[[], None]] | None:
    """Returns functions that empty JAX's caches for calls in C++; None if this version of JAX does not have them
    all."""
    try:
        found = [
            pjit._cpp_pjit_cache_fun_only.clear,
            pjit._cpp_pjit_cache_explicit_attributes.clear,
            xla_client._xla.PjitFunctionCache.clear_all,
        ]
        there = callable(pjit._get_fastpath_data) and callable(pxla.ExecuteReplicated.__call__)
    except AttributeError:
        return None
    return found if there else None


class JaxBlocking(Blocking):
    _blocks: bool
    """Whether JAX was told to compute synchronously before it was started."""

    def blocking(self) -> AbstractContextManager[Any]:
        if self._blocks and self.count("gpu") == self.virtual and not self.count("tpu"):
            return nullcontext()  # JAX computes synchronously; its own switch for this concerns the CPU only
        return blocking(self)
