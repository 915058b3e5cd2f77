"""Arrays and gradients on Paddle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.math.contract.arithmetic import Arithmetic

from .gradients import PaddleGradients
from .reproducibility import PaddleReproducibility

if TYPE_CHECKING:
    from types import ModuleType


class PaddleArithmetic(Arithmetic):
    """The capability `Arithmetic` on Paddle; its methods are documented in
    `xdevice.math.contract.arithmetic`."""

    def namespace(self) -> ModuleType:
        from . import arithmetic

        return arithmetic

    def nn(self) -> ModuleType:
        from . import nn

        return nn


MIXINS: Final = (PaddleArithmetic, PaddleGradients, PaddleReproducibility)
