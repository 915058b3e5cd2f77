"""MXNet's part of the product `performance`. It has no graphs, because MXNet compiles blocks with `net.hybridize()`
instead."""

from __future__ import annotations

from typing import Final

from xdevice.performance.contract.graphs import Graphs

from .parallel import MxnetParallel
from .prefetch import MxnetPrefetch
from .transfers import MxnetTransfers


class MxnetGraphs(Graphs):
    """Refuses to record graphs, with an error that recommends `net.hybridize()` instead."""

    compiler = "net.hybridize()"


MIXINS: Final = (MxnetGraphs, MxnetParallel, MxnetPrefetch, MxnetTransfers)
