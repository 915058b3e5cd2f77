"""What modules keep beside parameters and buffers, and hand out and take by functions of their own, as FP8 layers do
with their scales."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch.nn import Module
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

_NAME: Final = _EXTRA_STATE_KEY_SUFFIX
"""The last part of the name under which a state dict has the result of a module's `get_extra_state()`."""


def lost(model: Module, names: Mapping[str, object]) -> str | None:
    """The first of these names of a state dict that is extra state which no module takes."""
    extra = [name for name in names if name.rpartition(".")[2] == _NAME]
    known = _takers(model) if extra else {}
    return next((name for name in extra if name not in known), None)


def take(model: Module, state: Mapping[str, torch.Tensor]) -> None:
    """Gives each module its extra state out of a state dict."""
    for name, module in _takers(model).items():
        if name in state:
            module.set_extra_state(state[name])


def _takers(model: Module) -> dict[str, Module]:
    return {
        f"{path}.{_NAME}".lstrip("."): module
        for path, module in model.named_modules(remove_duplicate=False)
        if type(module).set_extra_state is not Module.set_extra_state
    }
