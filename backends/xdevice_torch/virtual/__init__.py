"""Virtual GPUs for PyTorch: a device that is implemented in Python."""

from __future__ import annotations

from typing import Final

from .virtual_gpus import TorchVirtualGpus

MIXINS: Final = (TorchVirtualGpus,)
