"""The hooks that read Paddle's layers and optimizers: their kinds, computations and calls."""

from __future__ import annotations

from typing import Final

from .calls import PaddleCalls
from .layers import PaddleLayers
from .optimizers import PaddleOptimizers

MIXINS: Final = (PaddleLayers, PaddleCalls, PaddleOptimizers)
