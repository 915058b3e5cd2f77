"""Reads the formulas of Keras's optimizers, and finds their state among their variables.

Facts about Keras that the code depends on:

- The formula of an optimizer is known only if its class is exactly one of `_KINDS`: AdamW derives from Adam, and a
  user's class may derive from any.
- In every class, `weight_decay` is subtracted from the weight (decoupled), not added to the gradient. None, the default
  of most classes, means 0.
- `optimizer.variables` begins with `iteration` and, unless it is a schedule, the learning rate. The state of the
  parameters follows, in an order that differs by class; within each kind of state, it is the order of the parameters.
  Its name ends with the kind, as in Keras's files.
"""

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
# by kind, Keras's argument for each setting
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
# by kind, the settings that are always the same in Keras and differ from the defaults of `terms`
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
"""For each kind, PyTorch's name of the state that a variable holds, by the end of the variable's name."""
_COMMON_SLOTS: Final = {
    "iteration": terms.STEP,
    "learning_rate": None,
    "average": None,
    "gradient_accumulator": None,
}
"""The same for variables that every kind may have: the count of steps, and variables that no other framework keeps as
state (None)."""
# a text with spaces is a sentence for a setting that no single argument makes
_COMMON_NAMES: Final = {
    "lr": "learning_rate", "weight_decay": "weight_decay", "accumulation": "gradient_accumulation_steps",
    "moving_average": "use_ema and ema_momentum set it",
    "gradient_scale": "scale the loss with optimizer.scale_loss(loss), which compensates for loss_scale_factor",
    "clip": "global_clipnorm, clipnorm or clipvalue sets it",
}  # fmt: skip


def _settings(optimizer: Any, kind: str) -> dict[str, object]:
    """Returns the settings that all parameters of an optimizer share."""
    stated: dict[str, object] = {
        "lr": optimizer.learning_rate,
        "weight_decay": optimizer.weight_decay or 0.0,
        "decay": terms.DECOUPLED,
        "clip": _clip(optimizer),
        # Keras divides gradients by this factor; None and 1 change nothing
        "gradient_scale": 1 / (optimizer.loss_scale_factor or 1),
        "accumulation": optimizer.gradient_accumulation_steps or 1,
        "moving_average": optimizer.ema_momentum if optimizer.use_ema else None,
    }
    # a schedule is in the place of the variable with the rate; `learning_rate` above is its value at this step
    schedule = _learning_rate(optimizer)
    if not isinstance(schedule, keras.Variable):
        stated["schedule"] = f"keras.optimizers.schedules.{type(schedule).__name__}"
    stated |= {name: getattr(optimizer, argument) for name, argument in _NAMES[kind].items()}
    return terms.settings(kind, **stated, **_FIXED[kind])


def _constraint(variable: Any) -> str | None:
    """Returns the name and the settings of the constraint that Keras applies to a variable after each step; None if it
    has no constraint."""
    if variable.constraint is None:
        return None
    config = (
        variable.constraint.get_config() if hasattr(variable.constraint, "get_config") else {}
    )
    text = ", ".join(f"{name}={value}" for name, value in sorted(config.items()))
    return f"{type(variable.constraint).__name__}({text})"


def _clip(optimizer: Any) -> str | None:
    """Returns a text that says how gradients are clipped; None if they are not."""
    # Keras refuses an optimizer with more than one of the three
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
        """Reads a Keras optimizer. Each tensor of its state is named by its index in `optimizer.variables`. Raises
        `UnsupportedError` for a class that is not in `_KINDS`, and for state that `_state_names` cannot name."""
        private.require("optimizers")
        kind = terms.kind_of(optimizer, _KINDS, self.unsupported)
        settings = _settings(optimizer, kind)
        trained = _trainable_variables(optimizer)
        names_by_slot = self._state_names(
            optimizer, {**_SLOTS[kind], **_COMMON_SLOTS}, len(trained)
        )
        parameters = []
        for index, variable in enumerate(trained):
            # Keras's `exclude_from_weight_decay` names variables that do not decay
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
        """Returns the names of the variables for each kind of state, one for each of the `count` parameters: the index
        of the variable in the optimizer, as a text. `slots` gives the kind of state by the end of a variable's name,
        and None for a variable to leave out. Raises `UnsupportedError` for a variable with another name, and if a kind
        of state does not have one variable for each parameter."""
        names_by_slot: dict[str, list[str]] = {}
        for number, variable in enumerate(optimizer.variables):
            # with an underscore in front, so that only whole words match
            ends = [end for end in slots if f"_{variable.name}".endswith(f"_{end}")]
            if not ends:
                raise self.unsupported(
                    f"reading the variable {variable.name!r} of this optimizer",
                    "copy its state by hand",
                )
            # the longest end counts, because gradient_accumulator ends as Adagrad's accumulator does
            slot = slots[max(ends, key=len)]
            # Keras has one count of steps, which is the state of every parameter
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
