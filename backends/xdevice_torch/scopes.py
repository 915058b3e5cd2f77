"""The block `with device:` on PyTorch: PyTorch's own device context, modified so that a
shuffling `DataLoader` works in it.

Inside `with torch.device("cuda"):` PyTorch tries to draw the random order of a `DataLoader(shuffle=True)` on the GPU
with a CPU generator, and raises "Expected a 'cuda' device type for generator" (pytorch/pytorch#110820). In xdevice's
block, the functions of `torch.utils.data` draw on the device of their generator, as they do outside a block.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from .private import private

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_Context: Any = private.get("torch.utils._device.DeviceContext", object)
"""The class of PyTorch's device contexts; `object` if this version of PyTorch lacks it."""
_DRAWS = (torch.randperm, torch.randint, torch.rand)
"""The functions that data loaders call with a generator. In PyTorch's own context these
functions would draw on the block's device."""


class _Scope(_Context):  # type: ignore[misc]  # a private class
    """A device context in which PyTorch's data loaders draw random numbers on the device of their generator. Inside the
    block, PyTorch calls `__torch_function__` for each call of its functions."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls `function` with the device of the block, or, if a data loader draws random
        numbers, with the device of the generator."""
        # inspects the frame last, and only for functions that draw, because torch.compile
        # traces this method and cannot inspect frames
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
    """Whether the function that `__torch_function__` handles was called by a module of `torch.utils.data`."""
    # frame 0 belongs to this function, frame 1 to `__torch_function__`, and frame 2 to the
    # caller, because PyTorch's part is C++
    return str(sys._getframe(2).f_globals.get("__name__")).startswith("torch.utils.data.")


def scope(native: torch.device) -> AbstractContextManager[Any]:
    """Returns a context manager in which PyTorch creates tensors on a device."""
    # a `torch.device` is itself a context manager, but shuffling data loaders fail in it
    chosen: AbstractContextManager[Any] = native if _Context is object else _Scope(native)
    return chosen
