"""Copies between the host and a GPU of NVIDIA's through the ring of page-locked memory.

What must be kept:

- Paddle's tensors can be written, and what it does is work on the stream that is current, for which it gives memory
  out: so the ring's part is work there too.
- Paddle's own copies are done on return, those for `stage` excepted: then they are there for all streams.
- A plugin's device, which virtual GPUs are, has no memory that the driver could read.
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
"""Bytes from which the ring gains."""


def read(x: paddle.Tensor) -> np.ndarray[Any, Any] | None:
    """The values of a tensor on a GPU; None where Paddle's own way is to be taken."""
    if not _is_read(x):
        return None
    return staging.read(x, x.data_ptr(), x.shape, host_dtype(dtype_name(x.dtype)), _stream(_gpu(x.place)))


def put(values: np.ndarray[Any, Any], place: Any, dtypes: Container[str]) -> paddle.Tensor | None:
    """A tensor on a GPU with the values of an array, which have been read on return: the rest is work on the current
    stream. None where Paddle's own way is to be taken."""
    if not isinstance(place, paddle.CUDAPlace) or values.nbytes < TO_GPU or not values.flags.c_contiguous:
        return None
    if values.dtype.name not in dtypes or not _is_possible():  # Paddle takes NumPy's uint16 for bfloat16
        return None
    made = paddle._C_ops.empty(list(values.shape), getattr(paddle, values.dtype.name), place)
    return made if _to_gpu(values, values.ctypes.data, made, place) else None


def to_gpu(x: paddle.Tensor, place: Any) -> paddle.Tensor | None:
    """A copy on a GPU of a tensor from the host, made as `put` does, without its gradient."""
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
    """A tensor between the host and a GPU, without its gradient, there on return; None where Paddle's own way is to be
    taken."""
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
    is_done = ring.to_host(x, x.data_ptr(), made, made.data_ptr(), _size(x), _stream(_gpu(x.place)))
    return _flagged(made, x) if is_done else None


def _gpu(place: Any) -> Any | None:
    """The place of a GPU in the class that streams are asked for; `Tensor.place` is of another."""
    if isinstance(place, paddle.base.core.Place) and place.is_gpu_place():
        return paddle.CUDAPlace(place.gpu_device_id())
    return place if isinstance(place, paddle.CUDAPlace) else None


def _flagged(made: paddle.Tensor, x: paddle.Tensor) -> paddle.Tensor:
    made.name, made.persistable = x.name, x.persistable
    return made


def _to_gpu(owner: Any, source: int, made: paddle.Tensor, place: Any) -> bool:
    return ring.to_gpu(owner, source, made, made.data_ptr(), _size(made), _stream(place))


def _stream(place: Any) -> int:
    handle: int = _current(place).stream_base.cuda_stream
    return handle


def _current(place: Any) -> Any:
    return paddle.device.current_stream(place)


def _is_read(x: paddle.Tensor) -> bool:
    return x.place.is_gpu_place() and _is_plain(x, TO_HOST) and _is_possible()


def _is_plain(x: paddle.Tensor, least: int) -> bool:
    return x.is_dense() and _size(x) >= least and x.is_contiguous()


def _is_possible() -> bool:
    return paddle.in_dynamic_mode() and ring.is_measured()


def _size(x: paddle.Tensor) -> int:
    return int(x.size) * int(x.element_size())
