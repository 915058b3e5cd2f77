"""Streams, events, graphs and caches: the features of devices other than the CPU, as in `torch.accelerator`."""

from __future__ import annotations

from .base.faces import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
