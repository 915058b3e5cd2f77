"""Framework-independent computing: arrays, gradients, functions of layers, optimizers, random
numbers."""

from __future__ import annotations

from xdevice.base.faces import lazy

# the names are those of the stub `__init__.pyi`, each imported from its module at its first use
__getattr__, __dir__ = lazy(__name__, __file__)
