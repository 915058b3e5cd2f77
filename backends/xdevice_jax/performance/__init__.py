"""Tasks side by side and transfers on JAX, which records no work: its programs are what `jax.jit` makes."""

from __future__ import annotations

from typing import Final

from xdevice.performance.contract.graphs import Graphs

from .parallel import JaxParallel
from .transfers import JaxTransfers


class JaxGraphs(Graphs):
    compiler = "jax.jit"


MIXINS: Final = (JaxGraphs, JaxParallel, JaxTransfers)
