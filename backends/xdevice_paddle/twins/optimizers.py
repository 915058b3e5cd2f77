"""Reads the formulas of Paddle's optimizers, and names their state so that it can be saved in files: "0.moment1" is
the state `moment1` of the first parameter.

Facts about Paddle on which the code depends:
- The numbers in Paddle's own names, such as `linear_0.w_0_moment1_0`, are counted over the whole process. So the names
  differ in another process or for a second optimizer. So a parameter is named by its position in the optimizer.
- `_create_accumulators` (2.6 and 3.3) creates the state that the first step would create and that does not exist yet.
  It is called on a copy of the optimizer. If it were called on the optimizer itself and loading then failed, the
  optimizer would keep outdated copies of its 16-bit parameters.
- The learning rate of a group is a factor by which the optimizer's learning rate is multiplied. Like the group's weight
  decay, it is stored in the parameters. The other settings of a group are written into the optimizer's attributes
  during a step, so the attributes have the values of the last group.
- The powers of the betas are multiplied after use: after t steps they are beta^(t + 1).
"""

from __future__ import annotations

import copy
from collections import defaultdict
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

import paddle

from xdevice.twins.contract import optimizers as terms
from xdevice.twins.contract.optimizers import Optimizers
from xdevice_paddle import optimizer_states as states
from xdevice_paddle.private import private

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xdevice.twins.contract.optimizers import Optimizer

_grad_clip = private.field("paddle.optimizer.Optimizer._grad_clip")
_learning_rate = private.field("paddle.optimizer.Optimizer._learning_rate")
_amsgrad = private.field("paddle.optimizer.Adam._amsgrad")
_apply_decay_param_fun = private.field("paddle.optimizer.AdamW._apply_decay_param_fun")
_lr_ratio = private.field("paddle.optimizer.AdamW._lr_ratio")
_coeff = private.field("paddle.regularizer.L2Decay._coeff")


# reading the formula and the settings of an optimizer

_KINDS: Final = {
    paddle.optimizer.SGD: "sgd", paddle.optimizer.Momentum: "sgd", paddle.optimizer.Adam: "adam",
    paddle.optimizer.AdamW: "adam", paddle.optimizer.RMSProp: "rmsprop", paddle.optimizer.Adagrad: "adagrad",
}  # fmt: skip
_NAMES: Final = {
    "momentum": "momentum", "nesterov": "use_nesterov", "beta1": "beta1", "beta2": "beta2", "eps": "epsilon",
    "amsgrad": "amsgrad", "alpha": "rho", "centered": "centered",
    "initial_accumulator_value": "initial_accumulator_value",
}  # fmt: skip
"""For each setting, the name of the argument of an optimizer's class that sets it."""
_COMMON_NAMES: Final = {"lr": "learning_rate", "weight_decay": "weight_decay"}
# the values are sentences, because these settings do not depend on a single argument
_CLIP: Final = {
    "clip": "grad_clip accepts a paddle.nn.ClipGradByGlobalNorm, ClipGradByNorm or ClipGradByValue"
}
_DECAY: Final = {
    "decay": "choose paddle.optimizer.Adam (added) or paddle.optimizer.AdamW (subtracted)"
}
# for each kind, Paddle's names of the state by PyTorch's names
_SLOTS: Final = {
    "sgd": {"momentum_buffer": "velocity"},
    "adam": {
        "exp_avg": "moment1", "exp_avg_sq": "moment2", "max_exp_avg_sq": "moment2_max", "beta1_power": "beta1_pow_acc",
        "beta2_power": "beta2_pow_acc",
    },
    "rmsprop": {"square_avg": "mean_square", "lr * momentum_buffer": "momentum", "grad_avg": "mean_grad"},
    "adagrad": {"sum": "moment"},
}  # fmt: skip


