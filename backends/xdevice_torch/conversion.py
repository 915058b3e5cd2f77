"""Uses DLPack to lend the memory of PyTorch tensors to other frameworks, and to create tensors in memory that other
frameworks lend.

Facts about PyTorch that the code depends on:

- `from_dlpack` crashes the process if a stride is negative.
- A DLPack capsule cannot express that a tensor is lazily conjugated or negated: `to_dlpack` exports the values that are
  in memory, which are not conjugated or negated. So `export` refuses such a tensor.
- `x.__dlpack__(stream=...)` makes streams of PyTorch's current device wait for each other, and
  fails if `x` is on another GPU. `to_dlpack` makes no stream wait. This is sufficient, because
  the core has already waited for the tensor.
- JAX cannot use memory of one GPU while PyTorch's current device is another GPU.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.masked import MaskedTensor
from torch.nn.parameter import is_lazy
from torch.utils import dlpack

from xdevice.base import devices
from xdevice.base.dtypes import BITS_AS, DTYPES, SHORT_FLOATS
from xdevice.contract import Takes
from xdevice.contract.conversion import Conversion
from xdevice.errors import NotBuiltError, UnsupportedError

from . import staging
from .private import private

if TYPE_CHECKING:
    import numpy as np

    from xdevice.base.devices import Device
    from xdevice.contract.dlpack import Lent

TAKES = Takes(strides="forward")
_STAND_INS = (
    private["torch._subclasses.fake_tensor.FakeTensor"],
    private["torch._subclasses.functional_tensor.FunctionalTensor"],
)
"""The classes of objects that replace tensors while torch traces a function. These objects have no values."""
_is_wrapped = private["torch._C._functorch.is_functorch_wrapped_tensor"]


def require_values(x: torch.Tensor) -> None:
    """Raises an error if `x` has no values: `UnsupportedError` for a symbol of a traced
    function, `NotBuiltError` for a parameter without a shape."""
    # in torch.vmap and torch.func.grad, the type of a wrapped tensor is Tensor, so only
    # `_is_wrapped` recognizes it. `_is_wrapped` is not called while torch.compile traces, which
    # cannot compile the call and would print a warning
    is_exact = type(x) is torch.Tensor
    if (not is_exact and _stands_in(type(x))) or (
        not torch.compiler.is_compiling() and _is_wrapped(x)
    ):
        raise UnsupportedError(
            f"this object of type {type(x).__name__} stands for a tensor while torch traces or transforms a function "
            f"(FakeTensorMode, torch.vmap, torch.func.grad), so its values cannot be read; convert or read the tensor "
            f"outside that function"
        )
    # the type of a lazy parameter is always a subclass
    if not is_exact:
        require_shape(x)


def require_shape(x: torch.Tensor) -> None:
    """Raises `NotBuiltError` if `x` is a parameter or buffer of a lazy module, such as
    `LazyLinear`, that has not been called yet."""
    if is_lazy(x):
        raise NotBuiltError(
            "this parameter has no shape yet; build the model first: call it once on data"
        )


def is_plain(cls: type[torch.Tensor]) -> bool:
    """Whether tensors of this type store their values in their own memory. Subclasses with a
    `__torch_dispatch__`, such as DTensor, masked tensors and many quantized tensors, consist of
    other tensors instead. FakeTensor and FunctionalTensor, which replace other tensors while torch traces a function,
    are treated as if they had memory."""
    return cls.__torch_dispatch__ is torch.Tensor.__torch_dispatch__ or issubclass(
        cls, _STAND_INS
    )


def _stands_in(cls: type[torch.Tensor]) -> bool:
    """Whether this type stands in for tensors while torch traces a function. Objects of such a type have no values."""
    # the first test is quick, and excludes nearly every type
    return cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ and issubclass(
        cls, _STAND_INS
    )


def is_alias(new: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether `new`, which a tensor subclass has returned as a copy of `x`, uses the memory of
    `x`. Returns False if `new` or `x` has no memory of its own that could be compared."""
    if new is x:
        return True
    types = type(new), type(x)
    if x.is_meta or not all(map(is_plain, types)) or any(map(_stands_in, types)):
        return False
    # a tensor without elements has no memory to share, and two devices may use the same address
    return x.numel() > 0 and new.device == x.device and new.data_ptr() == x.data_ptr()


def why_not_numpy(x: torch.Tensor) -> str | None:
    """Returns None if NumPy can represent the tensor. Otherwise returns the last part of an error message, which
    suggests what to read instead."""
    if x.is_nested:
        return "read the parts x.unbind(), or the padded tensor torch.nested.to_padded_tensor(x, 0.0)"
    if x.is_quantized:
        return "read x.dequantize(), or x.int_repr() with its scale and zero point"
    if isinstance(x, MaskedTensor):
        return "read x.to_tensor(value), or x.get_data() and x.get_mask()"
    if x.dtype is torch.complex32:
        return "read x.to(torch.complex64)"
    # for example, PyTorch's integers of 1 to 7 bits
    if str(x.dtype).rpartition(".")[2] not in (*DTYPES, *SHORT_FLOATS):
        return "read the bytes, x.view(torch.uint8), if PyTorch supports this view"
    return None if is_plain(type(x)) else "read its parts"


