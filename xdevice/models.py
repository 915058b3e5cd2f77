"""Models and optimizers of one framework in another: converts weights and states, and finds
differences."""

from __future__ import annotations

from .base.faces import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
