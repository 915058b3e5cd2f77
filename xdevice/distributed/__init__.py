"""Several processes, on one machine or many: their ranks, the control connection between them, and the collectives."""

from __future__ import annotations

from xdevice.base.faces import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
