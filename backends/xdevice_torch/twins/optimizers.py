"""Reads the formulas of PyTorch's optimizers, and their state. The name of each tensor of the state consists of the
number that `state_dict()` uses for the parameter, and the tensor's key, as in "0.exp_avg".

Facts about PyTorch that the code depends on:
- An optimizer creates its state in its first step. Before this step, the optimizer does not reveal which state it will
  have. So a copy of the optimizer makes this step, with parameters on meta, where they need no memory. The copy has
  neither hooks nor a scheduler's replacement of `step`, because `Optimizer.__getstate__` omits both.
- The step counter is on the host unless the optimizer is fused or capturable. Neither kind of optimizer works on meta.
- The formula of an optimizer is known only if its class is in `_KINDS`. The formula of a subclass may differ: AdamW
  derives from Adam, and a user's class may derive from any class.
- An optimizer does not refer to its scheduler, but a scheduler writes `initial_lr` into the parameter groups.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import torch

from xdevice.twins.contract import optimizers as terms
from xdevice.twins.contract.optimizers import Optimizers
from xdevice_torch import extra_state
from xdevice_torch.private import private

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xdevice.twins.contract.optimizers import Optimizer


def state_to_come(
    optimizer: torch.optim.Optimizer, names: Sequence[str], backend: Optimizers
) -> dict[str, torch.Tensor]:
    """Returns a dict that maps names to zero tensors: the state that the first step would create for the parameters in
    `names`. Each tensor is on the device where the step would create the tensor. Parameters that already have a state
    are omitted."""
    # a name such as "0.exp_avg" begins with the number of its parameter
    numbers = {name.partition(".")[0] for name in names}
    parameters = {
        number: p
        for number, p in enumerate(_parameters(optimizer))
        if str(number) in numbers and not optimizer.state.get(p)
    }
    if not parameters:
        return {}
    states = _state_on_meta(optimizer, parameters, backend)
    # whether the step counters are on the device of their parameters
    is_step_on_device = any(
        group.get("fused") or group.get("capturable") for group in optimizer.param_groups
    )
    state = {}
    for number, p in parameters.items():
        for key, x in states[number].items():
            if isinstance(x, torch.Tensor):
                # here the moments are on meta and the step counter is on the host, but in a
                # fused or capturable optimizer the counter is on the device
                device = (
                    p.device if x.is_meta or (key == "step" and is_step_on_device) else x.device
                )
                state[f"{number}.{key}"] = torch.zeros(x.shape, dtype=x.dtype, device=device)
    return state


def _state_on_meta(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[int, torch.Tensor],
    backend: Optimizers,
) -> dict[int, dict[str, Any]]:
    """Returns a dict that maps the number of each parameter to the state that the optimizer would create for this
    parameter in a step. To determine the state, a copy of the optimizer makes a step with copies of the parameters on
    meta. Raises `UnsupportedError` if this step fails before it has created the state of all these parameters."""
    on_meta = {number: _on_meta(p) for number, p in enumerate(_parameters(optimizer))}
    for number in parameters:
        # an optimizer creates no state for a parameter without a gradient
        on_meta[number].grad = torch.empty_like(on_meta[number])
    # `deepcopy` uses these tensors instead of copying the parameters
    memo: dict[int, Any] = {
        id(p): on_meta[number] for number, p in enumerate(_parameters(optimizer))
    }
    # and it uses this empty dict instead of copying the existing state, which may be twice as
    # large as the model
    memo[id(optimizer.state)] = defaultdict(dict)
    stateless = copy.deepcopy(optimizer, memo)
    for group in stateless.param_groups:
        # fused and capturable refuse parameters on meta
        group.update({key: False for key in ("fused", "capturable", "foreach") if key in group})
    try:
        stateless.step()
    except Exception as error:
        # it does not matter if the step fails on meta after it has created the state; here it has failed before
        if not all(stateless.state[on_meta[number]] for number in parameters):
            raise backend.unsupported(
                f"loading into the optimizer {type(optimizer).__name__} before its first step",
                "first take a step with zero gradients, and then load the model and the optimizer",
            ) from error
    return {number: stateless.state[on_meta[number]] for number in parameters}


def _on_meta(p: torch.Tensor) -> torch.Tensor:
    """Returns a copy of a parameter on meta, without values."""
    return torch.empty_like(p, device="meta").requires_grad_(p.requires_grad)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Returns the parameters of all groups, in the order in which `state_dict()` numbers them."""
    return [p for group in optimizer.param_groups for p in group["params"]]


# reading the formula and the settings of an optimizer

