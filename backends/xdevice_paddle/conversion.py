"""Shares memory between Paddle and other frameworks without a copy, in both directions.

Facts about Paddle on which the code depends:

- If a stride is negative, `from_dlpack` tries to allocate 2**64 bytes.
- Paddle 3 introduced `__dlpack__`. Before that version, a DLPack capsule of Paddle always claims that the memory is in
  C order, and that a tensor of bools has the dtype uint8. `from_dlpack` makes a copy and ignores the strides.
- Paddle releases memory while it holds its own lock (3.3.1). Therefore `releases_under_lock` is set, because this can
  cause a deadlock in two ways. First, the memory may belong to an array of another framework, such as MXNet, that in
  turn refers to Paddle's memory. MXNet then releases Paddle's memory, and Paddle waits for its own lock forever.
  Second, another framework, such as PyTorch, may release Paddle's memory without holding Python's lock. Two threads
  then wait for each other.
- `contiguous()` of a view separates the view from its base (3.3.1), so this module does not call
  it.
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
"""Whether this version of Paddle exchanges memory together with its strides: Paddle 3 does, and
2.6 does not."""


def takes(is_virtual: bool) -> Takes | None:
    """Returns Paddle's requirement on memory that it uses from other frameworks without a copy: no stride may be
    negative. With virtual GPUs, the memory must be in C order, because Paddle's kernels for strided memory are switched
    off, even on the CPU. Returns None for a version of Paddle that always copies."""
    if not _knows_strides:
        return None
    return Takes(strides="compact" if is_virtual else "forward")


def described(x: paddle.Tensor) -> str:
    """Returns the description of `x`, a tensor that is not dense, for an error message: "a sparse
    tensor" or "a tensor that is spread over processes"."""
    return "a tensor that is spread over processes" if x.is_dist() else "a sparse tensor"


class PaddleConversion(Conversion):
    """Shares memory between Paddle and other frameworks."""

    _gpu: str
    """Paddle's own name for the kind of device that xdevice calls `gpu`."""

    def shares(self, device: Device) -> bool:
        """Whether other frameworks can use the memory of a device. This is true for the CPU, and for GPUs of CUDA or
        ROCm."""
        # sharing the memory of other devices has never been tested
        return device is devices.CPU or (device.kind == "gpu" and self._gpu == "gpu")

    def takes(self) -> Takes | None:
        """Returns Paddle's requirement on memory that it uses from other frameworks without a copy, or None for a
        version of Paddle that always copies."""
        return takes(bool(self.virtual))

    def detached(self, x: paddle.Tensor) -> paddle.Tensor:
        """Returns a tensor that shares the memory of `x`, but is not part of its gradient
        computation. Raises `UnsupportedError` if `x` is not dense."""
        if not x.is_dense():
            raise UnsupportedError(
                f"{described(x)} is not in one block of memory; convert x.to_dense() or "
                f"paddle.distributed.unshard_dtensor(x)"
            )
        return x if x.stop_gradient else x.detach()

    def memory_layout(self, x: paddle.Tensor) -> tuple[int, bool, bool] | None:
        """Returns three values: the address of a tensor, whether the tensor is in C order, and
        whether all its strides are 0 or positive. Returns None in Paddle 2.6."""
        if not _knows_strides:
            return None
        # `is_contiguous` also compares the strides of axes of length 1, which are irrelevant. So a
        # tensor with such an axis is reported as in C order: the core then reads a capsule, which
        # has the correct information
        return x.data_ptr(), x.is_contiguous() or 1 in x.shape, min(x.strides, default=0) >= 0

    def export(self, x: paddle.Tensor) -> Any:
        """Returns a DLPack capsule of `x`. In Paddle 2.6, whose capsules always claim C order,
        raises BufferError for a tensor that is not contiguous."""
        if not _knows_strides and not x.is_contiguous():
            raise BufferError(f"Paddle {paddle.__version__} can export only contiguous tensors")
        return dlpack.to_dlpack(x)

    def adopt(self, lent: Lent, dtype: str) -> paddle.Tensor:
        """Returns a tensor that shares the memory of another framework's tensor, which `lent`
        describes."""
        return dlpack.from_dlpack(lent.capsule)

    def from_buffer(self, array: np.ndarray[Any, Any]) -> paddle.Tensor:
        """Returns a tensor on the CPU that shares the memory of an array, or a copy if Paddle
        cannot use that memory."""
        # 2 means that the dtype comes from outside NumPy, from ml_dtypes. For such a dtype the
        # tensor is a view of a tensor of integers, and with virtual GPUs a view would be a copy
        if self.takes() is None or (self.virtual and array.dtype.isbuiltin == 2):
            return self.from_numpy(array, devices.CPU)
        if array.dtype.isbuiltin != 2:
            return dlpack.from_dlpack(array.__dlpack__())
        # NumPy cannot export a dtype of ml_dtypes through DLPack, so the bits are exported as
        # integers
        name = array.dtype.name
        return dlpack.from_dlpack(array.view(BITS_AS[name]).__dlpack__()).view(name)

    def gives_away(self, x: paddle.Tensor) -> bool:
        """Returns True, because Paddle's `numpy()` always creates a new array."""
        return True

    def peek(self, x: paddle.Tensor) -> np.ndarray[Any, Any]:
        """Returns the values of `x` as an array that the caller must not write to. The array shares the tensor's memory
        if this memory is on the host and NumPy can read it; otherwise it is a copy."""
        # the values are copied in four cases: in Paddle 2.6 (`takes` returns None), which exports
        # bool as uint8, and views with wrong strides; on a GPU; if `x` is not dense; and if `x` has
        # no elements
        if self.takes() is None or not x.place.is_cpu_place() or not x.is_dense() or not x.size:
            return self.to_numpy(x)
        name = dtype_name(x.dtype)
        # with virtual GPUs, the view as integers below would be a copy or fail
        if name in BITS_AS and self.virtual:
            return self.to_numpy(x)
        plain = x.detach().view(BITS_AS[name]) if name in BITS_AS else x.detach()
        host = Lent(dlpack.to_dlpack(plain)).numpy_view()
        return host.view(host_dtype(name)) if name in BITS_AS else host
