"""Makes the name "cuda" mean a virtual GPU of PyTorch, for test suites that choose their device
by this name."""

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


_OWN = ("device_count", "device", "set_device", "synchronize", "get_rng_state", "set_rng_state")
"""The functions of `torch.cuda` that are replaced by the functions of the same name in `torch.vgpu`, because code that
finds CUDA available calls these functions."""
_COUNTS = ("memory_allocated", "max_memory_allocated")
"""The functions of `torch.cuda` that are replaced by the functions of the same name in `torch.accelerator`."""


def take_for_cuda(
    device: torch.device, has_default: Callable[[FrameType], bool] | None
) -> None:
    """In this thread, makes "cuda" mean `device`, a virtual GPU, and "cuda:1" the virtual GPU
    1, wherever a function of PyTorch accepts a device. This lasts until the process ends.
    `torch.cuda.is_available()` then returns True.

    If `has_default` is not None, the device that a program sets with `torch.set_default_device` applies only to some
    callers: `has_default` is called with the frame of a caller, and returns whether the default device applies to this
    caller."""
    private.require_names_for("--xd-cuda")
    mode = _Cuda(device, has_default)
    set_default = torch.set_default_device
    # typed as Any, so that type checkers allow assignments to the attributes of PyTorch
    untyped_torch: Any = torch
    # without `has_default`, PyTorch's own default device is set
    if has_default is None:
        untyped_torch.set_default_device = lambda wanted: set_default(mode.resolved(wanted))
    else:
        untyped_torch.set_default_device = mode.set_default
    untyped_torch.cuda.is_available = untyped_torch.backends.cuda.is_built = lambda: True
    vgpu_module = getattr(torch, device.type)
    for name in _OWN:
        setattr(untyped_torch.cuda, name, getattr(vgpu_module, name))
    for name in _COUNTS:
        setattr(untyped_torch.cuda, name, getattr(torch.accelerator, name))
    untyped_torch.cuda.current_device = lambda: device.index
    # the mode is never exited, because suites choose "cuda" when they are imported, long before
    # a test runs
    mode.__enter__()  # type: ignore[no-untyped-call]


class _Cuda(TorchFunctionMode):
    """The function mode that replaces "cuda" with a virtual GPU in the arguments of PyTorch's functions."""

    def __init__(
        self, device: torch.device, has_default: Callable[[FrameType], bool] | None
    ) -> None:
        super().__init__()
        self._device = device
        self._has_default = has_default
        self._default: torch.device | None = None

    def resolved(self, value: Any) -> Any:
        """Returns the virtual GPU if `value` names one as "cuda" or, for example, "cuda:1".
        Returns any other value unchanged."""
        kind, _, index = value.partition(":") if type(value) is str else ("", "", "")
        if kind != "cuda":
            return value
        return torch.device(self._device.type, int(index)) if index else self._device

    def set_default(self, device: Any) -> None:
        """Sets the default device, or removes it if `device` is None. Replaces `torch.set_default_device` if
        `has_default` is not None."""
        self._default = None if device is None else torch.device(device)

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls a function of PyTorch with the virtual GPU instead of "cuda", and returns its
        result. `x.cuda(...)` becomes `x.to(device, ...)`."""
        # `x.cuda()` may have no argument in which "cuda" could be replaced, so it becomes `x.to(virtual GPU)`
        if function is torch.Tensor.cuda:
            # the first argument is the tensor; the order of these names is that of `cuda`, not that of `to`
            positional = dict(zip(("device", "non_blocking"), args[1:], strict=False))
            kwargs = {**(kwargs or {}), **positional}
            # `Module.cuda` passes None for the device
            if kwargs.get("device") is None:
                kwargs["device"] = self._device
            function, args = torch.Tensor.to, args[:1]
        named = {name: self.resolved(value) for name, value in (kwargs or {}).items()}
        # frame 1 belongs to the code that calls PyTorch: a test, to which the default device
        # may apply, or the library under test, to which it does not
        with self._default_for(sys._getframe(1)):
            return function(*[self.resolved(value) for value in args], **named)

    def _default_for(self, caller: FrameType) -> AbstractContextManager[Any]:
        """Returns the default device as a context manager, if a default device is set and
        applies to the caller. Otherwise returns a context manager that does nothing."""
        if self._default is None or self._has_default is None or not self._has_default(caller):
            return nullcontext()
        return self._default
