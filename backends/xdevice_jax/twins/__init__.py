"""Layers and optimizers of JAX's libraries: flax and Equinox."""

from __future__ import annotations

from typing import Final

from .calls import JaxCalls
from .layers import JaxLayers
from .modules import JaxModels
from .optimizers import JaxOptimizers

MIXINS: Final = (JaxModels, JaxLayers, JaxCalls, JaxOptimizers)
