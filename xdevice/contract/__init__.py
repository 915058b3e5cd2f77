"""What the author of an adapter (the package that makes a framework a backend) imports: the contract, which is the
class `Backend` with its methods, and the types that these methods take and return."""

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
