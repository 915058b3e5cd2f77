"""Seeing JAX's transfers, and waiting after each compiled call.

JAX calls a compiled function in C++ once it has seen it, where Python can wait for nothing. Blocking turns that fast
path off: what was called before is looked up anew, without being compiled anew. All of it is private API.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jax

from xdevice.contract.hooks import Hooks, Patches

try:
    from jax._src.array import ArrayImpl
except ImportError:  # a private module
    ArrayImpl = None
try:
    from jax._src import pjit
    from jax._src.interpreters import pxla
    from jax._src.lib import xla_client
except ImportError:
    pjit = pxla = xla_client = None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdevice.base.devices import Device
    from xdevice.contract import Backend, Transfer


_READS = (
    "item", "tolist", "tobytes", "__array__", "__float__", "__int__", "__bool__", "__index__", "__complex__",
    "__hex__", "__oct__", "__repr__", "__str__", "__format__", "__reduce__",
)  # fmt: skip


@contextmanager
def watch(backend: Backend, report: Callable[[Transfer], None]) -> Iterator[None]:
    if ArrayImpl is None:
        raise backend.unsupported(
            "watching its transfers: xdevice does not know its class of arrays",
            'use jax.transfer_guard("disallow"), which sees those of a GPU',
        )

    def place(x: Any) -> Device | None:
        # an array may be spread over several devices: the first one stands for them
        native = min(x.sharding.device_set, key=lambda native: native.id)
        return backend.from_native(native)

    def target(x: Any, device: Any = None, *args: Any, **kwargs: Any) -> Device | None:
        if isinstance(device, jax.sharding.Sharding):
            if len(device.device_set) != 1:
                return None
            device = next(iter(device.device_set))
        return backend.from_native(device)

    with Hooks(backend, report, lambda x: int(x.nbytes), place) as hooks:
        hooks.verbs()
        hooks.numpy_reads()
        hooks.reads(ArrayImpl, *_READS)
        hooks.reads(ArrayImpl, "_value", how="value")
        hooks.moves(ArrayImpl, "to_device", target)
        hooks.moves(jax, "device_put", target)
        yield


@contextmanager
def blocking(backend: Backend) -> Iterator[None]:
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
            # a failed array that lives on, be it in a traceback, fails every sync() from then on
            del result
            raise error.with_traceback(None) from None
        return result

    return call_and_wait


def _caches() -> list[Callable[[], None]] | None:
    """How to forget the fast paths taken so far; None if this version of JAX has them elsewhere."""
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
