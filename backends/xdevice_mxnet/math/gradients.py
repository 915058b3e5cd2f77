"""Computes gradients with `mx.autograd.grad`.

Rules for this module, with their reasons:
- NumPy's shape semantics (a flag of each thread) must be the same while a function is recorded
  and while it is differentiated. Otherwise, the process crashes with a segmentation fault.
- `backward()` is not used, because it would write into the `.grad` of every array on which the loss
  depends. Instead, `autograd.grad` is used, which requires that the loss depends on each input. If
  it raises an error because the loss does not depend on an input, it is called again without that
  input.
- Nested gradients are refused, because hardly any operation has a second gradient.
- MXNet requires an array for each gradient, although only `backward()` writes into it. All inputs therefore share one
  array without elements. As a result, a call of `backward()` inside the differentiated function raises an error. MXNet
  writes into the array object, so each thread has a separate array for each device.
"""

from __future__ import annotations

import re
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import mxnet as mx

from xdevice.math.contract.gradients import Gradients

from . import arithmetic, operators

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.base.devices import Device
    from xdevice.math.contract.gradients import Call, Outcome

# the part of MXNet's error that contains the number of an input, counted from 1
_UNREACHABLE = re.compile(r"with respect to the (\d+)-th variable because it is unreachable")


class _EmptyArrays(threading.local):
    """Arrays without elements, by device; each thread has its own."""

    def __init__(self) -> None:
        self.arrays: dict[Device, Any] = {}


_empty_arrays = _EmptyArrays()


def _empty_array(device: Device, x: Any) -> Any:
    """Returns this thread's array without elements on `device`. `x` is an array on that device."""
    arrays = _empty_arrays.arrays
    if device not in arrays:
        arrays[device] = mx.np.zeros((0,), ctx=x.ctx)
    return arrays[device]


def _gradients(loss: Any, inputs: list[Any]) -> list[Any]:
    """Returns a list with the gradient for each input, or None for an input on which the loss does not depend."""
    gradients: list[Any] = [None] * len(inputs)
    # the indices of the inputs on which the loss may depend; each error of MXNet removes one
    # index
    remaining = list(range(len(inputs)))
    while remaining:
        try:
            dense = operators.gradients(loss, [inputs[i] for i in remaining])
        except mx.MXNetError as error:
            # this error means that the loss does not depend on any recorded array
            if "not in a computational graph" in str(error):
                break
            del remaining[_unreachable_index(error)]
            continue
        # each gradient gets the type of its input: an mx.np array for an mx.np array, and
        # otherwise an mx.nd array
        for i, g in zip(remaining, dense, strict=True):
            gradients[i] = g.as_np_ndarray() if isinstance(inputs[i], mx.np.ndarray) else g
        break
    return gradients


def _unreachable_index(error: mx.MXNetError) -> int:
    """Returns the index of an input on which the loss does not depend. MXNet has no function that finds such inputs
    earlier: it reports one of them at a time in `error` (no upstream issue known). Raises `error` itself if it has
    another cause."""
    match = _UNREACHABLE.search(str(error))
    if match is None:
        raise error
    return int(match[1]) - 1


class MxnetGradients(Gradients):
    """Implements the capability `Gradients` for MXNet. `xdevice.math.contract.gradients` documents its methods."""

    def value_and_grad(self, leaves: list[Any], call: Call, nested: bool) -> Outcome:
        """Calls `call` with copies of `leaves`. Returns the loss, a list with the gradient of the loss for each leaf,
        and the list that `call` returns in addition to the loss. A gradient is None if the loss does not depend on
        the leaf. Raises `UnsupportedError` if the caller computes a gradient of this gradient (`nested` is True), or
        is recording."""
        if nested or mx.autograd.is_recording():
            raise self.unsupported(
                "computing gradients while MXNet records operations, because most operations have no second gradient",
                "compute the gradients outside value_and_grad and autograd.record(), or inside autograd.pause()",
            )
        arithmetic.enter()
        # the program may have disabled NumPy's shapes in this thread
        if not mx.util.is_np_shape():
            with mx.util.np_shape(True):
                return self.value_and_grad(leaves, call, nested)
        # copies are used, because when the program writes into a recorded array, MXNet raises
        # an error only after the write
        inputs = list(map(arithmetic.copy, leaves))
        mx.autograd.mark_variables(inputs, [_empty_array(self.device_of(x), x) for x in inputs])
        with mx.autograd.record():
            loss, aux_leaves = call(inputs)
        gradients = _gradients(loss, inputs)
        aux_leaves = [x.detach() if isinstance(x, mx.nd.NDArray) else x for x in aux_leaves]
        return loss.detach(), gradients, aux_leaves

    def stop_gradient(self, x: Any) -> Any:
        """Returns an array that shares the memory of `x`, and through which no gradient flows."""
        return x.detach()

    def update(
        self, rows: list[tuple[Any, ...]], rule: Callable[..., Any], nested: bool, writes: bool
    ) -> list[Any]:
        """Returns a list with the result of `rule(*row)` for each row of arrays. If `nested` is True, the call is
        inside an outer gradient. Only then are operations recorded for gradients. If `writes` is True, the rule may
        write into its arguments, so it is called with copies."""
        arithmetic.enter()
        # inside `pause`, MXNet does not record the step; inside an outer gradient (`nested`),
        # it continues to record
        with mx.util.np_shape(True), nullcontext() if nested else mx.autograd.pause():
            return [rule(*map(arithmetic.copy, row)) if writes else rule(*row) for row in rows]
