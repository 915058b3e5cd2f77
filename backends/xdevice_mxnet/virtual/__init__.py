"""Virtual GPUs for MXNet: `cpu(1)` and the CPU devices after it."""

from __future__ import annotations

from typing import Final

from .virtual_gpus import MxnetVirtualGpus

MIXINS: Final = (MxnetVirtualGpus,)
