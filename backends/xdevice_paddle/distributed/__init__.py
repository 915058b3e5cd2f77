"""Paddle's engines and training steps for several processes."""

from __future__ import annotations

from typing import Final

from .processes import PaddleProcesses
from .steps import PaddleSteps

MIXINS: Final = (PaddleProcesses, PaddleSteps)
