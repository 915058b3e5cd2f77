"""Reads the formulas of Keras's optimizers, and finds their state in their variables.

Facts about Keras that the code depends on:

- The formula of an optimizer is known only if its class is in `_KINDS`. A subclass is not enough: even AdamW derives
  from Adam, and a user's class may derive from any class.
- In every class, `weight_decay` is decoupled: it is subtracted from the weight, not added to the gradient. None, which
  is the default of most classes, means 0.
- `optimizer.variables` begins with `iteration` and the learning rate, which is omitted if it is a schedule. The
  variables with the state of the parameters follow, in an order that differs between classes. Variables for the same
  kind of state are in the order of the parameters. The name of each such variable ends with the kind of state, as in
  Keras's files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import keras

from xdevice.twins.contract import optimizers as terms
from xdevice.twins.contract.optimizers import Optimizers
from xdevice_tensorflow import parts
from xdevice_tensorflow.private import private

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xdevice.twins.contract.optimizers import Optimizer

_learning_rate = private.field("keras.optimizers.Optimizer._learning_rate")
_trainable_variables = private.field("keras.optimizers.Optimizer._trainable_variables")
_use_weight_decay = private.field("keras.optimizers.Optimizer._use_weight_decay")
_OPTIMIZERS: Final = keras.optimizers
_KINDS: Final = {
    _OPTIMIZERS.SGD: "sgd", _OPTIMIZERS.Adam: "adam", _OPTIMIZERS.AdamW: "adam", _OPTIMIZERS.RMSprop: "rmsprop",
    _OPTIMIZERS.Adagrad: "adagrad",
}  # fmt: skip
# for each kind of optimizer, maps settings to Keras's arguments
_NAMES: Final = {
    "sgd": {"momentum": "momentum", "nesterov": "nesterov"},
    "adam": {"beta1": "beta_1", "beta2": "beta_2", "eps": "epsilon", "amsgrad": "amsgrad"},
    "rmsprop": {
        "alpha": "rho",
        "eps": "epsilon",
        "momentum": "momentum",
        "centered": "centered",
    },
    "adagrad": {"eps": "epsilon", "initial_accumulator_value": "initial_accumulator_value"},
}
# for each kind of optimizer, settings that are always the same in Keras and differ from the defaults of `terms`
_FIXED: Final = {
    "sgd": {"momentum_holds": terms.STEPS},
    "adam": {"eps_enters": terms.UNCORRECTED},
    "rmsprop": {"eps_enters": terms.INSIDE, "momentum_holds": terms.STEPS},
    "adagrad": {"eps_enters": terms.INSIDE},
}
_SLOTS: Final = {
    "sgd": {"momentum": "-lr * momentum_buffer"},
    "adam": {"momentum": "exp_avg", "velocity": "exp_avg_sq", "velocity_hat": "max_exp_avg_sq"},
    "rmsprop": {
        "velocity": "square_avg",
        "momentum": "lr * momentum_buffer",
        "average_gradient": "grad_avg",
    },
    "adagrad": {"accumulator": "sum"},
}
"""For each kind of optimizer, maps the end of a variable's name to PyTorch's name for the state in this variable."""
_COMMON_SLOTS: Final = {
    "iteration": terms.STEP,
    "learning_rate": None,
    "average": None,
    "gradient_accumulator": None,
}
"""Like `_SLOTS`, but for variables that every kind of optimizer may have. None marks variables that are not state in
other frameworks."""
# a string with spaces is an explanation, for a setting that does not correspond to a single
# argument
_COMMON_NAMES: Final = {
    "lr": "learning_rate", "weight_decay": "weight_decay", "accumulation": "gradient_accumulation_steps",
    "moving_average": "set the moving average with use_ema and ema_momentum",
    "gradient_scale": "scale the loss with optimizer.scale_loss(loss), which compensates for loss_scale_factor",
    "clip": "set the clipping with global_clipnorm, clipnorm or clipvalue",
}  # fmt: skip


def _settings(optimizer: Any, kind: str) -> dict[str, object]:
    """Returns the settings of an optimizer that are the same for all parameters."""
    stated: dict[str, object] = {
        "lr": optimizer.learning_rate,
        "weight_decay": optimizer.weight_decay or 0.0,
        "decay": terms.DECOUPLED,
        "clip": _clip(optimizer),
        # Keras divides gradients by this factor; None and 1 have no effect
        "gradient_scale": 1 / (optimizer.loss_scale_factor or 1),
        "accumulation": optimizer.gradient_accumulation_steps or 1,
        "moving_average": optimizer.ema_momentum if optimizer.use_ema else None,
    }
    # if there is a schedule, it replaces the variable with the learning rate, and `learning_rate` above is the value at
    # the current step
    schedule = _learning_rate(optimizer)
    if not isinstance(schedule, keras.Variable):
        stated["schedule"] = f"keras.optimizers.schedules.{type(schedule).__name__}"
    stated |= {name: getattr(optimizer, argument) for name, argument in _NAMES[kind].items()}
    return terms.settings(kind, **stated, **_FIXED[kind])


def _constraint(variable: Any) -> str | None:
    """Returns the name and the settings of the constraint that Keras applies to a variable after each step, or None if
    the variable has no constraint."""
    if variable.constraint is None:
        return None
    config = (
        variable.constraint.get_config() if hasattr(variable.constraint, "get_config") else {}
    )
    text = ", ".join(f"{name}={value}" for name, value in sorted(config.items()))
    return f"{type(variable.constraint).__name__}({text})"


def _clip(optimizer: Any) -> str | None:
    """Returns a string that says how gradients are clipped, or None if gradients are not clipped."""
    # Keras allows only one of the three arguments
    if optimizer.global_clipnorm is not None:
        return f"all gradients to a norm of {optimizer.global_clipnorm:.6g}"
    if optimizer.clipnorm is not None:
        return f"each gradient to a norm of {optimizer.clipnorm:.6g}"
    if optimizer.clipvalue is not None:
        return f"to values from {-optimizer.clipvalue:.6g} to {optimizer.clipvalue:.6g}"
    return None


class TensorflowOptimizers(Optimizers):
    """The hooks that read Keras's optimizers. `Optimizers` describes each hook."""

    def optimizer(self, optimizer: Any) -> Optimizer:
        """Returns the description of a Keras optimizer. The name of each tensor of its state is its index in
        `optimizer.variables`. Raises `UnsupportedError` for a class that is not in `_KINDS`, and for a state that
        `_state_names` refuses."""
        private.require_names_for("optimizers")
        kind = terms.kind_of(optimizer, _KINDS, self.unsupported)
        settings = _settings(optimizer, kind)
        trained = _trainable_variables(optimizer)
        names_by_slot = self._state_names(
            optimizer, {**_SLOTS[kind], **_COMMON_SLOTS}, len(trained)
        )
        parameters = []
        for index, variable in enumerate(trained):
            # users can exclude variables from the decay with Keras's
            # `exclude_from_weight_decay`
            is_undecayed = not _use_weight_decay(optimizer)(variable)
            own_settings = {**settings, "constraint": _constraint(variable)} | (
                {"weight_decay": 0.0} if is_undecayed else {}
            )
            state = {slot: names[index] for slot, names in names_by_slot.items()}
            parameters.append(terms.Parameter(parts.tf_variable(variable), own_settings, state))
        return terms.Optimizer(
            kind,
            type(optimizer).__name__,
            settings,
            tuple(parameters),
            {**_NAMES[kind], **_COMMON_NAMES},
        )

    def _state_names(
        self, optimizer: Any, slots: Mapping[str, str | None], count: int
    ) -> dict[str, list[str]]:
        """Returns a dict that maps each kind of state to the names of its variables, one for each of the `count`
        parameters. A name is the index of the variable in the optimizer, as a string. `slots` maps the end of a
        variable's name to the kind of state, or to None if the variable is left out. Raises `UnsupportedError` for a
        variable whose name ends with no key of `slots`, and for a kind of state that does not have one variable for
        each parameter."""
        names_by_slot: dict[str, list[str]] = {}
        for number, variable in enumerate(optimizer.variables):
            # an underscore is put before both, so that only whole words match
            ends = [end for end in slots if f"_{variable.name}".endswith(f"_{end}")]
            if not ends:
                raise self.unsupported(
                    f"reading the variable {variable.name!r} of this optimizer",
                    "copy the value of the variable by hand",
                )
            # use the longest match, because `gradient_accumulator` ends with `accumulator`, Adagrad's state
            slot = slots[max(ends, key=len)]
            # Keras has only one counter of steps, which belongs to the state of every parameter
            if slot is not None:
                names_by_slot.setdefault(slot, []).extend(
                    [str(number)] * (count if slot == terms.STEP else 1)
                )
        if any(len(names) != count for names in names_by_slot.values()):
            raise self.unsupported(
                "reading an optimizer that lacks state for some parameters",
                "copy the state by hand",
            )
        return names_by_slot
