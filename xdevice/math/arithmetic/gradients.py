"""`value_and_grad`, `grad` and `stop_gradient`: gradients with respect to containers of
tensors.

This module contains the rules that are the same for all frameworks: which values may be parameters, which values may be
a loss, and which gradient a parameter has if the loss does not depend on it. An adapter only differentiates a function
of a list of tensors.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from xdevice.base.dtypes import FLOATS, dtype_name
from xdevice.containers import trees
from xdevice.core import registry
from xdevice.errors import (
    ArgumentError,
    DTypeError,
    NotATensorError,
    ShapeError,
    shown,
)

from .scopes import ScopesRemoved

if TYPE_CHECKING:
    from collections.abc import Callable

    from xdevice.containers.trees import Tree, Walked
    from xdevice.contract import Backend

is_differentiating: ContextVar[bool] = ContextVar("xdevice_gradients", default=False)
"""Whether this thread or task is inside a function that `value_and_grad` differentiates."""

backend_by_type: dict[type, Backend] = {}
"""The backend of each type of tensor that has been a parameter so far. The dict does not contain types of symbols."""


def value_and_grad(f: Callable[..., Any], *, has_aux: bool = False) -> Callable[..., Any]:
    """Returns a function that computes the value of `f` and its gradients with respect to its first argument.

    Experimental: it may change in a minor version.

    `value_and_grad(f)(params, *args)` calls `f(params, *args)` and returns `(value, grads)`. Costs as much as the
    framework's own function, plus about 10 us. docs/reference/arithmetic.md contains all rules.

    Args:
        f: a function of `params`, which is a tensor of floats or a container of such tensors, on any devices. `f` must
            return one float: a 0-d tensor. `grads` has the structure, shapes and dtypes of `params`.
        has_aux: whether `f` returns `(loss, aux)`. `aux` is any object, and the result is `((value, aux), grads)`.

    | backend | differentiates with |
    |---|---|
    | torch | `torch.autograd.grad` |
    | tensorflow | `tf.GradientTape` |
    | mxnet | `autograd.record`, in training mode, and `autograd.grad` |
    | paddle | `paddle.grad` |
    | jax | `jax.value_and_grad` |

    Raises:
        NotATensorError, DTypeError, ShapeError: a parameter or the loss is not a tensor of floats of 16, 32 or 64 bits;
            there are no parameters; or the loss has dimensions.
        ArgumentError: the tensors belong to several backends, or the loss does not depend on any parameter.
        UnsupportedError: the backend has no gradients (NumPy) or no second gradients, or a parameter is sparse.

    Example:
        >>> step = xdevice.math.value_and_grad(lambda params: (params["w"] * params["w"]).sum())
        >>> with xdevice.use_backend("torch"):
        ...     value, grads = step({"w": xdevice.tensor([1.0, 2.0])})
        >>> xdevice.item(value), grads["w"].tolist()
        (5.0, [2.0, 4.0])
    """
    if not callable(f):
        raise not_callable_error("value_and_grad", f)

    @wraps(f)
    def differentiated(params: Any, *args: Any, **kwargs: Any) -> Any:
        return registry.call_outside_compilers(
            partial(_differentiated, f, has_aux, params, args, kwargs)
        )

    return differentiated


def grad(f: Callable[..., Any], *, has_aux: bool = False) -> Callable[..., Any]:
    """Returns a function that computes the gradients of `f` with respect to its first argument, but does not return
    the value of `f`.

    Experimental: it may change in a minor version.

    Args:
        f: a function that returns one float.
        has_aux: whether `f` returns `(loss, aux)`. The result is then `(grads, aux)`.

    The rules, the errors and the cost are the same as for `value_and_grad`.

    Example:
        >>> slope = xdevice.math.grad(xdevice.math.grad(lambda x: x * x * x))
        >>> with xdevice.use_backend("torch"):
        ...     xdevice.item(slope(xdevice.tensor(2.0)))
        12.0
    """
    if not callable(f):
        raise not_callable_error("grad", f)
    # the value of `f` is always computed together with its gradients
    value_and_gradients = value_and_grad(f, has_aux=has_aux)

    @wraps(f)
    def differentiated(params: Any, *args: Any, **kwargs: Any) -> Any:
        value, grads = value_and_gradients(params, *args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return differentiated


def stop_gradient(x: Any) -> Any:
    """Returns the values of `x` as constants: no gradient flows through the result to the tensors from which `x` was
    computed.

    Experimental: it may change in a minor version.

    Args:
        x: a tensor, or a container of tensors; other values in the container remain unchanged.

    The result shares the memory of `x` if the framework supports that, so do not write into `x` or the result. On
    NumPy, which has no gradients, the result is `x` itself.

    Raises:
        NotATensorError: `x` contains no tensor, or contains a model. ContainerError: an object that contains tensors
            has an unknown type.

    Costs as much as the framework's own function for each tensor, plus 2 us.

    Example:
        >>> with xdevice.use_backend("torch"):
        ...     slope = xdevice.math.grad(lambda x: x * xdevice.math.stop_gradient(x))(xdevice.tensor(3.0))
        >>> xdevice.item(slope)
        3.0
    """
    return registry.call_outside_compilers(partial(trees.map_leaves, x, _stopped))


def _stopped(leaves: list[Any]) -> list[Any]:
    """Returns the leaves of a container, with each tensor replaced by a constant with the same values. Raises
    `NotATensorError` if there is no tensor, or if there is a model."""
    stopped = []
    has_tensor = False
    for x in leaves:
        # `owned` contains the backend of `x` and its kind: "tensor", "symbol" or "model". It is
        # None for any other value, which remains unchanged
        owned = registry.owner_and_kind(type(x))
        # a variable is replaced by the tensor in it; other models are refused
        if owned is not None and owned.kind == "model":
            tensor = owned.backend.tensor_of(x)
            if tensor is None:
                raise NotATensorError(
                    f"stop_gradient accepts tensors, not models such as this object of type {type(x).__qualname__}; "
                    "pass the model's parameters in a list or dict"
                )
            x = tensor
        # a container without any tensor is probably a mistake
        has_tensor |= owned is not None
        stopped.append(x if owned is None else owned.backend.stop_gradient(x))
    if not has_tensor:
        raise NotATensorError(
            f"stop_gradient needs at least one tensor, but there is none in {shown(leaves)}"
        )
    return stopped


def _differentiated(
    f: Callable[..., Any],
    has_aux: bool,
    params: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Returns the value of `f` and its gradients with respect to the container `params`. With `has_aux`, the value is
    the pair `(value, aux)`. PyTorch's open `with device:` scopes would slow down the computation, so they are removed
    until it ends. They are open again only while `f` itself runs."""
    walk = trees.flatten(params)
    with ScopesRemoved(backend_of(walk)) as removed:
        return _value_and_gradients(removed.with_scopes(f), has_aux, walk, args, kwargs)


