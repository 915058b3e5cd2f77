"""Copies between the host and an NVIDIA GPU through the ring of page-locked memory.

What must be kept:

- Paddle allocates memory for the current stream, on which it also works: so the ring copies on that stream.
- Paddle's own copies, except those for `stage`, are finished on return, so that every stream can use them: so are
  these.
- A virtual GPU is a device of a plugin, whose memory the driver cannot read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import paddle

from xdevice.base.dtypes import dtype_name, host_dtype
from xdevice.contract import staging
from xdevice.cuda import ring

if TYPE_CHECKING:
    from collections.abc import Container

    import numpy as np

TO_HOST: Final = 32 << 20
TO_GPU: Final = 16 << 20
"""The sizes in bytes from which a copy by the ring (of page-locked buffers) is faster than Paddle's own: `TO_HOST` for
copies to the host, `TO_GPU` for copies to a GPU."""


def read(x: paddle.Tensor) -> np.ndarray[Any, Any] | None:
    """The values of a tensor on a GPU; None if Paddle is to read them."""
    if not _is_read(x):
        return None
    return staging.read(x, x.data_ptr(), x.shape, host_dtype(dtype_name(x.dtype)), _stream(_gpu(x.place)))


def put(values: np.ndarray[Any, Any], place: Any, dtypes: Container[str]) -> paddle.Tensor | None:
    """A tensor on a GPU with the values of an array, which may be changed after the return; the copy ends later, on the
    current stream. None if Paddle is to copy them."""
    if not isinstance(place, paddle.CUDAPlace) or values.nbytes < TO_GPU or not values.flags.c_contiguous:
        return None
    if values.dtype.name not in dtypes or not _is_possible():
        return None
    made = paddle._C_ops.empty(list(values.shape), getattr(paddle, values.dtype.name), place)
    return made if _to_gpu(values, values.ctypes.data, made, place) else None


def to_gpu(x: paddle.Tensor, place: Any) -> paddle.Tensor | None:
    """A copy on a GPU of a tensor on the host, without its gradient; like `put`, it returns before the copy ends. None
    if Paddle is to copy it."""
    if not isinstance(place, paddle.CUDAPlace) or not _is_plain(x, TO_GPU) or not x.place.is_cpu_place():
        return None
    if not _is_possible():
        return None
    made = paddle._C_ops.empty(x.shape, x.dtype, place)
    return _flagged(made, x) if _to_gpu(x, x.data_ptr(), made, place) else None


def wait(place: Any) -> None:
    """Waits until the copies of `put` and `to_gpu` to a GPU are done."""
    _current(place).synchronize()


def moved(x: paddle.Tensor, place: Any) -> paddle.Tensor | None:
    """A copy, finished on return, of a tensor of the host on a GPU or the reverse, without its gradient; None if Paddle
    is to copy it."""
    gpu = _gpu(place)
    if gpu is None:
        return _on_host(x) if is_host(place) else None
    made = to_gpu(x, gpu)
    if made is not None:
        wait(gpu)
    return made


def is_host(place: Any) -> bool:
    return isinstance(place, paddle.CPUPlace) or (isinstance(place, paddle.base.core.Place) and place.is_cpu_place())


def _on_host(x: paddle.Tensor) -> paddle.Tensor | None:
    if not _is_read(x):
        return None
    made = paddle._C_ops.empty(x.shape, x.dtype, paddle.CPUPlace())
    is_done = ring.to_host(x, x.data_ptr(), made, made.data_ptr(), size(x), _stream(_gpu(x.place)))
    return _flagged(made, x) if is_done else None


def _gpu(place: Any) -> Any | None:
    """The place of a GPU as a `CUDAPlace`, which `current_stream` takes: `Tensor.place` is of another class. None for
    other places."""
    if isinstance(place, paddle.base.core.Place) and place.is_gpu_place():
        return paddle.CUDAPlace(place.gpu_device_id())
    return place if isinstance(place, paddle.CUDAPlace) else None


def _flagged(made: paddle.Tensor, x: paddle.Tensor) -> paddle.Tensor:
    made.name, made.persistable = x.name, x.persistable
    return made


def _to_gpu(owner: Any, source: int, made: paddle.Tensor, place: Any) -> bool:
    return ring.to_gpu(owner, source, made, made.data_ptr(), size(made), _stream(place))


def _stream(place: Any) -> int:
    handle: int = _current(place).stream_base.cuda_stream
    return handle


def _current(place: Any) -> Any:
    return paddle.device.current_stream(place)


def _is_read(x: paddle.Tensor) -> bool:
    return x.place.is_gpu_place() and _is_plain(x, TO_HOST) and _is_possible()


def _is_plain(x: paddle.Tensor, least: int) -> bool:
    return x.is_dense() and size(x) >= least and x.is_contiguous()


def _is_possible() -> bool:
    return paddle.in_dynamic_mode() and ring.is_measured()


def size(x: paddle.Tensor) -> int:
    return int(x.size) * int(x.element_size())
