"""MXNet's memory in the hands of other frameworks, and theirs in its own.

- Its engine orders what it does by itself only: `to_dlpack_for_write` waits for all of that, reads too.
- It writes bool as an integer of one bit.
- Strides other than those of C order are refused, in dimensions of size 1 too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mxnet as mx

from xdevice.contract import Takes
from xdevice.contract.conversion import Conversion
from xdevice.errors import UnsupportedError

from . import semantics

if TYPE_CHECKING:
    from xdevice.contract.dlpack import Lent

TAKES = Takes(strides="compact", labels={"bool": (1, 1)})


class MxnetConversion(Conversion):
    def takes(self) -> Takes | None:
        return TAKES

    def detached(self, x: Any) -> Any:
        if x.stype != "default":
            raise UnsupportedError(f'a {x.stype} array is not in one piece of memory; convert x.tostype("default")')
        return x.detach() if x.grad is not None or mx.autograd.is_recording() else x

    def export(self, x: Any) -> Any:
        with mx.util.np_shape(True):
            return mx.nd.to_dlpack_for_write(x.as_nd_ndarray())

    def adopt(self, lent: Lent, dtype: str) -> Any:
        semantics.creating()
        with mx.util.np_shape(True):
            return mx.nd.from_dlpack(lent.capsule).as_np_ndarray()
