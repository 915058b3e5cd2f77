"""Reads what Keras's optimizers compute, and finds their state among their variables.

Facts about Keras that the code depends on:

- What an optimizer computes is known only if its class is exactly one of `_KINDS`: AdamW derives from Adam, and a
  user's class may derive from any.
- In every class `weight_decay` is taken off the weight (decoupled), not added to the gradient. None, the default of
  most classes, means 0.
- `optimizer.variables` begins with `iteration` and, unless it is a schedule, the learning rate. The state of the
  parameters follows, in an order that differs by class. So a variable is looked up in it by its identity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import keras

from xdevice.contract import optimizers as terms
from xdevice.contract.optimizers import Optimizers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xdevice.contract.optimizers import Optimizer

_OPTIMIZERS: Final = keras.optimizers
_KINDS: Final = {
    _OPTIMIZERS.SGD: "sgd", _OPTIMIZERS.Adam: "adam", _OPTIMIZERS.AdamW: "adam", _OPTIMIZERS.RMSprop: "rmsprop",
    _OPTIMIZERS.Adagrad: "adagrad",
}  # fmt: skip
_NAMES: Final = {
    "sgd": {"momentum": "momentum", "nesterov": "nesterov"},
    "adam": {"beta1": "beta_1", "beta2": "beta_2", "eps": "epsilon", "amsgrad": "amsgrad"},
    "rmsprop": {"alpha": "rho", "eps": "epsilon", "momentum": "momentum", "centered": "centered"},
    "adagrad": {"eps": "epsilon", "initial_accumulator_value": "initial_accumulator_value"},
}
_OWN: Final = {
    "sgd": {"momentum_holds": terms.STEPS},
    "adam": {"eps_enters": terms.UNCORRECTED},
    "rmsprop": {"eps_enters": terms.INSIDE, "momentum_holds": terms.STEPS},
    "adagrad": {"eps_enters": terms.INSIDE},
}
_SLOTS: Final = {
    "sgd": {"-lr * momentum_buffer": "momentums"},
    "adam": {"exp_avg": "_momentums", "exp_avg_sq": "_velocities", "max_exp_avg_sq": "_velocity_hats"},
    "rmsprop": {"square_avg": "_velocities", "lr * momentum_buffer": "_momentums", "grad_avg": "_average_gradients"},
    "adagrad": {"sum": "_accumulators"},
}
_COMMON_NAMES: Final = {
    "lr": "learning_rate", "weight_decay": "weight_decay", "accumulation": "gradient_accumulation_steps",
    "moving_average": "use_ema and ema_momentum choose it",
    "gradient_scale": "optimizer.scale_loss(loss) makes up for loss_scale_factor",
    "clip": "global_clipnorm, clipnorm and clipvalue clip",
}  # fmt: skip


def _settings(optimizer: Any, kind: str) -> dict[str, object]:
    found: dict[str, object] = {
        "lr": float(optimizer.learning_rate),
        "weight_decay": float(optimizer.weight_decay or 0.0),
        "decay": terms.DECOUPLED,
        "clip": _clip(optimizer),
        "gradient_scale": 1 / (optimizer.loss_scale_factor or 1),
        "accumulation": optimizer.gradient_accumulation_steps or 1,
        "moving_average": float(optimizer.ema_momentum) if optimizer.use_ema else None,
    }
    schedule = optimizer._learning_rate
    if not isinstance(schedule, keras.Variable):
        found["schedule"] = f"keras.optimizers.schedules.{type(schedule).__name__}"
    for name, own in _NAMES[kind].items():
        value = getattr(optimizer, own)
        found[name] = value if isinstance(value, bool) else float(value)
    return terms.settings(kind, **found, **_OWN[kind])


def _constraint(variable: Any) -> str | None:
    """Returns the name and the settings of the constraint that Keras applies to a variable after each step; None if it
    has no constraint."""
    if variable.constraint is None:
        return None
    told = variable.constraint.get_config() if hasattr(variable.constraint, "get_config") else {}
    given = ", ".join(f"{name}={value}" for name, value in sorted(told.items()))
    return f"{type(variable.constraint).__name__}({given})"


def _clip(optimizer: Any) -> str | None:
    if optimizer.global_clipnorm is not None:
        return f"to a norm of all of {optimizer.global_clipnorm:.6g}"
    if optimizer.clipnorm is not None:
        return f"to a norm of each of {optimizer.clipnorm:.6g}"
    if optimizer.clipvalue is not None:
        return f"to values from {-optimizer.clipvalue:.6g} to {optimizer.clipvalue:.6g}"
    return None


def _state(optimizer: Any, kind: str, place: int, numbers: Mapping[int, str]) -> dict[str, str]:
    held = {slot: getattr(optimizer, own, ()) for slot, own in _SLOTS[kind].items()}
    found = {slot: numbers[id(variables[place])] for slot, variables in held.items() if variables}
    return found | {terms.STEP: numbers[id(optimizer._iterations)]}


class TensorflowOptimizers(Optimizers):
    def optimizer(self, optimizer: Any) -> Optimizer:
        kind = terms.kind_of(optimizer, _KINDS, self.unsupported)
        settings = _settings(optimizer, kind)
        numbers = {id(variable): str(number) for number, variable in enumerate(optimizer.variables)}
        parameters = []
        for place, variable in enumerate(optimizer._trainable_variables):
            is_free = not optimizer._use_weight_decay(variable)
            own = {**settings, "constraint": _constraint(variable)} | ({"weight_decay": 0.0} if is_free else {})
            parameters.append(terms.Parameter(variable._value, own, _state(optimizer, kind, place, numbers)))
        return terms.Optimizer(
            kind, type(optimizer).__name__, settings, tuple(parameters), {**_NAMES[kind], **_COMMON_NAMES}
        )
