"""Registers virtual GPUs with Paddle while it is imported. Also reports their name, their number,
and the reason if there are none.

Paddle lists its devices when it is imported, so this module is needed earlier, and must not
import Paddle. It loads the code that creates virtual GPUs only if the program requests them.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdevice.base.devices import Device

KIND: Final = "vgpu"
"""Paddle's name for the type of virtual GPUs; the name of the first device is "vgpu:0"."""

_TOO_LATE: Final = (
    "Paddle is already imported, and lists its devices only during its import; set XDEVICE_VIRTUAL_GPUS and move "
    "`import xdevice` above `import paddle`, or call xdevice.virtual_gpus(n) before `import paddle`"
)
_registered = 0
"""How many virtual GPUs Paddle has."""
_why_not: str | None = _TOO_LATE
"""The reason why Paddle has no virtual GPUs, or None if it has them."""


def registered_count() -> int:
    """Returns the number of virtual GPUs that have been registered with Paddle."""
    return _registered


def why_not() -> str | None:
    """Returns the reason why Paddle has no virtual GPUs, or None if it has them."""
    return _why_not


def name_of(device: Device) -> str:
    """Returns Paddle's name for a device: "cpu", "gpu:1", or "vgpu:1" for a virtual GPU."""
    if device.kind == "cpu":
        return "cpu"
    return f"{KIND}:{device.index}" if device.kind == "gpu" and _registered else str(device)


@contextmanager
def importing(n: int) -> Iterator[None]:
    """Registers `n` virtual GPUs with Paddle, which must be imported inside the block. Does
    nothing if `n` is 0."""
    global _registered, _why_not
    # Paddle lists its devices only once, when it is imported
    if not n or "paddle" in sys.modules:
        yield
        return
    # imported by its name, because this module belongs to the device layer, which must not contain
    # an import of the folder `virtual`; that folder imports this module
    custom_device: Any = import_module(f"{__package__}.virtual.custom_device")
    with custom_device.environment():
        _why_not = custom_device.register(n, KIND)
        _registered = 0 if _why_not else n
        yield
