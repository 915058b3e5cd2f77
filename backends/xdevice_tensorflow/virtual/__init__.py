"""Virtual GPUs for TensorFlow, which are its logical CPUs."""

from __future__ import annotations

from typing import Final

from .virtual_gpus import TensorflowVirtualGpus

MIXINS: Final = (TensorflowVirtualGpus,)
