"""Virtual GPUs for TensorFlow. Each virtual GPU is one of TensorFlow's logical CPUs."""

from __future__ import annotations

from typing import Final

from .virtual_gpus import TensorflowVirtualGpus

MIXINS: Final = (TensorflowVirtualGpus,)
