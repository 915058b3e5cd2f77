"""JAX's part of the product `performance`. It does not record graphs, because `jax.jit` compiles programs on JAX."""

from __future__ import annotations

from typing import Final

from xdevice.performance.contract.graphs import Graphs

from .parallel import JaxParallel
from .prefetch import JaxPrefetch
from .transfers import JaxTransfers


class JaxGraphs(Graphs):
    """Does not support graphs. The error about that recommends `jax.jit` instead."""

    compiler = "jax.jit"


MIXINS: Final = (JaxGraphs, JaxParallel, JaxPrefetch, JaxTransfers)
