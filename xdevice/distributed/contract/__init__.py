"""What `distributed` adds to the contract of an adapter: engines for several processes."""

from __future__ import annotations

from typing import Final

from .processes import Processes

CAPABILITIES: Final = (Processes,)
