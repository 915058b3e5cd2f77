"""JAX's part of the product `performance`. It has no graphs: `jax.jit` compiles functions
instead."""

from __future__ import annotations

from typing import Final

from xdevice.performance.contract.graphs import Graphs

from .parallel import JaxParallel
from .prefetch import JaxPrefetch
from .transfers import JaxTransfers


class JaxGraphs(Graphs):
    compiler = "jax.jit"


MIXINS: Final = (JaxGraphs, JaxParallel, JaxPrefetch, JaxTransfers)
