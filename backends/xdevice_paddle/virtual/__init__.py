"""Virtual GPUs for Paddle, which are devices of a plugin without kernels. The plugin must be passed
to Paddle before the import of Paddle ends, so importing this package does not import Paddle."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Returns `MIXINS`, the classes with the hooks, when it is first used. Raises `AttributeError`
    for any other name."""
    if name != "MIXINS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # this imports Paddle
    from .virtual_gpus import PaddleVirtualGpus

    return (PaddleVirtualGpus,)
