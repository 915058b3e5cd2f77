"""The part of an adapter's contract that `math` adds: arrays and the functions of layers,
gradients, compiled functions."""

from __future__ import annotations

from typing import Final

from .arithmetic import Arithmetic
from .compiling import Compiling
from .gradients import Gradients
from .reproducibility import Reproducibility

# the base classes of the mixins in an adapter's folder `math`
CAPABILITIES: Final = (Arithmetic, Gradients, Compiling, Reproducibility)
