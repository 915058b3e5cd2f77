"""Adapters with one fault each: for every hook of the contract, what a wrong one would do, and the check that notices.

A fault of a hook is in the file of its capability. It is a row, `swap("move", "loses the sign of zeros", ...)`, or a
function that is named after both. It is planted in the adapter of `tests/toy`, which is honest and passes everything.
"""

from __future__ import annotations

from . import (  # noqa: F401  # which fill the list
    arithmetic,
    asynchrony,
    compiling,
    conversion,
    devices,
    gradients,
    graphs,
    layers,
    models,
    optimizers,
    process,
    replicas,
    streams,
    tensors,
    values,
    virtual_gpus,
)
from .planting import FAULTS, HOMES

__all__ = ["FAULTS", "HOMES"]
