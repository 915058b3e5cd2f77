"""Moves Paddle's layers and optimizers in place, copies layers, and moves a `paddle.Model`, which
contains a layer and an optimizer."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

import paddle

from xdevice.contract import Way
from xdevice.contract.models import Models

from . import copying
from . import optimizer_states as optimizers
from .private import private

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from xdevice.base.devices import Device

_strategy = private.field("paddle.DataParallel._strategy")
_optimizer = private.field("paddle.Model._optimizer")
_KEPT: Final = frozenset((*vars(paddle.nn.Layer()), "_flat_weight"))
"""The names of the attributes that xdevice need not search for tensors. These are the attributes that every layer has,
and `_flat_weight`, the memory that the parameters of a recurrent layer share. After a move, each parameter has its own
memory, and nothing reads `_flat_weight` any more."""


def named_tensors(model: Any) -> Iterable[tuple[str, paddle.Tensor]]:
    """Yields the name and the tensor for all tensors that are moved with a layer or an optimizer."""
    if isinstance(model, paddle.nn.Layer):
        yield from model.named_parameters()
        # buffers without memory, such as one in an LSTM, have no device
        yield from ((name, x) for name, x in model.named_buffers() if has_memory(x))
        return
    for kind, state in optimizers.state(model).items():
        for name, value in state.items():
            # Adam stores the powers of its betas ("beta1_pow_acc") on the host, wherever the
            # parameter is, so these tensors do not show the device of the optimizer
            if not ("_pow" in kind and value.place.is_cpu_place()):
                yield f"{kind}[{name!r}]", value


def has_memory(x: paddle.Tensor) -> bool:
    """Whether a tensor has memory. A parameter created under LazyGuard has no memory before `initialize()`."""
    try:
        place = x.place
    # Paddle 2 raises this for the copy of a tensor without memory
    except RuntimeError:
        return False
    # only the string of a place shows that it is undefined. The first check is there because it is
    # faster
    return place.is_cpu_place() or "undefined" not in str(place)


def require_known(optimizer: Any, backend: Models) -> None:
    """Raises `UnsupportedError` if an optimizer stores tensors in unusual attributes, because such tensors would not be
    moved or saved. An example is LBFGS, which stores its state in an additional attribute `state`. The usual attributes
    contain the state, the parameters and the settings of Paddle's other optimizers."""
    # the tensors in the usual attributes
    ids = {
        id(x)
        for container in optimizers.containers_of_tensors(optimizer)
        for x in _tensors(container)
    }
    for name, value in vars(optimizer).items():
        if any(id(x) not in ids for x in _tensors(value)):
            raise backend.unsupported(
                f"moving or saving the optimizer {type(optimizer).__name__}, which stores tensors in its attribute "
                f"{name}",
                "move the optimizer before its first step, and save its state_dict() yourself",
            )


