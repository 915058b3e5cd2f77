"""Graphs, tasks side by side and transfers on PyTorch."""

from __future__ import annotations

from typing import Final

from .graphs import TorchGraphs
from .parallel import TorchParallel
from .transfers import TorchTransfers

MIXINS: Final = (TorchGraphs, TorchParallel, TorchTransfers)
