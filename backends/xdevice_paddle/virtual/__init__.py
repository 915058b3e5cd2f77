"""Virtual GPUs for Paddle: a plugin without kernels, which Paddle must get before its import ends. So importing this
package does not import Paddle."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "MIXINS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .virtual_gpus import PaddleVirtualGpus

    return (PaddleVirtualGpus,)
