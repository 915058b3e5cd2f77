"""PyTorch's hooks for array functions, gradients, compiled functions and reproducible numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdevice.math.contract.arithmetic import Arithmetic, Scopes

from .compiling import TorchCompiling
from .gradients import TorchGradients
from .reproducibility import TorchReproducibility
from .scopes_aside import SCOPES, count_function_modes, put_scopes_back, set_scopes_aside

if TYPE_CHECKING:
    from types import ModuleType


class TorchArithmetic(Arithmetic):
    """The capability `Arithmetic` on PyTorch; its methods are documented in `xdevice.math.contract.arithmetic`."""

    # None if this version of PyTorch does not reveal the class of its scopes; then no scope is
    # set aside, and calls are slower
    scopes = (
        None if not SCOPES else Scopes(count_function_modes, set_scopes_aside, put_scopes_back)
    )

    # both modules are imported only at their first use, because a program that only moves
    # tensors does not need them
    def namespace(self) -> ModuleType:
        """Returns the module with the kernels for `xdevice.array_namespace`."""
        from . import arithmetic

        return arithmetic

    def nn(self) -> ModuleType:
        """Returns the module with the kernels for `xdevice.nn`."""
        from . import nn

        return nn


MIXINS: Final = (TorchArithmetic, TorchGradients, TorchCompiling, TorchReproducibility)
