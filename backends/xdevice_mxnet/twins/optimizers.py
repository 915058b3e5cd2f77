"""Reads the formulas of Gluon's Trainers, and loads the state of another optimizer into a Trainer.

The code depends on these facts about MXNet:
- `create_state_multi_precision` creates the same state as the first step.
- `step(n)` sets the optimizer's `rescale_grad` to the Trainer's own factor divided by n, and does not reset it.
- Adam and RMSProp clip the sum of gradient and weight decay; the other optimizers clip the gradient alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import mxnet as mx

from xdevice.errors import UnsupportedError
from xdevice.twins.contract import optimizers as terms
from xdevice.twins.contract.optimizers import Optimizers
from xdevice_mxnet import models, trainers
from xdevice_mxnet.private import private

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xdevice.twins.contract.optimizers import Optimizer


_start_store = private.field("mxnet.gluon.Trainer._init_kvstore")
_compression = private.field("mxnet.gluon.Trainer._compression_params")


def _new_state(trainer: Any, index: int) -> Any:
    """Returns the state that the first step of a Trainer would create for the parameter with the index `index`. The
    state is in MXNet's form: an array, nested tuples of arrays, or None."""
    # with np_shape, () means the shape of a scalar, rather than an unknown shape
    with mx.autograd.pause(), mx.util.np_shape(True):
        weight = trainers.parameters(trainer)[index].data().as_nd_ndarray()
        return trainer.optimizer.create_state_multi_precision(index, weight)


# reading the formula and the settings of an optimizer

_KINDS: Final = {
    mx.optimizer.SGD: "sgd", mx.optimizer.NAG: "sgd", mx.optimizer.Adam: "adam", mx.optimizer.RMSProp: "rmsprop",
    mx.optimizer.AdaGrad: "adagrad",
}  # fmt: skip
# for each kind, MXNet's argument for each setting of `terms.KINDS`
_NAMES: Final = {
    "sgd": {"momentum": "momentum"},
    "adam": {"beta1": "beta1", "beta2": "beta2", "eps": "epsilon"},
    "rmsprop": {"alpha": "gamma1", "eps": "epsilon", "centered": "centered"},
    "adagrad": {"eps": "eps"},
}
# a value with spaces is a sentence and not an argument, because no single argument determines
# the setting
_COMMON_NAMES: Final = {
    "lr": "learning_rate", "weight_decay": "wd", "gradient_scale": "call step(1), as step(n) divides gradients by n",
}  # fmt: skip


def _require_plain(trainer: Any, backend: Optimizers) -> None:
    """Raises `UnsupportedError` for a Trainer that computes with compressed gradients."""
    if _compression(trainer):
        raise backend.unsupported(
            "reading a Trainer that compresses gradients",
            "create the Trainer without compression_params",
        )


def _parameter(
    optimizer: Any, kind: str, shared: Mapping[str, Any], index: int, parameter: Any
) -> terms.Parameter:
    """Returns the description of a Trainer's parameter, whose index is `index`. The settings of the parameter are the
    optimizer's settings `shared`, but with the rate and the decay multiplied by the parameter's own factors."""
    settings: dict[str, object] = {
        **shared,
        "lr": shared["lr"] * parameter.lr_mult,
        "weight_decay": shared["weight_decay"] * parameter.wd_mult,
    }
    variable = models.array_of(parameter)
    is_half = optimizer.multi_precision and str(parameter.dtype) == "float16"
    # the state of a 16-bit parameter belongs to its 32-bit copy, and is not converted
    slots = {} if is_half else _slots(optimizer, kind)
    return terms.Parameter(
        variable, settings, {slot: f"{index}.{part}" for slot, part in slots.items()}
    )


