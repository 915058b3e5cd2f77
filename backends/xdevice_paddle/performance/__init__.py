"""Paddle's part of the product `performance`. Paddle has no graphs: `paddle.jit.to_static` compiles
functions instead."""

from __future__ import annotations

from typing import Final

from xdevice.performance.contract.graphs import Graphs

from .parallel import PaddleParallel
from .prefetch import PaddlePrefetch
from .transfers import PaddleTransfers


class PaddleGraphs(Graphs):
    """Refuses to record graphs, with an error that recommends `paddle.jit.to_static` instead."""

    compiler = "paddle.jit.to_static"


MIXINS: Final = (PaddleGraphs, PaddleParallel, PaddlePrefetch, PaddleTransfers)
