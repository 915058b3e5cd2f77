"""Paddle's memory in the hands of other frameworks, and theirs in its own.

- A negative stride makes the import ask for 2**64 bytes.
- Before Paddle 3, which brought `__dlpack__`, an export writes the strides of C order whatever they are, it labels bool
  as uint8, and an import copies and ignores the strides.
- It releases memory under a lock (3.3.1). If that belongs to a tensor, of MXNet say, whose own memory came from one
  that Paddle has taken over, Paddle waits for itself forever. If PyTorch, say, releases what it has from Paddle, it
  does so without Python's lock, and two threads wait for each other. Hence `releases_under_lock`.
- `contiguous()` of a view cuts it off from its base (3.3.1), so nothing here calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import paddle
from paddle.utils import dlpack

from xdevice.base import devices
from xdevice.contract import Takes
from xdevice.contract.conversion import Conversion
from xdevice.errors import UnsupportedError

if TYPE_CHECKING:
    from xdevice.base.devices import Device
    from xdevice.contract.dlpack import Lent

_knows_strides: Final = hasattr(paddle.Tensor, "__dlpack__")


def takes(is_virtual: bool) -> Takes | None:
    """The memory that Paddle can take over. With virtual GPUs none of its kernels takes strides, not even on the
    CPU."""
    if not _knows_strides:
        return None
    return Takes(strides="compact" if is_virtual else "forward")


def described(x: paddle.Tensor) -> str:
    return "a tensor that is spread over processes" if x.is_dist() else "a sparse tensor"


class PaddleConversion(Conversion):
    _gpu: str
    """What Paddle calls the type of `gpu:i`."""

    def shares(self, device: Device) -> bool:
        return device is devices.CPU or (device.kind == "gpu" and self._gpu == "gpu")  # of others nothing was seen

    def takes(self) -> Takes | None:
        return takes(bool(self.virtual))

    def detached(self, x: paddle.Tensor) -> paddle.Tensor:
        if not x.is_dense():
            raise UnsupportedError(
                f"{described(x)} is not in one piece of memory; convert x.to_dense(), or what it is made of"
            )
        return x if x.stop_gradient else x.detach()

    def memory_layout(self, x: paddle.Tensor) -> tuple[int, bool, bool] | None:
        if not _knows_strides:
            return None
        # is_contiguous looks at strides that nobody steps in
        return x.data_ptr(), x.is_contiguous() or 1 in x.shape, min(x.strides, default=0) >= 0

    def export(self, x: paddle.Tensor) -> Any:
        if not _knows_strides and not x.is_contiguous():
            raise BufferError(f"Paddle {paddle.__version__} exports contiguous tensors only")
        return dlpack.to_dlpack(x)

    def adopt(self, lent: Lent, dtype: str) -> paddle.Tensor:
        return dlpack.from_dlpack(lent.capsule)