def _settings(
    optimizer: Any, kind: str, p: Any, group: dict[str, Any], backend: Optimizers
) -> dict[str, object]:
    """Returns the settings with which an optimizer updates the parameter `p`. `group` contains the settings of the
    group of `p`; it is {} if the optimizer has no groups. Raises `UnsupportedError` for settings that no other
    framework has."""
    stated = _default_settings(optimizer) | group
    if stated.get("rescale_grad", 1.0) != 1:
        raise backend.unsupported(
            "rescale_grad, which has no effect on the CPU",
            "multiply the loss by this factor instead",
        )
    names = terms.default_settings(kind)
    # only settings that optimizers of this kind have in this version of Paddle
    settings = {
        name: stated[argument]
        for name, argument in _NAMES.items()
        if name in names and argument in stated
    }
    if kind == "rmsprop":
        settings |= {"eps_enters": terms.INSIDE, "momentum_holds": terms.STEPS}
    # the second factor is that of the parameter's own ParamAttr
    settings["lr"] = optimizer.get_lr() * p.optimize_attr["learning_rate"]
    # the scheduler that sets the learning rate, or a number if there is none
    scheduler = _learning_rate(optimizer)
    if isinstance(scheduler, paddle.optimizer.lr.LRScheduler):
        settings["schedule"] = f"paddle.optimizer.lr.{type(scheduler).__name__}"
    clip = group.get("grad_clip", _grad_clip(optimizer))
    # Paddle's clips do not apply to parameters whose ParamAttr has need_clip=False
    if clip is not None and getattr(p, "need_clip", True):
        settings["clip"] = _clip(clip, backend)
    is_decoupled = type(optimizer) is paddle.optimizer.AdamW
    read_decay = _decoupled_decay if is_decoupled else _coupled_decay
    # called before `settings` is used below, because `_decoupled_decay` may change the learning rate in it
    decay = read_decay(optimizer, p, group, settings, backend)
    return terms.settings(kind, **settings, **decay)


def _default_settings(optimizer: Any) -> dict[str, Any]:
    """Returns the settings that an optimizer uses for groups of parameters without their own settings, by the names of
    Paddle's arguments."""
    stated = dict(states.default_dict(optimizer))
    if "amsgrad" in signature(type(optimizer)).parameters:  # from 3.0 on
        stated["amsgrad"] = _amsgrad(optimizer)
    return stated


def _coupled_decay(
    optimizer: Any, p: Any, group: Any, settings: Any, backend: Optimizers
) -> dict[str, object]:
    """Returns the settings of the weight decay for an optimizer that adds the decay to the gradient, as all optimizers
    except AdamW do. Raises `UnsupportedError` for a regularizer other than L1Decay and L2Decay. The argument `settings`
    is not used; it exists because this function and `_decoupled_decay` are called in the same way."""
    # Paddle ignores the optimizer's decay for a parameter that has its own regularizer
    regularizer = p.regularizer if p.regularizer is not None else optimizer.regularization
    # Momentum stores only the coefficient of an L2Decay, as one of its settings
    if regularizer is None:
        own_settings = states.default_dict(optimizer) | group
        return {"weight_decay": own_settings.get("regularization_coeff", 0.0)}
    if not isinstance(regularizer, paddle.regularizer.L1Decay | paddle.regularizer.L2Decay):
        raise backend.unsupported(
            f"the regularizer {type(regularizer).__qualname__}", "use L1Decay or L2Decay"
        )
    is_l1 = isinstance(regularizer, paddle.regularizer.L1Decay)
    return {
        "weight_decay": _coeff(regularizer),
        "decay": terms.SIGN if is_l1 else terms.COUPLED,
    }


def _decoupled_decay(
    optimizer: Any, p: Any, group: Any, settings: dict[str, Any], backend: Optimizers
) -> dict[str, object]:
    """Returns the settings of the weight decay that an AdamW optimizer applies to the parameter `p`. The decay is 0 if
    the optimizer's `apply_decay_param_fun` excludes `p`. `group` contains the settings of the group of `p`. If the
    optimizer has an `lr_ratio`, also multiplies the learning rate in `settings` by the ratio for `p`. Raises
    `UnsupportedError` if `p` has a regularizer."""
    if p.regularizer is not None:
        raise backend.unsupported(
            f"reading an AdamW optimizer whose parameter {p.name} also has a regularizer",
            "set the regularizer to None",
        )
    # both are functions that the user may pass, or None. The first is called with a parameter, the
    # second with the name of a parameter
    lr_ratio, is_decayed = _lr_ratio(optimizer), _apply_decay_param_fun(optimizer)
    if lr_ratio is not None:
        settings["lr"] *= lr_ratio(p)
    is_left_out = is_decayed is not None and not is_decayed(p.name)
    decay = 0.0 if is_left_out else (states.default_dict(optimizer) | group)["weight_decay"]
    return {"weight_decay": decay, "decay": terms.DECOUPLED}


def _clip(clip: Any, backend: Optimizers) -> str:
    """Returns a phrase that says how gradients are clipped. Raises `UnsupportedError` for any class other than
    ClipGradByGlobalNorm, ClipGradByNorm and ClipGradByValue."""
    # the exact class is compared, because a subclass may clip in another way
    if type(clip) is paddle.nn.ClipGradByGlobalNorm:
        return f"all gradients to a norm of {clip.clip_norm:.6g}"
    if type(clip) is paddle.nn.ClipGradByNorm:
        return f"each gradient to a norm of {clip.clip_norm:.6g}"
    if type(clip) is paddle.nn.ClipGradByValue:
        return f"to values from {clip.min:.6g} to {clip.max:.6g}"
    raise backend.unsupported(
        f"the gradient clip {type(clip).__qualname__}",
        "use paddle.nn.ClipGradByGlobalNorm, ClipGradByNorm or ClipGradByValue",
    )


