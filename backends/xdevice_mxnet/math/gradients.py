"""Computes gradients with `mx.autograd.grad`.

Rules for this module, and why:
- NumPy's shape semantics (a flag of each thread) must be the same while a function is recorded
  and while it is differentiated. Otherwise the process crashes with a segmentation fault.
- `backward()` is not used, because it would write into the `.grad` of every array that the loss
  depends on. The function that is used, `autograd.grad`, requires that the loss depends on each
  input. If it raises because of one, it is called again without that input.
- Nested gradients are refused, because hardly any operation has a second gradient.
- MXNet requires an array for each gradient, into which only `backward()` writes. So all inputs share one array without
  elements; `backward()` inside the differentiated function then raises an error. MXNet writes into the object, so each
  thread has an array of its own for each device.
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

# the part of MXNet's error that counts the inputs from 1
_UNREACHABLE = re.compile(r"with respect to the (\d+)-th variable because it is unreachable")


class _EmptyArrays(threading.local):
    """Each thread's arrays without elements, by their devices."""

    def __init__(self) -> None:
        self.arrays: dict[Device, Any] = {}


_empty_arrays = _EmptyArrays()


def _empty_array(device: Device, x: Any) -> Any:
    """Returns this thread's array without elements on `device`, which is the device of `x`."""
    arrays = _empty_arrays.arrays
    if device not in arrays:
        arrays[device] = mx.np.zeros((0,), ctx=x.ctx)
    return arrays[device]


def _gradients(loss: Any, inputs: list[Any]) -> list[Any]:
    """Returns the gradient for each input; None for an input that the loss does not depend
    on."""
    gradients: list[Any] = [None] * len(inputs)
    # the indices of the inputs on which the loss may depend: each error of MXNet removes one
    remaining = list(range(len(inputs)))
    while remaining:
        try:
            dense = operators.gradients(loss, [inputs[i] for i in remaining])
        except mx.MXNetError as error:
            # the loss depends on nothing that was recorded
            if "not in a computational graph" in str(error):
                break
            del remaining[_unreachable_index(error)]
            continue
        # each gradient gets the type of its input: mx.np for mx.np arrays, mx.nd for others
        for i, g in zip(remaining, dense, strict=True):
            gradients[i] = g.as_np_ndarray() if isinstance(inputs[i], mx.np.ndarray) else g
        break
    return gradients


def _unreachable_index(error: mx.MXNetError) -> int:
    """Returns the index of the input that the loss does not depend on. MXNet names this input
    only in `error`, one input at a time, and has no function that finds it earlier (no upstream
    issue known). Raises `error` itself if it has another cause."""
    match = _UNREACHABLE.search(str(error))
    if match is None:
        raise error
    return int(match[1]) - 1


class MxnetGradients(Gradients):
    """The capability `Gradients` on MXNet; its methods are documented in
    `xdevice.math.contract.gradients`."""

    def value_and_grad(self, leaves: list[Any], call: Call, nested: bool) -> Outcome:
        """Calls `call` with inputs that have the values of `leaves`. Returns the loss, the gradient of the loss for
        each leaf, and the list that `call` returns besides the loss. A gradient is None if the loss does not depend on
        the leaf. Raises `UnsupportedError` if the caller computes a gradient of this gradient (`nested`), or
        records."""
        if nested or mx.autograd.is_recording():
            raise self.unsupported(
                "computing gradients while it records, because most of its operations have no second gradient",
                "compute them outside value_and_grad and autograd.record(), or inside autograd.pause()",
            )
        arithmetic.enter()
        # the program may have switched NumPy's shapes off in this thread
        if not mx.util.is_np_shape():
            with mx.util.np_shape(True):
                return self.value_and_grad(leaves, call, nested)
        # copies, because MXNet refuses to write into a recorded array only after it has written
        # into it
        inputs = list(map(arithmetic.copy, leaves))
        mx.autograd.mark_variables(inputs, [_empty_array(self.device_of(x), x) for x in inputs])
        with mx.autograd.record():
            loss, rest = call(inputs)
        gradients = _gradients(loss, inputs)
        return (
            loss.detach(),
            gradients,
            [x.detach() if isinstance(x, mx.nd.NDArray) else x for x in rest],
        )

    def stop_gradient(self, x: Any) -> Any:
        """Returns an array in the memory of `x` through which no gradient flows."""
        return x.detach()

    def update(
        self, rows: list[tuple[Any, ...]], rule: Callable[..., Any], nested: bool, writes: bool
    ) -> list[Any]:
        """Returns a list of `rule(*row)` for each row of arrays. Records operations for
        gradients only if `nested` is True, inside an outer gradient. If `writes` is True,
        `rule` writes into its arguments, so it gets copies."""
        arithmetic.enter()
        # inside `pause`, MXNet does not record the step; inside an outer gradient (`nested`) it
        # goes on recording
        with mx.util.np_shape(True), nullcontext() if nested else mx.autograd.pause():
            return [rule(*map(arithmetic.copy, row)) if writes else rule(*row) for row in rows]
