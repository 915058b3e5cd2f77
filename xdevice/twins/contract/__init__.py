"""The part of the adapters' contract that `twins` needs. It covers the kinds, computations and calls of layers and
optimizers, and the framework's own file formats."""

from __future__ import annotations

from typing import Final

from .files import Files
from .layers import Calls, Layers, Operations
from .optimizers import Optimizers

CAPABILITIES: Final = (Layers, Operations, Calls, Optimizers, Files)
