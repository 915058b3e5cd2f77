"""Converts the weights and states of models and optimizers to another framework, and lists the differences between two
models."""

from __future__ import annotations

from .base.faces import lazy

__getattr__, __dir__ = lazy(__name__, __file__)
