"""Copies Paddle's tensors, and moves the memory of tensors that must stay the same objects.

Rules for this module, and the reasons for them:
- Tensors are copied by `_copy_to`. `Tensor.to` can clear its source when GPU memory is low, and
  before 3.0 it worked in place.
- No gradient flows through `_copy_to`, so it is called inside `_Copy`, a `PyLayer` (an
  operation with a custom gradient). The method `_copy_to` of a parameter creates another
  parameter, so the method of `paddle.Tensor` is called instead. It is looked up at each call,
  because `xdevice.transfers` replaces it.
- The second backward pass through a PyLayer ends the process (3.3.1). So copies on the host are
  made by `clone`, a Paddle operation with a gradient. For other copies, a hook on the gradient
  raises an error before the second pass.
- Paddle ignores the value that a hook on the output of a PyLayer returns (3.3.1). So an in-place operation follows the
  PyLayer, and the hook is set on the result of this operation.
- `_copy_to` is called with `blocking=True`, except by `prefetch`, so that the copy comes after
  earlier work on both GPUs.
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
    """Returns a copy of a tensor on a place. Gradients flow through the copy, unless `x` has the
    flag `stop_gradient` or gradients are disabled. The copy of a tensor of integers has the same
    flag `stop_gradient` as `x`, but no gradient flows through it."""
    if x.stop_gradient or not paddle.is_grad_enabled():
        return copied_without_gradient(x, place)
    if x.is_floating_point() or x.is_complex():
        # `clone` copies from the host to the host, except for empty tensors, for which it fails in
        # Paddle 2.6
        can_clone = x.place.is_cpu_place() and staging.is_host(place) and x.size
        return x.clone() if can_clone else _by_layer(x, place)
    # integers, through which no gradient flows: only the flag is copied
    result = copied_without_gradient(x, place)
    result.stop_gradient = False
    return result


def copied_without_gradient(x: paddle.Tensor, place: Any) -> paddle.Tensor:
    """Returns a copy of a tensor on a place. No gradient flows through the copy."""
    # a copy through page-locked memory, if that is faster; None if Paddle has to make the copy
    staged = staging.moved(x, place)
    if staged is not None:
        return staged
    source = x.place
    if not (source.is_gpu_place() and staging.is_host(place) and driver.is_there()):
        return copy_to(x, place)
    # Paddle copies to the host in the context of this thread's current GPU, and fails if the
    # tensor is on another GPU
    with driver.on(source.gpu_device_id()):
        return copy_to(x, place)


def relocate(x: paddle.Tensor, place: Any) -> None:
    """Moves the memory of `x` to `place`. `x` stays the same object, because optimizers and
    layers may refer to it."""
    # stored in a variable, because get_tensor() does not keep the tensor alive
    copy = copied_without_gradient(x, place)
    _share_data_with(x.value().get_tensor())(copy.value().get_tensor())


def copy_to(x: paddle.Tensor, place: Any, is_blocking: bool = True) -> paddle.Tensor:
    """Returns a copy of a tensor, made by the method `_copy_to` of `paddle.Tensor`. If
    `is_blocking` is False, the function may return before the values have arrived."""
    copy: paddle.Tensor = _copy_to(paddle.Tensor)(x, place, is_blocking)
    return copy


def _by_layer(x: paddle.Tensor, place: Any) -> paddle.Tensor:
    """Returns a copy of `x` on a place, made by the PyLayer `_Copy`. Gradients flow through the
    copy; a second backward pass through it raises `UnsupportedError`."""
    # `forward` adds a weak reference to its context, which shows whether a backward pass has
    # run
    contexts: list[ref[Any]] = []
    result = _Copy.apply(x, place, contexts)
    # an in-place operation that changes nothing, so that the hook below is not set on the output
    # of a PyLayer. `paddle.reshape_` would not be recorded as an operation if the shape is the
    # same
    result = paddle.unsqueeze_(result, [])

    def refuse_second(gradient: paddle.Tensor) -> None:
        """Raises `UnsupportedError` in the second backward pass. Paddle calls this hook with
        the gradient of `result`."""
        if contexts[0]() is None:
            raise UnsupportedError(
                "paddle cannot run backward() a second time through a copy from or to a GPU; copy the tensor again "
                "before the second backward(), or run backward() once, on the sum of the losses"
            )

    result.register_hook(refuse_second)
    return result


class _Copy(paddle.autograd.PyLayer):  # type: ignore[misc]
    """A copy to another place, as an operation with a gradient: the gradient is copied back."""

    @staticmethod
    def forward(
        ctx: Any, x: paddle.Tensor, place: Any, contexts: list[ref[Any]]
    ) -> paddle.Tensor:
        """Returns a copy of `x` on `place`, and adds a weak reference to `ctx` to the list
        `contexts`."""
        contexts.append(ref(ctx))  # Paddle releases the context in the first backward pass
        ctx.source_place = x.place
        return copied_without_gradient(x, place)

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> paddle.Tensor:
        """Returns the gradient of the copy, copied to the place of `x`."""
        return copied(gradient, ctx.source_place)
