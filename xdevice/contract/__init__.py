"""The names that an adapter (the package that makes a framework a backend) imports. The names belong to the contract
(the class `Backend` with its methods) or are types of the arguments and results of these methods. Products of xdevice,
such as `xdevice.math` and `xdevice.testing`, add to the contract in their own folders, `xdevice.math.contract` and
`xdevice.testing.contract`."""

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

# names that this module had in earlier versions, each with its present module
_MOVED: Final = {
    "Samples": "xdevice.testing.contract.samples",
    "Work": "xdevice.testing.contract.samples",
    "Transfer": "xdevice.performance.contract.transfers",
}


def __getattr__(name: str) -> Any:
    """Raises `ImportError` for a name that has moved to another module; the message names that module. Raises
    `AttributeError` for any other name."""
    # `from xdevice.contract import Samples` shows the message of an ImportError, but replaces that of
    # an AttributeError by Python's own message
    if name in _MOVED:
        raise ImportError(
            f"{name} is now in {_MOVED[name]}: write `from {_MOVED[name]} import {name}`"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
