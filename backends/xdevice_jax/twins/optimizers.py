"""Reads the formulas of optax's optimizers from the closures of their functions, because optax has no objects with the
settings (https://github.com/google-deepmind/optax/issues/206).

Facts about optax that the code depends on:
- An optimizer is a chain of steps. A step is recognized by the name of the function that created it, and its settings
  are the variables in the closure of its `update`.
- In RMSprop, the momentum comes after the learning rate, so it accumulates steps; in SGD, it comes before the learning
  rate.
- Settings that are not constants are not supported: schedules, and settings that `inject_hyperparams` stores in the
  state.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from xdevice.twins.contract import optimizers as terms
from xdevice.twins.contract.optimizers import Optimizer, Optimizers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    _Values = dict[str, Any]

# optax's argument for each setting, or a sentence if no single argument controls the setting
_ARGUMENTS: Final = {
    "lr": "learning_rate", "beta1": "b1", "beta2": "b2", "alpha": "decay", "eps": "eps", "momentum": "momentum",
    "nesterov": "nesterov", "centered": "centered", "initial_accumulator_value": "initial_accumulator_value",
    "weight_decay": "weight_decay",
    "clip": "set the clipping with optax.clip_by_global_norm, clip_by_block_rms or clip",
}  # fmt: skip
_ROOT: Final = {"eps_enters": "eps_in_sqrt=False adds eps to the root"}


def _adam(values: _Values) -> dict[str, object]:
    """Returns the settings of the step scale_by_adam. Raises `_UnknownError` for a formula that no other framework
    has."""
    # other values lead to other formulas: a second eps under the root, and NAdam
    _require(values, eps_root=0.0, nesterov=False)
    return {"kind": "adam", "beta1": values["b1"], "beta2": values["b2"], "eps": values["eps"]}


def _rms(values: _Values) -> dict[str, object]:
    """Returns the settings of scale_by_rms or scale_by_stddev, the steps of RMSprop. Raises `_UnknownError` for a
    formula that no other framework has."""
    # with other values, the average is corrected or starts from another value, as in no other framework
    _require(values, bias_correction=False, initial_scale=0.0)
    is_inside_root = values.get("eps_in_sqrt", True)
    eps_enters = terms.INSIDE if is_inside_root else terms.ADDED
    return {
        "kind": "rmsprop",
        "alpha": values["decay"],
        "eps": values["eps"],
        "eps_enters": eps_enters,
    }


def _rss(values: _Values) -> dict[str, object]:
    """Returns the settings of scale_by_rss, the step of Adagrad."""
    return {
        "kind": "adagrad", "eps": values["eps"], "eps_enters": terms.INSIDE,
        "initial_accumulator_value": values["initial_accumulator_value"],
    }  # fmt: skip


# the functions that read the settings of a step, by the name of the function that creates the step. The setting "kind"
# is the kind of the optimizer; if no step in a chain has that setting, the optimizer is an SGD
_STEPS: Final[dict[str, Callable[[_Values], dict[str, object]]]] = {
    "identity": lambda _: {},
    "scale_by_adam": _adam,
    "scale_by_rms": _rms,
    "scale_by_stddev": lambda values: _rms(values) | {"centered": True},
    "scale_by_rss": _rss,
    "trace": lambda values: {"momentum": values["decay"], "nesterov": values["nesterov"]},
    "add_decayed_weights": lambda values: {"weight_decay": values["weight_decay"]},
    # optax adds updates to the weights, so its step sizes are negative
    "scale": lambda values: {"lr": -values["step_size"]},
    # the rate of the first step
    "scale_by_schedule": lambda values: {
        "lr": -float(values["step_size_fn"](0)), "schedule": "a function of the step",
    },
    "clip_by_global_norm": lambda values: {"clip": f"all gradients to a norm of {values['max_norm']:.6g}"},
    "clip_by_block_rms": lambda values: {"clip": f"each gradient to a root mean square of {values['threshold']:.6g}"},
    "clip": lambda values: {"clip": f"to values from {-values['max_delta']:.6g} to {values['max_delta']:.6g}"},
}  # fmt: skip


class _UnknownError(Exception):
    """Raised for a step or a setting of an optimizer that is not part of a known formula. The message names the step or
    the setting."""


def _require(values: _Values, **wanted: object) -> None:
    """Raises `_UnknownError` if a setting in `values` differs from the setting in `wanted`. A missing setting is
    treated as equal, because some versions of optax do not have it."""
    for name, value in wanted.items():
        if values.get(name, value) != value:
            raise _UnknownError(f"{name}={values[name]!r:.40}")


def _steps(transformation: Any) -> Iterator[tuple[str, _Values]]:
    """Yields the name and the settings of each step of a transformation, in order. The name is the name of the optax
    function that created the step, such as "scale_by_adam"."""
    update = getattr(transformation.update, "__func__", transformation.update)
    values = _closure(update)
    # such as scale_by_adam.<locals>.update_fn
    name = update.__qualname__.partition(".")[0]
    # optax wraps a transformation that accepts no additional arguments in this function
    if name == "with_extra_args_support":
        yield from _steps(values["tx"])
    elif name == "chain":
        for inner in values["update_fns"]:
            yield from _steps(_Step(inner))
    else:
        # settings of the initial state, such as initial_scale, are only in `init`
        yield name, _closure(transformation.init) | values


class _Step:
    """A step of a chain in the form that `_steps` accepts. A chain stores only the `update` functions of its steps. The
    `init` here has an empty closure, so the step gets no settings from it."""

    def __init__(self, update: Any) -> None:
        self.update = update
        self.init = lambda: None


def _closure(function: Any) -> _Values:
    """Returns a dict that maps the names of the variables in the closure of a function to their values. For a function
    of an optax step, these are the settings of the step."""
    # Python stores the names of these variables in the code object, and their values in the closure, in the same order
    code = getattr(function, "__code__", None)
    names = code.co_freevars if code is not None else ()
    return dict(
        zip(
            names,
            (cell.cell_contents for cell in getattr(function, "__closure__", None) or ()),
            strict=True,
        )
    )


def _settings(transformation: Any) -> tuple[str, dict[str, object]]:
    """Returns the kind and the settings of a transformation. Raises `_UnknownError` if these are not known."""
    stated: dict[str, Any] = {}
    for name, values in _steps(transformation):
        if name not in _STEPS:
            raise _UnknownError(name)
        step = _STEPS[name](values)
        # momentum after the learning rate accumulates steps; momentum before the learning rate accumulates gradients
        if "momentum" in step:
            step["momentum_holds"] = terms.STEPS if "lr" in stated else terms.GRADIENTS
        # decay that is added after the moments is not part of the moments
        if "weight_decay" in step:
            step["decay"] = (
                terms.DECOUPLED if "kind" in stated or "momentum" in stated else terms.COUPLED
            )
        if twice := stated.keys() & step.keys():
            raise _UnknownError(f"{name}, which sets {', '.join(sorted(twice))} a second time")
        stated |= step
    if "lr" not in stated:
        raise _UnknownError("no learning rate")
    kind = stated.pop("kind", "sgd")
    if kind != "sgd" and stated.pop("nesterov", False):
        raise _UnknownError(f"nesterov in {kind}")
    return kind, terms.settings(kind, **stated)


class JaxOptimizers(Optimizers):
    """The hooks that read optimizers of optax. The state of these optimizers is not converted. `Optimizers` describes
    each hook."""

    def has_optimizer(self, x: object) -> bool:
        """Whether `x` is a transformation of optax."""
        library = sys.modules.get("optax")
        return library is not None and isinstance(x, library.GradientTransformation)

    def optimizer(self, optimizer: Any) -> Optimizer:
        """Returns the description of a transformation of optax. The result has no parameters, because optax receives
        the parameters in each step. Raises `UnsupportedError` for any other object, and for a step or setting that is
        not known."""
        if not self.has_optimizer(optimizer):
            raise self.unsupported(
                f"reading {type(optimizer).__qualname__} objects",
                "pass an optax transformation",
            )
        # the other errors occur if closures do not have the expected variables
        try:
            kind, settings = _settings(optimizer)
        except (_UnknownError, LookupError, AttributeError, TypeError) as error:
            raise self.unsupported(
                f"reading an optax chain with {error}",
                f"use only the steps {', '.join(_STEPS)}",
            ) from error
        arguments = _ARGUMENTS | (_ROOT if kind == "rmsprop" else {})
        return Optimizer(kind, "GradientTransformation", settings, (), arguments)
