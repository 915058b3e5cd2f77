"""Streams, events, graphs and caches: what only a device beside the CPU has, as in `torch.accelerator`."""

from __future__ import annotations

from .base.faces import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