class TorchConversion(Conversion):
    """The hooks that share memory with other frameworks through DLPack, and with NumPy through arrays."""

    _gpu: str
    """The `type` of the `torch.device` that xdevice calls `gpu:i`, such as "cuda"."""

    def takes(self) -> Takes | None:
        """Returns PyTorch's requirement for memory that belongs to another framework: no stride may be negative."""
        return TAKES

    def shares(self, device: Device) -> bool:
        """Whether other frameworks can use the memory of tensors on this device."""
        # sharing was tested only on the host and on CUDA; for virtual GPUs `_gpu` is "vgpu"
        return device is devices.CPU or (device.kind == "gpu" and self._gpu == "cuda")

    def detached(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a tensor in the memory of `x` without the gradient history of `x`, or `x`
        itself if `x` requires no gradient. Raises `UnsupportedError` if the values are not in
        one block of memory, and `NotBuiltError` if `x` is a parameter without a shape."""
        # a tensor whose values are still being copied to the host belongs to a subclass
        if type(x) is not torch.Tensor:
            x = staging.wait_for_values(x)
        require_values(x)
        if isinstance(x, MaskedTensor):
            raise UnsupportedError(
                f"the mask of a {type(x).__name__} would be lost; convert x.get_data() and x.get_mask()"
            )
        if not is_plain(type(x)):
            raise UnsupportedError(
                f"a tensor of type {type(x).__name__} consists of other tensors, so it has no single block of memory "
                f"to share; convert those tensors or, for a DTensor, x.full_tensor()"
            )
        if x.layout is not torch.strided or x.is_nested:
            raise UnsupportedError(
                f"a nested or non-dense tensor ({x.layout}) has no single block of memory to share; convert "
                f"x.to_dense(), or the components of the tensor"
            )
        return x.detach() if x.requires_grad else x

    def lending(self, x: torch.Tensor) -> AbstractContextManager[Any]:
        """Returns a context manager that makes the GPU of `x` PyTorch's current GPU, so that the memory of `x` can be
        passed to another framework. If `x` is not on a CUDA GPU, the context manager does nothing."""
        # JAX fails if PyTorch's current GPU is a different one
        return torch.cuda.device(x.device) if x.is_cuda else nullcontext()

    def memory_layout(self, x: torch.Tensor) -> tuple[int, bool, bool] | None:
        """Returns three values: the address of `x`, whether `x` is in C order, and whether `x` has no negative stride.
        The third value is always True, because PyTorch has no negative strides."""
        return x.data_ptr(), x.is_contiguous(), True  # PyTorch has no negative strides

    def export(self, x: torch.Tensor) -> Any:
        """Returns a DLPack capsule of `x`, a detached tensor. Raises BufferError if `x` is lazily conjugated or
        negated, because its memory then contains other values."""
        # the copy of the values to the host may still be in progress
        x = staging.wait_for_values(x)
        if x.is_conj() or x.is_neg():
            raise BufferError(
                "the tensor is a lazy conjugate or negative, which PyTorch computes at each use and does not store"
            )
        return dlpack.to_dlpack(x)  # type: ignore[attr-defined]  # public, and documented

    def compact(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a copy of `x` in C order, in new memory on the same device."""
        # uses `copy_` and not `clone`, which preserves a lazy conjugate and may preserve strides
        return torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(x)

    def adopt(self, lent: Lent, dtype: str) -> torch.Tensor:
        """Returns a tensor in the memory of another framework's tensor, which `lent` describes.
        `dtype` is ignored, because the DLPack capsule contains the dtype."""
        return dlpack.from_dlpack(lent.capsule)

    def from_buffer(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        """Returns a tensor on the CPU that shares the memory of a NumPy array and keeps it alive."""
        # `isbuiltin` is 2 for the dtypes of ml_dtypes; `kind` cannot be used, because
        # float8_e5m2 has the kind "f", like NumPy's own floats
        if array.dtype.isbuiltin != 2:
            return torch.from_numpy(array)
        # `from_numpy` accepts none of these dtypes, so the bits are passed as integers
        name = array.dtype.name
        return torch.from_numpy(array.view(BITS_AS[name])).view(getattr(torch, name))

    def gives_away(self, x: torch.Tensor) -> bool:
        """Whether nothing else uses the memory of the array that `to_numpy(x)` returns. This is True only if `x` is on
        a real GPU."""
        # `to_numpy` copies the values from a real GPU; a virtual GPU uses the host's memory,
        # which is not copied
        return not x.is_cpu and not self.virtual
