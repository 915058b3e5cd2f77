"""Framework-independent computing: arrays, gradients, functions of layers, optimizers, random numbers."""

from __future__ import annotations

from xdevice.base.faces import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
