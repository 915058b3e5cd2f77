"""Finds the accelerator that `gpu:i` means in PyTorch, a function that waits for this accelerator, and the dtypes that
the accelerator lacks.

`torch.accelerator` alone is not enough:

- Once a plugin is registered, `torch.accelerator` reports the plugin instead of CUDA as the current accelerator, even
  if the plugin has no devices. So `detect` counts the devices of each accelerator.
- `torch.accelerator.synchronize` does not work for a backend written in Python, and the modules of some vendors have no
  `synchronize`. So `waiter` calls the vendor's function first, and then PyTorch's.
- On some backends, PyTorch's generic `Stream` and `Event` always belong to device 0, without an error. So xdevice uses
  only the streams and events of CUDA and XPU.
- `torch.accelerator` does not list lazy devices, which compute only when a result is read. It is impossible to wait for
  such a device.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch

from xdevice.base import devices
from xdevice.base.dtypes import SHORT_FLOATS

from .private import private

if TYPE_CHECKING:
    from collections.abc import Callable

_ask_lazy = private.get("torch._C._lazy._get_default_device_type", lambda: None)
"""PyTorch's function that raises RuntimeError if no lazy device was started."""
_BUILT_IN: Final = ("cuda", "xpu", "mps")
"""PyTorch's names for the accelerators that PyTorch supports without a vendor's plugin."""
STREAMS: Final = ("cuda", "xpu")
"""The accelerators whose streams and events are known to work like the streams and events of `torch.cuda`."""
_LACKS: Final = {
    "cuda": frozenset[str](),
    "mps": frozenset(("float64", "complex128", *SHORT_FLOATS)),
    "hpu": frozenset(("float64", "complex64", "complex128")),
}
"""The dtypes that each accelerator lacks. The source for MPS is PyTorch's code, and the source for HPU is Gaudi's
documentation. MPS accepts complex128 tensors, but cannot compute with them."""


def detect() -> tuple[str, int]:
    """Returns PyTorch's name for the device type of `gpu:i`, and the number of devices of this type. Returns ("cuda",
    0) if there is no accelerator. After this call, users may write this name for the device."""
    from xdevice.contract.accelerators import choose

    current = _current_type()
    # a plugin hides the built-in accelerators from `_current_type`, so they are counted too
    names = _BUILT_IN if current is None else (current, *_BUILT_IN)
    # a dict, because `current` may also be one of the built-in accelerators
    counts = {name: count(name) for name in dict.fromkeys(names)}
    # XDEVICE_ACCELERATOR may choose an accelerator other than the current one
    name = (
        choose(
            "torch", [name for name, count in counts.items() if count], hardware_names, current
        )
        or "cuda"
    )
    # from now on users can write the name of a plugin's device, just as they can write "cuda"
    devices.HARDWARE.add(name)
    return name, counts[name]


def hardware_names(name: str) -> frozenset[str]:
    """Returns the words, such as "cuda", that a user may write for the hardware of the device type `name`. PyTorch
    builds for ROCm call their devices "cuda", so in these builds a user may also write "rocm" or "hip"."""
    return (
        frozenset(("cuda", "rocm", "hip"))
        if name == "cuda" and torch.version.hip
        else frozenset((name,))
    )


def waiter(name: str) -> Callable[[int], None] | None:
    """Returns a function that waits for all work on a device of the type `name`. The function's
    argument is the index of the device. Returns None if PyTorch has no such function."""
    vendor_wait = getattr(getattr(torch, name, None), "synchronize", None)
    # MPS has only one device, and its function has no argument for an index
    if name == "mps" and vendor_wait is not None:
        return lambda index: vendor_wait()
    # `torch.accelerator` waits only for the current accelerator; for a built-in accelerator it
    # would wait a second time
    generic_wait = None
    if name not in _BUILT_IN and name == _current_type():
        generic_wait = torch.accelerator.synchronize
    waits = [wait for wait in (vendor_wait, generic_wait) if wait is not None]

    def wait_with_all(index: int) -> None:
        for wait in waits:
            wait(index)

    # if the vendor's function is the only one, it is returned itself, which saves a call
    if waits == [vendor_wait]:
        return vendor_wait
    return wait_with_all if waits else None


@cache
def lacks(name: str, index: int) -> frozenset[str]:
    """Returns the dtypes that tensors on the device with this type and index cannot have, or an
    empty set if nothing is known about the device.

    If an accelerator is not in `_LACKS`, only float64 and complex128 are looked up in PyTorch's list of supported
    dtypes. Some vendors support the small integers and the 8-bit floats, but omit them from this list.
    """
    if name in _LACKS or name != _current_type():
        return _LACKS.get(name, frozenset())
    try:
        listed: Any = torch.accelerator.get_device_capability(index)["supported_dtypes"]
    # older versions of PyTorch lack the function, and a vendor need not implement it
    except (AttributeError, RuntimeError):
        return frozenset()
    return frozenset(
        wide for wide in ("float64", "complex128") if getattr(torch, wide) not in listed
    )


def started_lazy_type() -> str | None:
    """Returns the type of the lazy device that this process has started, or None if there is
    none. The device of torch_xla is assumed to be started once torch_xla has been imported."""
    if "torch_xla" in sys.modules:
        return "xla"
    # PyTorch contains a lazy backend of its own, which a program starts by importing this module
    if "torch._lazy.ts_backend" not in sys.modules:
        return None
    try:
        _ask_lazy()
    except RuntimeError:  # the module was imported, but the lazy backend was not started
        return None
    return "lazy"


def _current_type() -> str | None:
    """Returns the type of the accelerator that PyTorch reports as the current one, or None if
    there is none."""
    try:
        current = torch.accelerator.current_accelerator()
    except RuntimeError:  # raised by PyTorch 2.6 if there is no accelerator
        return None
    return None if current is None else current.type


def count(name: str) -> int:
    """Returns the number of devices of the type `name`, without starting any device."""
    # MPS has one device or no device
    if name == "mps":
        return int(torch.backends.mps.is_available())
    module = getattr(torch, name, None)
    # a plugin can already be the current accelerator while it is being imported, before it has
    # added its module
    if module is None:
        return 0
    return int(getattr(module, "device_count", torch.accelerator.device_count)())
