"""Virtual GPUs for Paddle: a plugin without kernels. Paddle must get the plugin before its
import ends, so importing this package does not import Paddle."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Returns `MIXINS`, the classes with the hooks, at its first use. Raises `AttributeError`
    for any other name."""
    if name != "MIXINS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # this imports Paddle
    from .virtual_gpus import PaddleVirtualGpus

    return (PaddleVirtualGpus,)
