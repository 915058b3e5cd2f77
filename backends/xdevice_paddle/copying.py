"""Copies of Paddle's tensors.

What must be kept:
- `Tensor.to` can clear its source when GPU memory is low, and worked in place before 3.0, so tensors are copied by
  `_copy_to`;
- `_copy_to` cuts the graph, hence `_Copy`; a parameter's own `_copy_to` makes a parameter, hence
  `paddle.Tensor._copy_to`;
- the result of a hook on the output of a PyLayer is ignored (3.3.1), so an operation in place follows the PyLayer;
- `_copy_to` is always called blocking: then the copy comes after earlier work on both GPUs.
"""

from __future__ import annotations

from typing import Any

import paddle

from . import driver, staging


def copied(x: paddle.Tensor, place: Any) -> paddle.Tensor:
    if x.stop_gradient or not paddle.is_grad_enabled():
        return plain(x, place)
    if x.is_floating_point() or x.is_complex():
        result = _Copy.apply(x, place)
        return paddle._C_ops.reshape_(result, result.shape)
    result = plain(x, place)
    result.stop_gradient = False
    return result


def plain(x: paddle.Tensor, place: Any) -> paddle.Tensor:
    staged = staging.moved(x, place)
    if staged is not None:
        return staged
    source = x.place
    if not (source.is_gpu_place() and staging.is_host(place) and driver.is_there()):
        return paddle.Tensor._copy_to(x, place, True)
    # Paddle copies to the host in the context of this thread's current GPU, and fails if the tensor is on another one
    with driver.on(source.gpu_device_id()):
        return paddle.Tensor._copy_to(x, place, True)


def relocate(x: paddle.Tensor, place: Any) -> None:
    """Moves the memory of `x` to `place` and keeps the object, to which optimizers and other layers may refer."""
    there = plain(x, place)  # in a variable, because get_tensor() does not keep the tensor alive
    x.value().get_tensor()._share_data_with(there.value().get_tensor())


class _Copy(paddle.autograd.PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: paddle.Tensor, place: Any) -> paddle.Tensor:
        ctx.source = x.place
        return plain(x, place)

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> paddle.Tensor:
        return copied(gradient, ctx.source)
