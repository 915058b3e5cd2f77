"""The extra state of modules, such as the scales of FP8 layers. A module saves this state, which is neither a parameter
nor a buffer, with `get_extra_state`, and loads it with `set_extra_state`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch.nn import Module

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch


class _Probe(Module):
    """A module whose state dict has only one entry, the extra state. The module is not inside another module, so the
    key of this entry is `NAME`, without a path."""

    def get_extra_state(self) -> int:
        return 0


# read from a state dict, because PyTorch has no public constant for this name
NAME: Final = next(iter(_Probe().state_dict()))
"""The last part of the key under which a state dict contains the result of a module's `get_extra_state()`."""


def first_lost_key(model: Module, extra: Iterable[str]) -> str | None:
    """Returns the first key in `extra` that belongs to a module without `set_extra_state`, or None if there is no such
    key. The entry with this key cannot be loaded. `extra` contains the keys of the extra states in the state dict of
    `model`."""
    takers = _modules_that_load(model)
    return next((name for name in extra if name not in takers), None)


def take(model: Module, state: Mapping[str, torch.Tensor]) -> None:
    """Loads the extra states in `state`, a state dict of `model`. If `state` contains the extra state of a module,
    passes this extra state to the module's `set_extra_state`."""
    for name, module in _modules_that_load(model).items():
        if name in state:
            module.set_extra_state(state[name])


def _modules_that_load(model: Module) -> dict[str, Module]:
    """Returns a dict of the modules in `model` that have a `set_extra_state`. The key of a module is the key of its
    extra state in the state dict of `model`."""
    return {
        # the path of the model itself is "", so its key has no dot
        f"{path}.{NAME}".lstrip("."): module
        # a module that is in two places has a key for each place
        for path, module in model.named_modules(remove_duplicate=False)
        # the method of `Module` itself only raises an error
        if type(module).set_extra_state is not Module.set_extra_state
    }
