"""Optimizers as functions. Each optimizer returns new parameters and a new state, and uses PyTorch's formulas on
every backend.

Experimental: it may change in a minor version.

The state is a dict. Its item "step" is a 0-d tensor, and all other items are containers with the same
structure as the parameters. No state is hidden in objects, so the state can be saved, replicated and compiled like
the parameters. A learning rate is a Python number or a 0-d tensor, such as the factor that a schedule
computes from the state's "step". A compiled step is compiled again for each new number, but not for a tensor with a new
value. All optimizers except `adamw` add the product of `weight_decay` and the parameter to the gradient; `adamw`
shrinks the parameter itself.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, TypeVar

from xdevice.containers.trees import flatten
from xdevice.core import registry
from xdevice.errors import ArgumentError, shown
from xdevice.math.arithmetic.gradients import backend_of
from xdevice.math.arithmetic.namespace import array_namespace
from xdevice.math.arithmetic.scopes import ScopesRemoved
from xdevice.math.arithmetic.updating import Rows
from xdevice.tensors.verbs import device_of, to_device

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

__all__ = [
    "adagrad",
    "adam",
    "adamw",
    "clip_by_global_norm",
    "cosine",
    "global_norm",
    "init",
    "rmsprop",
    "sgd",
    "warmup",
]


def __dir__() -> list[str]:
    return __all__


def init(rule: Callable[..., Any], params: Any) -> dict[str, Any]:
    """Returns the initial state of an optimizer: `optim.init(optim.adam, params)`.

    Raises:
        ArgumentError: `rule` is not an optimizer of this module. Other errors: as with `update`.

    For each average that the optimizer maintains, the state needs as much memory as the parameters.

    Example:
        >>> params = {"w": xdevice.tensor([1.0, 2.0])}
        >>> sorted(xdevice.optim.init(xdevice.optim.adam, params))
        ['mean', 'square', 'step']
    """
    keys = _STATE_KEYS.get(rule)
    if keys is None:
        raise ArgumentError(
            f"init expects one of the optimizers in xdevice.optim, not {shown(rule)}"
        )
    # a row contains the tensors that belong to one parameter; here it contains only the
    # parameter itself
    rows = Rows("params", flatten(params))
    state = {
        key: rows.rebuilt(rows.applied(lambda p: array_namespace(p).zeros_like(p)))
        for key in keys
    }
    first = rows.leaves[0]
    xp = array_namespace(first)
    # the step is a 0 that is computed from a parameter; it is therefore on the parameter's
    # device, and is a symbol while a function is traced
    return {"step": xp.astype(xp.sum(xp.zeros_like(first)), xp.int32), **state}


def sgd(
    params: Any,
    grads: Any,
    state: Any,
    *,
    lr: Any,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> tuple[Any, dict[str, Any]]:
    """Computes a step of gradient descent. For each parameter p with its gradient g, the new momentum is
    `m = momentum * m + g`, and the new parameter is `p - lr * m`.

    Args:
        grads: the gradients, in a container with the same structure as `params`.
        state: the result of `init(sgd, params)`, or the state that the previous step returned; it is not changed.
        lr: the learning rate, a number or a 0-d tensor.
        nesterov: whether the new parameter is `p - lr * (g + momentum * m)` instead.

    Returns the new parameters and the new state. Raises ArgumentError if `state` belongs to another optimizer, and the
    errors of `update`. Costs as much as `update`, except that no copies are made.

    Example:
        >>> params = xdevice.tensor([1.0])
        >>> state = xdevice.optim.init(xdevice.optim.sgd, params)
        >>> params, state = xdevice.optim.sgd(params, xdevice.tensor([2.0]), state, lr=0.25)
        >>> xdevice.to_numpy(params).tolist()
        [0.5]
    """

    rate_for = _per_parameter(lr)

    def rule(p: Any, g: Any, m: Any) -> tuple[Any, ...]:
        g = _with_decay(g, p, weight_decay)
        # PyTorch's formula; other frameworks multiply the gradient by the rate before they add
        # it to m
        m = momentum * m + g
        return p - rate_for(p) * (g + momentum * m if nesterov else m), m

    return _step(sgd, params, grads, state, lambda rows: rows.applied(rule))


def adam(
    params: Any,
    grads: Any,
    state: Any,
    *,
    lr: Any = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> tuple[Any, dict[str, Any]]:
    """Computes a step of Adam: `p - lr * m' / (sqrt(v') + eps)`. Here m' is the bias-corrected running average of the
    gradients, and v' is the bias-corrected running average of the squared gradients. `betas` contains the decay rates
    of the two averages.

    The other arguments, the result, the errors and the cost are the same as for `sgd`.

    Example:
        >>> params = xdevice.tensor([1.0])
        >>> state = xdevice.optim.init(xdevice.optim.adam, params)
        >>> params, state = xdevice.optim.adam(params, xdevice.tensor([2.0]), state, lr=0.5)
        >>> xdevice.to_numpy(params).round(5).tolist(), xdevice.item(state["step"])
        ([0.5], 1)
    """
    return _adam(adam, params, grads, state, lr, betas, eps, weight_decay)


def adamw(
    params: Any,
    grads: Any,
    state: Any,
    *,
    lr: Any = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
) -> tuple[Any, dict[str, Any]]:
    """Computes a step of Adam, after each parameter p has been replaced by `p * (1 - lr * weight_decay)`. The decay is
    therefore not part of the gradient.

    The arguments are the same as for `adam`, and the result, the errors and the cost are the same as for `sgd`.
    """
    return _adam(adamw, params, grads, state, lr, betas, eps, weight_decay)


def rmsprop(
    params: Any,
    grads: Any,
    state: Any,
    *,
    lr: Any = 1e-2,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> tuple[Any, dict[str, Any]]:
    """Computes a step of RMSprop: the new average is `v = alpha * v + (1 - alpha) * g * g`, and the new parameter is
    `p - lr * g / (sqrt(v) + eps)`.

    The other arguments, the result, the errors and the cost are the same as for `sgd`.
    """

    rate_for = _per_parameter(lr)

    def rule(p: Any, g: Any, v: Any) -> tuple[Any, ...]:
        # the decay is added to the gradient, as in PyTorch
        g = _with_decay(g, p, weight_decay)
        v = alpha * v + (1 - alpha) * (g * g)
        return p - rate_for(p) * g / (array_namespace(v).sqrt(v) + eps), v

    return _step(rmsprop, params, grads, state, lambda rows: rows.applied(rule))


def adagrad(
    params: Any,
    grads: Any,
    state: Any,
    *,
    lr: Any = 1e-2,
    eps: float = 1e-10,
    weight_decay: float = 0.0,
) -> tuple[Any, dict[str, Any]]:
    """Computes a step of Adagrad: the new sum of squares is `v = v + g * g`, and the new parameter is `p - lr * g /
    (sqrt(v) + eps)`.

    The other arguments, the result, the errors and the cost are the same as for `sgd`.
    """

    rate_for = _per_parameter(lr)

    def rule(p: Any, g: Any, v: Any) -> tuple[Any, ...]:
        g = _with_decay(g, p, weight_decay)
        v = v + g * g
        return p - rate_for(p) * g / (array_namespace(v).sqrt(v) + eps), v

    return _step(adagrad, params, grads, state, lambda rows: rows.applied(rule))


_STATE_KEYS: Final = {
    sgd: ("momentum",),
    adam: ("mean", "square"),
    adamw: ("mean", "square"),
    rmsprop: ("square",),
    adagrad: ("square",),
}
"""For each optimizer, the keys of the containers in its state, in the order of the arguments of its rule."""


def _adam(
    optimizer: Callable[..., Any],
    params: Any,
    grads: Any,
    state: Any,
    lr: Any,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> tuple[Any, dict[str, Any]]:
    """Returns the new parameters and state after a step of `optimizer`, which is `adam` or
    `adamw`. The other arguments are the arguments of the optimizer. The step is computed by the adapter's kernel if the
    kernel accepts these tensors, and otherwise by a rule that is called for each parameter."""
    beta1, beta2 = betas
    rate_for = _per_parameter(lr)

    # applies the decay to a row, which consists of a parameter, its gradient and the two
    # averages
    def row_with_decay(p: Any, g: Any, *means: Any) -> tuple[Any, ...]:
        # Adam adds the decay to the gradient, while AdamW subtracts it from the parameter
        # before the step
        if optimizer is adam:
            return p, g + weight_decay * p, *means
        return p - rate_for(p) * weight_decay * p, g, *means

    @_once_per_device_and_dtype
    def scaled_rate_and_eps(p: Any) -> tuple[Any, ...]:
        """Returns the rate and eps for the parameter `p`, scaled by the bias corrections of both averages. The
        averages themselves, which have many elements, then need no correction."""
        # with c and d for the two corrections, Adam's step rate * (m / c) / (sqrt(v / d) + eps) is
        # (rate / c * sqrt(d)) * m / (sqrt(v) + eps * sqrt(d))
        xp = array_namespace(p)
        # the number of this step, counted from 1
        steps = _per_parameter(state["step"])(p) + 1.0
        # this is 1 - beta ** steps for both betas; computed in that form, float32 would lose
        # half of the digits. For a beta of 0, which has no logarithm, it is 1
        mean_correction, square_correction = (
            -xp.expm1(steps * math.log(beta)) if beta else 1.0 for beta in betas
        )
        square_root = xp.sqrt(square_correction) if beta2 else 1.0
        return rate_for(p) / mean_correction * square_root, eps * square_root

    def rule(p: Any, g: Any, m: Any, v: Any) -> tuple[Any, ...]:
        """Returns the new parameter, the new average of the gradients, and the new average of the squared
        gradients."""
        scaled_rate, scaled_eps = scaled_rate_and_eps(p)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * (g * g)
        return p - scaled_rate * m / (array_namespace(v).sqrt(v) + scaled_eps), m, v

    def step_rows(rows: Rows) -> list[Any]:
        """Returns, for each row, the new parameter and its two new averages."""
        if weight_decay:
            rows = rows.mapped(row_with_decay)
        # if the adapter has a kernel, a single call updates all parameters. `rows.kernel`
        # returns the kernel only for float32 rows on one device, so the rate for the first
        # parameter is right for all of them
        kernel = rows.kernel("adam")
        if kernel is not None:
            p = rows.leaves[0]
            result = kernel(_moved_to_device_of(state["step"], p), rate_for(p), betas, eps)
            # the kernel returns NotImplemented for tensors that it cannot compute
            if result is not NotImplemented:
                return result  # type: ignore[no-any-return]
        return rows.applied(rule)

    return _step(optimizer, params, grads, state, step_rows)


def _step(
    optimizer: Callable[..., Any],
    params: Any,
    grads: Any,
    state: Any,
    step_rows: Callable[[Rows], list[tuple[Any, ...]]],
) -> tuple[Any, dict[str, Any]]:
    """Returns the new parameters and state after a step of `optimizer`. `params`, `grads` and `state` are the
    arguments of `optimizer`. `step_rows` is a function that accepts the rows, and returns a list with the new
    parameter and the new tensors of the state for each row. A row consists of a parameter, its gradient and its tensors
    of the state. Raises `ArgumentError` for the state of another optimizer, and the errors of `update`."""
    _require_state(optimizer, state)
    # runs outside compilers such as torch.compile, which could not compile the walk over
    # containers
    return registry.call_outside_compilers(  # type: ignore[no-any-return]
        lambda: _step_eagerly(optimizer, params, grads, state, step_rows)
    )


def _step_eagerly(
    optimizer: Callable[..., Any],
    params: Any,
    grads: Any,
    state: Any,
    step_rows: Callable[[Rows], list[tuple[Any, ...]]],
) -> tuple[Any, dict[str, Any]]:
    """Returns the result of `_step`, which has the same arguments. `_step` runs this function outside compilers,
    because a compiler such as torch.compile could not compile the walk over containers."""
    keys = _STATE_KEYS[optimizer]
    walk = flatten(params)
    with ScopesRemoved(backend_of(walk)):
        rows = Rows("params", walk, grads=grads, **{key: state[key] for key in keys})
        # the results of all rows, column by column: the new parameters, and the tensors for each key of
        # the state
        new_params, *columns = zip(*step_rows(rows), strict=True)
        # the tensors of the state need no checks, so `rows.rebuilt` is not used, which compares
        # new parameters with the old parameters
        new_state = {
            key: rows.tree.rebuilt(leaves) for key, leaves in zip(keys, columns, strict=True)
        }
        return rows.rebuilt(new_params), {"step": state["step"] + 1, **new_state}


def _require_state(optimizer: Callable[..., Any], state: Any) -> None:
    """Raises `ArgumentError` unless `state` is a state of this optimizer."""
    if not isinstance(state, dict) or set(state) != {"step", *_STATE_KEYS[optimizer]}:
        name = optimizer.__name__
        raise ArgumentError(
            f"{name} expects a state from xdevice.optim.init(xdevice.optim.{name}, params), not {shown(state)}"
        )


def _with_decay(g: Any, p: Any, weight_decay: float) -> Any:
    """Returns `g + weight_decay * p`: the gradient `g` of the parameter `p`, plus the decay."""
    return g + weight_decay * p if weight_decay else g


def _per_parameter(value: Any) -> Callable[[Any], Any]:
    """Returns a function that accepts a parameter, and returns `value` in a form that can be combined with the
    parameter. A number is returned unchanged. A 0-d tensor is moved to the parameter's device and cast
    to its dtype."""
    if isinstance(value, int | float):
        return lambda p: value
    return _once_per_device_and_dtype(lambda p: _moved_and_cast_like(value, p))


def _moved_and_cast_like(x: Any, p: Any) -> Any:
    """Returns the tensor `x`, moved to the device of the parameter `p` and cast to its dtype."""
    x = _moved_to_device_of(x, p)
    return x if x.dtype is p.dtype else array_namespace(p).astype(x, p.dtype)


def _moved_to_device_of(x: Any, p: Any) -> Any:
    """Returns the tensor `x`, moved to the device of the parameter `p`. If `x` or `p` is traced, and therefore has no
    device, `x` is returned unchanged."""
    # `probes` contains the types of those tensors that have a device
    if type(x) not in registry.probes or type(p) not in registry.probes:
        return x
    return to_device(x, device_of(p))


def _once_per_device_and_dtype(make: Callable[[Any], T]) -> Callable[[Any], T]:
    """Returns a cached variant of the function `make`, which accepts a parameter. The variant calls `make` only for the
    first parameter with each combination of device and dtype. For all other parameters with the same combination, it
    returns the cached result."""
    values: dict[Any, T] = {}

    def for_parameter(p: Any) -> T:
        # the function that returns the device of a tensor, or None for a traced tensor, which
        # has no device
        probe = registry.probes.get(type(p))
        device = probe(p) if probe is not None else None
        key = device, p.dtype
        if key not in values:
            values[key] = make(p)
        return values[key]

    return for_parameter


# norms of gradients


def global_norm(grads: Any) -> Any:
    """Returns the square root of the sum of the squares of all elements in a container. The result is a
    0-d tensor on the device of the container's first tensor.

    Raises NotATensorError if a leaf is not a tensor, or if there is no leaf, and ArgumentError for tensors of several
    backends. Costs three passes over the tensors.

    Example:
        >>> xdevice.item(xdevice.optim.global_norm({"a": xdevice.tensor([3.0]), "b": xdevice.tensor([4.0])}))
        5.0
    """
    return _norm(Rows("grads", flatten(grads)))


def _norm(rows: Rows) -> Any:
    """Returns the square root of the sum of the squares of all elements. Each row contains one tensor."""
    # each tensor's sum is computed on that tensor's device; only the sums are moved to the
    # device of the first tensor
    squares = rows.applied(lambda g: array_namespace(g).sum(g * g))
    xp = array_namespace(squares[0])
    return xp.sqrt(
        xp.sum(xp.stack([_moved_and_cast_like(square, squares[0]) for square in squares]))
    )


def clip_by_global_norm(grads: Any, max_norm: float) -> Any:
    """Returns the gradients, scaled down so that their `global_norm` is at most `max_norm`.

    Raises ArgumentError if `max_norm` is not a positive number, and the errors of `global_norm`. Costs one pass more
    than `global_norm`.

    Example:
        >>> clipped = xdevice.optim.clip_by_global_norm([xdevice.tensor([3.0]), xdevice.tensor([4.0])], 1.0)
        >>> [round(xdevice.item(g), 3) for g in clipped]
        [0.6, 0.8]
    """
    if isinstance(max_norm, bool) or not isinstance(max_norm, int | float) or not max_norm > 0:
        raise ArgumentError(
            f"clip_by_global_norm: max_norm must be a positive number, not {shown(max_norm)}"
        )
    walk = flatten(grads)
    with ScopesRemoved(backend_of(walk)):
        rows = Rows("grads", walk)
        norm = _norm(rows)
        # the factor is at most 1, because a norm below `max_norm` is replaced by `max_norm`.
        # `clip` is used because a compiler could not trace an `if` on a tensor
        factor = max_norm / array_namespace(norm).clip(norm, min=max_norm)
        factor_for = _per_parameter(factor)
        return rows.rebuilt(rows.applied(lambda g: g * factor_for(g)))


# schedules of the learning rate


def warmup(step: Any, steps: int) -> Any:
    """Returns a factor for the learning rate: `(step + 1) / steps` for the first `steps` steps, and 1 afterwards.

    Args:
        step: an int, or the "step" of a state. The result is a float for an int, and a 0-d tensor for
            the "step" of a state.

    Example:
        >>> [xdevice.optim.warmup(step, 4) for step in (0, 1, 3, 9)]
        [0.25, 0.5, 1.0, 1.0]
    """
    # a Python number needs no framework
    if isinstance(step, int | float):
        return min((step + 1) / steps, 1.0)
    xp = array_namespace(step)
    # the "step" of a state is int32, and is cast to a float before the division
    return xp.clip((xp.astype(step, xp.float32) + 1.0) / float(steps), max=1.0)


def cosine(step: Any, steps: int) -> Any:
    """Returns a factor for the learning rate. The factor falls from 1 to 0 within `steps` steps, along half a period of
    a cosine, and is 0 afterwards.

    The arguments are the same as for `warmup`. Both factors can be combined:
    `lr = 0.1 * warmup(step, 10) * cosine(step, 100)`.

    Example:
        >>> [xdevice.optim.cosine(step, 4) for step in (0, 2, 4, 9)]
        [1.0, 0.5, 0.0, 0.0]
    """
    if isinstance(step, int | float):
        # the cosine is rounded so that the factor is exactly 0.5 after half of the steps;
        # without rounding, cos(pi / 2) is 6e-17
        return 0.5 + 0.5 * round(math.cos(math.pi * min(step / steps, 1.0)), 15)
    xp = array_namespace(step)
    progress = xp.clip(xp.astype(step, xp.float32) / float(steps), max=1.0)
    return 0.5 + 0.5 * xp.cos(math.pi * progress)
