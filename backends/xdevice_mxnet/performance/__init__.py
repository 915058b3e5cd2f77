"""MXNet's part of the product `performance`. It has no graphs: `net.hybridize()` compiles
blocks instead."""

from __future__ import annotations

from typing import Final

from xdevice.performance.contract.graphs import Graphs

from .parallel import MxnetParallel
from .prefetch import MxnetPrefetch
from .transfers import MxnetTransfers


class MxnetGraphs(Graphs):
    """No graphs: the error that refuses them names `net.hybridize()` instead."""

    compiler = "net.hybridize()"


MIXINS: Final = (MxnetGraphs, MxnetParallel, MxnetPrefetch, MxnetTransfers)
