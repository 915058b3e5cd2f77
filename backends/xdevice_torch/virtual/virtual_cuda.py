"""The name "cuda" for a virtual GPU of PyTorch, for test suites that choose their device by that name."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from xdevice_torch.private import private

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import FrameType


# code that finds CUDA available goes on to call these
_OWN = ("device_count", "device", "set_device", "synchronize", "get_rng_state", "set_rng_state")
"""Functions of `torch.cuda` that are replaced by those of `torch.vgpu`."""
_COUNTS = ("memory_allocated", "max_memory_allocated")
"""Functions of `torch.cuda` that are replaced by those of `torch.accelerator`."""


def take_for_cuda(
    device: torch.device, has_default: Callable[[FrameType], bool] | None
) -> None:
    """Makes "cuda" mean `device`, and "cuda:1" the virtual GPU 1, wherever this thread passes a
    device to a function of PyTorch, until the process ends. `torch.cuda.is_available()` returns
    True from then on.

    With `has_default`, the device that a program passes to `torch.set_default_device` applies
    only to calls from frames for which `has_default` returns True."""
    private.require("--xd-cuda")
    mode = _Cuda(device, has_default)
    set_default = torch.set_default_device
    # typed as Any, because mypy would refuse to replace functions of a module
    changed: Any = torch
    if has_default is None:
        changed.set_default_device = lambda wanted: set_default(mode.resolved(wanted))
    else:
        changed.set_default_device = mode.set_default
    changed.cuda.is_available = changed.backends.cuda.is_built = lambda: True
    own = getattr(torch, device.type)
    for name in _OWN:
        setattr(changed.cuda, name, getattr(own, name))
    for name in _COUNTS:
        setattr(changed.cuda, name, getattr(torch.accelerator, name))
    changed.cuda.current_device = lambda: device.index
    # entered for good, because test suites choose "cuda" when they are imported, long before a
    # test
    mode.__enter__()  # type: ignore[no-untyped-call]


class _Cuda(TorchFunctionMode):
    """Calls each function of PyTorch with a virtual GPU in the place of "cuda". `device` and
    `has_default` are those of `take_for_cuda`."""

    def __init__(
        self, device: torch.device, has_default: Callable[[FrameType], bool] | None
    ) -> None:
        super().__init__()
        self._device = device
        self._has_default = has_default
        self._default: torch.device | None = None

    def resolved(self, value: Any) -> Any:
        """Returns the virtual GPU for an argument "cuda" or "cuda:1", and any other argument
        unchanged."""
        # no subclasses of str, and nothing inside lists: this runs for each argument of each
        # call
        kind, _, index = value.partition(":") if type(value) is str else ("", "", "")
        if kind != "cuda":
            return value
        return torch.device(self._device.type, int(index)) if index else self._device

    def set_default(self, device: Any) -> None:
        """Replaces `torch.set_default_device`, if the default device must apply to some callers
        only."""
        self._default = None if device is None else torch.device(device)

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls `function` with the virtual GPU in the place of "cuda". PyTorch calls this for
        each of its functions, because the mode is entered."""
        # `x.cuda()` may have no argument in which "cuda" could be replaced, so it becomes
        # `x.to(virtual GPU)`
        if function is torch.Tensor.cuda:
            # `Module.cuda()` passes None as the device
            place = args[1] if len(args) > 1 else (kwargs or {}).get("device")
            function, args, kwargs = (
                torch.Tensor.to,
                (args[0], self._device if place is None else place),
                {},
            )
        named = {name: self.resolved(value) for name, value in (kwargs or {}).items()}
        # a test suite's default device may have to apply to the tests, but not to the library
        # under test, so it depends on the calling frame
        with self._default_for(sys._getframe(1)):
            return function(*[self.resolved(value) for value in args], **named)

    def _default_for(self, caller: FrameType) -> AbstractContextManager[Any]:
        """Returns a block with the default device if it applies to the calling frame, or else a
        block without effect."""
        if self._default is None or self._has_default is None or not self._has_default(caller):
            return nullcontext()
        return self._default