_KINDS: Final = {
    torch.optim.SGD: "sgd", torch.optim.Adam: "adam", torch.optim.AdamW: "adam", torch.optim.RMSprop: "rmsprop",
    torch.optim.Adagrad: "adagrad",
}  # fmt: skip
# the settings that have the same names in PyTorch's groups and in `terms`
_SAME: Final = (
    "lr", "momentum", "dampening", "nesterov", "eps", "amsgrad", "alpha", "centered", "lr_decay",
    "initial_accumulator_value", "weight_decay", "maximize",
)  # fmt: skip
# PyTorch's argument for each setting, or an instruction if there is no such argument
_ARGUMENTS: Final = {name: name for name in _SAME} | {
    "beta1": "betas[0]",
    "beta2": "betas[1]",
    "clip": "call torch.nn.utils.clip_grad_norm_ or clip_grad_value_ between backward() and step()",
    "gradient_scale": "multiply the loss by the scale",
}
_DECAY: Final = {"decay": "choose torch.optim.Adam (added) or torch.optim.AdamW (subtracted)"}


_pre_hooks = private.field("torch.optim.Optimizer._optimizer_step_pre_hooks")
_post_hooks = private.field("torch.optim.Optimizer._optimizer_step_post_hooks")


def _settings(optimizer: Any, kind: str, group: Mapping[str, Any]) -> dict[str, object]:
    """Returns the settings with which an optimizer updates the parameters of a group."""
    stated: dict[str, object] = {name: group[name] for name in _SAME if name in group}
    if kind == "adam":
        stated["beta1"], stated["beta2"] = group["betas"]
        # in PyTorch 2.6, the groups of AdamW lack this entry
        decoupled = group.get("decoupled_weight_decay", type(optimizer) is torch.optim.AdamW)
        stated["decay"] = terms.DECOUPLED if decoupled else terms.COUPLED
    hooks = {**_pre_hooks(optimizer), **_post_hooks(optimizer)}
    if hooks:
        stated["hooks"] = (
            f"{len(hooks)} from register_step_pre_hook and register_step_post_hook"
        )
    # a scheduler writes this entry, which is the only trace of the scheduler in the optimizer
    if "initial_lr" in group:
        stated["schedule"] = "a scheduler of torch.optim.lr_scheduler"
    return terms.settings(kind, **stated)


class TorchOptimizers(Optimizers):
    """The hooks that read PyTorch's optimizers and load their state. `Optimizers` describes each hook."""

    def state_to_come(self, optimizer: Any, names: Sequence[str]) -> Mapping[str, torch.Tensor]:
        """Returns a dict that maps names to zero tensors: the state that the first step would create for the parameters
        in `names`. Parameters that already have a state are omitted. Returns {} for a module."""
        return (
            state_to_come(optimizer, names, self)
            if isinstance(optimizer, torch.optim.Optimizer)
            else {}
        )

    def take_state(self, optimizer: Any, state: Mapping[str, torch.Tensor]) -> None:
        """Adds to an optimizer each tensor of `state` that the optimizer does not have yet. For a module, calls
        `set_extra_state` of each inner module that has an entry in `state`."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            extra_state.take(optimizer, state)
            return
        parameters = _parameters(optimizer)
        for name, x in state.items():
            number, _, key = name.partition(".")
            # `load` has already written to the existing state, so only new state is added here
            optimizer.state[parameters[int(number)]].setdefault(key, x)

    def optimizer(self, optimizer: Any) -> Optimizer:
        """Returns the formula and the settings of an optimizer, and the names of the tensors of its state. The
        docstring of this module explains these names. Raises `UnsupportedError` for a class that is not in `_KINDS`."""
        kind = terms.kind_of(optimizer, _KINDS, self.unsupported)
        parameters: list[terms.Parameter] = []
        for group in optimizer.param_groups:
            settings = _settings(optimizer, kind, group)
            for p in group["params"]:
                # `state_dict()` numbers the parameters of all groups consecutively
                number = len(parameters)
                slots = [slot for slot in terms.SLOTS[kind] if terms.keeps(slot, settings)]
                # SGD does not count its steps
                if kind != "sgd":
                    slots.append(terms.STEP)
                state = {slot: f"{number}.{slot}" for slot in slots}
                parameters.append(terms.Parameter(p, settings, state))
        return terms.Optimizer(
            kind,
            type(optimizer).__name__,
            _settings(optimizer, kind, optimizer.defaults),
            tuple(parameters),
            _ARGUMENTS | (_DECAY if kind == "adam" else {}),
        )
