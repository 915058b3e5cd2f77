"""MXNet's part of the product `twins`: reads the layers of Gluon's blocks, their calls, and MXNet's optimizers."""

from __future__ import annotations

from typing import Final

from .calls import MxnetCalls
from .layers import MxnetLayers
from .optimizers import MxnetOptimizers

MIXINS: Final = (MxnetLayers, MxnetCalls, MxnetOptimizers)