def _settings(optimizer: Any, kind: str) -> dict[str, object]:
    """Returns the settings that all parameters of an optimizer share, by their names in `terms`. Raises
    `UnsupportedError` for an RMSProp with clip_weights."""
    stated: dict[str, Any] = {
        "lr": optimizer.learning_rate,
        "weight_decay": optimizer.wd,
        "gradient_scale": optimizer.rescale_grad,
        "clip": _clip(optimizer),
    }
    if optimizer.lr_scheduler is not None:
        stated["schedule"] = f"mx.lr_scheduler.{type(optimizer.lr_scheduler).__name__}"
    for name, argument in _NAMES[kind].items():
        # only AdaGrad has an argument eps, which it stores as float_stable_eps; the others have
        # an argument epsilon
        stated[name] = getattr(optimizer, "float_stable_eps" if argument == "eps" else argument)
    return terms.settings(
        kind, **stated, **_FIXED[type(optimizer)], **_argument_settings(optimizer)
    )


def _clip(optimizer: Any) -> str | None:
    """Returns a string that says how gradients are clipped, or None if they are not clipped because the limit is None
    or 0."""
    limit = optimizer.clip_gradient
    if not limit:
        return None
    # these two optimizers clip after they have added the decay to the gradient
    together = optimizer.wd and isinstance(optimizer, mx.optimizer.Adam | mx.optimizer.RMSProp)
    return f"to values from {-limit:.6g} to {limit:.6g}" + (
        ", together with the decay" if together else ""
    )


# the settings that are determined by the class of an optimizer alone
_FIXED: Final[Mapping[type, Mapping[str, object]]] = {
    mx.optimizer.SGD: {"momentum_holds": terms.STEPS},
    mx.optimizer.NAG: {"momentum_holds": terms.STEPS, "nesterov": True},
    mx.optimizer.Adam: {"eps_enters": terms.UNCORRECTED},
    mx.optimizer.RMSProp: {"eps_enters": terms.INSIDE, "momentum_holds": terms.STEPS},
    mx.optimizer.AdaGrad: {"eps_enters": terms.INSIDE, "decay": terms.DECOUPLED},
}


def _argument_settings(optimizer: Any) -> dict[str, object]:
    """Returns the settings that an optimizer's arguments determine. (The settings in `_FIXED` depend only on the
    class.) Returns {} for a class without such settings. Raises `UnsupportedError` for an RMSProp with clip_weights."""
    if isinstance(optimizer, mx.optimizer.NAG):
        # without momentum, there is no state to which the decay could be added
        return {"decay": terms.BEHIND if optimizer.momentum else terms.COUPLED}
    if not isinstance(optimizer, mx.optimizer.RMSProp):
        return {}
    if optimizer.clip_weights:
        raise UnsupportedError(
            "mxnet does not support reading the optimizer RMSProp with clip_weights; clip the weights yourself"
        )
    # only the centered form has a momentum, gamma2
    return {"momentum": optimizer.gamma2 if optimizer.centered else 0.0}


def _slots(optimizer: Any, kind: str) -> dict[str, str]:
    """Returns a dict that says where each part of a parameter's state is. A value is the index of the part's array,
    as a string, or `trainers.UPDATES` for the count of steps. The keys are PyTorch's names of the parts. If MXNet
    stores steps instead of PyTorch's momentum, the key is the formula of these steps, one of `terms.FORMS`. For an
    SGD without momentum, the dict is empty."""
    if kind == "sgd":
        # in each step, the array becomes momentum * array - lr * gradient
        return {"-lr * momentum_buffer": "0"} if optimizer.momentum else {}
    if kind == "adam":
        return {"exp_avg": "0", "exp_avg_sq": "1", terms.STEP: trainers.UPDATES}
    if kind == "adagrad":
        return {"sum": "0"}
    # rmsprop has one array, and two more if it is centered
    return {"square_avg": "0"} | (
        {"grad_avg": "1", "-lr * momentum_buffer": "2"} if optimizer.centered else {}
    )


