"""NumPy's part of the product `math`: arithmetic, neural-network functions and reproducibility. There is no mixin for
gradients, because NumPy cannot compute gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.math.contract.arithmetic import Arithmetic

from .reproducibility import NumpyReproducibility

if TYPE_CHECKING:
    from types import ModuleType


class NumpyArithmetic(Arithmetic):
    """Implements the capability `Arithmetic` for NumPy. `xdevice.math.contract.arithmetic` documents its methods."""

    # both modules are imported only when they are first used, because a program that only moves
    # arrays does not need them
    def namespace(self) -> ModuleType:
        """Returns the module with the kernels for `xdevice.array_namespace`."""
        from . import arithmetic

        return arithmetic

    def nn(self) -> ModuleType:
        """Returns the module with the kernels for `xdevice.nn`."""
        from . import nn

        return nn


MIXINS: Final = (NumpyArithmetic, NumpyReproducibility)
