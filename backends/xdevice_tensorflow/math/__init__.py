"""Arrays, gradients and compiled functions on TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf

from xdevice.math.contract.arithmetic import Arithmetic

from .compiling import TensorflowCompiling
from .gradients import TensorflowGradients
from .reproducibility import TensorflowReproducibility

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from xdevice.base.devices import Device


class TensorflowArithmetic(Arithmetic):
    """Implements the capability `Arithmetic` for TensorFlow. `xdevice.math.contract.arithmetic` documents its
    methods."""

    _place: Callable[[str], Device]

    # `arithmetic` and `nn` are imported at their first use, because a program that only moves
    # tensors does not need them
    def namespace(self) -> ModuleType:
        """Returns the module with the kernels for `xdevice.array_namespace`."""
        from . import arithmetic

        return arithmetic

    def operand_device(self, x: Any) -> Device:
        """Returns the device of `x`. The core calls this method to check that all operands are
        on the same device."""
        # the memory of an int32 tensor "on" a GPU is on the host, and GPU kernels read int32
        # from the host. So for int32, return the device of its operation (`device`), and not
        # that of its memory (`backing_device`). Traced tensors have no `backing_device`
        if x.dtype == tf.int32 and hasattr(x, "backing_device"):
            return self._place(x.device)
        return self.device_of(x)

    def nn(self) -> ModuleType:
        """Returns the module with the kernels for `xdevice.nn`."""
        from . import nn

        return nn


MIXINS: Final = (
    TensorflowArithmetic,
    TensorflowGradients,
    TensorflowCompiling,
    TensorflowReproducibility,
)
