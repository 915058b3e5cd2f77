"""The computation of an optimizer, in PyTorch's terms, and the names of its state.

An adapter reads an optimizer of its framework as an `Optimizer`: its kind, its settings, its
parameters. In the rules of the kinds, g is a gradient, w a weight, t the number of the step,
counted from 1, and v' = v / (1 - beta2^t):

| kind | rule |
|---|---|
| sgd | m = momentum m + (1 - dampening) g; w -= lr m, with nesterov w -= lr (g + momentum m) |
| adam | m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; w -= lr m / (1 - beta1^t) / (sqrt(v') + eps) |
| rmsprop | v = alpha v + (1 - alpha) g^2; m = momentum m + g / (sqrt(v) + eps); w -= lr m |
| adagrad | h = h + g^2; w -= lr / (1 + (t - 1) lr_decay) g / (sqrt(h) + eps) |

A setting that an adapter does not state has the value of `KINDS` or `COMMON`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from xdevice.contract.models import Models

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .layouts import Settings

# values of the setting eps_enters: the place of eps in the formula
ADDED: Final = "added to the root"
UNCORRECTED: Final = "added to sqrt(v), before the bias is corrected"
"""Only Adam has this: `sqrt(v) + eps` instead of `sqrt(v') + eps`."""
INSIDE: Final = "under the root"

# values of the setting decay: the way in which weight_decay enters the step
COUPLED: Final = "added to the gradient"
DECOUPLED: Final = "subtracted from the weight, as lr * weight_decay * w"
BEHIND: Final = (
    "added to the gradient, and in the momentum that is kept with the weight after the step"
)
"""Only Gluon's NAG does this: its kernel writes the weight before it reads the weight for the
momentum."""
SIGN: Final = "added to the gradient as a sign (L1)"

# values of the setting momentum_holds, which makes no difference to the steps if the learning rate is constant
GRADIENTS: Final = "the sum of gradients"
STEPS: Final = "the sum of steps, each with the learning rate at that step"

KINDS: Final[Mapping[str, Settings]] = MappingProxyType(
    {
        "sgd": {"lr": None, "momentum": 0.0, "dampening": 0.0, "nesterov": False, "momentum_holds": GRADIENTS},
        "adam": {"lr": None, "beta1": None, "beta2": None, "eps": None, "eps_enters": ADDED, "amsgrad": False},
        "rmsprop": {
            "lr": None, "alpha": None, "eps": None, "eps_enters": ADDED, "momentum": 0.0, "centered": False,
            "momentum_holds": GRADIENTS,
        },
        "adagrad": {"lr": None, "lr_decay": 0.0, "eps": None, "eps_enters": ADDED, "initial_accumulator_value": 0.0},
    }
)  # fmt: skip
"""The settings of each kind, with the values that they have if an adapter does not state them; a setting with None must
be stated."""

COMMON: Final[Settings] = MappingProxyType(
    {
        "weight_decay": 0.0,
        "decay": COUPLED,
        "maximize": False,
        "clip": None,
        "gradient_scale": 1.0,
        "schedule": None,
        "accumulation": 1,
        "moving_average": None,
        "constraint": None,
        "hooks": None,
    }
)
"""The settings that all kinds have, with their defaults. `clip` says how and at which value gradients are clipped,
`gradient_scale` is the factor of the gradients, and `schedule` is the class that sets the learning rate. `accumulation`
is the number of gradients in a step, `moving_average` the momentum of an average that replaces the weights, and
`constraint` the limit that a weight must keep after a step. `hooks` are other functions that are called at each
step."""

SLOTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "sgd": ("momentum_buffer",),
        "adam": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
        "rmsprop": ("square_avg", "momentum_buffer", "grad_avg"),
        "adagrad": ("sum",),
    }
)
"""PyTorch's names of the state that each kind of optimizer keeps for a parameter, besides `STEP` or `POWERS`."""
STEP: Final = "step"
"""The name of the state that counts the steps that a parameter has taken."""
POWERS: Final = ("beta1_power", "beta2_power")
"""The names of the state that some frameworks keep in place of `STEP`: beta1^(t + 1) and beta2^(t + 1) after t
steps."""
FORMS: Final[Mapping[str, int]] = MappingProxyType(
    {"lr * momentum_buffer": 1, "-lr * momentum_buffer": -1}
)
"""The names of state that an optimizer may keep in place of `momentum_buffer`, each with the
sign of the formula. The module `models.optimizer_states` converts between them and
`momentum_buffer`."""


class Parameter(NamedTuple):
    """One parameter (weight) that an optimizer updates, with the settings and the state that the optimizer has for
    it."""

    variable: Any
    """The parameter, as the object that `Backend.variables` returns for the model."""
    settings: Settings
    state: Mapping[str, str]
    """The names of the parameter's state in `Backend.variables` of the optimizer, or in
    `Backend.state_to_come`, by PyTorch's names: `{"exp_avg": "0.exp_avg"}`. Parameters that
    share a count of steps have the same name for that count."""


