"""Waiting after each call of MXNet's library.

All of MXNet's Python goes through the functions of one library object, which reports an error by a number: a function
that also waits, and passes on the number of the wait, makes the error appear at the line.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mxnet as mx

from xdevice.contract.blocking import Blocking
from xdevice.contract.hooks import Patches

if TYPE_CHECKING:
    from collections.abc import Iterator

CALLS = (
    "MXImperativeInvoke", "MXImperativeInvokeEx", "MXNetFuncCall", "MXInvokeCachedOp", "MXInvokeCachedOpEx",
    "MXAutogradBackwardEx",
)  # fmt: skip


def _waiting(call: Any) -> Any:
    wait_for_all = mx.base._LIB.MXNDArrayWaitAll

    def call_and_wait(*args: Any) -> int:
        return int(call(*args) or wait_for_all())

    return call_and_wait


class MxnetBlocking(Blocking):
    @contextmanager
    def blocking(self) -> Iterator[None]:
        library = mx.base._LIB
        with Patches() as patches:
            for name in CALLS:
                if hasattr(library, name):
                    patches.replace(library, name, _waiting)
            yield
