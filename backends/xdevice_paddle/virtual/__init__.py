"""Virtual GPUs for Paddle: a plugin without kernels."""

from __future__ import annotations

from typing import Final

from .virtual_gpus import PaddleVirtualGpus

MIXINS: Final = (PaddleVirtualGpus,)
