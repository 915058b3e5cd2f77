"""JAX's part of the product `performance`. It does not record graphs, because programs for JAX use `jax.jit` for this
purpose."""

from __future__ import annotations

from typing import Final

from xdevice.performance.contract.graphs import Graphs

from .parallel import JaxParallel
from .prefetch import JaxPrefetch
from .transfers import JaxTransfers


class JaxGraphs(Graphs):
    """Refuses to record graphs, with an error that recommends `jax.jit` instead."""

    compiler = "jax.jit"


MIXINS: Final = (JaxGraphs, JaxParallel, JaxPrefetch, JaxTransfers)
