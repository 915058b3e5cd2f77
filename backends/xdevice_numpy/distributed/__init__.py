"""NumPy's engine for several processes."""

from __future__ import annotations

from typing import Final

from .processes import NumpyProcesses

MIXINS: Final = (NumpyProcesses,)
