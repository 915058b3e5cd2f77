"""PyTorch's hooks for graphs, parallel tasks, copies in the background, and reports of transfers."""

from __future__ import annotations

from typing import Final

from .graphs import TorchGraphs
from .parallel import TorchParallel
from .prefetch import TorchPrefetch
from .transfers import TorchTransfers

MIXINS: Final = (TorchGraphs, TorchParallel, TorchPrefetch, TorchTransfers)
