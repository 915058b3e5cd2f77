"""Copies of Paddle's tensors.

What must be kept:
- `Tensor.to` can clear its source when GPU memory is low, and was in-place before 3.0, so tensors go by `_copy_to`;
- that cuts the graph, and a parameter's own one makes another parameter: hence `_Copy`, and `paddle.Tensor`'s;
- what a hook on the result of a PyLayer gives is ignored (3.3.1): so the result is that of an operation in its memory;
- it is always blocking: then it is ordered after the work on both GPUs.
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
    # Paddle copies to the host by the context of the GPU that is current in this thread, and fails where it is another
    with driver.on(source.gpu_device_id()):
        return paddle.Tensor._copy_to(x, place, True)


def relocate(x: paddle.Tensor, place: Any) -> None:
    """Puts the memory of `x` elsewhere and keeps the object, so that optimizers and shared layers see it move."""
    there = plain(x, place)  # named, because get_tensor() does not keep it alive
    x.value().get_tensor()._share_data_with(there.value().get_tensor())


class _Copy(paddle.autograd.PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: paddle.Tensor, place: Any) -> paddle.Tensor:
        ctx.source = x.place
        return plain(x, place)

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> paddle.Tensor:
        return copied(gradient, ctx.source)
