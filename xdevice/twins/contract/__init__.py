"""The part of an adapter's contract for `twins`: the kinds, computations and calls of layers and optimizers,
and the framework's own files."""

from __future__ import annotations

from typing import Final

from .files import Files
from .layers import Calls, Layers, Operations
from .optimizers import Optimizers

CAPABILITIES: Final = (Layers, Operations, Calls, Optimizers, Files)
