"""The name "cuda" for a virtual GPU of PyTorch, for test suites that choose their device by that name."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def take_for_cuda(device: torch.device) -> None:
    """Makes "cuda" mean `device`, and "cuda:1" the virtual GPU 1, wherever a function of PyTorch takes a device, until
    the process ends; in this thread, as PyTorch's default device. Whoever asks whether there is CUDA is told so."""
    mode = _Cuda(device)
    set_default = torch.set_default_device
    changed: Any = torch
    changed.set_default_device = lambda wanted: set_default(mode.meant(wanted))
    changed.cuda.is_available = changed.backends.cuda.is_built = lambda: True
    mode.__enter__()


class _Cuda(TorchFunctionMode):
    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def meant(self, value: Any) -> Any:
        """Returns the virtual GPU that a value names as "cuda" or "cuda:1"; any other value as it is."""
        if type(value) is str and value.partition(":")[0] == "cuda":
            value = torch.device(value)
        if type(value) is not torch.device or value.type != "cuda":
            return value
        return self._device if value.index is None else torch.device(self._device.type, value.index)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.cuda:
            function, args = torch.Tensor.to, (args[0], *(args[1:] or (self._device,)))
        named = {name: self.meant(value) for name, value in (kwargs or {}).items()}
        return function(*[self.meant(value) for value in args], **named)
