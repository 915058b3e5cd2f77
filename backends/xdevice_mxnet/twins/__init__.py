"""Gluon's blocks and optimizers: their kinds, computations and calls."""

from __future__ import annotations

from typing import Final

from .calls import MxnetCalls
from .layers import MxnetLayers
from .optimizers import MxnetOptimizers

MIXINS: Final = (MxnetLayers, MxnetCalls, MxnetOptimizers)
