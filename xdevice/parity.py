"""Checks whether two programs or models compute the same numbers, and finds the first place where they differ."""

from __future__ import annotations

from .base.faces import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