class MxnetOptimizers(Optimizers):
    """The hooks that read Gluon's Trainers and MXNet's optimizers, and load their state. `Optimizers` describes each
    hook."""

    def state_to_come(self, optimizer: Any, names: Sequence[str]) -> Mapping[str, Any]:
        """Returns a dict of new arrays: the state of the Trainer's parameters that occur in `names` and have no state
        yet. A name such as "0.1" begins with the index of the parameter. Returns {} for an optimizer without a Trainer,
        and for a network."""
        if not isinstance(optimizer, mx.gluon.Trainer):
            return {}
        numbers = {name.partition(".")[0] for name in names}
        existing = {name.partition(".")[0] for name, _ in trainers.variables(optimizer)}
        state: dict[str, Any] = {}
        for index, parameter in enumerate(trainers.parameters(optimizer)):
            # a Trainer does not update frozen parameters (whose grad_req is null), and has no
            # state for such parameters
            if str(index) in numbers - existing and parameter.grad_req != "null":
                # the 0 means that the parameter has taken no steps
                state.update(trainers.named(index, _new_state(optimizer, index), 0))
        return state

    def take_state(self, optimizer: Any, state: Mapping[str, Any]) -> None:
        """Stores the new arrays of `state` and its counts of steps in a Trainer. MXNet stores these counts as numbers
        outside the arrays. The keys of `state` are names that `trainers.named` yields. Does nothing for an optimizer
        without a Trainer, or for a network."""
        if not isinstance(optimizer, mx.gluon.Trainer):
            return
        private.require_names_for("optimizers")
        # the store is None before the first step; it remains None if the Trainer needs no
        # store, and starting it then has no effect
        if trainers.store(optimizer) is None:
            _start_store(optimizer)()
        updater, mx_optimizer = trainers.updater(optimizer), optimizer.optimizer
        parameters = trainers.parameters(optimizer)
        for index in {int(name.partition(".")[0]) for name in state}:
            # `load` has already written into the existing state, so only new state is added
            # here
            if index not in updater.states:
                updater.states[index] = _new_state(optimizer, index)
                # True says that the state is on the device of its parameter
                updater.states_synced[index] = True
                for part, array in enumerate(trainers.arrays(updater.states[index])):
                    state[f"{index}.{part}"].copyto(array)
            # MXNet counts the steps of a parameter separately for each of its devices
            for device in parameters[index].list_ctx():
                counts = trainers.counts(mx_optimizer).setdefault(device.device_id, {})
                counts[index] = int(state[f"{index}.{trainers.UPDATES}"].asscalar())
        # a scheduler computes the rate from num_update, the highest count of any parameter
        mx_optimizer.num_update = max(
            [mx_optimizer.begin_num_update, *trainers.steps(mx_optimizer).values()]
        )

    def optimizer(self, optimizer: Any) -> Optimizer:
        """Returns the description of a Trainer, or of an optimizer without a Trainer. The parameters of such an
        optimizer are unknown. Raises `UnsupportedError` for a class that is not in `_KINDS`, for a Trainer that
        compresses gradients, and for an RMSProp with clip_weights."""
        mx_optimizer = (
            optimizer.optimizer if isinstance(optimizer, mx.gluon.Trainer) else optimizer
        )
        kind = terms.kind_of(mx_optimizer, _KINDS, self.unsupported)
        settings = _settings(mx_optimizer, kind)
        parameters: list[terms.Parameter] = []
        # only a Trainer has parameters; it does not update parameters whose grad_req is null
        if mx_optimizer is not optimizer:
            _require_plain(optimizer, self)
            parameters += (
                _parameter(mx_optimizer, kind, settings, index, parameter)
                for index, parameter in enumerate(trainers.parameters(optimizer))
                if parameter.grad_req != "null"
            )
        # MXNet's name of each setting, for messages. MXNet has no name for the kind of
        # clipping, so its entry says how to set it
        arguments = (
            _NAMES[kind]
            | _COMMON_NAMES
            | {"clip": "set the largest absolute value of a gradient with clip_gradient"}
        )
        return terms.Optimizer(
            kind, type(mx_optimizer).__name__, settings, tuple(parameters), arguments
        )
