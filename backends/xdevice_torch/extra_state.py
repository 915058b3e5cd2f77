"""The extra state of modules: the state that a module keeps besides parameters and buffers,
saves with `get_extra_state` and loads with `set_extra_state`, like the scales of FP8 layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch.nn import Module

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch


class _Probe(Module):
    """A module whose state dict has one entry, the extra state. The key of that entry is
    `NAME`, because the module has no path."""

    def get_extra_state(self) -> int:
        return 0


# read from a state dict, because PyTorch has no public constant for it
NAME: Final = next(iter(_Probe().state_dict()))
"""The last part of the key under which a state dict has the result of a module's
`get_extra_state()`."""


def lost(model: Module, extra: Iterable[str]) -> str | None:
    """Returns the first key in `extra` whose module has no `set_extra_state`, so that nothing
    could load the entry; None if every module has that method. `extra` has the keys of extra
    states in the state dict of `model`."""
    takers = _takers(model)
    return next((name for name in extra if name not in takers), None)


def take(model: Module, state: Mapping[str, torch.Tensor]) -> None:
    """Calls `set_extra_state` of each module that has an entry of extra state in `state`, a
    state dict of `model`, with that entry."""
    for name, module in _takers(model).items():
        if name in state:
            module.set_extra_state(state[name])


def _takers(model: Module) -> dict[str, Module]:
    """Returns the modules in `model` that have a `set_extra_state`, by the keys of their extra
    states in the state dict of `model`."""
    return {
        # the path of the model itself is "", whose key has no dot
        f"{path}.{NAME}".lstrip("."): module
        # a module in two places has a key for each of them
        for path, module in model.named_modules(remove_duplicate=False)
        # the method of `Module` itself raises
        if type(module).set_extra_state is not Module.set_extra_state
    }
