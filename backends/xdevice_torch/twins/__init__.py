"""The hooks that read PyTorch's layers and optimizers, record the calls of layers, and read
PyTorch's files of weights."""

from __future__ import annotations

from typing import Final

from .calls import TorchCalls
from .files import TorchFiles
from .layers import TorchLayers
from .optimizers import TorchOptimizers

MIXINS: Final = (TorchLayers, TorchCalls, TorchOptimizers, TorchFiles)
