"""Adds support for the layers, calls and optimizers of JAX's libraries Flax, Equinox and optax to the adapter."""

from __future__ import annotations

from typing import Final

from .calls import JaxCalls
from .layers import JaxLayers
from .modules import JaxModels
from .optimizers import JaxOptimizers

MIXINS: Final = (JaxModels, JaxLayers, JaxCalls, JaxOptimizers)
