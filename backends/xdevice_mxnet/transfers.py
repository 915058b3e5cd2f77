"""Seeing MXNet's transfers, and waiting after each call of its library.

All of MXNet's Python goes through the functions of one library object, which reports an error by a number: a function
that also waits, and passes on the number of the wait, makes the error appear at the line.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

from xdevice.contract.hooks import Hooks, Patches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdevice.base.devices import Device
    from xdevice.contract import Backend, Transfer


_READS = (
    "asnumpy", "asscalar", "item", "tolist", "__array__", "__bool__", "__nonzero__", "__float__", "__int__",
    "__index__", "__complex__", "__repr__", "__str__", "__format__", "__getstate__",
)  # fmt: skip
_MOVES = ("copyto", "as_in_ctx", "as_in_context")
_CALLS = (
    "MXImperativeInvoke", "MXImperativeInvokeEx", "MXNetFuncCall", "MXInvokeCachedOp", "MXInvokeCachedOpEx",
    "MXAutogradBackwardEx",
)  # fmt: skip


@contextmanager
def watch(backend: Backend, report: Callable[[Transfer], None]) -> Iterator[None]:
    def target(x: Any, other: Any) -> Device | None:
        return backend.device_of(other) if isinstance(other, mx.nd.NDArray) else backend.from_native(other)

    with Hooks(backend, report, _size) as hooks:
        hooks.verbs()
        for cls in _family(mx.nd.NDArray):
            hooks.reads(cls, *(name for name in _READS if name in vars(cls)))
            for name in _MOVES:
                if name in vars(cls):
                    hooks.moves(cls, name, target)
        yield


@contextmanager
def blocking() -> Iterator[None]:
    library = mx.base._LIB
    with Patches() as patches:
        for name in _CALLS:
            if hasattr(library, name):
                patches.replace(library, name, _waiting)
        yield


def _waiting(call: Any) -> Any:
    wait_for_all = mx.base._LIB.MXNDArrayWaitAll

    def call_and_wait(*args: Any) -> int:
        return int(call(*args) or wait_for_all())

    return call_and_wait


def _family(cls: type) -> list[type]:
    inner: list[type] = cls.__subclasses__()
    return [cls, *(found for one in inner for found in _family(one))]


def _size(x: Any) -> int:
    with mx.util.np_shape(True):
        return int(x.size) * np.dtype(x.dtype).itemsize
