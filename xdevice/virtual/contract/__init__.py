"""The part of an adapter's contract that `virtual` adds: several devices on a machine that has only one."""

from __future__ import annotations

from typing import Final

from .virtual_gpus import VirtualGpus

CAPABILITIES: Final = (VirtualGpus,)
