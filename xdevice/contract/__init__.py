"""What an adapter is written on: the contract, and the tools that it may use."""

from .backend import Backend, check
from .conversion import Takes
from .primitives import VIRTUAL_GPU, DeviceInfo, Kind, Memory, Way
from .samples import Samples, Work
from .transfers import Transfer

__all__ = [
    "VIRTUAL_GPU",
    "Backend",
    "DeviceInfo",
    "Kind",
    "Memory",
    "Samples",
    "Takes",
    "Transfer",
    "Way",
    "Work",
    "check",
]
