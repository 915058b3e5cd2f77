"""Reports TensorFlow's transfers: tensors that the host reads, and copies between devices.

Every method that reads a tensor calls `_numpy_internal`, which is replaced while transfers are
watched. NumPy reads through the buffer protocol instead, so `numpy.asarray` and `numpy.array`
are also replaced. An operation silently copies its operands to its own device. A callback,
which TensorFlow calls after each operation of a thread, reports these copies.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from xdevice.base import devices
from xdevice.contract.patching import Shared, listening
from xdevice.performance.contract.hooks import Hooks
from xdevice.performance.contract.transfers import Transfers
from xdevice_tensorflow.callbacks import add_callback
from xdevice_tensorflow.private import READS, private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from xdevice.base.devices import Device
    from xdevice.contract.primitives import Primitives
    from xdevice.performance.contract.transfers import Transfer


_READ = private.place("tensorflow.__internal__.EagerTensor._numpy_internal")
_COPY = private.place("tensorflow.__internal__.EagerTensor._copy")
_ON_THE_HOST = {tf.int32, tf.int64, tf.string, tf.resource, tf.variant}
"""The dtypes of shapes, axes, names and handles. Operations on a GPU read inputs of these
dtypes on the host, and do not copy them."""

_watched = Shared(per_thread=True)
"""The callback for TensorFlow's operations. Each thread has only one callback, even if several blocks are open in the
thread, because a second callback would report every transfer again."""


def _is_number(backend: Primitives, x: Any) -> bool:
    """Whether `x` is a 0-d tensor on the host, such as the tensor that TensorFlow creates from the number 0.5 in `x *
    0.5`. The copy of such a tensor to a GPU is not reported, because the program itself has no tensor that it could
    move."""
    return x.shape.rank == 0 and backend.device_of(x).kind == "cpu"


def _size(x: Any) -> int:
    """Returns the size of a tensor in bytes."""
    # a sparse or ragged tensor, which consists of several tensors
    if not hasattr(x, "backing_device"):
        return sum(map(_size, tf.nest.flatten(x, expand_composites=True)))
    return int(x.shape.num_elements()) * int(x.dtype.size or 0)


_BELOW = ("tensorflow", "xdevice", "xdevice_tensorflow")
"""The packages whose functions may be on the stack between a gradient function and a read."""


def _is_read_by_a_gradient() -> bool:
    """Whether TensorFlow's own gradient function of an operation makes the current read. Such functions read axes and
    shapes: for example, the gradient of a mean reads the axes of the mean."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        # the program's own code
        if module.partition(".")[0] not in _BELOW:
            return False
        # TensorFlow's gradient functions are in modules such as `math_grad`
        if module.endswith("_grad"):
            return True
        frame = frame.f_back
    return False


class TensorflowTransfers(Transfers):
    """Reports reads by the host, and copies between devices."""

    @contextmanager
    def watch(self, report: Callable[[Transfer], None]) -> Iterator[None]:
        """Calls `report` for each transfer while the block runs. Hooks report reads and
        explicit copies; the callback `report_operands` reports operands that an operation
        copies."""
        private.require_names_for("transfers")

        # has the arguments of `EagerTensor._copy`
        def target_of(x: Any, ctx: Any = None, device_name: str | None = None) -> Device | None:
            """Returns the device to which `_copy` copies, or None if the call names no device."""
            return devices.parse(device_name) if device_name else None

        def report_operands(
            op_type: str,
            inputs: Any,
            attrs: Any,
            outputs: Any,
            op_name: Any = None,
            graph: Any = None,
        ) -> None:
            """Reports the operands that an operation has copied to its own device. TensorFlow
            calls this function after each operation, with these arguments."""
            # if there is a graph, `tf.function` only records the operation, and does not run
            # it. `listening` is false during a transfer that is already reported
            if graph is not None or not listening.get():
                return
            # an assignment has no output, and a tensor inside `tf.function` has no device
            if not outputs or not hasattr(outputs[0], "backing_device"):
                return
            # `device` is that of the operation, so it is the same for all outputs, even for one whose memory is on the
            # host
            place = devices.parse(outputs[0].device)
            for x in inputs:
                if (
                    hasattr(x, "backing_device")
                    and x.dtype not in _ON_THE_HOST
                    and not _is_number(self, x)
                ):
                    hooks.report(hooks.move(op_type, x, place))

        def source_of(x: Any) -> Device | None:
            """Returns the device from which the host reads `x`, or None if the read must not be reported."""
            # these values are always on the host, even if the program uses another device, so
            # reading them is not a transfer
            is_of_host = x.dtype in _ON_THE_HOST and _is_read_by_a_gradient()
            return None if is_of_host else self.device_of(x)

        with (
            Hooks(self, report, _size, source_of) as hooks,
            _watched.on(partial(add_callback, report_operands)),
        ):
            # records transfers by xdevice's own functions under the names that the program calls
            hooks.verbs()
            hooks.numpy_reads()
            hooks.reads(tf.__internal__.EagerTensor, *READS)
            hooks.reads(*_READ, how="numpy")
            hooks.moves(*_COPY, target_of, how="copy")
            yield
