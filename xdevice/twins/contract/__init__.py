"""What `twins` adds to the contract of an adapter: what layers and optimizers are, compute, and are called with."""

from __future__ import annotations

from typing import Final

from .layers import Calls, Layers, Operations
from .optimizers import Optimizers

CAPABILITIES: Final = (Layers, Operations, Calls, Optimizers)
