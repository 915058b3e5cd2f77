"""What an adapter is written on: the contract, and the tools that it may use."""

from .backend import VIRTUAL_GPU, Backend, DeviceInfo, Kind, Memory, Takes, Transfer, Way, check
from .samples import Samples, Work

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
