"""Finds the accelerator that `gpu:i` means in PyTorch, a way to wait for it, and the dtypes that it lacks.

`torch.accelerator` alone is not enough:

- It reports a plugin as the current accelerator once the plugin is registered, even without devices, and then not CUDA.
  So `detect` counts the devices of each accelerator.
- `torch.accelerator.synchronize` does not call a backend written in Python, and the modules of some vendors have no
  `synchronize`. So `waiter` calls the vendor's function first, and then PyTorch's.
- On some backends its `Stream` and `Event` silently belong to device 0. So only those of CUDA and XPU are used.
- It does not list lazy devices, which compute only when a result is asked for. Nobody can wait for these.
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
"""Raises RuntimeError if no lazy device was started."""
_BUILT_IN: Final = ("cuda", "xpu", "mps")
STREAMS: Final = ("cuda", "xpu")
"""The accelerators whose streams and events are known to work as those of `torch.cuda`."""
_LACKS: Final = {
    "cuda": frozenset[str](),
    "mps": frozenset(("float64", "complex128", *SHORT_FLOATS)),
    "hpu": frozenset(("float64", "complex64", "complex128")),
}
"""The dtypes that an accelerator lacks: MPS according to PyTorch's source (MPS takes complex128, and then cannot
compute with it), HPU according to Gaudi's documentation."""


def detect() -> tuple[str, int]:
    """Returns PyTorch's name for the device type of `gpu:i`, and how many such devices there are: "cuda" and 0 if there
    is no accelerator."""
    from xdevice.contract.accelerators import choose

    current = _current()
    counts = {name: _count(name) for name in dict.fromkeys(filter(None, (current, *_BUILT_IN)))}
    name = (
        choose("torch", [name for name, count in counts.items() if count], words, current)
        or "cuda"
    )
    devices.HARDWARE.add(name)
    return name, counts[name]


def words(name: str) -> frozenset[str]:
    """Returns the words by which a user may name the hardware of a device type. ROCm's builds call their devices
    "cuda"."""
    return (
        frozenset(("cuda", "rocm", "hip"))
        if name == "cuda" and torch.version.hip
        else frozenset((name,))
    )


def waiter(name: str) -> Callable[[int], None] | None:
    """Returns a function that waits for all work on the device with a given index; None if PyTorch has no such
    function."""
    own = getattr(getattr(torch, name, None), "synchronize", None)
    if name == "mps" and own is not None:
        return lambda index: own()
    shared = None if name in _BUILT_IN or name != _current() else torch.accelerator.synchronize
    calls = [call for call in (own, shared) if call is not None]

    def wait(index: int) -> None:
        for call in calls:
            call(index)

    return own if calls == [own] else wait if calls else None


@cache
def lacks(name: str, index: int) -> frozenset[str]:
    """Returns the dtypes that a device cannot hold.

    For vendors that `_LACKS` does not name, only float64 and complex128 are looked up in PyTorch's list of supported
    dtypes: some vendors leave the small integers and the 8-bit floats out of that list, although they hold them.
    """
    if name in _LACKS or name != _current():
        return _LACKS.get(name, frozenset())
    try:
        listed: Any = torch.accelerator.get_device_capability(index)["supported_dtypes"]
    except (AttributeError, RuntimeError):  # an older PyTorch, or a vendor who does not tell
        return frozenset()
    return frozenset(
        wide for wide in ("float64", "complex128") if getattr(torch, wide) not in listed
    )


def lazy() -> str | None:
    """Returns the type of the lazy device that this process has started; None if there is none. The device of torch_xla
    counts as started once torch_xla is imported."""
    if "torch_xla" in sys.modules:
        return "xla"
    if "torch._lazy.ts_backend" not in sys.modules:
        return None
    try:
        _ask_lazy()
    except RuntimeError:  # the lazy backend is imported, but not started
        return None
    return "lazy"


def _current() -> str | None:
    try:
        current = torch.accelerator.current_accelerator()
    except RuntimeError:  # raised by PyTorch 2.6 if there is no accelerator
        return None
    return None if current is None else current.type


def _count(name: str) -> int:
    if name == "mps":
        return int(torch.backends.mps.is_available())
    module = getattr(torch, name, None)
    if module is None:  # a plugin adds its module while it is imported, which it may not be yet
        return 0
    return int(getattr(module, "device_count", torch.accelerator.device_count)())
