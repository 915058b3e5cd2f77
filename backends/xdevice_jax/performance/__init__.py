"""JAX's part of the product `performance`. It records no work: its programs come from
`jax.jit`."""

from __future__ import annotations

from typing import Final

from xdevice.performance.contract.graphs import Graphs

from .parallel import JaxParallel
from .prefetch import JaxPrefetch
from .transfers import JaxTransfers


class JaxGraphs(Graphs):
    """No graphs: the error that refuses them names `jax.jit` instead."""

    compiler = "jax.jit"


MIXINS: Final = (JaxGraphs, JaxParallel, JaxPrefetch, JaxTransfers)
