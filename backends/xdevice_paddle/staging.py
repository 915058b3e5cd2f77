"""Copies large tensors between the host and an NVIDIA GPU through the ring. The ring (`xdevice.cuda_driver.ring`) is a
set of page-locked buffers that xdevice allocates for copies.

Rules for this module, and the reasons for them:

- The ring copies on the current stream, because Paddle computes on that stream, and allocates
  memory for it.
- A copy is complete when the function returns, so that every stream can use it, as with Paddle's
  own copies. The exceptions are `put` and `to_gpu`, which `stage` calls.
- Nothing is copied through the ring to or from a virtual GPU, because the CUDA driver cannot
  access its memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import paddle

from xdevice.base.dtypes import dtype_name, host_dtype
from xdevice.contract import staging
from xdevice.cuda_driver import ring

from .private import private

if TYPE_CHECKING:
    from collections.abc import Container

    import numpy as np

# creates a tensor without values on a place. None if Paddle lacks this function; then nothing is
# copied through the ring
_empty = private.get("paddle._C_ops.empty")
MIN_TO_HOST: Final = 32 << 20
MIN_TO_GPU: Final = 16 << 20
"""The minimum sizes in bytes at which a copy through the ring is faster than Paddle's own copy: `MIN_TO_HOST` for
copies to the host, `MIN_TO_GPU` for copies to a GPU."""


def read(x: paddle.Tensor) -> np.ndarray[Any, Any] | None:
    """Reads a tensor on a GPU through the ring. Returns its values, or None if Paddle has to read the tensor."""
    if not _should_read(x):
        return None
    # `staging` is the module `xdevice.contract.staging`, not this module. The copy is made on the
    # current stream, so that it comes after the work that computes `x`
    return staging.read(
        x, x.data_ptr(), x.shape, host_dtype(dtype_name(x.dtype)), _stream(_gpu(x.place))
    )


def put(
    values: np.ndarray[Any, Any], place: Any, dtypes: Container[str]
) -> paddle.Tensor | None:
    """Returns a tensor on the GPU at `place` with the values of an array, copied through the ring. Returns None if
    Paddle has to copy the array, for example because its dtype is not in `dtypes`. The array may be changed as soon as
    this function returns, but the copy ends later, on the current stream."""
    if (
        not isinstance(place, paddle.CUDAPlace)
        or values.nbytes < MIN_TO_GPU
        or not values.flags.c_contiguous
    ):
        return None
    # after the checks above, which are faster and exclude most arrays
    if values.dtype.name not in dtypes or not _is_possible():
        return None
    tensor = _empty(list(values.shape), getattr(paddle, values.dtype.name), place)
    return tensor if _to_gpu(values, values.ctypes.data, tensor, place) else None


def to_gpu(x: paddle.Tensor, place: Any) -> paddle.Tensor | None:
    """Copies a tensor from the host to the GPU at `place`, and returns the copy. No gradient flows through the copy.
    Returns None if Paddle has to copy the tensor. The tensor has been read when this function returns, but the copy
    ends later, on the current stream."""
    if (
        not isinstance(place, paddle.CUDAPlace)
        or not _is_plain(x, MIN_TO_GPU)
        or not x.place.is_cpu_place()
    ):
        return None
    if not _is_possible():
        return None
    copy = _empty(x.shape, x.dtype, place)
    return _with_name_and_flag(copy, x) if _to_gpu(x, x.data_ptr(), copy, place) else None


def wait(place: Any) -> None:
    """Waits until all copies that `put` and `to_gpu` have started to the GPU at `place` are
    done."""
    _current_stream(place).synchronize()


def moved(x: paddle.Tensor, place: Any) -> paddle.Tensor | None:
    """Returns a complete copy of a tensor, from the host to a GPU or from a GPU to the host. No
    gradient flows through the copy. Returns None if Paddle has to copy the tensor."""
    gpu = _gpu(place)
    if gpu is None:
        return _on_host(x) if is_host(place) else None
    copy = to_gpu(x, gpu)
    # the copy still continues on the current stream, but the result may be used on any stream
    if copy is not None:
        wait(gpu)
    return copy


def is_host(place: Any) -> bool:
    """Whether a place is the CPU. The place may be of either of Paddle's two classes of places."""
    # programs create a `CPUPlace`, but `Tensor.place` returns an object of another class
    return isinstance(place, paddle.CPUPlace) or (
        hasattr(place, "is_cpu_place") and place.is_cpu_place()
    )


def _on_host(x: paddle.Tensor) -> paddle.Tensor | None:
    """Copies a tensor from a GPU to the host, and returns the copy. No gradient flows through the copy. Returns None if
    Paddle has to copy the tensor."""
    if not _should_read(x):
        return None
    copy = _empty(x.shape, x.dtype, paddle.CPUPlace())
    is_done = ring.to_host(
        x, x.data_ptr(), copy, copy.data_ptr(), size(x), _stream(_gpu(x.place))
    )
    return _with_name_and_flag(copy, x) if is_done else None


def _gpu(place: Any) -> Any | None:
    """Returns the place of a GPU as a `CUDAPlace`, the class that `current_stream` accepts;
    `Tensor.place` returns an object of another class. Returns None if the place is not a GPU."""
    if hasattr(place, "is_gpu_place") and place.is_gpu_place():
        return paddle.CUDAPlace(place.gpu_device_id())
    return place if isinstance(place, paddle.CUDAPlace) else None


def _with_name_and_flag(copy: paddle.Tensor, x: paddle.Tensor) -> paddle.Tensor:
    """Sets the name and the flag `persistable` of `copy` to those of `x`, as Paddle's own copies
    do, and returns `copy`."""
    copy.name, copy.persistable = x.name, x.persistable
    return copy


def _to_gpu(owner: Any, source: int, target: paddle.Tensor, place: Any) -> bool:
    """Starts a copy through the ring from the host to the tensor `target` on a GPU. The data begins at the address
    `source`, in the memory of `owner`. Returns whether the ring has started the copy."""
    return ring.to_gpu(owner, source, target, target.data_ptr(), size(target), _stream(place))


def _stream(place: Any) -> int:
    """Returns CUDA's handle of the current stream of a GPU."""
    handle: int = _current_stream(place).stream_base.cuda_stream
    return handle


def _current_stream(place: Any) -> Any:
    """Returns Paddle's current stream of a GPU."""
    return paddle.device.current_stream(place)


def _should_read(x: paddle.Tensor) -> bool:
    """Whether the host reads a tensor through the ring, as it does for a large tensor on a GPU."""
    return x.place.is_gpu_place() and _is_plain(x, MIN_TO_HOST) and _is_possible()


def _is_plain(x: paddle.Tensor, minimum: int) -> bool:
    """Whether a tensor is dense and contiguous, and has at least `minimum` bytes."""
    return x.is_dense() and size(x) >= minimum and x.is_contiguous()


def _is_possible() -> bool:
    """Whether the ring can be used now. It cannot be used while Paddle traces a function, or on a kind of machine for
    which its speed was not measured."""
    return _empty is not None and paddle.in_dynamic_mode() and ring.is_usable()


def size(x: paddle.Tensor) -> int:
    """Returns the size of a tensor's values in bytes."""
    return int(x.size) * int(x.element_size())
