"""PyTorch's layers and optimizers: their kinds, computations and calls."""

from __future__ import annotations

from typing import Final

from .calls import TorchCalls
from .files import TorchFiles
from .layers import TorchLayers
from .optimizers import TorchOptimizers

MIXINS: Final = (TorchLayers, TorchCalls, TorchOptimizers, TorchFiles)