def _tensors(value: Any) -> Iterator[paddle.Tensor]:
    """Yields the tensors in `value`: `value` itself if it is a tensor, or the tensors inside dicts,
    lists and tuples at any depth."""
    if isinstance(value, paddle.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def move(model: Any, device: Device, backend: Models) -> None:
    """Moves the memory of all tensors of a layer or optimizer, including gradients, to a device. The tensors stay the
    same objects. For a sparse gradient, and for an optimizer that stores tensors in unusual attributes, raises
    `UnsupportedError` before anything is moved."""
    if not isinstance(model, paddle.nn.Layer):
        require_known(model, backend)
    moving = []
    for name, variable in named_tensors(model):
        gradient = variable.grad
        if gradient is not None and not gradient.is_dense():
            raise backend.unsupported(
                f"moving the sparse gradient of {name}", "call clear_grad() first"
            )
        moving += [variable] if gradient is None else [variable, gradient]
    # the tensors of learning rates are on the device of the optimizer's first step, and a kernel
    # on another GPU cannot read them
    rates = () if isinstance(model, paddle.nn.Layer) else optimizers.rates(model)
    moving += [x for x in rates if isinstance(x, paddle.Tensor) and not x.place.is_cpu_place()]
    for x in moving:
        if backend.device_of(x) is not device:
            copying.relocate(x, backend.to_native(device))


def copied(model: paddle.nn.Layer, device: Device, backend: Models) -> paddle.nn.Layer:
    """Returns a deep copy of a layer on a device. Raises `UnsupportedError` if the layer cannot
    be copied or moved."""
    twin = _duplicate(model, backend)
    move(twin, device, backend)
    return twin


def _duplicate(model: paddle.nn.Layer, backend: Models) -> paddle.nn.Layer:
    """Returns a deep copy of a layer, on the same device as the layer. Raises `UnsupportedError` if
    the layer contains an object that Python cannot copy."""
    layers = [model, *model.sublayers()]
    # the strategy of a DataParallel cannot be copied and never changes, so the copy shares it
    strategies = [
        _strategy(layer) for layer in layers if isinstance(layer, paddle.DataParallel)
    ]
    try:
        return copy.deepcopy(model, {id(strategy): strategy for strategy in strategies})
    except (TypeError, RuntimeError) as error:
        raise backend.unsupported(
            f"copying this {type(model).__name__} ({error})",
            "build a second model, and load the values into it: second.set_state_dict(model.state_dict())",
        ) from error


# paddle.Model


def _owned(model: paddle.Model) -> dict[str, Any]:
    """Returns a dict with the network of a `paddle.Model`, and its optimizer if it has one. The keys are the names of
    the attributes that contain them."""
    # the optimizer is None before `prepare`
    parts = {"network": model.network, "_optimizer": _optimizer(model)}
    return {name: part for name, part in parts.items() if part is not None}


class PaddleModels(Models):
    """Handles Paddle's layers and optimizers."""

    lists_layers = "paddle.nn.LayerList, LayerDict or ParameterList"

    def model_devices(self, model: Any) -> Iterable[tuple[str, Device]]:
        """Yields the name and the device of each tensor that is moved with a model. Raises
        `NotBuiltError` for a parameter without memory."""
        for name, variable in named_tensors(model):
            yield name, self.device_of(variable)

    def variables(self, model: Any) -> Iterable[tuple[str, paddle.Tensor]]:
        """Yields the name and the tensor of each variable of a layer, as in `state_dict`. For an optimizer, yields the
        name and the tensor of each part of its state; the name is, for example, "0.moment1" for the first parameter.
        Raises `NotBuiltError` for a parameter without memory, and `UnsupportedError` for an entry of `state_dict` that
        is not a tensor."""
        if isinstance(model, paddle.optimizer.Optimizer):
            require_known(model, self)
            yield from optimizers.variables(model)
            return
        for name, value in model.state_dict().items():
            if not isinstance(value, paddle.Tensor):
                raise self.unsupported(
                    f"listing {name} of this model, because it is of type {type(value).__qualname__} and not a tensor",
                    "save this value yourself",
                )
            self.device_of(value)  # raises NotBuiltError for a parameter without memory
            yield name, value

    def attributes_of(self, model: Any) -> Iterable[tuple[str, Any, Container[str]]]:
        """Returns a triple for a layer and for each of its sublayers: the path, the layer, and the
        names of Paddle's own attributes. Returns an empty list for an optimizer."""
        layers = (
            model.named_sublayers(include_self=True)
            if isinstance(model, paddle.nn.Layer)
            else ()
        )
        return [(path, layer, _KEPT) for path, layer in layers]

    def parameters_of(self, model: Any) -> Iterable[paddle.Tensor]:
        """Returns the parameters that an optimizer updates, which are not moved with the
        optimizer. Returns nothing for a layer, whose parameters are among its `variables`."""
        return (
            optimizers.parameters_of(model)
            if isinstance(model, paddle.optimizer.Optimizer)
            else ()
        )

    def move_held(self, x: paddle.Tensor, device: Device) -> paddle.Tensor:
        """Moves the memory of `x` and of its gradient to a device, and returns `x`. Does
        nothing for a parameter without memory."""
        if has_memory(x) and self.device_of(x) is not device:
            for tensor in (x, x.grad):
                if tensor is not None:
                    copying.relocate(tensor, self.to_native(device))
        return x

    def is_parameter(self, x: paddle.Tensor) -> bool:
        """Whether a tensor is a parameter."""
        # only parameters have this attribute
        return hasattr(x, "optimize_attr")

    def move_model(self, model: Any, device: Device) -> None:
        """Moves a layer or an optimizer in place."""
        move(model, device, self)

    def copy_model(self, model: Any, device: Device) -> Any:
        """Returns a copy of a layer on a device. Raises `UnsupportedError` for an optimizer."""
        if isinstance(model, paddle.nn.Layer):
            return copied(model, device, self)
        raise self.no_copy_of_optimizer(
            "copy the model, create an optimizer for the copy, and load the state with set_state_dict()"
        )

    def model_parts(self, model: Any) -> Iterable[Any]:
        """Returns a layer, its sublayers, and the parameters and buffers of all these layers. Returns nothing for an
        optimizer."""
        if not isinstance(model, paddle.nn.Layer):
            return ()
        return [model, *model.sublayers(), *model.parameters(), *model.buffers()]

    def gradients(
        self, model: Any
    ) -> Iterable[tuple[str, paddle.Tensor, paddle.Tensor | None]]:
        """Returns the name, the tensor and the gradient of each trainable parameter of a layer;
        the gradient is None before the first backward pass. Raises `UnsupportedError` for an
        optimizer."""
        if not isinstance(model, paddle.nn.Layer):
            raise self.unsupported(
                f"reading gradients of {type(model).__qualname__} objects", "pass the model"
            )
        return [
            (name, p, p.grad) for name, p in model.named_parameters() if not p.stop_gradient
        ]

    def container_way(self, x: Any) -> Way | None:
        """Returns the functions that move a `paddle.Model`, with its network and the optimizer that
        was passed to `prepare`. Returns None for any other object."""
        if not isinstance(x, paddle.Model):
            return None

        def moved(x: Any, device: Device) -> Any:
            """Moves the network and the optimizer of `x`, a `paddle.Model`, in place, and
            returns `x`."""
            for part in _owned(x).values():
                move(part, device, self)
            return x

        def no_copy(x: Any, device: Device) -> Any:
            """Raises `UnsupportedError`, because a `paddle.Model` cannot be copied."""
            raise self.unsupported(
                "copying a paddle.Model, whose optimizer belongs to its network",
                "create paddle.Model(xdevice.copy_to(model.network, device)), and call prepare() of the new model",
            )

        def tensors(x: Any) -> Iterator[tuple[str, Any]]:
            """Yields the path and the tensor for all tensors that are moved with `x`, a
            `paddle.Model`."""
            for name, part in _owned(x).items():
                yield from (
                    (f".{name}.{inner}", variable) for inner, variable in named_tensors(part)
                )

        return Way(move=moved, copy=no_copy, tensors=tensors)
