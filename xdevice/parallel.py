"""Several devices in one process: replicas, sums over them, and tasks that run side by side. `xdevice.distributed` is
for several processes."""

from __future__ import annotations

from .base.faces import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
