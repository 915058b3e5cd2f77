"""The block `with device:` of PyTorch: its own device context, in which a shuffling `DataLoader` works.

Inside `with torch.device("cuda"):` PyTorch makes the random order of a `DataLoader(shuffle=True)` on the GPU, with a
generator of the CPU, and raises "Expected a 'cuda' device type for generator" (pytorch/pytorch#110820). Here the
functions of `torch.utils.data` draw on the device of their generator, as outside the block.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from .private import private

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_Context: Any = private.get("torch.utils._device.DeviceContext", object)
_DRAWS = (torch.randperm, torch.randint, torch.rand)


class _Scope(_Context):  # type: ignore[misc]  # a private class
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # in this order, because torch.compile traces it and cannot look at frames
        generator = kwargs.get("generator") if kwargs else None
        if (
            generator is not None
            and function in _DRAWS
            and kwargs.get("device") is None
            and _is_of_loaders()
        ):
            kwargs = {**kwargs, "device": generator.device}
        return super().__torch_function__(function, types, args, kwargs)


def _is_of_loaders() -> bool:
    return str(sys._getframe(2).f_globals.get("__name__")).startswith("torch.utils.data.")


def scope(native: torch.device) -> AbstractContextManager[Any]:
    """Returns a context manager in which PyTorch makes tensors on a device."""
    chosen: AbstractContextManager[Any] = native if _Context is object else _Scope(native)
    return chosen
