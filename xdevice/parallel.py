"""Several devices in one process: replicas, sums over replicas, and tasks that run in parallel. For several processes,
use `xdevice.distributed`."""

from __future__ import annotations

from .base.faces import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