class Optimizer(NamedTuple):
    """The computation of one optimizer: its kind, its settings and the parameters that it
    updates."""

    kind: str
    name: str
    """The name of the optimizer's class."""
    settings: Settings
    """The settings for parameters that have no settings of their own."""
    parameters: tuple[Parameter, ...]
    """The parameters in the framework's order; empty if the optimizer does not know them yet."""
    arguments: Mapping[str, str]
    """The framework's own names of the settings that a user can choose: `{"lr": "learning_rate"}`. A value with spaces
    is a sentence about a setting that does not follow from one argument alone."""


def kind_of(
    optimizer: Any, kinds: Mapping[Any, str], unsupported: Callable[[str, str], Exception]
) -> str:
    """Returns the kind of an optimizer, by its class. `kinds` gives the kind of each class that can be read. Raises
    `UnsupportedError` for any other class; `unsupported` is `Backend.unsupported`, which makes the error."""
    # by the exact class, because a subclass may compute anything
    kind = kinds.get(type(optimizer))
    if kind is None:
        names = ", ".join(cls.__name__ for cls in kinds)
        raise unsupported(
            f"reading {type(optimizer).__qualname__} objects", f"use one of {names}"
        )
    return kind


def default_settings(kind: str) -> dict[str, object]:
    """Returns all settings of a kind of optimizer with their defaults; a setting without a default has the value
    None."""
    return {**KINDS[kind], **COMMON}


def settings(kind: str, **stated: object) -> dict[str, object]:
    """Returns all settings of a kind of optimizer: those stated, and the rest as in `KINDS` and
    `COMMON`. Numbers of any library, and tensors with one number, become floats, or bools if
    the default is a bool. Raises `ValueError` if a stated setting does not exist, or if a
    setting without a default is not stated."""
    all_settings = default_settings(kind)
    unknown = stated.keys() - all_settings.keys()
    missing = [
        name for name, value in KINDS[kind].items() if value is None and name not in stated
    ]
    # a mistake in an adapter, not one of a user
    if unknown or missing:
        raise ValueError(
            f"{kind} also needs the settings {missing}, and has no settings named {sorted(unknown)}"
        )
    return all_settings | {
        name: _as_python(value, all_settings[name]) for name, value in stated.items()
    }


def _as_python(value: Any, default: object) -> object:
    """Returns a setting as a Python bool if its default is a bool, otherwise as a float; a text
    and None stay as they are."""
    if isinstance(default, bool):
        return bool(value)
    return value if value is None or isinstance(value, str) else float(value)


def keeps(slot: str, settings: Settings) -> bool:
    """Whether an optimizer with these settings keeps this slot (a named tensor of its state) for a parameter."""
    # momentum_buffer itself, and the names in FORMS
    if slot.endswith("momentum_buffer"):
        return bool(settings["momentum"])
    # the setting without which the slot does not exist; the other slots always exist
    needed = {"max_exp_avg_sq": "amsgrad", "grad_avg": "centered"}.get(slot)
    return needed is None or bool(settings[needed])


class Optimizers(Models):
    """The capability of reading what the framework's optimizers compute, and of making and loading the state that they
    keep."""

    needs: ClassVar[tuple[str, ...]] = ("optimizer",)

    def has_optimizer(self, x: object) -> bool:
        """Whether `x` is an optimizer for this framework, although its type belongs to another
        library, such as optax."""
        return False

    def state_to_come(self, optimizer: Any, names: Sequence[str]) -> Mapping[str, Any]:
        """Returns, by name, new tensors for state that an optimizer would make only in its first step. If a parameter
        has no state yet, and `names` has at least one name of its future state, the result has that whole state. The
        optimizer does not use these tensors before `take_state` is called. Returns {} for a model that is not an
        optimizer."""
        return {}

    def take_state(
        self, optimizer: Any, state: Mapping[str, Any]
    ) -> None:  # most frameworks have nothing to do
        """Makes a model or optimizer use the values that `load` has just written. `state` has, by name, the variables
        that were written, and the tensors that `state_to_come` returned; the optimizer uses these tensors from now on.
        Called for networks too, because some networks must be notified of new values."""

    def optimizer(self, optimizer: Any) -> Optimizer:
        """Returns the computation of an optimizer, in PyTorch's terms:
        `xdevice.twins.contract.optimizers` lists the kinds and settings. `optimizer` may be any
        object of the framework. Raises `UnsupportedError`, with the name of the object's class,
        if the formula of the class is not among the kinds, or if the class is a subclass of a
        known optimizer, because it may compute anything."""
        raise self.unsupported(
            f"reading {type(optimizer).__qualname__} objects", "compare its settings by hand"
        )
