"""Adds JAX's engine for several processes to the adapter."""

from __future__ import annotations

from typing import Final

from .processes import JaxProcesses

MIXINS: Final = (JaxProcesses,)