def _value_and_gradients(
    f: Callable[..., Any],
    has_aux: bool,
    walk: Walked,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Returns the pair of the value of `f` and its gradients. If `has_aux` is True, the value is the pair
    `(value, aux)`. `walk` is the result of `trees.flatten` for the container of parameters; `args` and `kwargs` are the
    other arguments of `f`, which follow the container. The adapter calls `f` with its own tensors in place of the
    parameters, and differentiates `f`."""
    backend, leaves = backend_and_tensors(walk, "params", needs_floats=True)
    # the container `aux`. Its leaves pass through the adapter, which detaches the tensors among
    # them
    aux_trees: list[Tree] = []

    def call(inputs: list[Any]) -> tuple[Any, list[Any]]:
        """Calls `f` with `inputs` in place of the parameters. Returns the loss, and the leaves of
        `aux`. The contract promises that the adapter calls this function once, so `aux_trees` has one item
        afterwards."""
        loss = f(trees.rebuild(walk, inputs), *args, **kwargs)
        if has_aux:
            loss, aux = _loss_and_aux(loss)
            aux_trees.append(trees.Tree(aux))
        loss = registry.as_array(loss)
        _require_loss(loss, backend)
        return loss, aux_trees[0].leaves if has_aux else []

    # inside another function that is being differentiated, gradients must flow through the
    # result
    nested = is_differentiating.get()
    token = is_differentiating.set(True)
    try:
        value, gradients, aux_leaves = backend.value_and_grad(leaves, call, nested)
    finally:
        is_differentiating.reset(token)
    # an adapter returns None as the gradient of a parameter on which the loss does not depend;
    # here, None is replaced by zeros. A loop is used because `None in gradients` would call the
    # `==` of tensors
    for g in gradients:
        if g is None:
            gradients = _with_zeros(gradients, leaves, backend)
            break
    grads = trees.rebuild(walk, gradients)
    return ((value, aux_trees[0].rebuilt(aux_leaves)), grads) if has_aux else (value, grads)


# checks of arguments, for this module and `updating`


def not_callable_error(name: str, f: object) -> ArgumentError:
    """Returns the error for a call of the function `name` with an argument `f` that is not callable."""
    return ArgumentError(
        f"{name} expects a function, not {shown(f)} of type {type(f).__qualname__}"
    )


def backend_and_tensors(
    walk: Walked, name: str, needs_floats: bool = False
) -> tuple[Backend, list[Any]]:
    """Returns the backend and the tensors of a container of parameters or gradients. `walk` is the result of
    `trees.flatten` for the container. Raises `NotATensorError` for a leaf that is not a tensor and for a container
    without leaves, and `ArgumentError` for tensors of several backends. If `needs_floats` is True, also raises
    `DTypeError` for a tensor that does not contain floats, and `UnsupportedError` for a tensor that is not dense.
    `name` is the container name to show in error messages."""
    # the fast case: all tensors have the same type, and tensors of that type have been
    # parameters before. `walk[1]` contains the leaves. If something is wrong,
    # `_parameters_one_by_one` raises the error
    backend, leaves = backend_of(walk), walk[1]
    if backend is None:
        return _parameters_one_by_one(walk, name, needs_floats)
    if needs_floats and not (_are_floats(leaves) and all(map(backend.is_dense, leaves))):
        return _parameters_one_by_one(walk, name, needs_floats)
    return backend, leaves


def backend_of(walk: Walked) -> Backend | None:
    """Returns the backend of the tensors in a container. Returns None unless three conditions are met: all leaves have
    the same type; tensors of that type have been parameters before; and the backend may be used in this process (its
    `refusal` is None). `walk` is the result of `trees.flatten` for the container."""
    # maps the ids of the leaves' types to the types
    kinds = walk[2]
    backend = backend_by_type.get(next(iter(kinds.values()))) if len(kinds) == 1 else None
    return backend if backend is not None and backend.refusal is None else None


def _parameters_one_by_one(
    walk: Walked, name: str, needs_floats: bool
) -> tuple[Backend, list[Any]]:
    """Returns the result of `backend_and_tensors`, which has the same arguments, or raises its errors. This slower
    function is used for types that have not been parameters before, and whenever an error must be raised."""
    # None in place of the container, because the walk contains it. The first tensor sets the backend
    tree, backend = trees.Tree(None, walk=walk), None
    leaves = []
    for i, x in enumerate(tree.leaves):
        owned = registry.owner_and_kind(type(x))
        # a variable is replaced by the tensor in it
        if owned is not None and owned.kind == "model":
            x = owned.backend.tensor_of(x)
        # a number, a string, or a model other than a variable
        if owned is None or x is None:
            raise _not_a_tensor_error(name, tree, i)
        if backend is None:
            backend = owned.backend
        # the first leaf has set `backend`, so the error names it as the other tensor
        elif owned.backend is not backend:
            raise two_backends_error(
                f"{name}{tree.path(0)}", backend, f"{name}{tree.path(i)}", owned.backend
            )
        if needs_floats and dtype_name(x.dtype) not in FLOATS:
            raise DTypeError(
                f"{name}{tree.path(i)} has dtype {dtype_name(x.dtype)}, but only {', '.join(FLOATS)} support "
                f"gradients; pass this tensor in another argument, not in {name}: "
                f"value_and_grad(f)({name}, x) calls f({name}, x)"
            )
        if owned.kind == "tensor":
            if needs_floats and not backend.is_dense(x):
                raise backend.unsupported(
                    f"gradients with respect to {name}{tree.path(i)}, which is not dense",
                    "convert this tensor to a dense tensor first",
                )
            # only the types of tensors are stored, because a symbol belongs to a single trace
            backend_by_type[type(x)] = backend
        leaves.append(x)
    if backend is None:
        raise NotATensorError(
            f"{name} must contain at least one tensor, but there is none in {shown(tree.rebuilt(tree.leaves))}"
        )
    return backend, leaves


def _not_a_tensor_error(name: str, tree: Tree, i: int) -> NotATensorError:
    """Returns the error for the leaf with the index `i`, which is not a tensor. The error calls the container `name`,
    and says what to do with the leaf."""
    x = tree.leaves[i]
    owned = registry.owner_and_kind(type(x))
    remedy = f"remove the object from {name}, and pass it in another argument, as in value_and_grad(f)(params, x)"
    if owned is not None:
        remedy = "pass a dict of its parameters instead"
    elif isinstance(x, int | float):
        remedy += ", or convert the number with xdevice.tensor"
    return NotATensorError(
        f"{name}{tree.path(i)} is {shown(x)} of type {type(x).__qualname__}; expected a tensor or a container that "
        f"contains only tensors; {remedy}"
    )


def two_backends_error(
    name: str, backend: Backend, other_name: str, other_backend: Backend
) -> ArgumentError:
    """Returns the error for two tensors of different backends. The tensor called `name` belongs to `backend`, and the
    tensor called `other_name` belongs to `other_backend`."""
    return ArgumentError(
        f"{name} belongs to {backend.name}, but {other_name} belongs to {other_backend.name}; convert one of them "
        f"with xdevice.convert(x, {backend.name!r})"
    )


def _are_floats(tensors: list[Any]) -> bool:
    """Whether all tensors have float dtypes, the only dtypes for which gradients are computed."""
    last: Any = None
    for x in tensors:
        # the name is looked up only if the dtype differs from that of the previous tensor,
        # because the lookup takes a microsecond on Paddle
        if x.dtype is not last:
            last = x.dtype
            if dtype_name(last) not in FLOATS:
                return False
    return True


# checks of the loss, and zeros for parameters on which the loss does not depend


def _loss_and_aux(result: Any) -> tuple[Any, Any]:
    """Returns the two items of `result`, the loss and `aux`. `result` is the value that the user's function returned
    when `has_aux` was True. Raises `ArgumentError` if `result` is not a tuple of two items."""
    if isinstance(result, tuple) and len(result) == 2:
        return result
    raise ArgumentError(
        f"with has_aux=True, the function must return (loss, aux), not {shown(result)}"
    )


def _require_loss(loss: Any, backend: Backend) -> None:
    """Raises an error unless `loss`, the result of the user's function, is a single float of the parameters' backend.
    The error is `NotATensorError`, `ArgumentError` (for another backend), `DTypeError` or `ShapeError`."""
    owned = registry.owner_and_kind(type(loss))
    if owned is None or owned.kind == "model":
        raise NotATensorError(
            f"the function returned {shown(loss)} of type {type(loss).__qualname__}; expected the loss, a tensor that "
            "contains one float computed from the parameters"
        )
    if owned.backend is not backend:
        raise ArgumentError(
            f"the loss belongs to {owned.backend.name}, but the parameters belong to {backend.name}; no gradient flows "
            "through NumPy or another framework, so compute the loss with the framework of the parameters"
        )
    dtype = dtype_name(loss.dtype)
    if dtype not in FLOATS:
        raise DTypeError(
            f"the function returned a loss of dtype {dtype}; expected one of {', '.join(FLOATS)}"
        )
    # an unknown rank is None; the rank may be 0, so this is not an error
    rank = _rank(loss)
    if rank:
        raise ShapeError(
            f"the function returned a loss of shape {tuple(loss.shape)}; expected one number: take the mean or sum "
            f"of the loss"
        )


def _rank(x: Any) -> int | None:
    """Returns the number of dimensions of a tensor, or None if it is unknown while a function is traced."""
    try:
        return len(x.shape)
    # raised by `len` for a TensorFlow shape whose rank is unknown
    except ValueError:
        return None


def _with_zeros(gradients: list[Any], leaves: list[Any], backend: Backend) -> list[Any]:
    """Returns the gradients, with each None replaced by zeros. `leaves` are the parameters in the same order. Raises
    `ArgumentError` if all gradients are None, which means that the loss does not depend on any parameter."""
    if all(g is None for g in gradients):
        raise ArgumentError(
            f"the loss does not depend on any parameter through operations that {backend.name} records; compute it "
            "from the function's arguments, without calls such as to_numpy, item or detach in between"
        )
    return [
        _zeros(x, backend) if g is None else g for x, g in zip(leaves, gradients, strict=True)
    ]


def _zeros(x: Any, backend: Backend) -> Any:
    """Returns a tensor of zeros with the shape, dtype and device of the parameter `x`."""
    if type(x) in backend_by_type:
        return backend.full(tuple(x.shape), 0.0, backend.device_of(x), dtype_name(x.dtype))
    # x is a symbol of a traced function
    return backend.namespace().full_like(x, 0.0, dtype_name(x.dtype))
