"""Reads Keras's layers and optimizers: their kinds, computations and calls."""

from __future__ import annotations

from typing import Final

from .calls import TensorflowCalls
from .layers import TensorflowLayers
from .optimizers import TensorflowOptimizers

MIXINS: Final = (TensorflowLayers, TensorflowCalls, TensorflowOptimizers)
