"""The part of an adapter's contract that `distributed` adds: engines for several processes, and training steps."""

from __future__ import annotations

from typing import Final

from .processes import Processes
from .steps import Steps

CAPABILITIES: Final = (Processes, Steps)
