"""Lends the memory of Paddle's tensors to other frameworks, and takes over memory of theirs, without a copy.

Facts about Paddle that the code depends on:

- If a stride is negative, `from_dlpack` tries to allocate 2**64 bytes.
- Before Paddle 3, which brought `__dlpack__`, a DLPack capsule of Paddle's claims C order whatever the strides are, and
  uint8 for bool. And `from_dlpack` makes a copy and ignores the strides.
- Paddle releases memory while it holds a lock of its own (3.3.1), so two things can go wrong, and `releases_under_lock`
  is set. First, the memory may belong to a tensor of MXNet, for example, that in turn holds memory of Paddle's: MXNet
  releases that, and Paddle waits for its own lock forever. Second, another framework, such as PyTorch, may release
  memory of Paddle's without holding Python's lock, and two threads wait for each other.
- `contiguous()` of a view cuts the view off from its base (3.3.1), so nothing here calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import paddle
from paddle.utils import dlpack

from xdevice.base import devices
from xdevice.base.dtypes import BITS_AS, dtype_name, host_dtype
from xdevice.contract import Takes
from xdevice.contract.conversion import Conversion
from xdevice.contract.dlpack import Lent
from xdevice.errors import UnsupportedError

if TYPE_CHECKING:
    import numpy as np

    from xdevice.base.devices import Device


_knows_strides: Final = hasattr(paddle.Tensor, "__dlpack__")


def takes(is_virtual: bool) -> Takes | None:
    """Returns what memory Paddle can take over; None if this Paddle always copies. With virtual GPUs the memory must be
    in C order, because Paddle's kernels for strides are switched off, even those of the CPU."""
    if not _knows_strides:
        return None
    return Takes(strides="compact" if is_virtual else "forward")


def described(x: paddle.Tensor) -> str:
    return "a tensor that is spread over processes" if x.is_dist() else "a sparse tensor"


class PaddleConversion(Conversion):
    _gpu: str
    """Paddle's own name for the kind of device that xdevice calls `gpu`."""

    def shares(self, device: Device) -> bool:
        # sharing memory was tried on CPUs and on GPUs of NVIDIA and AMD only
        return device is devices.CPU or (device.kind == "gpu" and self._gpu == "gpu")

    def takes(self) -> Takes | None:
        return takes(bool(self.virtual))

    def detached(self, x: paddle.Tensor) -> paddle.Tensor:
        if not x.is_dense():
            raise UnsupportedError(
                f"{described(x)} is not in one block of memory; convert x.to_dense(), or the parts of the tensor"
            )
        return x if x.stop_gradient else x.detach()

    def memory_layout(self, x: paddle.Tensor) -> tuple[int, bool, bool] | None:
        if not _knows_strides:
            return None
        # `is_contiguous` also looks at the strides of axes of size 1, which do not matter
        return x.data_ptr(), x.is_contiguous() or 1 in x.shape, min(x.strides, default=0) >= 0

    def export(self, x: paddle.Tensor) -> Any:
        if not _knows_strides and not x.is_contiguous():
            raise BufferError(f"Paddle {paddle.__version__} exports contiguous tensors only")
        return dlpack.to_dlpack(x)

    def adopt(self, lent: Lent, dtype: str) -> paddle.Tensor:
        return dlpack.from_dlpack(lent.capsule)

    def from_buffer(self, array: np.ndarray[Any, Any]) -> paddle.Tensor:
        if self.takes() is None or (self.virtual and array.dtype.isbuiltin == 2):
            return self.from_numpy(array, devices.CPU)
        if array.dtype.isbuiltin != 2:
            return dlpack.from_dlpack(array.__dlpack__())
        name = array.dtype.name
        return dlpack.from_dlpack(array.view(BITS_AS[name]).__dlpack__()).view(name)

    def gives_away(self, x: paddle.Tensor) -> bool:
        return True

    def peek(self, x: paddle.Tensor) -> np.ndarray[Any, Any]:
        if self.takes() is None or not x.place.is_cpu_place() or not x.is_dense() or not x.size:
            # Paddle 2.6 exports bool as uint8, and views with wrong strides
            return self.to_numpy(x)
        name = dtype_name(x.dtype)
        if name in BITS_AS and self.virtual:
            return self.to_numpy(x)
        plain = x.detach().view(BITS_AS[name]) if name in BITS_AS else x.detach()
        host = Lent(dlpack.to_dlpack(plain)).seen_by_numpy()
        return host.view(host_dtype(name)) if name in BITS_AS else host
