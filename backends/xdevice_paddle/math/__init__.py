"""Arithmetic, gradients and reproducibility on Paddle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.math.contract.arithmetic import Arithmetic

from .gradients import PaddleGradients
from .reproducibility import PaddleReproducibility

if TYPE_CHECKING:
    from types import ModuleType


class PaddleArithmetic(Arithmetic):
    """Implements the capability `Arithmetic` for Paddle. `xdevice.math.contract.arithmetic` documents its methods."""

    # the two modules are imported at their first use, because a program that only moves tensors
    # does not need them
    def namespace(self) -> ModuleType:
        """Returns the module with the kernels for `xdevice.array_namespace`."""
        from . import arithmetic

        return arithmetic

    def nn(self) -> ModuleType:
        """Returns the module with the kernels for `xdevice.nn`."""
        from . import nn

        return nn


MIXINS: Final = (PaddleArithmetic, PaddleGradients, PaddleReproducibility)
