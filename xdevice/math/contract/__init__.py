"""The part of an adapter's contract that the product `math` adds: arrays and neural-network functions, gradients,
compiled functions, and reproducibility."""

from __future__ import annotations

from typing import Final

from .arithmetic import Arithmetic
from .compiling import Compiling
from .gradients import Gradients
from .reproducibility import Reproducibility

# the base classes of the mixin classes in an adapter's folder `math`
CAPABILITIES: Final = (Arithmetic, Gradients, Compiling, Reproducibility)
