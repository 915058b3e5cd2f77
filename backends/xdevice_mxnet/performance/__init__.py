"""Parallel tasks, copies in the background and transfers on MXNet, which records no work."""

from __future__ import annotations

from typing import Final

from xdevice.performance.contract.graphs import Graphs

from .parallel import MxnetParallel
from .prefetch import MxnetPrefetch
from .transfers import MxnetTransfers


class MxnetGraphs(Graphs):
    compiler = "net.hybridize()"


MIXINS: Final = (MxnetGraphs, MxnetParallel, MxnetPrefetch, MxnetTransfers)
