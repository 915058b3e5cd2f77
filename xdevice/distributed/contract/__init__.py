"""The part of an adapter's contract that `distributed` adds: engines for several processes."""

from __future__ import annotations

from typing import Final

from .processes import Processes

CAPABILITIES: Final = (Processes,)
