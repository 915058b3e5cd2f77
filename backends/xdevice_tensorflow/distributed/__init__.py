"""TensorFlow's engines, which move tensors between several processes."""

from __future__ import annotations

from typing import Final

from .processes import TensorflowProcesses

MIXINS: Final = (TensorflowProcesses,)
