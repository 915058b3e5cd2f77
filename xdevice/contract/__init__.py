"""The names that an adapter (the package that makes a framework a backend) imports: the contract, which is the class
`Backend` with its methods, and the types that these methods take and return. The additions of a product are in its
folder `contract`: `xdevice.math.contract`, `xdevice.testing.contract`."""

from __future__ import annotations

from typing import Any, Final

from .backend import Backend, check
from .conversion import Takes
from .primitives import VIRTUAL_GPU, DeviceInfo, Kind, Memory, Way

__all__ = [
    "VIRTUAL_GPU",
    "Backend",
    "DeviceInfo",
    "Kind",
    "Memory",
    "Takes",
    "Way",
    "check",
]

# names that were here in earlier versions, each with its present module
_MOVED: Final = {
    "Samples": "xdevice.testing.contract.samples",
    "Work": "xdevice.testing.contract.samples",
    "Transfer": "xdevice.performance.contract.transfers",
}


def __getattr__(name: str) -> Any:
    """Raises `ImportError` for a name that is in another module now, which the message names,
    and `AttributeError` for any other name."""
    # `from xdevice.contract import Samples` passes an ImportError on as it is, but replaces an
    # AttributeError by a message of Python's own
    if name in _MOVED:
        raise ImportError(
            f"{name} is now in {_MOVED[name]}: write `from {_MOVED[name]} import {name}`"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
