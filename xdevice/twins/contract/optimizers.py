"""The computation of an optimizer, in PyTorch's terms, and the names of its state.

An adapter describes an optimizer of its framework as an `Optimizer`, with its kind, its settings and its parameters.
The table shows the rule of each kind. In the rules, g is the gradient, w is the weight, t is the number of the step
(counted from 1), and v' = v / (1 - beta2^t):

| kind | rule |
|---|---|
| sgd | m = momentum m + (1 - dampening) g; w -= lr m, with nesterov w -= lr (g + momentum m) |
| adam | m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; w -= lr m / (1 - beta1^t) / (sqrt(v') + eps) |
| rmsprop | v = alpha v + (1 - alpha) g^2; m = momentum m + g / (sqrt(v) + eps); w -= lr m |
| adagrad | h = h + g^2; w -= lr / (1 + (t - 1) lr_decay) g / (sqrt(h) + eps) |

A setting that an adapter does not state has its default value from `KINDS` or `COMMON`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from xdevice.contract.models import Models

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .layouts import Settings

# values of the setting eps_enters, the place of eps in the formula
ADDED: Final = "added to the root"
UNCORRECTED: Final = "added to sqrt(v), before the bias is corrected"
"""Only Adam can have this value. Its formula then has `sqrt(v) + eps` instead of `sqrt(v') + eps`."""
INSIDE: Final = "under the root"

# values of the setting decay, the way in which weight_decay changes the step
COUPLED: Final = "added to the gradient"
DECOUPLED: Final = "subtracted from the weight, as lr * weight_decay * w"
BEHIND: Final = "added to the gradient; the stored momentum uses the weight after the step"
"""Only Gluon's NAG has this value: its kernel writes the new weight before it reads the weight for the momentum."""
SIGN: Final = "added to the gradient as a sign (L1)"

# values of the setting momentum_holds, which does not change the steps if the learning rate is constant
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
"""The settings of each kind, with their default values. An adapter must state a setting whose default is None."""

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
"""The settings that all kinds have, with their default values:

- `clip` says how gradients are clipped, and at which value.
- `gradient_scale` is the factor by which gradients are multiplied.
- `schedule` is the class that sets the learning rate.
- `accumulation` is the number of gradients that are accumulated for one step.
- `moving_average` is the momentum of a moving average that replaces the weights.
- `constraint` is the limit within which a weight must stay after a step.
- `hooks` are other functions that are called at each step.

None means that the optimizer does not use the setting."""

SLOTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "sgd": ("momentum_buffer",),
        "adam": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
        "rmsprop": ("square_avg", "momentum_buffer", "grad_avg"),
        "adagrad": ("sum",),
    }
)
"""PyTorch's names of the state that each kind of optimizer stores for a parameter, in addition to `STEP` or
`POWERS`."""
STEP: Final = "step"
"""The name of the state that counts the updates of a parameter."""
POWERS: Final = ("beta1_power", "beta2_power")
"""The names of the state that some frameworks store in place of `STEP`. After t steps, their values are beta1^(t + 1)
and beta2^(t + 1)."""
FORMS: Final[Mapping[str, int]] = MappingProxyType(
    {"lr * momentum_buffer": 1, "-lr * momentum_buffer": -1}
)
"""The names of the state that an optimizer may store in place of `momentum_buffer`, each with the sign in its formula.
The module `models.optimizer_states` converts between this state and `momentum_buffer`."""


class Parameter(NamedTuple):
    """One parameter (weight) that an optimizer updates, with the optimizer's settings and state for this parameter."""

    variable: Any
    """The parameter, as the object that `Backend.variables` returns for the model."""
    settings: Settings
    state: Mapping[str, str]
    """The framework's names of the parameter's state by PyTorch's names: `{"exp_avg": "0.exp_avg"}`. The framework's
    names are keys of `Backend.variables` for the optimizer, or of `Backend.state_to_come`. Parameters that share a
    count of steps have the same name for this count."""


class Optimizer(NamedTuple):
    """A description of an optimizer's computation: its kind, its settings and the parameters that it updates."""

    kind: str
    name: str
    """The name of the optimizer's class."""
    settings: Settings
    """The settings that apply to parameters without individual settings."""
    parameters: tuple[Parameter, ...]
    """The parameters in the framework's order; empty if the optimizer has not been given its parameters yet."""
    arguments: Mapping[str, str]
    """The framework's own names of the settings that a user can choose, by PyTorch's names: `{"lr": "learning_rate"}`.
    If a setting does not depend on a single argument, the value is a sentence (which contains spaces) instead of a
    name."""


