"""Copies Paddle's tensors, and moves the memory of tensors that must stay the same objects.

Rules for this module, and why:
- Tensors are copied by `_copy_to`. `Tensor.to` can clear its source when GPU memory is low, and before 3.0 it worked in
  place.
- No gradient flows through `_copy_to`, so the `PyLayer` (custom gradient) `_Copy` is put around it. A parameter's own
  `_copy_to` makes another parameter, so that of `paddle.Tensor` is called; it is looked up at each call, because
  `transfers` replaces it.
- The second backward pass through a PyLayer ends the process (3.3.1). So copies on the host are made by `clone`, an
  operation of Paddle's with a gradient; elsewhere a hook on the gradient raises an error before the second pass.
- Paddle ignores what a hook on the output of a PyLayer returns (3.3.1). So an in-place operation follows the PyLayer,
  and the hook is on its result.
- `_copy_to` is called blocking, except by `prefetch`, so that the copy comes after earlier work on both GPUs.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

import paddle

from xdevice.errors import UnsupportedError

from . import driver, staging
from .private import private

_copy_to = private.field("paddle.Tensor._copy_to")
_share_data_with = private.field("paddle.base.core.DenseTensor._share_data_with")


def copied(x: paddle.Tensor, place: Any) -> paddle.Tensor:
    """Returns a copy of a tensor through which gradients flow."""
    if x.stop_gradient or not paddle.is_grad_enabled():
        return plain(x, place)
    if x.is_floating_point() or x.is_complex():
        # in Paddle 2.6, that operation fails for empty tensors
        is_native = x.place.is_cpu_place() and staging.is_host(place) and x.size
        return x.clone() if is_native else _by_layer(x, place)
    result = plain(x, place)
    result.stop_gradient = False
    return result


def plain(x: paddle.Tensor, place: Any) -> paddle.Tensor:
    """Returns a copy of a tensor through which no gradient flows."""
    staged = staging.moved(x, place)
    if staged is not None:
        return staged
    source = x.place
    if not (source.is_gpu_place() and staging.is_host(place) and driver.is_there()):
        return copy_to(x, place)
    # Paddle copies to the host in the context of this thread's current GPU, and fails if the tensor is on another one
    with driver.on(source.gpu_device_id()):
        return copy_to(x, place)


def relocate(x: paddle.Tensor, place: Any) -> None:
    """Moves the memory of `x` to `place`. `x` stays the same object, because optimizers and layers may refer to it."""
    # in a variable, because get_tensor() does not keep the tensor alive
    there = plain(x, place)
    _share_data_with(x.value().get_tensor())(there.value().get_tensor())


def copy_to(x: paddle.Tensor, place: Any, is_blocking: bool = True) -> paddle.Tensor:
    copy: paddle.Tensor = _copy_to(paddle.Tensor)(x, place, is_blocking)
    return copy


def _by_layer(x: paddle.Tensor, place: Any) -> paddle.Tensor:
    """Returns a copy on another device through which gradients flow, as they do not through `_copy_to`."""
    contexts: list[ref[Any]] = []
    result = _Copy.apply(x, place, contexts)
    # changes nothing; `paddle.reshape_` does nothing if the shape is the same
    result = paddle.unsqueeze_(result, [])

    def refuse_second(gradient: paddle.Tensor) -> None:
        if contexts[0]() is None:
            raise UnsupportedError(
                "paddle cannot run backward() a second time through a copy from or to a GPU; copy the tensor again "
                "before the second backward(), or run backward() once, on the sum of the losses"
            )

    result.register_hook(refuse_second)
    return result


class _Copy(paddle.autograd.PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, x: paddle.Tensor, place: Any, contexts: list[ref[Any]]
    ) -> paddle.Tensor:
        contexts.append(ref(ctx))  # Paddle lets go of it in the first backward
        ctx.source = x.place
        return plain(x, place)

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> paddle.Tensor:
        return copied(gradient, ctx.source)