def _state_names(
    kind: str, p: Any, number: int, settings: Mapping[str, object]
) -> dict[str, str]:
    """Returns xdevice's names of a parameter's state by PyTorch's names: "0.moment1" for `exp_avg` of the first
    parameter. `number` is the position of the parameter. Returns {} for a 16-bit parameter."""
    if p.dtype in (paddle.float16, paddle.bfloat16):
        return {}  # the state may belong to the parameter's 32-bit copy, and have another dtype
    return {
        slot: f"{number}.{paddle_name}"
        for slot, paddle_name in _SLOTS[kind].items()
        if terms.keeps(slot, settings)
    }


class PaddleOptimizers(Optimizers):
    """The hooks that read Paddle's optimizers and load their state. `Optimizers` describes each hook."""

    def state_to_come(
        self, optimizer: Any, names: Sequence[str]
    ) -> Mapping[str, paddle.Tensor]:
        """Returns new state for the parameters that are mentioned in `names` and have no state yet. A name such as
        "0.moment1" begins with the number of the parameter. The state is created by a copy of the optimizer without
        any state. Returns {} for a network."""
        if not isinstance(optimizer, paddle.optimizer.Optimizer):
            return {}
        numbers = {name.partition(".")[0] for name in names}
        existing = {name.partition(".")[0] for name, _ in states.variables(optimizer)}
        # a copy, because after a failure the optimizer itself would keep outdated copies of its
        # 16-bit parameters (see the top of this file)
        stateless = copy.copy(optimizer)
        # a shallow copy shares these containers with the optimizer, which would otherwise receive the new state too
        states.accumulators.set(stateless, defaultdict(dict))
        states.master_weights.set(stateless, {})
        states.accumulators_holder.set(stateless, {})
        states.opti_name_list.set(stateless, [])
        states.already_created.set(stateless, set())
        parameters = enumerate(states.parameters_of(optimizer))
        states.make(
            stateless, [p for number, p in parameters if str(number) in numbers - existing]
        )
        return dict(states.variables(stateless))

    def take_state(self, optimizer: Any, state: Mapping[str, paddle.Tensor]) -> None:
        """Stores the tensors of `state` in the optimizer's own dicts, under the names that Paddle uses in this process.
        Does nothing for a network."""
        if not isinstance(optimizer, paddle.optimizer.Optimizer):
            return
        parameters, master_weights = (
            states.parameters_of(optimizer),
            states.master_weights(optimizer),
        )
        accumulators = states.accumulators(optimizer)
        for name, value in state.items():
            number, _, key = name.partition(".")
            parameter = parameters[int(number)]
            # the 32-bit copy of a 16-bit parameter, which Paddle stores in another dict than the
            # moments
            if key == states.MASTER:
                master_weights[parameter.name] = value
            else:
                # Paddle names the state of a 16-bit parameter after its 32-bit copy
                owner = state.get(f"{number}.{states.MASTER}", parameter)
                accumulators[key][owner.name] = value

    def optimizer(self, optimizer: Any) -> Optimizer:
        """Returns the formula and the settings of an optimizer. The name of each tensor of its state begins with the
        index of the parameter (see the top of this file). Raises `UnsupportedError` for a class that is not in
        `_KINDS`, for settings that no other framework has, and for an optimizer without parameters."""
        kind = terms.kind_of(optimizer, _KINDS, self.unsupported)
        listed = states.parameter_list(optimizer)
        groups = [group for group in listed if isinstance(group, dict)]
        # an optimizer without groups lists the parameters themselves
        pairs = [(p, group) for group in groups for p in group["params"]] or [
            (p, {}) for p in listed
        ]
        parameters = []
        for number, (p, group) in enumerate(pairs):
            settings = _settings(optimizer, kind, p, group, self)
            parameters.append(
                terms.Parameter(p, settings, _state_names(kind, p, number, settings))
            )
        defaults = _default_settings(optimizer)
        # Paddle's name of each setting, for messages
        arguments = {
            name: argument for name, argument in _NAMES.items() if argument in defaults
        }
        arguments |= _COMMON_NAMES | _CLIP | (_DECAY if kind == "adam" else {})
        # without parameters, the settings are not known, because Paddle stores some of them in the parameters
        if not parameters:
            raise self.unsupported(
                f"reading the {type(optimizer).__name__} optimizer, which has no parameters",
                "create the optimizer with parameters=model.parameters()",
            )
        # the settings of the first parameter are used as those of the optimizer
        first = parameters[0].settings
        return terms.Optimizer(
            kind, type(optimizer).__name__, first, tuple(parameters), arguments
        )
