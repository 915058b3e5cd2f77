"""Framework-independent computing: arrays, gradients, functions of layers, optimizers, random
numbers."""

from __future__ import annotations

from xdevice.base.faces import lazy

# the stub `__init__.pyi` lists the names; each name is imported from its module when it is
# first used
__getattr__, __dir__ = lazy(__name__, __file__)