def kind_of(
    optimizer: Any, kinds: Mapping[Any, str], unsupported: Callable[[str, str], Exception]
) -> str:
    """Returns the kind of an optimizer. `kinds` maps each class that can be read to its kind. Raises `UnsupportedError`
    for other classes. `unsupported` is `Backend.unsupported`, which creates the error."""
    # the exact class is looked up, because a subclass may compute anything
    kind = kinds.get(type(optimizer))
    if kind is None:
        names = ", ".join(cls.__name__ for cls in kinds)
        raise unsupported(
            f"reading {type(optimizer).__qualname__} objects", f"use one of {names}"
        )
    return kind


def default_settings(kind: str) -> dict[str, object]:
    """Returns all settings of a kind of optimizer with their default values; the value of a setting without a default
    is None."""
    return {**KINDS[kind], **COMMON}


def settings(kind: str, **stated: object) -> dict[str, object]:
    """Returns all settings of a kind of optimizer. The keyword arguments are the settings that the adapter states; the
    other settings have their default values from `KINDS` and `COMMON`. Numbers of any library, and tensors with one
    number, become floats, or bools if the default is a bool. Raises `ValueError` if a stated setting does not exist, or
    if a setting without a default is not stated."""
    all_settings = default_settings(kind)
    unknown = stated.keys() - all_settings.keys()
    missing = [
        name for name, value in KINDS[kind].items() if value is None and name not in stated
    ]
    # a mistake in an adapter, not one of a user
    if unknown or missing:
        raise ValueError(f"settings of {kind}: missing {missing}, unknown {sorted(unknown)}")
    return all_settings | {
        name: _as_python(value, all_settings[name]) for name, value in stated.items()
    }


def _as_python(value: Any, default: object) -> object:
    """Returns a setting as a Python bool if its default is a bool, and otherwise as a float. Strings and None are
    returned unchanged."""
    if isinstance(default, bool):
        return bool(value)
    return value if value is None or isinstance(value, str) else float(value)


def keeps(slot: str, settings: Settings) -> bool:
    """Whether an optimizer with these settings stores this slot (a named tensor of its state) for a
    parameter."""
    # true for momentum_buffer itself, and for the names in FORMS
    if slot.endswith("momentum_buffer"):
        return bool(settings["momentum"])
    # these slots exist only if the given setting is true; the other slots always exist
    needed = {"max_exp_avg_sq": "amsgrad", "grad_avg": "centered"}.get(slot)
    return needed is None or bool(settings[needed])


class Optimizers(Models):
    """The capability of describing the framework's optimizers, and of creating and loading their state."""

    needs: ClassVar[tuple[str, ...]] = ("optimizer",)

    def has_optimizer(self, x: object) -> bool:
        """Whether `x` is an optimizer for this framework, although its type belongs to another library, such as
        optax."""
        return False

    def state_to_come(self, optimizer: Any, names: Sequence[str]) -> Mapping[str, Any]:
        """Returns, by name, new tensors for the state that an optimizer would otherwise create only in its first step.
        If a parameter has no state yet, and `names` includes the name of at least one tensor of its future state, the
        result contains the parameter's whole state. The optimizer does not use these tensors before `take_state` is
        called. Returns {} for a model that is not an optimizer."""
        return {}

    def take_state(
        self, optimizer: Any, state: Mapping[str, Any]
    ) -> None:  # most frameworks need to do nothing
        """Makes a model or optimizer use the values that `load` has just written. `state` contains, by name, the
        variables that were written and the tensors that `state_to_come` returned. The optimizer uses these tensors from
        then on. The method is also called for networks, because some networks must be notified of new values."""

    def optimizer(self, optimizer: Any) -> Optimizer:
        """Returns a description of an optimizer's computation, in PyTorch's terms. The module
        `xdevice.twins.contract.optimizers` lists the kinds and settings. `optimizer` may be any object of the
        framework. Raises `UnsupportedError`, with the name of the object's class, if the formula of this class is not
        the formula of any kind. Subclasses of known optimizers are refused too, because they may compute anything."""
        raise self.unsupported(
            f"reading {type(optimizer).__qualname__} objects",
            "compare the optimizers' settings yourself",
        )
