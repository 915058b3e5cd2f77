"""Computes gradients with `paddle.grad`.

Rules for this module, and why:
- `backward()` is not used, because it would write into the `.grad` of every tensor with `stop_gradient=False` that the
  loss depends on.
- The function to be differentiated is called on a detached alias of each input. If an input is itself a result of
  recorded operations, or if gradients are nested, it is called on the result of `assign` instead, through which
  gradients flow on.
- One thread calls `paddle.grad` at a time. It uses state of the whole process, and lets other threads run meanwhile:
  two calls at once crash the process by a segmentation fault (3.3.1).
- Many operations have no second gradient. Paddle's RuntimeError for these becomes an `UnsupportedError`.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import paddle

from xdevice.contract.gradients import Gradients

if TYPE_CHECKING:
    from collections.abc import Callable

_one_at_a_time = threading.RLock()


def _new_lock() -> None:
    """Replaces the lock in a forked child: the thread that held it does not exist there."""
    global _one_at_a_time
    _one_at_a_time = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


def _input(x: Any, goes_on: bool) -> Any:
    if goes_on and not x.stop_gradient:
        return paddle._C_ops.assign(x)
    new = x.detach()
    new.stop_gradient = False
    return new


def _gradients(loss: Any, inputs: list[Any], goes_on: bool, backend: Gradients) -> list[Any]:
    try:
        with _one_at_a_time:
            return paddle.grad(loss, inputs, create_graph=goes_on, allow_unused=True)
    except RuntimeError as error:
        if "doesn't have any grad op" not in str(error):
            raise
        raise backend.unsupported(
            "the gradient of this gradient: " + str(error).partition("(Unavailable) ")[2].partition(".")[0],
            "write the function in operations that have one (x * x for x ** 2)",
        ) from error


class PaddleGradients(Gradients):
    def value_and_grad(
        self, leaves: list[Any], call: Callable[[list[Any]], tuple[Any, list[Any]]], nested: bool
    ) -> tuple[Any, list[Any], list[Any]]:
        if not paddle.in_dynamic_mode():
            raise self.unsupported(
                "gradients inside a function that paddle.jit.to_static traces",
                "trace the function that they are taken of",
            )
        goes_on = paddle.is_grad_enabled() and (nested or any(not x.is_leaf for x in leaves))
        with paddle.enable_grad():
            inputs = [_input(x, goes_on) for x in leaves]
            loss, rest = call(inputs)
            gradients: list[Any] = [None] * len(inputs)
            if not loss.stop_gradient:
                gradients = _gradients(loss, inputs, goes_on, self)
        if goes_on:
            return loss, gradients, rest
        return loss.detach(), gradients, [x.detach() if isinstance(x, paddle.Tensor) else x for x in rest]

    def stop_gradient(self, x: Any) -> Any:
        return x.detach()

    def update(self, rows: list[tuple[Any, ...]], rule: Callable[..., Any], nested: bool, writes: bool) -> list[Any]:
        with paddle.set_grad_enabled(nested and paddle.is_grad_enabled()):
            return [rule(*map(paddle._C_ops.assign, row)) if writes else rule(*row) for row in rows]
