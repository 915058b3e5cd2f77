"""Finds the accelerator that `gpu:i` means in PyTorch, a way to wait for it, and the dtypes
that it lacks.

`torch.accelerator` alone is not enough:

- It reports a plugin as the current accelerator once the plugin is registered, even without
  devices, and then not CUDA. So `detect` counts the devices of each accelerator.
- `torch.accelerator.synchronize` does not call a backend written in Python, and the modules of
  some vendors have no `synchronize`. So `waiter` calls the vendor's function first, and then
  PyTorch's.
- On some backends its `Stream` and `Event` silently belong to device 0. So only those of CUDA
  and XPU are used.
- It does not list lazy devices, which compute only when a result is read. Nothing can wait for these.
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
"""A function of PyTorch that raises RuntimeError if no lazy device was started."""
_BUILT_IN: Final = ("cuda", "xpu", "mps")
"""PyTorch's names of the accelerators that it supports without a vendor's plugin."""
STREAMS: Final = ("cuda", "xpu")
"""The accelerators whose streams and events are known to work like the streams and events of
`torch.cuda`."""
_LACKS: Final = {
    "cuda": frozenset[str](),
    "mps": frozenset(("float64", "complex128", *SHORT_FLOATS)),
    "hpu": frozenset(("float64", "complex64", "complex128")),
}
"""The dtypes that an accelerator lacks: MPS according to PyTorch's source (MPS takes
complex128, and then cannot compute with it), HPU according to Gaudi's documentation."""


def detect() -> tuple[str, int]:
    """Returns PyTorch's name for the device type of `gpu:i`, and the number of such devices;
    ("cuda", 0) if there is no accelerator. After this call users may write the name as a
    device."""
    from xdevice.contract.accelerators import choose

    current = _current()
    # a plugin hides the built-in accelerators from `_current`, so these are counted too; a dict
    # has each name only once
    counts = {name: _count(name) for name in dict.fromkeys(filter(None, (current, *_BUILT_IN)))}
    # XDEVICE_ACCELERATOR may choose another one than the current one
    name = (
        choose("torch", [name for name, count in counts.items() if count], words, current)
        or "cuda"
    )
    # from now on users can write the name of a plugin's device, as they can write "cuda"
    devices.HARDWARE.add(name)
    return name, counts[name]


def words(name: str) -> frozenset[str]:
    """Returns the words with which a user may name the hardware of the device type `name`, such
    as "cuda". ROCm's builds of PyTorch call their devices "cuda", so there a user may write
    "rocm" and "hip" too."""
    return (
        frozenset(("cuda", "rocm", "hip"))
        if name == "cuda" and torch.version.hip
        else frozenset((name,))
    )


def waiter(name: str) -> Callable[[int], None] | None:
    """Returns a function that takes the index of a device of the type `name` and waits for all
    work on that device; None if PyTorch has no function for this."""
    vendor = getattr(getattr(torch, name, None), "synchronize", None)
    # MPS has one device, and its function takes no index
    if name == "mps" and vendor is not None:
        return lambda index: vendor()
    # `torch.accelerator` waits for the current accelerator only; for the built-in ones it would
    # wait a second time
    shared = None if name in _BUILT_IN or name != _current() else torch.accelerator.synchronize
    calls = [call for call in (vendor, shared) if call is not None]

    def wait(index: int) -> None:
        for call in calls:
            call(index)

    # the vendor's function itself if it is the only one, which saves a call
    return vendor if calls == [vendor] else wait if calls else None


@cache
def lacks(name: str, index: int) -> frozenset[str]:
    """Returns the dtypes that a device of the type `name` with this index cannot hold; an empty
    set if nothing is known about the device.

    For vendors that `_LACKS` does not name, only float64 and complex128 are looked up in
    PyTorch's list of supported dtypes: some vendors leave the small integers and the 8-bit
    floats out of that list, although they hold them.
    """
    if name in _LACKS or name != _current():
        return _LACKS.get(name, frozenset())
    try:
        listed: Any = torch.accelerator.get_device_capability(index)["supported_dtypes"]
    # an older PyTorch lacks the function, and a vendor need not implement it
    except (AttributeError, RuntimeError):
        return frozenset()
    return frozenset(
        wide for wide in ("float64", "complex128") if getattr(torch, wide) not in listed
    )


def lazy() -> str | None:
    """Returns the type of the lazy device that this process has started; None if there is none.
    The device of torch_xla counts as started once torch_xla is imported."""
    if "torch_xla" in sys.modules:
        return "xla"
    # the lazy backend that PyTorch itself contains; a program imports this module to start it
    if "torch._lazy.ts_backend" not in sys.modules:
        return None
    try:
        _ask_lazy()
    except RuntimeError:  # the lazy backend is imported, but not started
        return None
    return "lazy"


def _current() -> str | None:
    """Returns the type of the accelerator that PyTorch reports as the current one; None if
    there is none."""
    try:
        current = torch.accelerator.current_accelerator()
    except RuntimeError:  # raised by PyTorch 2.6 if there is no accelerator
        return None
    return None if current is None else current.type


def _count(name: str) -> int:
    """Returns how many devices of a type there are, without starting any of them."""
    # MPS has one device, or none
    if name == "mps":
        return int(torch.backends.mps.is_available())
    module = getattr(torch, name, None)
    # a plugin can be the current accelerator while it is still being imported, before it has
    # added its module
    if module is None:
        return 0
    return int(getattr(module, "device_count", torch.accelerator.device_count)())
